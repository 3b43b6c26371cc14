// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// rowwise applies f to each row along dim d, as an oracle.
func rowwise(d int, f func(row []float64) []float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		x := in[0]
		out := Array{Shape: x.Shape, V: make([]float64, len(x.V))}
		if len(x.V) == 0 {
			return []Array{out}
		}
		n, stride := 1, 1
		if len(x.Shape) > 0 {
			d := (d + len(x.Shape)) % len(x.Shape)
			n, stride = x.Shape[d], numel(x.Shape[d+1:])
		}
		row := make([]float64, n)
		for first := range x.V {
			if first/stride%n != 0 {
				continue
			}
			for i := range row {
				row[i] = x.V[first+i*stride]
			}
			for i, y := range f(row) {
				out.V[first+i*stride] = y
			}
		}
		return []Array{out}
	}
}

func rowOps() []Op {
	softmax := func(row []float64) []float64 {
		lse, y := logSumExp(row), make([]float64, len(row))
		for i, x := range row {
			y[i] = math.Exp(x - lse)
		}
		return y
	}
	logSoftmax := func(row []float64) []float64 {
		lse, y := logSumExp(row), make([]float64, len(row))
		for i, x := range row {
			y[i] = x - lse
		}
		return y
	}
	return append(headRows(), softmaxRow("Softmax", tensor.Softmax, softmax),
		softmaxRow("LogSoftmax", tensor.LogSoftmax, logSoftmax), crossEntropyRow())
}

func softmaxRow(name string, f func(c *tensor.Ctx, x *tensor.Tensor, d int) *tensor.Tensor,
	want func([]float64) []float64) Op {
	op := Op{Name: name, DTypes: floats, Misuse: []Misuse{
		{Name: "dim", Want: "float32[2 3]): dim 2: want one in [-2, 2)", Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), 2)
		}},
	}}
	for _, s := range []struct {
		shape []int
		d     int
	}{{[]int{7}, 0}, {[]int{3, 5}, -1}, {[]int{3, 5}, 0}, {[]int{2, 3, 4}, 1}, {[]int{2, 1}, 1}, {[]int{}, 0},
		{[]int{0, 3}, 1}, {[]int{3, 0}, 1}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s), In: []Input{diff(normal, s.shape...)},
			Want:  rowwise(s.d, want),
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, s.d) })})
	}
	op.Samples = append(op.Samples,
		Sample{Name: "far apart", In: []Input{diff(given(900, -900, 3, 0, -1000, 1e4), 2, 3)}, Want: rowwise(1, want),
			FloatsOnly: true, Rough: true,
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, 1) })},
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 131, 503)},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, 1) })})
	return op
}

func crossEntropyRow() Op {
	op := Op{Name: "CrossEntropy", DTypes: floats, Misuse: []Misuse{
		{Name: "rows", Want: "float32[2 3], int64[3]): want logits [N V] and targets [N]", Call: func(c *tensor.Ctx) {
			tensor.CrossEntropy(c, zeros(c, 2, 3), tensor.Zeros(c, tensor.Int64, 3), -100)
		}},
		{Name: "target dtype", Want: "int32 or int64", Call: func(c *tensor.Ctx) {
			tensor.CrossEntropy(c, zeros(c, 2, 3), zeros(c, 2), -100)
		}},
		{Name: "target", Fault: true, Want: "3", Call: func(c *tensor.Ctx) {
			tensor.CrossEntropy(c, zeros(c, 2, 3), tensor.FromSlice(c, []int64{0, 3}, 2), -100)
		}},
		{Name: "negative target", Fault: true, Want: "-1", Call: func(c *tensor.Ctx) {
			tensor.CrossEntropy(c, zeros(c, 2, 3), tensor.FromSlice(c, []int64{-1, 0}, 2), -100)
		}},
	}}
	const ignore = -100
	f := binary(func(c *tensor.Ctx, x, ids *tensor.Tensor) *tensor.Tensor {
		return tensor.CrossEntropy(c, x, ids, ignore)
	})
	want := func(_ tensor.DType, in []Array) []Array {
		return []Array{generate(in[1].Shape, func(at []int) float64 {
			target := int(in[1].at(at...))
			if target == ignore {
				return 0
			}
			v := in[0].Shape[1]
			return logSumExp(in[0].V[at[0]*v:(at[0]+1)*v]) - in[0].at(at[0], target)
		})}
	}
	op.Samples = []Sample{
		{Name: "int64", In: []Input{diff(normal, 4, 5), index64(given(4, ignore, 0, 4), 4)}, Apply: f, Want: want},
		{Name: "int32", In: []Input{diff(normal, 3, 7), index32(below(7), 3)}, Apply: f, Want: want},
		{Name: "all ignored", In: []Input{diff(normal, 2, 3), index64(given(ignore, ignore), 2)}, Apply: f, Want: want},
		{Name: "one class", In: []Input{diff(normal, 2, 1), index64(below(1), 2)}, Apply: f, Want: want},
		{Name: "no rows", In: []Input{diff(normal, 0, 3), index64(below(3), 0)}, Apply: f, Want: want},
		{Name: "large", Large: true, In: []Input{diff(normal, 131, 503), index64(below(503), 131)}, Apply: f},
	}
	return op
}

