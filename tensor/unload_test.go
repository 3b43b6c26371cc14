// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// A weight may be away between forward and backward: the gradient is the one without, and memory falls by its size.
func TestUnload(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer func() { require.NoError(t, dev.Close()) }()
	c := tensor.NewCtx(dev)
	const bytes = 64 * 64 * 4
	w := tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1, 64, 64).SetRequiresGrad(true)
	x := tensor.Normal(c.NoGrad(), tensor.Float32, 2, 0, 1, 8, 64).SetRequiresGrad(true)
	values := tensor.ToSlice[float32](c, w)
	reload := func() { w.Reload(tensor.FromSlice(c, values, 64, 64)) }
	step := func(between func()) (bits [][]byte) {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y := tensor.Linear(c, x, w, nil)
			loss := tensor.Sum(c, tensor.Mul(c, y, y), nil, false)
			between()
			tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
			return nil
		})
		for _, l := range []*tensor.Tensor{x, w} {
			bits = append(bits, tensor.ReadBytes(c, l.Grad()))
			l.ZeroGrad()
		}
		return bits
	}
	want := step(func() {})
	before := dev.MemStats().InUse
	require.Equal(t, want, step(func() {
		with := dev.MemStats().InUse
		view := tensor.Select(c.NoGrad(), w, 0, 1)
		w.Unload()
		require.True(t, w.Unloaded())
		require.True(t, view.Unloaded())
		require.EqualValues(t, with-bytes, dev.MemStats().InUse)
		require.ErrorContains(t, tensor.Try(func() { tensor.Sum(c, view, nil, false) }),
			"used while its memory is unloaded: Reload it first")
		reload()
		require.False(t, view.Unloaded())
	}))
	require.Equal(t, before, dev.MemStats().InUse)

	// A graph that saved it refuses to run without it, and gives it up; so does one that is never run.
	require.ErrorContains(t, tensor.Try(func() { step(w.Unload) }), "Reload it first")
	reload()
	x.ZeroGrad()
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		tensor.Linear(c, x, w, nil)
		w.Unload()
		return nil
	})
	require.Equal(t, before-bytes, dev.MemStats().InUse)
	reload()
	require.Equal(t, want, step(func() {}))

	// A change before it went away is still a change.
	require.ErrorContains(t, tensor.Try(func() {
		step(func() {
			tensor.ScaleInto(c.NoGrad(), w, 2)
			w.Unload()
			reload()
		})
	}), "was changed in place since")

	w.Unload()
	w.Free()
	require.False(t, w.Unloaded())
	require.ErrorContains(t, tensor.Try(func() { tensor.Sum(c, w, nil, false) }), "used after it was freed")
}

func TestUnloadRefuses(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	w := tensor.Ones(c, tensor.Float32, 4)
	require.ErrorContains(t, tensor.Try(func() { w.Reload(tensor.Ones(c, tensor.Float32, 4)) }), "it is not unloaded")
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		require.ErrorContains(t, tensor.Try(tensor.Ones(c, tensor.Float32, 4).Unload), "outside of every Scope")
		return nil
	})
	w.Unload()
	require.ErrorContains(t, tensor.Try(w.Unload), "its memory is not there")
	require.ErrorContains(t, tensor.Try(func() { w.Reload(tensor.Ones(c, tensor.Float32, 5)) }), "want 16 bytes")
	half := tensor.Zeros(c, tensor.BFloat16, 8)
	w.Reload(half)
	require.Equal(t, []float32{0, 0, 0, 0}, tensor.ToSlice[float32](c, w))
	require.ErrorContains(t, tensor.Try(func() { tensor.Sum(c, half, nil, false) }), "used after it was freed")
}

// A tensor that was withdrawn comes back when it is used, and its views stay; nothing is copied or freed.
func TestWithdraw(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer func() { require.NoError(t, dev.Close()) }()
	c := tensor.NewCtx(dev).NoGrad()
	flat := tensor.FromSlice(c, []float32{0, 1, 2, 3, 4, 5, 6}, 7)
	w := tensor.Reshape(c, tensor.Slice(c, flat, 0, 1, 7), 2, 3)
	before := dev.MemStats().InUse
	kept := w.Withdraw()
	require.True(t, w.Unloaded())
	require.False(t, flat.Unloaded())
	require.Equal(t, before, dev.MemStats().InUse)
	require.ErrorContains(t, tensor.Try(func() { tensor.ToSlice[float32](c, w) }), "its memory is unloaded")
	came := 0
	w.OnMissing(func() {
		came++
		w.Return(kept)
	})
	tensor.FillInto(c, kept, 7)
	require.Equal(t, []float32{7, 7, 7, 7, 7, 7}, tensor.ToSlice[float32](c, w))
	require.Equal(t, []float32{0, 7, 7, 7, 7, 7, 7}, tensor.ToSlice[float32](c, flat))
	require.Equal(t, 1, came)
	require.Equal(t, before, dev.MemStats().InUse)
}
