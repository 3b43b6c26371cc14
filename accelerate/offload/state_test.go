// SPDX-License-Identifier: Apache-2.0

package offload_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/offload"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// envState has the bytes of the optimizer's state of TestStateOnDisk; 1500000000 takes a minute and 3 GB of memory.
const envState = "LOCKSTEP_OFFLOAD_STATE"

// An optimizer whose state is in files steps with the bits of one in memory, and its state takes no memory of the
// device's.
func TestStateOnDisk(t *testing.T) {
	size := 24_000_000
	if text := os.Getenv(envState); text != "" {
		var err error
		size, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	n := size / 8 // parameters, of two moments of four bytes
	run := func(disk bool) (hash string, inUse int64) {
		dev := tensor.NewCPU(2)
		defer dev.Close()
		c := tensor.NewCtx(dev).NoGrad()
		p := tensor.Normal(c, tensor.Float32, 3, 0, 1, n).SetRequiresGrad(true)
		opt := optim.DefaultAdamW().New(c, []*optim.Group{{Params: []tensor.Named{{Name: "p", Tensor: p}}, LR: 1e-2,
			WeightDecay: 0.1}})
		if disk {
			s, err := offload.New(t.TempDir())
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			require.NoError(t, opt.KeepState(s.Zeros))
			require.InDelta(t, size, s.Bytes(), 8)
		}
		for step := range uint64(3) {
			g := tensor.Normal(c, tensor.Float32, 7+step, 0, 1, n)
			p.SwapGrad(g, true)
			opt.Step(c)
			p.SwapGrad(nil, false)
			g.Free()
		}
		c.Sync()
		inUse = dev.MemStats().InUse
		h := sha256.New()
		h.Write(tensor.ReadBytes(c, p))
		for _, name := range []string{"p.exp_avg", "p.exp_avg_sq"} {
			h.Write(tensor.ReadBytes(c, opt.State().Tensors[name]))
		}
		return fmt.Sprintf("%x", h.Sum(nil)), inUse
	}
	want, inMemory := run(false)
	got, onDisk := run(true)
	require.Equal(t, want, got)
	require.InDelta(t, size, inMemory-onDisk, float64(size)/100)
}
