// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func training() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, true) }

func values[T tensor.Element](t *tensor.Tensor) []T {
	return tensor.ToSlice[T](tensor.NewCtx(t.Device()), t)
}

// twoChannels is a batch norm as torch.nn.BatchNorm2d(2).
func twoChannels() *nn.BatchNorm { return nn.NewBatchNorm(newInit(), nn.BatchNormConfig{Channels: 2}) }

// In training the batch's statistics normalise, and the running ones move towards them by
// momentum, the variance unbiased; evaluation uses the running ones.
func TestBatchNorm(t *testing.T) {
	c := training()
	l := twoChannels()
	require.Equal(t, []float64{1e-5, 0.1}, []float64{l.Eps, l.Momentum})
	l = nn.NewBatchNorm(newInit(), nn.BatchNormConfig{Channels: 2, Eps: 1e-3, Momentum: 0.25})
	require.Equal(t, []float64{1e-3, 0.25}, []float64{l.Eps, l.Momentum})
	l.Eps = 0
	l.Weight, l.Bias = param(c, []float32{1, 2}, 2), param(c, []float32{0, 10}, 2)
	x := tensor.FromSlice(c.Ctx, []float32{1, 5, 3, 5, 5, 5, 7, 13}, 4, 2) // channels 1 3 5 7 and 5 5 5 13
	y := values[float32](l.Forward(c, x))
	require.InDelta(t, -3/2.236068, y[0], 1e-6)
	require.InDelta(t, 10+2*1.7320508, y[7], 1e-5)
	require.Equal(t, []float32{0.25 * 4, 0.25 * 7}, values[float32](l.RunningMean.Tensor))
	require.InDeltaSlice(t, []float32{0.75 + 0.25*20/3, 0.75 + 0.25*16}, values[float32](l.RunningVar.Tensor), 1e-6)
	require.Equal(t, []int64{1}, values[int64](l.NumBatchesTracked.Tensor))

	before := values[float32](l.RunningMean.Tensor)
	y = values[float32](l.Forward(env(), x))
	require.InDelta(t, 0, y[0], 1e-6, "1 is the running mean")
	require.InDelta(t, 10+2*(13-1.75)/2.1794495, y[7], 1e-5)
	require.Equal(t, before, values[float32](l.RunningMean.Tensor), "evaluation changes nothing")

	require.Equal(t, []string{"weight", "bias"}, names(l))
	var state []string
	for _, s := range nn.Walk(l).State() {
		state = append(state, s.Name)
	}
	require.Equal(t, []string{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}, state)
	require.Equal(t, map[string]bool{"weight": true}, nn.DecayNames(l), "as in HuggingFace's Trainer")
}

// Without running statistics, weight and bias the batch's own statistics are always used.
func TestBatchNormPlain(t *testing.T) {
	l := &nn.BatchNorm{}
	for _, c := range []*nn.Ctx{training(), env()} {
		x := tensor.FromSlice(c.Ctx, []float32{1, 3}, 1, 1, 2)
		require.Equal(t, []float32{-1, 1}, values[float32](l.Forward(c, x)))
	}
}

func TestBatchNormRefuses(t *testing.T) {
	c := training()
	l := nn.NewBatchNorm(newInit(), nn.BatchNormConfig{Channels: 3})
	err := tensor.Try(func() { l.Forward(c, tensor.Zeros(c.Ctx, tensor.Float32, 1, 3, 1, 1)) })
	require.ErrorContains(t, err, "training with 1 values per channel, of shape [1 3 1 1]: want more than one, which "+
		"have a variance")
	require.NoError(t, tensor.Try(func() { l.Forward(env(), tensor.Zeros(c.Ctx, tensor.Float32, 1, 3, 1, 1)) }))
}

// reports counts what modules report, and holds the tracking back.
type reports map[nn.Tracker]int

func (r reports) Observe(m nn.Tracker, stats []*tensor.Tensor) { r[m] += len(stats) }

// normBlock is a batch norm that is recomputed, in a block that may be, too.
type normBlock struct{ Inner, Outer *nn.BatchNorm }

func (b *normBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return b.Outer.Forward(c, b.Inner.Forward(c, x))
	}, x)
}

// A forward pass reports once, whether or not it is run again for its gradient.
func TestReportOnce(t *testing.T) {
	for _, recompute := range []func(b *normBlock) []nn.Module{
		func(*normBlock) []nn.Module { return nil },
		func(b *normBlock) []nn.Module { return []nn.Module{b} },
		func(b *normBlock) []nn.Module { return []nn.Module{b, b.Inner} },
		func(b *normBlock) []nn.Module { return []nn.Module{b.Inner, b.Outer} },
	} {
		b := &normBlock{twoChannels(), twoChannels()}
		got := reports{}
		also := reports{}
		c := training().WithRecompute(recompute(b)).WithObserver(got).WithObserver(also)
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			x := tensor.Normal(c.Ctx, tensor.Float32, 1, 0, 1, 3, 2, 4)
			y := b.Forward(c, x)
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)}, nil, nil)
			return nil
		})
		require.NotNil(t, b.Inner.Weight.Grad())
		require.Equal(t, reports{b.Inner: 2, b.Outer: 2}, got)
		require.Equal(t, got, also, "each observer gets every report")
		require.Equal(t, []int64{0}, values[int64](b.Inner.NumBatchesTracked.Tensor))
	}
	b := &normBlock{twoChannels(), twoChannels()}
	require.Equal(t, []nn.Tracker{b.Inner, b.Outer}, nn.Walk(b).Trackers())
}
