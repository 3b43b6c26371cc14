// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// nll is −log softmax(row)[label].
func nll(row []float64, label int) float64 {
	var sum float64
	for _, x := range row {
		sum += math.Exp(x)
	}
	return math.Log(sum) - row[label]
}

func TestCrossEntropySum(t *testing.T) {
	c := env()
	rows := []float64{1, 2, 3, 0, 0, 0, -1, 5, 2, 0.5, 0.25, 0}
	logits := tensor.FromSlice(c.Ctx, rows, 2, 2, 3).SetRequiresGrad(true)
	labels := tensor.FromSlice(c.Ctx, []int64{2, tensor.IgnoreIndex, 0, 1}, 2, 2)
	loss := nn.CrossEntropySum(c, logits, labels)
	require.Equal(t, 1, loss.Numel())
	require.InDelta(t, nll(rows[:3], 2)+nll(rows[6:9], 0)+nll(rows[9:], 1), tensor.Item(c.Ctx, loss), 1e-12)

	tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, nil)
	g := tensor.ToSlice[float64](c.Ctx, logits.Grad())
	require.Equal(t, []float64{0, 0, 0}, g[3:6], "an ignored label has no gradient")
	require.InDelta(t, math.Exp(3)/(math.E+math.Exp(2)+math.Exp(3))-1, g[2], 1e-12)

	none := tensor.Full(c.Ctx, tensor.Int64, tensor.IgnoreIndex, 2, 2)
	require.Zero(t, tensor.Item(c.Ctx, nn.CrossEntropySum(c, logits, none)))
	require.Error(t,
		tensor.Try(func() { nn.CrossEntropySum(c, logits, tensor.FromSlice(c.Ctx, []int64{0, 1, 2, 3}, 2, 2)) }),
		"a label beyond the classes")
}

// Position t predicts label t+1; the last position and the first label take no part.
func TestNextTokens(t *testing.T) {
	c := env()
	const vocab, length = 3, 4
	logits := tensor.Normal(c.Ctx, tensor.Float64, 1, 0, 1, 2, length, vocab).SetRequiresGrad(true)
	rows := tensor.ToSlice[float64](c.Ctx, logits)
	row := func(b, t int) []float64 { return rows[(b*length+t)*vocab:][:vocab] }
	ids := []int64{2, 0, 1, 1, 0, tensor.IgnoreIndex, 2, tensor.IgnoreIndex}
	for _, dt := range []tensor.DType{tensor.Int64, tensor.Int32} {
		labels := tensor.Cast(c.Ctx, tensor.FromSlice(c.Ctx, ids, 2, length), dt)
		want := nll(row(0, 0), 0) + nll(row(0, 1), 1) + nll(row(0, 2), 1) + nll(row(1, 1), 2)
		loss := nn.CrossEntropySum(c, logits, nn.NextTokens(c, labels))
		require.InDelta(t, want, tensor.Item(c.Ctx, loss), 1e-12)
		logits.ZeroGrad()
		tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, nil)
		g := tensor.ToSlice[float64](c.Ctx, logits.Grad())
		for _, at := range []int{3, 4, 6, 7} { // last positions, and those whose next label is ignored
			require.Equal(t, []float64{0, 0, 0}, g[at*vocab:(at+1)*vocab], "position %d", at)
		}
	}
	one := nn.NextTokens(c, tensor.Zeros(c.Ctx, tensor.Int64, 2, 1))
	require.Equal(t, []int{2, 1}, one.Shape())
	require.Equal(t, []int64{tensor.IgnoreIndex, tensor.IgnoreIndex}, tensor.ToSlice[int64](c.Ctx, one),
		"one token predicts nothing")
}

func TestMSESum(t *testing.T) {
	c := env()
	x := tensor.FromSlice(c.Ctx, []float32{1, 2, 3, 4}, 2, 2).SetRequiresGrad(true)
	loss := nn.MSESum(c, x, tensor.FromSlice(c.Ctx, []float32{0, 2, 5, 1}, 2, 2))
	require.EqualValues(t, 1+0+4+9, tensor.Item(c.Ctx, loss))
	tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, nil)
	require.Equal(t, []float32{2, 0, -4, 6}, tensor.ToSlice[float32](c.Ctx, x.Grad()))
}