// headFunc is an op of hidden states, a head's weight and bias, and targets.
type headFunc func(c *tensor.Ctx, x, weight, bias, targets *tensor.Tensor, ignoreIndex int) *tensor.Tensor

// cappedFunc is one whose outputs pass a soft cap.
type cappedFunc func(c *tensor.Ctx, x, weight, bias, targets *tensor.Tensor, ignoreIndex int,
	softCap float64) *tensor.Tensor

// cappedRow is the row of a head with a soft cap.
func cappedRow(name string, f cappedFunc, want func(losses []float64) Array) Op {
	op := headRow(name, func(c *tensor.Ctx, x, weight, bias, targets *tensor.Tensor, ignore int) *tensor.Tensor {
		return f(c, x, weight, bias, targets, ignore, headCap)
	}, headCap, want)
	op.Misuse = append(op.Misuse, Misuse{Name: "soft cap", Want: "soft cap 0: want a positive number",
		Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), zeros(c, 5, 3), nil, tensor.Zeros(c, tensor.Int64, 2), -100, 0)
		}})
	return op
}

const headCap = 1.5

// headRow is a row of a language model's head, whose outputs have a soft cap (0: none). want are its results from the
// loss of each row.
func headRow(name string, f headFunc, softCap float64, want func(losses []float64) Array) Op {
	const ignore = -100
	op := Op{Name: name, DTypes: floats, Slack: 4, Misuse: []Misuse{
		{Name: "shapes", Want: "float32[2 3], float32[5 4], int64[2]): want x [N K], weight [V K] and targets [N]",
			Call: func(c *tensor.Ctx) {
				f(c, zeros(c, 2, 3), zeros(c, 5, 4), nil, tensor.Zeros(c, tensor.Int64, 2), ignore)
			}},
		{Name: "bias", Want: "want a bias of shape [5]", Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), zeros(c, 5, 3), zeros(c, 3), tensor.Zeros(c, tensor.Int64, 2), ignore)
		}},
		{Name: "target dtype", Want: "int32 or int64", Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), zeros(c, 5, 3), nil, zeros(c, 2), ignore)
		}},
		{Name: "dtypes", Want: "one dtype", Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), tensor.Zeros(c, tensor.Float64, 5, 3), nil, tensor.Zeros(c, tensor.Int64, 2), ignore)
		}},
		{Name: "target", Fault: true, Want: "5", Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), zeros(c, 5, 3), nil, tensor.FromSlice(c, []int64{0, 5}, 2), ignore)
		}},
	}}
	apply := func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{f(c, in[0], in[1], in[2], in[3], ignore)}
	}
	oracle := func(_ tensor.DType, in []Array) []Array {
		return []Array{want(headLosses(in[0], in[1], in[2], in[3], ignore, softCap))}
	}
	add := func(name string, n, k, v int, ids Input, frozen bool, bias Input) {
		w := diff(normal, v, k)
		w.Diff = !frozen
		op.Samples = append(op.Samples, Sample{Name: name, In: []Input{diff(normal, n, k), w, bias, ids}, Apply: apply,
			Want: oracle, Large: n*k*v > 10_000})
	}
	sample := func(name string, n, k, v int, ids Input) {
		add(name, n, k, v, ids, false, none())
		add(name+" bias", n, k, v, ids, false, diff(normal, v))
		add(name+" frozen", n, k, v, ids, true, none())
	}
	sample("int64", 4, 3, 5, index64(given(4, ignore, 0, 4), 4))
	sample("int32", 3, 2, 7, index32(below(7), 3))
	sample("all ignored", 2, 2, 3, index64(given(ignore, ignore), 2))
	sample("one class", 2, 2, 1, index64(below(1), 2))
	sample("no rows", 0, 2, 3, index64(below(3), 0))
	sample("no columns", 2, 0, 3, index64(below(3), 2))
	sample("large", 131, 37, 503, index64(below(503), 131))
	// The first chunk has 256 rows, the fewest there are: just as many as fit. "large frozen" has several.
	width := 66_000
	if softCap > 0 {
		width /= 2 // derivatives take the other half
	}
	add("chunks", 260, 2, width, index64(below(width), 260), false, diff(normal, width))
	return op
}

