// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// outer has a parameter and a linear layer.
type outer struct {
	Scale *nn.Parameter `nn:"scale"`
	Inner *nn.Linear    `nn:"inner"`
}

func (o *outer) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, o, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return o.Inner.Forward(c, tensor.Mul(c.Ctx, x, c.Param(o.Scale)))
	}, x)
}

// A part of a parameter is read in the unit alone whose hooks know of it: a context of another tree, or the units
// within, would take it for the whole.
func TestDividedParametersNeedTheirHooks(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	in := nn.NewInit(tensor.CPU(), 1)
	o := &outer{Scale: in.Full("scale", 2, 1), Inner: nn.NewLinear(in.Sub("inner"), nn.LinearConfig{In: 4, Out: 6})}
	x := tensor.Ones(c, tensor.Float32, 3, 4)
	want := tensor.ToSlice[float32](c, o.Forward(nn.NewCtx(c, nil, true), x))

	before := nn.Walk(o)
	whole := o.Inner.Weight.Tensor
	half := tensor.Contiguous(c.NoGrad(), tensor.Slice(c.NoGrad(), whole, 0, 0, 3))
	o.Inner.Weight.Divide(half)
	require.True(t, half.IsLeaf(), "it is trained as the whole was")
	require.ErrorContains(t, tensor.Try(func() { o.Inner.Weight.Divide(half) }), "divided already")
	tree := nn.Walk(o)
	require.Equal(t, []int{3, 4}, tree.Parameters()[1].Shape())
	require.Same(t, whole, tree.State()[1].Tensor, "what is saved is whole")
	const refused = "the parameter is divided among ranks, of which this one has [3 4] of [6 4]"
	require.ErrorContains(t, tensor.Try(func() { o.Forward(nn.NewCtx(c, tree, true), x) }), refused)
	_, err := nn.Clone(o, tensor.CPU())
	require.ErrorContains(t, err, "Inner.Weight is divided among ranks")

	contexts := 0
	tree.AddHooks(o, &nn.Hooks{Context: func(c *tensor.Ctx) *tensor.Ctx { return c }})
	require.ErrorContains(t, tensor.Try(func() { o.Forward(nn.NewCtx(c, tree, true), x) }), refused, "of another unit")
	tree.AddHooks(o.Inner, &nn.Hooks{Context: func(c *tensor.Ctx) *tensor.Ctx {
		contexts++
		return c.WithPartedSum(&tensor.PartedSum{Parts: 1})
	}})
	require.ErrorContains(t, tensor.Try(func() { o.Forward(nn.NewCtx(c, before, true), x) }), refused, "another tree")
	bias := o.Inner.Bias
	o.Inner.Bias = nil
	y := tensor.ToSlice[float32](c, o.Forward(nn.NewCtx(c, tree, true), x))
	require.Len(t, y, 9)
	require.Equal(t, 1, contexts)

	o.Inner.Bias = bias
	require.True(t, o.Inner.Weight.Join())
	require.False(t, o.Inner.Weight.Join())
	require.Same(t, whole, o.Inner.Weight.Tensor)
	require.Equal(t, want, tensor.ToSlice[float32](c, o.Forward(nn.NewCtx(c, nn.Walk(o), true), x)))
}

// Each head of attention draws its own dropout, so that a part of the heads cannot draw without its number.
func TestDropoutOfSomeHeadsNeedsTheirPart(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	q := tensor.Ones(c, tensor.Float32, 1, 2, 3, 4)
	cfg := nn.AttentionConfig{Width: 16, Heads: 4, DropoutP: 0.1}
	attend := func(training bool) error {
		return tensor.Try(func() { cfg.Attend(nn.NewCtx(c, nil, training), q, q, q, nn.AttentionInput{}) })
	}
	require.ErrorContains(t, attend(true), "dropout 0.1 of attention weights with 2 of 4 heads")
	require.NoError(t, attend(false))
}
