// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/tensor"
)

func products() []Op {
	return []Op{matMulRow(), addMMRow(), linearRow(), activatedRow("AddMMActivated", false),
		activatedRow("LinearActivated", true), attentionRow()}
}

// matmul is the oracle of products of matrices, with broadcast batch dims.
func matmul(x, y Array) Array {
	xb, yb := x.Shape[:len(x.Shape)-2], y.Shape[:len(y.Shape)-2]
	m, k, n := x.Shape[len(xb)], x.Shape[len(xb)+1], y.Shape[len(yb)+1]
	batch := broadcastShape([]Array{{Shape: xb}, {Shape: yb}})
	return generate(append(batch, m, n), func(at []int) float64 {
		s := 0.0
		xi, yi := slices.Clone(at), slices.Clone(at)
		for i := range k {
			xi[len(at)-1], yi[len(at)-2] = i, i
			s += x.at(xi...) * y.at(yi...)
		}
		return s
	})
}

func matMulRow() Op {
	op := Op{Name: "MatMul", DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "inner", Want: "float32[2 3], float32[2 3]): inner sizes differ: 3 and 2", Call: func(c *tensor.Ctx) {
			tensor.MatMul(c, zeros(c, 2, 3), zeros(c, 2, 3))
		}},
		{Name: "dims", Want: "at least two dims", Call: func(c *tensor.Ctx) {
			tensor.MatMul(c, zeros(c, 3), zeros(c, 3, 2))
		}},
		{Name: "batch", Want: "do not broadcast", Call: func(c *tensor.Ctx) {
			tensor.MatMul(c, zeros(c, 2, 3, 3), zeros(c, 4, 3, 3))
		}},
		{Name: "dtypes", Want: "one dtype", Call: func(c *tensor.Ctx) {
			tensor.MatMul(c, zeros(c, 3, 3), tensor.Zeros(c, tensor.Float64, 3, 3))
		}},
	}}
	want := func(_ tensor.DType, in []Array) []Array { return []Array{matmul(in[0], in[1])} }
	for _, s := range [][2][]int{
		{{3, 4}, {4, 5}}, {{1, 1}, {1, 1}}, {{1, 7}, {7, 1}}, {{5, 1}, {1, 3}}, {{2, 3, 4}, {4, 5}},
		{{2, 3, 4}, {2, 4, 2}}, {{3, 4}, {2, 4, 2}}, {{2, 1, 2, 3}, {3, 3, 2}}, {{1, 2, 3}, {2, 3, 2}},
		{{0, 3}, {3, 2}}, {{3, 0}, {0, 2}}, {{2, 3}, {3, 0}}, {{0, 2, 3}, {3, 2}}, {{0, 2, 3}, {0, 3, 2}},
		{{2, 2, 0}, {0, 3}},
	} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s),
			In: []Input{diff(normal, s[0]...), diff(normal, s[1]...)}, Apply: binary(tensor.MatMul), Want: want})
	}
	op.Samples = append(op.Samples,
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 131, 97), diff(normal, 97, 211)},
			Apply: binary(tensor.MatMul)},
		Sample{Name: "large batch", Large: true, In: []Input{diff(normal, 9, 33, 41), diff(normal, 9, 41, 37)},
			Apply: binary(tensor.MatMul)},
		Sample{Name: "large sum", Large: true, In: []Input{diff(normal, 3, 2011), diff(normal, 2011, 5)},
			Apply: binary(tensor.MatMul)})
	return op
}

