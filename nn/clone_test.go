// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

type cloned struct {
	Layers []*nn.Linear
	Tied   *nn.Linear
	First  [2]*nn.Parameter
	ByName map[string]*nn.Parameter
	Any    nn.Module
	Buffer *tensor.Tensor
	Size   *int
	Text   string
	Values []float64
	Self   *cloned
	Nil    *nn.Linear
	NilAny any
	Func   func() // nil: nothing to copy
	Chan   chan int
	lazy   *int
}

func newCloned() *cloned {
	c := tensor.NewCtx(tensor.CPU())
	a, b := linear(), linear()
	n := 7
	m := &cloned{
		Layers: []*nn.Linear{a, b}, Tied: a, First: [2]*nn.Parameter{b.Weight, vector(2)},
		ByName: map[string]*nn.Parameter{"bias": b.Bias}, Any: &nn.Dropout{P: 0.25},
		Buffer: tensor.Arange(c, tensor.Int64, 0, 1, 4), Size: &n, Text: "text", Values: []float64{1, 2},
	}
	m.Self = m
	b.Bias.SetRequiresGrad(false)
	return m
}

func TestClone(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	m := newCloned()
	a := m.Layers[0]
	a.Weight.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { t.Error("a hook was copied") })
	a.Weight.SwapGrad(tensor.Ones(tensor.NewCtx(tensor.CPU()), tensor.Float32, 2, 2), true)

	n, err := nn.Clone(m, dev)
	require.NoError(t, err)
	require.Equal(t, names(m), names(n))
	require.Same(t, n, n.Self)
	require.Same(t, n.Layers[0], n.Tied)
	require.Same(t, n.Layers[1].Weight, n.First[0])
	require.Same(t, n.Layers[1].Bias, n.ByName["bias"])
	require.NotSame(t, m.Layers[0], n.Layers[0])
	require.NotSame(t, m.Size, n.Size)
	require.Equal(t, 7, *n.Size)
	require.Equal(t, "text", n.Text)
	require.Equal(t, &nn.Dropout{P: 0.25}, n.Any)
	require.NotSame(t, m.Any, n.Any)
	n.Values[0] = 9
	require.Equal(t, 1.0, m.Values[0])
	require.Nil(t, n.Nil)
	require.Nil(t, n.NilAny)

	c, d := tensor.NewCtx(tensor.CPU()), tensor.NewCtx(dev)
	for i, p := range nn.NamedParameters(m) {
		q := nn.NamedParameters(n)[i]
		require.Same(t, dev, q.Device())
		require.Equal(t, tensor.ReadBytes(c, p.Tensor), tensor.ReadBytes(d, q.Tensor), p.Name)
		require.Equal(t, p.IsLeaf(), q.IsLeaf(), p.Name)
		require.Nil(t, q.Grad(), p.Name)
	}
	require.False(t, n.Layers[1].Bias.IsLeaf(), "what is frozen stays frozen")
	require.Equal(t, []int64{0, 1, 2, 3}, tensor.ToSlice[int64](d, n.Buffer))
	tensor.FillInto(d.NoGrad(), n.Layers[0].Weight.Tensor, 0)
	require.NotEqual(t, tensor.ReadBytes(c, a.Weight.Tensor), tensor.ReadBytes(d, n.Layers[0].Weight.Tensor))
	tensor.Backward(d, []*tensor.Tensor{tensor.Sum(d, n.Layers[0].Weight.Tensor, nil, false)}, nil, nil)
}

// Two Parameters over one tensor stay over one tensor.
func TestCloneSharedTensor(t *testing.T) {
	w := vector(2)
	m := &inner{W: w, B: &nn.Parameter{Tensor: w.Tensor}}
	n, err := nn.Clone(m, tensor.CPU())
	require.NoError(t, err)
	require.Same(t, n.W.Tensor, n.B.Tensor)
	require.NotSame(t, m.W.Tensor, n.W.Tensor)
}

func TestCloneRefuses(t *testing.T) {
	const help = " cannot be copied: build each rank's model with trainer.WithModelInit"
	n := 1
	for _, k := range []struct {
		change func(m *cloned)
		want   string
	}{
		{func(m *cloned) { m.Func = func() {} }, "nn.Clone: *nn_test.cloned.Func: a func()" + help},
		{func(m *cloned) { m.Chan = make(chan int) }, "nn.Clone: *nn_test.cloned.Chan: a chan int" + help},
		{func(m *cloned) { m.Any = func() {} }, "nn.Clone: *nn_test.cloned.Any: a func()" + help},
		{func(m *cloned) { m.Self = &cloned{Func: func() {}} }, "nn.Clone: *nn_test.cloned.Self.Func: a func()" + help},
		{func(m *cloned) { m.NilAny = []any{1, struct{ F func() }{func() {}}} },
			"nn.Clone: *nn_test.cloned.NilAny[1].F: a func()" + help},
		{func(m *cloned) { m.NilAny = map[string]any{"k": func() {}} },
			"nn.Clone: *nn_test.cloned.NilAny[k]: a func()" + help},
		{func(m *cloned) {
			m.lazy = &n
		}, "nn.Clone: *nn_test.cloned.lazy: an unexported field with a value cannot be copied: " +
			"export it, or build each rank's model with trainer.WithModelInit"},
	} {
		m := newCloned()
		k.change(m)
		n, err := nn.Clone(m, tensor.CPU())
		require.EqualError(t, err, k.want)
		require.Nil(t, n)
	}
	_, err := nn.Clone[*inner](nil, tensor.CPU())
	require.EqualError(t, err, "nn.Clone: a module must be a non-nil pointer to a struct, not *nn_test.inner")
	_, err = nn.Clone(3, tensor.CPU())
	require.EqualError(t, err, "nn.Clone: a module must be a non-nil pointer to a struct, not int")
}

// A deferred copy takes memory, and the values that the original has by then, when something uses it.
func TestCloneDeferred(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer func() { require.NoError(t, dev.Close()) }()
	m := &cloned{Layers: []*nn.Linear{linear()}}
	m.Tied, m.Size = m.Layers[0], new(3)
	m.Layers[0].Bias.SetRequiresGrad(false)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	twin, err := nn.CloneDeferred(m, dev)
	require.NoError(t, err)
	require.Zero(t, dev.MemStats().InUse)
	require.Same(t, twin.Layers[0].Weight, twin.Tied.Weight)
	require.True(t, twin.Tied.Weight.IsLeaf())
	require.False(t, twin.Tied.Bias.IsLeaf())
	tensor.FillInto(c, m.Tied.Weight.Tensor, 7)
	own := tensor.NewCtx(dev).NoGrad()
	require.Equal(t, tensor.ToSlice[float32](c, m.Tied.Weight.Tensor),
		tensor.ToSlice[float32](own, twin.Tied.Weight.Tensor))
	require.EqualValues(t, m.Tied.Weight.Bytes(), dev.MemStats().InUse)
}