// The fused loss has the bits of the two steps, and close gradients.
func TestLinearCrossEntropySum(t *testing.T) {
	dev := tensor.CPU()
	in := nn.NewInit(dev, 3)
	weight, bias := in.Normal("w", 1, 11, 4), in.Normal("b", 1, 11)
	c := nn.NewCtx(tensor.NewCtx(dev), nil, true)
	h := tensor.Normal(c.NoGrad(), tensor.Float32, 5, 0, 1, 2, 3, 4).SetRequiresGrad(true)
	labels := tensor.FromSlice(c.Ctx, []int64{10, 0, tensor.IgnoreIndex, 3, 3, 7}, 2, 3)
	leaves := []*tensor.Tensor{h, weight.Tensor, bias.Tensor}
	apart := nn.CrossEntropySum(c, tensor.AddMM(c.Ctx, bias.Tensor, h, tensor.Transpose(c.Ctx, weight.Tensor, 0, 1)),
		labels)
	want := tensor.Backward(c.Ctx, []*tensor.Tensor{apart}, nil, leaves)
	fused := nn.LinearCrossEntropySum(c, h, weight, bias, labels)
	require.Equal(t, tensor.Item(c.Ctx, apart), tensor.Item(c.Ctx, fused))
	for range 2 { // a retained graph gives them again
		got := tensor.Backward(c.Ctx, []*tensor.Tensor{fused}, nil, leaves, tensor.RetainGraph())
		for i := range want {
			require.InDeltaSlice(t, tensor.ToSlice[float32](c.Ctx, want[i]), tensor.ToSlice[float32](c.Ctx, got[i]),
				1e-6)
		}
	}
}

// Losses refuse what PyTorch would broadcast, and settings without a meaning.
func TestLossMisuse(t *testing.T) {
	c := env()
	a, b := tensor.Zeros(c.Ctx, tensor.Float32, 3, 1), tensor.Zeros(c.Ctx, tensor.Float32, 3)
	labels := tensor.Zeros(c.Ctx, tensor.Int64, 3)
	for want, call := range map[string]func(){
		"nn.L1Sum: operands of shapes [3 1] and [3]: want one shape": func() { nn.L1Sum(c, a, b) },
		"nn.HuberSum: operands":    func() { nn.HuberSum(c, a, b, 1) },
		"nn.HuberSum: delta 0":     func() { nn.HuberSum(c, b, b, 0) },
		"nn.SmoothL1Sum: operands": func() { nn.SmoothL1Sum(c, a, b, 1) },
		"nn.SmoothL1Sum: beta -1":  func() { nn.SmoothL1Sum(c, b, b, -1) },
		"nn.KLDivSum: operands":    func() { nn.KLDivSum(c, a, b, true) },
		"nn.BCEWithLogitsSum: operands": func() {
			nn.BCEWithLogitsSum(c, a, b, nn.BCEOptions{})
		},
		"does not broadcast to [3]": func() {
			nn.BCEWithLogitsSum(c, b, b, nn.BCEOptions{Weight: a})
		},
		"label smoothing 1.5": func() {
			nn.CrossEntropySumWith(c, a, labels, nn.CrossEntropyOptions{LabelSmoothing: 1.5})
		},
		"class weights of shape [3]: want one for each of 1 classes": func() {
			nn.CrossEntropySumWith(c, a, labels, nn.CrossEntropyOptions{ClassWeights: b})
		},
	} {
		require.ErrorContains(t, tensor.Try(call), want)
	}
	label := tensor.FromSlice(c.Ctx, []int64{0, 1, 0}, 3)
	require.Error(t, tensor.Try(func() {
		nn.CrossEntropySumWith(c, a, label, nn.CrossEntropyOptions{LabelSmoothing: 0.1})
	}), "a label beyond the classes")
}