func addMMRow() Op {
	op := Op{Name: "AddMM", DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "bias", Want: "float32[2 3], float32[3 4], float32[3]): want a bias of shape [4]",
			Call: func(c *tensor.Ctx) {
				tensor.AddMM(c, zeros(c, 3), zeros(c, 2, 3), zeros(c, 3, 4))
			}},
		{Name: "weight", Want: "and a weight of two dims", Call: func(c *tensor.Ctx) {
			tensor.AddMM(c, nil, zeros(c, 2, 3), zeros(c, 1, 3, 4))
		}},
		{Name: "inner", Want: "inner sizes differ: 3 and 2", Call: func(c *tensor.Ctx) {
			tensor.AddMM(c, nil, zeros(c, 2, 3), zeros(c, 2, 4))
		}},
	}}
	f := ternary(tensor.AddMM)
	transposed := ternary(func(c *tensor.Ctx, bias, x, w *tensor.Tensor) *tensor.Tensor {
		return tensor.AddMM(c, bias, x, tensor.Transpose(c, w, 0, 1))
	})
	want := func(_ tensor.DType, in []Array) []Array { return []Array{linear(in[1], in[2], in[0])} }
	for _, s := range linearShapes {
		x, w := diff(normal, s.x...), diff(normal, s.x[len(s.x)-1], s.n)
		op.Samples = append(op.Samples,
			Sample{Name: fmt.Sprint(s), In: []Input{diff(normal, s.n), x, w}, Apply: f, Want: want},
			Sample{Name: fmt.Sprint(s, " no bias"), In: []Input{none(), x, w}, Apply: f, Want: want},
			Sample{Name: fmt.Sprint(s, " transposed"),
				In: []Input{diff(normal, s.n), x, diff(normal, s.n, s.x[len(s.x)-1])}, Apply: transposed})
	}
	op.Samples = append(op.Samples,
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 211), diff(normal, 3, 131, 97),
			diff(normal, 97, 211)}, Apply: f},
		Sample{Name: "large transposed", Large: true,
			In: []Input{diff(normal, 97), diff(normal, 131, 211), diff(normal, 97, 211)}, Apply: transposed})
	return op
}

// linearShapes are shapes of x and numbers of outputs of a linear layer.
var linearShapes = []struct {
	x []int
	n int
}{{[]int{3, 4}, 5}, {[]int{2, 3, 4}, 2}, {[]int{4}, 3}, {[]int{1, 1}, 1}, {[]int{0, 3}, 2}, {[]int{2, 0}, 3},
	{[]int{2, 3}, 0}}

// linear is the oracle of a linear layer with a weight [K,N]; the bias may have no values.
func linear(x, w, bias Array) Array {
	shape := append(slices.Clone(x.Shape[:len(x.Shape)-1]), w.Shape[1])
	y := matmul(Array{[]int{numel(shape[:len(shape)-1]), w.Shape[0]}, x.V}, w)
	out := Array{shape, y.V}
	for i := range out.V {
		if bias.V != nil {
			out.V[i] += bias.V[i%w.Shape[1]]
		}
	}
	return out
}

func linearRow() Op {
	op := Op{Name: "Linear", DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "bias", Want: "float32[2 3], float32[4 3], float32[3]): want a bias of shape [4]",
			Call: func(c *tensor.Ctx) {
				tensor.Linear(c, zeros(c, 2, 3), zeros(c, 4, 3), zeros(c, 3))
			}},
		{Name: "weight", Want: "and a weight of two dims", Call: func(c *tensor.Ctx) {
			tensor.Linear(c, zeros(c, 2, 3), zeros(c, 1, 3, 4), nil)
		}},
		{Name: "inner", Want: "float32[2 3], float32[4 2]): inner sizes differ: 3 and 2", Call: func(c *tensor.Ctx) {
			tensor.Linear(c, zeros(c, 2, 3), zeros(c, 4, 2), nil)
		}},
	}}
	f := ternary(tensor.Linear)
	want := func(_ tensor.DType, in []Array) []Array {
		w := generate([]int{in[1].Shape[1], in[1].Shape[0]}, func(at []int) float64 { return in[1].at(at[1], at[0]) })
		return []Array{linear(in[0], w, in[2])}
	}
	for _, s := range linearShapes {
		x, w := diff(normal, s.x...), diff(normal, s.n, s.x[len(s.x)-1])
		op.Samples = append(op.Samples,
			Sample{Name: fmt.Sprint(s), In: []Input{x, w, diff(normal, s.n)}, Apply: f, Want: want},
			Sample{Name: fmt.Sprint(s, " no bias"), In: []Input{x, w, none()}, Apply: f, Want: want})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true,
		In: []Input{diff(normal, 3, 131, 97), diff(normal, 211, 97), diff(normal, 211)}, Apply: f})
	return op
}

