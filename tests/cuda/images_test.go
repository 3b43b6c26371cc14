// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	driver "github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// pictures are noise that is brighter on the side that the label names.
func pictures(n int) data.Source {
	r := rand.New(rand.NewPCG(8, 2))
	list := make(data.Slice[images.Image], n)
	for i := range list {
		p := images.Image{Pixels: make([]uint8, 16*14), Height: 16, Width: 14, Label: r.Int64N(2)}
		for k := range p.Pixels {
			p.Pixels[k] = uint8(r.IntN(128))
			if (k%14 < 7) == (p.Label == 0) {
				p.Pixels[k] += 100
			}
		}
		list[i] = p
	}
	return data.NewSource(list, images.Normalization{Mean: []float64{0.5}, Std: []float64{0.25}}.Collate)
}

func newResNet(t *testing.T) *resnet.Model {
	t.Helper()
	cfg := resnet.DefaultConfig()
	cfg.NumChannels, cfg.EmbeddingSize, cfg.HiddenSizes, cfg.Depths = 1, 4, []int{8, 8}, []int{1, 1}
	cfg.ID2Label = models.Labels("left", "right")
	m, err := resnet.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	return m
}

// Convolutions by cuDNN, and by products where there is no cuDNN, train as the CPU's, and each have the same bits again
// and on two ranks, in a half type too. Once memory is there a step takes none.
func TestImages(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, for which TestBits is enough
	}
	for _, half := range []bool{false, true} {
		t.Run(map[bool]string{false: "float32", true: "bf16"}[half], func(t *testing.T) { trainImages(t, half) })
	}
}

func trainImages(t *testing.T, half bool) {
	plain := func(a *args.TrainingArguments) { a.LearningRate, a.BF16 = 1e-3, half } // or small differences grow
	first, later := 1e-5, 1e-4
	if half { // the CPU multiplies by kernels that are not rounded
		first, later = 1e-2, 3e-2
	}
	want, _, _ := runOn(t, pictures(64), plain, newResNet(t), 6, 1)
	for name, o := range map[string]fake.Options{"cuDNN": {}, "products": {NoDnn: true}} {
		var same map[string][]byte
		for i, ranks := range []int{1, 1, 2} {
			o.Seed = uint64(i)
			backends, devices := machine(t, ranks, o)
			var allocs []int64
			see := recorder{begin: func() {}, end: func() { allocs = append(allocs, backends[0].DeviceAllocs()) }}
			got, _, bits := runOn(t, pictures(64), plain, newResNet(t), 6, ranks,
				append(devicesOf(devices), trainer.WithCallbacks(see))...)
			require.InDelta(t, want[0], got[0], first, name)
			require.InDeltaSlice(t, want, got, later, name)
			require.Empty(t, devices[0].Composed(), name)
			if i == 0 {
				same = bits
			}
			require.Equal(t, same, bits, "%s, %d ranks", name, ranks)
			require.Equal(t, allocs[2], allocs[5], name)
		}
	}
}

// dnnDriver is a machine that notes the types of the convolutions that its device computes by cuDNN.
type dnnDriver struct {
	*fake.Driver
	types map[driver.DataType]int
}

func (d dnnDriver) Open(i int) (driver.Device, error) {
	dev, err := d.Driver.Open(i)
	return dnnDevice{dev, d.types}, err
}

type dnnDevice struct {
	driver.Device
	types map[driver.DataType]int
}

func (d dnnDevice) Dnn() (driver.Dnn, error) {
	lib, err := d.Device.Dnn()
	return dnnLibrary{lib, d.types}, err
}

type dnnLibrary struct {
	driver.Dnn
	types map[driver.DataType]int
}

func (l dnnLibrary) Convolve(s driver.Stream, c driver.Convolution, o driver.ConvolutionOperands,
	workspace driver.Ptr) error {
	l.types[c.Type]++
	return l.Dnn.Convolve(s, c, o, workspace)
}

// Under bf16 all convolutions of a model and their gradients are bfloat16's, without a detour through float32.
func TestHalfConvolutions(t *testing.T) {
	for half, want := range map[bool]driver.DataType{false: driver.R32F, true: driver.R16BF} {
		asked := dnnDriver{fake.New(fake.Options{Seed: 1}), map[driver.DataType]int{}}
		b, err := backend.Open(asked, 0)
		require.NoError(t, err)
		b.SetGraphs(backend.Graphs{Off: true})
		dev := joint.Device[*tensor.Device](b)
		runOn(t, pictures(8), func(a *args.TrainingArguments) { a.BF16 = half }, newResNet(t), 1, 1,
			trainer.WithDevice(dev))
		require.NoError(t, dev.Close())
		require.Len(t, asked.types, 1)
		require.Positive(t, asked.types[want])
	}
}
