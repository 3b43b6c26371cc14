// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	driver "github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// asking is a driver that notes which products its devices are asked for.
type asking struct {
	driver.Driver
	list []driver.Product
}

func (a *asking) Open(i int) (driver.Device, error) {
	d, err := a.Driver.Open(i)
	return askingDevice{d, a}, err
}

type askingDevice struct {
	driver.Device
	of *asking
}

func (d askingDevice) Blas() (driver.Blas, error) {
	b, err := d.Device.Blas()
	return askingBlas{b, d.of}, err
}

type askingBlas struct {
	driver.Blas
	of *asking
}

func (b askingBlas) MatMul(s driver.Stream, p driver.Product, o driver.Operands, workspace driver.Ptr) error {
	b.of.list = append(b.of.list, p)
	return b.Blas.MatMul(s, p, o, workspace)
}

// Whatever the vocabulary, half products have rows and sizes of multiples of 16 bytes, for which cuBLASLt has its fast
// kernels; and the estimate knows what memory that takes.
func TestTheHeadsProductsAreAligned(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, for which TestBits is enough
	}
	a := &asking{Driver: fake.New(fake.Options{})}
	b, err := backend.Open(a, 0)
	require.NoError(t, err)
	d := joint.Device[*tensor.Device](b)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	var as *args.TrainingArguments
	set := func(a *args.TrainingArguments) { a.BF16, a.GlobalTrainBatchSize, as = true, 0, a }
	runWith(t, set, newGPT2(t, tensor.Float32), 3, 1, trainer.WithDevice(d))
	require.NotEmpty(t, a.list)
	half := 0
	for _, p := range a.list {
		for _, m := range []driver.Matrix{p.A, p.B, p.D} {
			if m.Type != driver.R32F {
				half++
				require.Zero(t, m.Rows*2%16, "%+v", p)
				require.Zero(t, m.LD*2%16, "%+v", p)
			}
		}
	}
	require.NotZero(t, half)
	peak := d.MemStats().Peak
	e, err := trainer.EstimateMemory(as, d, 1,
		func(in *nn.Init) (models.Model, error) { return newGPT2In(t, in), nil },
		func(c *tensor.Ctx, n int) *data.Batch {
			batch, err := data.CausalLM(0)(c, slices.Repeat([][]int32{make([]int32, 12)}, n))
			require.NoError(t, err)
			return batch
		})
	require.NoError(t, err)
	require.Equal(t, peak, e.Peak)
}