// activatedRow is the row of a linear layer with an activation, with a weight [N,K] if transposed is set.
func activatedRow(name string, transposed bool) Op {
	layer := func(c *tensor.Ctx, x, w, bias *tensor.Tensor, f tensor.Activation) *tensor.Tensor {
		if transposed {
			return tensor.LinearActivated(c, x, w, bias, f)
		}
		return tensor.AddMMActivated(c, bias, x, w, f)
	}
	op := Op{Name: name, DTypes: floats, Slack: 4, Misuse: []Misuse{
		{Name: "activation", Want: "unknown activation 99", Call: func(c *tensor.Ctx) {
			layer(c, zeros(c, 2, 3), zeros(c, 3, 3), nil, 99)
		}},
		{Name: "bias", Want: "want a bias of shape [3]", Call: func(c *tensor.Ctx) {
			layer(c, zeros(c, 2, 3), zeros(c, 3, 3), zeros(c, 2), 0)
		}},
	}}
	for f, want := range map[tensor.Activation]func(x float64) float64{
		tensor.ActivationNone: func(x float64) float64 { return x },
		tensor.ActivationReLU: func(x float64) float64 { return max(x, 0) },
		tensor.ActivationGELU: func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) },
		tensor.ActivationGELUTanh: func(x float64) float64 {
			return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		},
		tensor.ActivationSiLU: func(x float64) float64 { return x / (1 + math.Exp(-x)) },
	} {
		apply := ternary(func(c *tensor.Ctx, x, w, bias *tensor.Tensor) *tensor.Tensor {
			return layer(c, x, w, bias, f)
		})
		oracle := func(_ tensor.DType, in []Array) []Array {
			w := in[1]
			if transposed {
				w = generate([]int{w.Shape[1], w.Shape[0]}, func(at []int) float64 { return in[1].at(at[1], at[0]) })
			}
			y := linear(in[0], w, in[2])
			for i, v := range y.V {
				y.V[i] = want(v)
			}
			return []Array{y}
		}
		weight := func(k, n int) Input {
			if transposed {
				return diff(normal, n, k)
			}
			return diff(normal, k, n)
		}
		for _, s := range linearShapes {
			x, w := diff(normal, s.x...), weight(s.x[len(s.x)-1], s.n)
			op.Samples = append(op.Samples,
				Sample{Name: fmt.Sprint(s, " f=", f), In: []Input{x, w, diff(normal, s.n)}, Apply: apply, Want: oracle},
				Sample{Name: fmt.Sprint(s, " no bias f=", f), In: []Input{x, w, none()}, Apply: apply, Want: oracle})
		}
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint("large f=", f), Large: true,
			In: []Input{diff(normal, 3, 131, 97), weight(97, 211), diff(normal, 211)}, Apply: apply})
	}
	slices.SortFunc(op.Samples, func(a, b Sample) int { return strings.Compare(a.Name, b.Name) }) // a map has no order
	return op
}

// attention is one set of shapes and options; mask is the mask's shape, if there is one.
type attention struct {
	name                 string
	b, h, hkv, tq, tk, d int
	dv                   int
	mask                 []int
	opt                  tensor.AttentionOptions
	large                bool
	bias                 []int // its shape, if there is one
}

func (a attention) sample() Sample {
	in := []Input{diff(normal, a.b, a.h, a.tq, a.d), diff(normal, a.b, a.hkv, a.tk, a.d),
		diff(normal, a.b, a.hkv, a.tk, a.dv), none(), none()}
	if a.mask != nil {
		in[3] = flags(a.mask...)
	}
	if a.bias != nil {
		in[4] = diff(normal, a.bias...)
	}
	s := Sample{Name: a.name, In: in, Large: a.large,
		Apply: func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
			opt := a.opt
			opt.Mask, opt.Bias = in[3], in[4]
			out, lse := tensor.Attention(c, in[0], in[1], in[2], opt)
			return []*tensor.Tensor{out, lse}
		}}
	if a.opt.Dropout == 0 {
		s.Want = a.want
	}
	return s
}

// want computes attention score by score.
func (a attention) want(_ tensor.DType, in []Array) []Array {
	q, k, v, mask, bias := in[0], in[1], in[2], in[3], in[4]
	group, scale := a.h/a.hkv, a.opt.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(a.d))
	}
	scores := func(at []int) []float64 {
		row := make([]float64, a.tk)
		for j := range row {
			for x := range a.d {
				row[j] += scale * q.at(at[0], at[1], at[2], x) * k.at(at[0], at[1]/group, j, x)
			}
			if softCap := a.opt.SoftCap; softCap > 0 {
				row[j] = softCap * math.Tanh(row[j]/softCap)
			}
			if bias.V != nil {
				row[j] += bias.at(at[0], at[1], at[2], j)
			}
			apart := a.opt.QueryOffset + at[2] - a.opt.KeyOffset - j
			if a.opt.Causal && apart < 0 || a.opt.Window > 0 && max(apart, -apart) >= a.opt.Window || mask.V != nil &&
				mask.at(at[0], at[1], at[2], j) == 0 {
				row[j] = math.Inf(-1)
			}
		}
		return row
	}
	lse := generate([]int{a.b, a.h, a.tq}, func(at []int) float64 {
		if row := scores(at); len(row) > 0 && slices.Max(row) > math.Inf(-1) {
			return logSumExp(row)
		}
		return math.Inf(-1)
	})
	out := generate([]int{a.b, a.h, a.tq, a.dv}, func(at []int) float64 {
		s, l := 0.0, lse.at(at[:3]...)
		for j, score := range scores(at) {
			if score > math.Inf(-1) {
				s += math.Exp(score-l) * v.at(at[0], at[1]/group, j, at[3])
			}
		}
		return s
	})
	return []Array{out, lse}
}