// headLosses are the cross entropies of the rows of x·wᵀ + bias, behind a soft cap if there is one.
func headLosses(x, w, bias, targets Array, ignore int, softCap float64) []float64 {
	losses := make([]float64, len(targets.V))
	for i, target := range targets.V {
		if int(target) == ignore {
			continue
		}
		row := make([]float64, w.Shape[0])
		for j := range row {
			for k := range x.Shape[1] {
				row[j] += x.at(i, k) * w.at(j, k)
			}
			if bias.V != nil {
				row[j] += bias.V[j]
			}
			if softCap > 0 {
				row[j] = softCap * math.Tanh(row[j]/softCap)
			}
		}
		losses[i] = logSumExp(row) - row[int(target)]
	}
	return losses
}

func headRows() []Op {
	sum := func(losses []float64) Array {
		sum := 0.0
		for _, l := range losses {
			sum += l
		}
		return Array{Shape: []int{}, V: []float64{sum}}
	}
	logs := func(losses []float64) Array {
		for i := range losses {
			losses[i] = -losses[i]
		}
		return Array{Shape: []int{len(losses)}, V: losses}
	}
	return []Op{headRow("LinearCrossEntropy", tensor.LinearCrossEntropy, 0, sum),
		headRow("LinearLogProbs", tensor.LinearLogProbs, 0, logs),
		cappedRow("LinearCrossEntropyCapped", tensor.LinearCrossEntropyCapped, sum),
		cappedRow("LinearLogProbsCapped", tensor.LinearLogProbsCapped, logs)}
}

func normOps() []Op {
	layer, rms := normRows("", tensor.LayerNorm, tensor.RMSNorm)
	lowLayer, lowRMS := normRows("Lowered", tensor.LayerNormLowered, tensor.RMSNormLowered)
	return []Op{layer, rms, lowLayer, lowRMS, groupNormRow()}
}

// normRows are the rows of two norms whose names have an ending.
func normRows(ending string, layerOf func(c *tensor.Ctx, x, w, b *tensor.Tensor, eps float64) *tensor.Tensor,
	rmsOf func(c *tensor.Ctx, x, w *tensor.Tensor, eps float64) *tensor.Tensor) (layerNorm, rmsNorm Op) {
	const eps = 1e-3
	layer := ternary(func(c *tensor.Ctx, x, w, b *tensor.Tensor) *tensor.Tensor { return layerOf(c, x, w, b, eps) })
	rms := binary(func(c *tensor.Ctx, x, w *tensor.Tensor) *tensor.Tensor { return rmsOf(c, x, w, eps) })
	layerNorm = Op{Name: "LayerNorm" + ending, DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "width", Want: "float32[2 3], float32[2]): want a parameter of shape [3]", Call: func(c *tensor.Ctx) {
			layerOf(c, zeros(c, 2, 3), zeros(c, 2), nil, eps)
		}},
		{Name: "bias alone", Want: "a bias needs a weight", Call: func(c *tensor.Ctx) {
			layerOf(c, zeros(c, 2, 3), nil, zeros(c, 3), eps)
		}},
		{Name: "0-D", Want: "at least one dim", Call: func(c *tensor.Ctx) {
			layerOf(c, zeros(c), nil, nil, eps)
		}},
	}}
	rmsNorm = Op{Name: "RMSNorm" + ending, DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "width", Want: "float32[2 3], float32[2 3]): want a parameter of shape [3]", Call: func(c *tensor.Ctx) {
			rmsOf(c, zeros(c, 2, 3), zeros(c, 2, 3), eps)
		}},
		{Name: "0-D", Want: "at least one dim", Call: func(c *tensor.Ctx) { rmsOf(c, zeros(c), nil, eps) }},
	}}
	for _, shape := range [][]int{{5}, {3, 7}, {2, 3, 4}, {2, 1}, {0, 3}, {2, 0}, {67, 3}} {
		w := shape[len(shape)-1]
		x, weight, bias := diff(normal, shape...), diff(normal, w), diff(normal, w)
		if w == 1 { // of one number the RMS norm is nearly the sign, which jumps at 0
			x = diff(positive, shape...)
		}
		layerNorm.Samples = append(layerNorm.Samples,
			Sample{Name: fmt.Sprint(shape), In: []Input{x, weight, bias}, Apply: layer, Want: normOracle(true, eps)},
			Sample{Name: fmt.Sprint(shape, " no bias"), In: []Input{x, weight, none()}, Apply: layer,
				Want: normOracle(true, eps)},
			Sample{Name: fmt.Sprint(shape, " plain"), In: []Input{x, none(), none()}, Apply: layer,
				Want: normOracle(true, eps)})
		rmsNorm.Samples = append(rmsNorm.Samples,
			Sample{Name: fmt.Sprint(shape), In: []Input{x, weight}, Apply: rms, Want: normOracle(false, eps)},
			Sample{Name: fmt.Sprint(shape, " plain"), In: []Input{x, none()}, Apply: rms, Want: normOracle(false, eps)})
	}
	layerNorm.Samples = append(layerNorm.Samples,
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 301, 211), diff(normal, 211), diff(normal, 211)},
			Apply: layer})
	rmsNorm.Samples = append(rmsNorm.Samples,
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 301, 211), diff(normal, 211)}, Apply: rms})
	return layerNorm, rmsNorm
}