// Sums of half types are float32: 10,000 terms of 9 are more than float16 has.
func TestLossesOfHalfTypes(t *testing.T) {
	c := env()
	for _, dt := range []tensor.DType{tensor.Float16, tensor.BFloat16} {
		x, zero := tensor.Full(c.Ctx, dt, 3, 10_000).SetRequiresGrad(true), tensor.Zeros(c.Ctx, dt, 10_000)
		for name, k := range map[string]struct {
			loss       *tensor.Tensor
			want, grad float64
		}{
			"mse":       {nn.MSESum(c, x, zero), 90_000, 6},
			"l1":        {nn.L1Sum(c, x, zero), 30_000, 1},
			"huber":     {nn.HuberSum(c, x, zero, 1), 25_000, 1},
			"smooth l1": {nn.SmoothL1Sum(c, x, zero, 2), 20_000, 1},
			"kl":        {nn.KLDivSum(c, x, tensor.Ones(c.Ctx, dt, 10_000), false), -30_000, -1},
			"bce": {nn.BCEWithLogitsSum(c, x, zero, nn.BCEOptions{}), 10_000 * math.Log1p(math.Exp(3)),
				1 / (1 + math.Exp(-3))},
		} {
			require.Equal(t, tensor.Float32, k.loss.DType(), name)
			require.InEpsilon(t, k.want, tensor.Item(c.Ctx, k.loss), 1e-6, name)
			g := tensor.Backward(c.Ctx, []*tensor.Tensor{k.loss}, nil, []*tensor.Tensor{x})[0]
			require.Equal(t, x.GradDType(), g.DType(), name)
			require.InEpsilon(t, k.grad, tensor.Item(c.Ctx,
				tensor.Cast(c.Ctx, tensor.Slice(c.Ctx, g, 0, 0, 1), tensor.Float64)), 0.005, name)
		}
		rows := tensor.Reshape(c.Ctx, x, 5000, 2)
		opt := nn.CrossEntropyOptions{ClassWeights: tensor.FromSlice(c.Ctx, []float32{4, 1}, 2), LabelSmoothing: 0.5}
		loss := nn.CrossEntropySumWith(c, rows, tensor.Zeros(c.Ctx, tensor.Int32, 5000), opt)
		require.InEpsilon(t, 5000*math.Ln2*(0.5*4+0.25*(4+1)), tensor.Item(c.Ctx, loss), 1e-6)
	}
}

// The context's label smoothing has the loss and the gradients of CrossEntropySumWith, with logits and without, in
// chunks of rows.
func TestLabelSmoothingOfTheContext(t *testing.T) {
	const rows, width, classes, factor = 700, 5, 11, 0.3
	c := env()
	smoothing := &nn.Smoothing{Factor: factor}
	smooth := c.WithLabelSmoothing(smoothing)
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i*i%classes) - int32(i%7/6)*(int32(i*i%classes)-tensor.IgnoreIndex)
	}
	labels := tensor.FromSlice(c.Ctx, ids, rows)
	normal := func(seed uint64, shape ...int) *tensor.Tensor {
		return tensor.Normal(c.Ctx.NoGrad(), tensor.Float64, seed, 0, 1, shape...).SetRequiresGrad(true)
	}
	h := normal(1, rows, width)
	head := &nn.Linear{Weight: nn.NewParameter(normal(2, classes, width)), Bias: nn.NewParameter(normal(3, classes))}
	wrt := []*tensor.Tensor{h, head.Weight.Tensor, head.Bias.Tensor}
	logits := func() *tensor.Tensor { return tensor.Linear(c.Ctx, h, head.Weight.Tensor, head.Bias.Tensor) }
	want := nn.CrossEntropySumWith(c, logits(), labels, nn.CrossEntropyOptions{LabelSmoothing: factor})
	grads := tensor.Backward(c.Ctx, []*tensor.Tensor{want}, nil, wrt)
	require.False(t, smoothing.Used)
	for name, loss := range map[string]*tensor.Tensor{
		"logits":       nn.CrossEntropySum(smooth, logits(), labels),
		"with options": nn.CrossEntropySumWith(smooth, logits(), labels, nn.CrossEntropyOptions{}),
		"no logits":    nn.LinearCrossEntropySum(smooth, h, head.Weight, head.Bias, labels),
	} {
		require.InEpsilon(t, tensor.Item(c.Ctx, want), tensor.Item(c.Ctx, loss), 1e-12, name)
		for i, g := range tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, wrt) {
			require.InDeltaSlice(t, tensor.ToSlice[float64](c.Ctx, grads[i]), tensor.ToSlice[float64](c.Ctx, g), 1e-11,
				"%s: %d", name, i)
		}
	}
	require.True(t, smoothing.Used)
}