func attentionRow() Op {
	op := Op{Name: "Attention", DTypes: floats, Slack: 4}
	causal := tensor.AttentionOptions{Causal: true}
	for _, a := range []attention{
		{"full", 2, 2, 2, 3, 5, 4, 3, nil, tensor.AttentionOptions{}, false, nil},
		{"causal", 1, 2, 2, 4, 4, 3, 3, nil, causal, false, nil},
		{"grouped", 2, 4, 2, 3, 3, 2, 2, nil, tensor.AttentionOptions{Scale: 0.3}, false, nil},
		{"grouped causal", 1, 3, 1, 3, 3, 2, 3, nil, causal, false, nil},
		{"cached", 1, 2, 1, 2, 6, 3, 2, nil, tensor.AttentionOptions{Causal: true, QueryOffset: 4}, false, nil},
		{"sees nothing", 1, 1, 1, 3, 2, 2, 2, nil, tensor.AttentionOptions{Causal: true, KeyOffset: 1}, false, nil},
		{"mask", 2, 2, 1, 3, 4, 2, 2, []int{2, 2, 3, 4}, tensor.AttentionOptions{}, false, nil},
		{"padding", 2, 2, 2, 3, 4, 2, 2, []int{2, 1, 1, 4}, causal, false, nil},
		{"mask of two dims", 2, 2, 2, 3, 4, 2, 2, []int{3, 4}, tensor.AttentionOptions{}, false, nil},
		{"window", 1, 2, 1, 6, 6, 3, 2, nil, tensor.AttentionOptions{Causal: true, Window: 3}, false, nil},
		{"window on both sides", 2, 2, 2, 5, 7, 2, 2, nil, tensor.AttentionOptions{Window: 2, KeyOffset: 1}, false,
			nil},
		{"window of a cache", 1, 2, 2, 2, 7, 2, 2, nil,
			tensor.AttentionOptions{Causal: true, QueryOffset: 5, Window: 4}, false, nil},
		{"window and padding", 2, 2, 1, 4, 4, 2, 2, []int{2, 1, 1, 4}, tensor.AttentionOptions{Causal: true, Window: 2},
			false, nil},
		{"window past the keys", 1, 1, 1, 3, 2, 2, 2, nil, tensor.AttentionOptions{QueryOffset: 2, Window: 2}, false,
			nil},
		{"window and dropout", 1, 2, 1, 5, 5, 2, 2, nil, tensor.AttentionOptions{Causal: true, Window: 3, Dropout: 0.3},
			false, nil},
		{"one", 1, 1, 1, 1, 1, 1, 1, nil, tensor.AttentionOptions{}, false, nil},
		{"head of one", 2, 2, 2, 3, 3, 1, 1, nil, causal, false, nil},
		{"no queries", 1, 2, 2, 0, 3, 2, 2, nil, tensor.AttentionOptions{}, false, nil},
		{"no keys", 1, 2, 2, 3, 0, 2, 2, nil, tensor.AttentionOptions{}, false, nil},
		{"no batch", 0, 2, 2, 3, 3, 2, 2, nil, causal, false, nil},
		{"dropout", 2, 2, 1, 4, 4, 3, 2, nil, tensor.AttentionOptions{Causal: true, Dropout: 0.3}, false, nil},
		{"large", 2, 4, 2, 97, 97, 16, 24, nil, causal, true, nil},
		{"large window", 1, 4, 2, 131, 131, 16, 16, nil, tensor.AttentionOptions{Causal: true, Window: 50}, true, nil},
		{"large dropout", 2, 2, 2, 67, 97, 16, 16, []int{2, 1, 1, 97}, tensor.AttentionOptions{Dropout: 0.1}, true,
			nil},
		{"bias", 2, 2, 2, 3, 4, 2, 2, nil, tensor.AttentionOptions{}, false, []int{2, 2, 3, 4}},
		{"bias of heads", 2, 4, 2, 3, 3, 2, 3, nil, causal, false, []int{4, 3, 3}},
		{"bias of keys", 2, 2, 1, 3, 4, 2, 2, nil, tensor.AttentionOptions{Scale: -0.5, Window: 3}, false,
			[]int{2, 1, 1, 4}},
		{"bias and mask", 2, 2, 1, 3, 4, 2, 2, []int{2, 1, 3, 4}, tensor.AttentionOptions{}, false, []int{1, 2, 3, 4}},
		{"bias and dropout", 2, 2, 1, 4, 4, 3, 2, nil, tensor.AttentionOptions{Causal: true, Dropout: 0.3}, false,
			[]int{2, 4, 4}},
		{"soft cap", 2, 4, 2, 5, 5, 3, 2, nil,
			tensor.AttentionOptions{Causal: true, Scale: 1.5, SoftCap: 0.8, Window: 3}, false, nil},
		{"soft cap, bias and mask", 2, 2, 1, 3, 4, 2, 2, []int{2, 1, 3, 4},
			tensor.AttentionOptions{SoftCap: 0.5}, false, []int{1, 2, 3, 4}},
		{"soft cap and dropout", 2, 2, 1, 4, 4, 3, 2, nil,
			tensor.AttentionOptions{Causal: true, Dropout: 0.3, SoftCap: 0.7}, false, nil},
		{"large soft cap", 2, 4, 2, 131, 301, 16, 24, nil, tensor.AttentionOptions{Causal: true, QueryOffset: 170,
			SoftCap: 1.5}, true, nil},
		{"bias of nothing", 1, 2, 2, 3, 0, 2, 2, nil, tensor.AttentionOptions{}, false, []int{2, 3, 0}},
		{"large bias", 2, 4, 2, 97, 131, 16, 24, nil, tensor.AttentionOptions{Dropout: 0.1}, true, []int{4, 97, 131}},
	} {
		op.Samples = append(op.Samples, a.sample())
	}
	call := func(q, k, v []int, opt func(c *tensor.Ctx) tensor.AttentionOptions) func(c *tensor.Ctx) {
		return func(c *tensor.Ctx) {
			o := tensor.AttentionOptions{}
			if opt != nil {
				o = opt(c)
			}
			tensor.Attention(c, zeros(c, q...), zeros(c, k...), zeros(c, v...), o)
		}
	}
	four := []int{1, 2, 3, 4}
	op.Misuse = []Misuse{
		{Name: "dims", Want: "want operands of 4 dims", Call: call([]int{2, 3, 4}, four, four, nil)},
		{Name: "batch", Want: "batch sizes differ", Call: call([]int{2, 2, 3, 4}, four, four, nil)},
		{Name: "heads", Want: "query heads a multiple", Call: call([]int{1, 3, 3, 4}, four, four, nil)},
		{Name: "head size", Want: "float32[1 2 3 5], float32[1 2 3 4], float32[1 2 3 4]): want equal head sizes",
			Call: call([]int{1, 2, 3, 5}, four, four, nil)},
		{Name: "lengths", Want: "equal lengths of k and v", Call: call(four, four, []int{1, 2, 4, 4}, nil)},
		{Name: "dropout", Want: "want a probability",
			Call: call(four, four, four, func(*tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{Dropout: 1}
			})},
		{Name: "window", Want: "window -1: want a number of keys",
			Call: call(four, four, four, func(*tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{Window: -1}
			})},
		{Name: "soft cap", Want: "soft cap -1: want a positive number, or 0",
			Call: call(four, four, four, func(*tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{SoftCap: -1}
			})},
		{Name: "mask", Want: "broadcasts to [1 2 3 3]",
			Call: call(four, four, four, func(c *tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{Mask: tensor.Zeros(c, tensor.Bool, 3, 4)}
			})},
		{Name: "mask dtype", Want: "want a bool mask",
			Call: call(four, four, four, func(c *tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{Mask: zeros(c, 3, 3)}
			})},
		{Name: "bias", Want: "want a float32 bias that broadcasts to [1 2 3 3]",
			Call: call(four, four, four, func(c *tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{Bias: zeros(c, 3, 4)}
			})},
		{Name: "bias dtype", Want: "want a float32 bias",
			Call: call(four, four, four, func(c *tensor.Ctx) tensor.AttentionOptions {
				return tensor.AttentionOptions{Bias: tensor.Zeros(c, tensor.Float64, 3, 3)}
			})},
	}
	return op
}