func groupNormRow() Op {
	const eps = 1e-3
	op := Op{Name: "GroupNorm", DTypes: floats, Slack: 4,
		Misuse: batchNormMisuse(func(c *tensor.Ctx, x, weight, bias *tensor.Tensor) {
			tensor.GroupNorm(c, x, 1, weight, bias, eps)
		})}
	for _, groups := range []int{0, 2} {
		op.Misuse = append(op.Misuse, Misuse{Name: "groups",
			Want: fmt.Sprintf("float32[2 3]): %d groups: want a positive number that divides the 3 channels", groups),
			Call: func(c *tensor.Ctx) { tensor.GroupNorm(c, zeros(c, 2, 3), groups, nil, nil, eps) }})
	}
	for _, s := range []struct {
		shape  []int
		groups int
	}{{[]int{4, 6}, 2}, {[]int{3, 4, 5}, 4}, {[]int{2, 6, 3, 2}, 3}, {[]int{1, 1}, 1}, {[]int{0, 4, 2}, 2},
		{[]int{2, 4, 0}, 2}, {[]int{9, 8, 31, 33}, 4}} {
		x, ch, large := diff(normal, s.shape...), s.shape[1], s.shape[0] == 9
		apply := ternary(func(c *tensor.Ctx, x, weight, bias *tensor.Tensor) *tensor.Tensor {
			return tensor.GroupNorm(c, x, s.groups, weight, bias, eps)
		})
		op.Samples = append(op.Samples,
			Sample{Name: fmt.Sprint(s), In: []Input{x, diff(positive, ch), diff(normal, ch)}, Apply: apply,
				Want: groupNormOracle(s.groups, eps), Large: large},
			Sample{Name: fmt.Sprint(s, " plain"), In: []Input{x, none(), none()}, Apply: apply,
				Want: groupNormOracle(s.groups, eps), Large: large})
	}
	return op
}

// groupNormOracle normalises the rows that groups are, then scales and shifts each channel.
func groupNormOracle(groups int, eps float64) Oracle {
	return func(dt tensor.DType, in []Array) []Array {
		x := in[0]
		rows := Array{Shape: []int{x.Shape[0] * groups, len(x.V) / max(x.Shape[0]*groups, 1)}, V: x.V}
		y := Array{Shape: x.Shape, V: normOracle(true, eps)(dt, []Array{rows, {}})[0].V}
		if in[1].V != nil {
			channel := channelOf(x.Shape)
			for i := range y.V {
				y.V[i] = y.V[i]*in[1].V[channel(i)] + in[2].V[channel(i)]
			}
		}
		return []Array{y}
	}
}

// normOracle normalises rows, by mean and deviation or (centred false) by the root mean
// square, and applies the weight and bias that are there.
func normOracle(centred bool, eps float64) Oracle {
	return func(dt tensor.DType, in []Array) []Array {
		y := rowwise(-1, func(row []float64) []float64 {
			mean, sq, out := 0.0, 0.0, make([]float64, len(row))
			if centred {
				mean = total(row) / float64(len(row))
			}
			for _, x := range row {
				sq += (x - mean) * (x - mean)
			}
			for i, x := range row {
				out[i] = (x - mean) / math.Sqrt(sq/float64(len(row))+eps)
			}
			return out
		})(dt, in)[0]
		return []Array{generate(y.Shape, func(at []int) float64 {
			v := y.at(at...)
			if in[1].V != nil {
				v *= in[1].at(at...)
			}
			if len(in) > 2 && in[2].V != nil {
				v += in[2].at(at...)
			}
			return v
		})}
	}
}
