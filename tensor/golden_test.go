// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/tensor"
)

// goldenCase is one call in testdata/ops.json, made by PyTorch (testdata/ops.py).
type goldenCase struct {
	Name  string
	Op    string
	DType string
	In    []string
	Out   []string
	Grad  []string
	Attrs struct {
		Dim, Start, End int
		Dims            []int
		Keep            bool
		Eps, Value      float64
		IgnoreIndex     int `json:"ignore_index"`
		Reduction       string
		Causal          bool
		Scale           float64
		QueryOffset     int `json:"query_offset"`
		KeyOffset       int `json:"key_offset"`
		Window          int
		Kernel          [2]int
		Stride          [2]int
		Padding         [2]int
		Dilation        [2]int
		Groups          int
		Slope, Alpha    float64
		Beta, Threshold float64
		Lo, Hi          *float64
		K, Classes      int
		Smallest        bool
		Pads            []int
		Mode            string
		Correction      int
	}
}

// goldenOps calls each op of the goldens on inputs by name; absent ones are nil.
var goldenOps = map[string]func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor{
	"softmax": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Softmax(c, x, k.Attrs.Dim)
	}),
	"log_softmax": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LogSoftmax(c, x, k.Attrs.Dim)
	}),
	"gelu": goldenUnary(func(c *tensor.Ctx, _ *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.GELU(c, x)
	}),
	"gelu_tanh": goldenUnary(func(c *tensor.Ctx, _ *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.GELUTanh(c, x)
	}),
	"silu": goldenUnary(func(c *tensor.Ctx, _ *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.SiLU(c, x)
	}),
	"slice": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Slice(c, x, k.Attrs.Dim, k.Attrs.Start, k.Attrs.End)
	}),
	"sum": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Sum(c, x, k.Attrs.Dims, k.Attrs.Keep)
	}),
	"mean": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Mean(c, x, k.Attrs.Dims, k.Attrs.Keep)
	}),
	"add":    goldenBinary(tensor.Add),
	"sub":    goldenBinary(tensor.Sub),
	"mul":    goldenBinary(tensor.Mul),
	"div":    goldenBinary(tensor.Div),
	"matmul": goldenBinary(tensor.MatMul),
	"where": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.Where(c, in["cond"], in["x"], in["y"]))
	},
	"masked_fill": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.MaskedFill(c, in["x"], in["mask"], k.Attrs.Value))
	},
	"concat": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.Concat(c, k.Attrs.Dim, in["x0"], in["x1"], in["x2"]))
	},
	"layer_norm": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.LayerNorm(c, in["x"], in["weight"], in["bias"], k.Attrs.Eps))
	},
	"rms_norm": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.RMSNorm(c, in["x"], in["weight"], k.Attrs.Eps))
	},
	"embedding": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.Embedding(c, in["table"], in["ids"]))
	},
	"gather": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.Gather(c, in["x"], k.Attrs.Dim, in["index"]))
	},
	"scatter_add": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.ScatterAdd(c, in["x"], k.Attrs.Dim, in["index"], in["src"]))
	},
	"linear": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.AddMM(c, in["bias"], in["x"], tensor.Transpose(c, in["weight"], 0, 1)))
	},
	"conv1d": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.AddMM(c, in["bias"], in["x"], in["weight"]))
	},
	"cross_entropy": goldenCrossEntropy,
	"conv2d": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		a := k.Attrs
		return one(tensor.Conv2D(c, in["x"], in["weight"], in["bias"],
			tensor.Conv2DOptions{Stride: a.Stride, Padding: a.Padding, Dilation: a.Dilation, Groups: a.Groups}))
	},
	"max_pool2d": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.MaxPool2D(c, x, tensor.Pool2DOptions{Kernel: k.Attrs.Kernel, Stride: k.Attrs.Stride,
			Padding: k.Attrs.Padding})
	}),
	"avg_pool2d": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.AvgPool2D(c, x, tensor.Pool2DOptions{Kernel: k.Attrs.Kernel, Stride: k.Attrs.Stride,
			Padding: k.Attrs.Padding})
	}),
	"global_avg_pool2d": goldenUnary(func(c *tensor.Ctx, _ *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.GlobalAvgPool2D(c, x)
	}),
	"leaky_relu": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LeakyReLU(c, x, k.Attrs.Slope)
	}),
	"elu": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.ELU(c, x, k.Attrs.Alpha)
	}),
	"softplus": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Softplus(c, x, k.Attrs.Beta, k.Attrs.Threshold)
	}),
	"clamp": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		lo, hi := math.Inf(-1), math.Inf(1)
		if k.Attrs.Lo != nil {
			lo = *k.Attrs.Lo
		}
		if k.Attrs.Hi != nil {
			hi = *k.Attrs.Hi
		}
		return tensor.Clamp(c, x, lo, hi)
	}),
	"bce_with_logits": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.BCEWithLogits(c, in["logits"], in["targets"], in["pos_weight"]))
	},
	"topk": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		values, indices := tensor.TopK(c, in["x"], k.Attrs.K, k.Attrs.Dim, k.Attrs.Smallest)
		return []*tensor.Tensor{values, indices}
	},
	"cumsum": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.CumSum(c, x, k.Attrs.Dim)
	}),
	"argmin": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.ArgMin(c, x, k.Attrs.Dim, false)
	}),
	"one_hot": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.OneHot(c, in["ids"], k.Attrs.Classes, tensor.Int64))
	},
	"pad": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		modes := map[string]tensor.PadMode{"constant": tensor.PadConstant, "reflect": tensor.PadReflect,
			"replicate": tensor.PadReplicate, "circular": tensor.PadCircular}
		return tensor.Pad(c, x, k.Attrs.Pads, modes[k.Attrs.Mode], k.Attrs.Value)
	}),
	"logsumexp": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LogSumExp(c, x, k.Attrs.Dims, k.Attrs.Keep)
	}),
	"var": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Var(c, x, k.Attrs.Dims, k.Attrs.Correction, k.Attrs.Keep)
	}),
	"std": goldenUnary(func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Std(c, x, k.Attrs.Dims, k.Attrs.Correction, k.Attrs.Keep)
	}),
	"group_norm": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.GroupNorm(c, in["x"], k.Attrs.Groups, in["weight"], in["bias"], k.Attrs.Eps))
	},
	"swiglu": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.SwiGLU(c, in["gate"], in["up"]))
	},
	"rope": func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.RoPE(c, in["x"], in["cos"], in["sin"]))
	},
	"attention": func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		out, lse := tensor.Attention(c, in["q"], in["k"], in["v"],
			tensor.AttentionOptions{Scale: k.Attrs.Scale, Causal: k.Attrs.Causal,
				QueryOffset: k.Attrs.QueryOffset, KeyOffset: k.Attrs.KeyOffset, Window: k.Attrs.Window,
				Mask: in["mask"]})
		return []*tensor.Tensor{out, lse}[:len(k.Out)]
	},
}

func one(t *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{t} }

func goldenUnary(f func(c *tensor.Ctx, k *goldenCase, x *tensor.Tensor) *tensor.Tensor) func(*tensor.Ctx, *goldenCase,
	map[string]*tensor.Tensor) []*tensor.Tensor {
	return func(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(f(c, k, in["x"]))
	}
}

func goldenBinary(f func(c *tensor.Ctx, x, y *tensor.Tensor) *tensor.Tensor) func(*tensor.Ctx, *goldenCase,
	map[string]*tensor.Tensor) []*tensor.Tensor {
	return func(c *tensor.Ctx, _ *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
		return one(f(c, in["x"], in["y"]))
	}
}

func goldenCrossEntropy(c *tensor.Ctx, k *goldenCase, in map[string]*tensor.Tensor) []*tensor.Tensor {
	loss := tensor.CrossEntropy(c, in["logits"], in["targets"], k.Attrs.IgnoreIndex)
	if k.Attrs.Reduction == "none" {
		return one(loss)
	}
	loss = tensor.Sum(c, loss, nil, false)
	if k.Attrs.Reduction == "mean" {
		count := 0
		for _, id := range tensor.ToSlice[int64](c, in["targets"]) {
			if int(id) != k.Attrs.IgnoreIndex {
				count++
			}
		}
		loss = tensor.Affine(c, loss, 1/float64(count), 0)
	}
	return one(loss)
}

// TestGoldens compares results and gradients of the composite ops with PyTorch's.
func TestGoldens(t *testing.T) {
	text, err := os.ReadFile("testdata/ops.json")
	require.NoError(t, err)
	var manifest struct{ Cases []goldenCase }
	require.NoError(t, json.Unmarshal(text, &manifest))
	f, err := os.Open("testdata/ops.safetensors")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	info, err := f.Stat()
	require.NoError(t, err)
	file, err := safetensors.NewReader(f, info.Size(), f.Name())
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, k := range manifest.Cases {
		seen[k.Op] = true
		t.Run(k.Name, func(t *testing.T) { runGolden(t, &k, file) })
	}
	require.Len(t, seen, len(goldenOps), "ops in the goldens")
}

func runGolden(t *testing.T, k *goldenCase, file *safetensors.Reader) {
	c := tensor.NewCtx(tensor.CPU())
	load := func(kind, name string) *tensor.Tensor {
		path := k.Name + "/" + kind + "/" + name
		entry, ok := file.Lookup(path)
		require.True(t, ok, path)
		data, err := file.ReadTensor(path)
		require.NoError(t, err)
		return tensor.FromBytes(c, data, entry.DType, entry.Shape...)
	}
	in := map[string]*tensor.Tensor{}
	for _, name := range k.In {
		in[name] = load("in", name)
	}
	var wrt []*tensor.Tensor
	for _, name := range k.Grad {
		wrt = append(wrt, in[name].SetRequiresGrad(true))
	}
	tolerance := 1e-5
	if k.DType == "float64" {
		tolerance = 1e-11
	}
	require.Contains(t, goldenOps, k.Op)
	outs := goldenOps[k.Op](c, k, in)
	var roots, cotangents []*tensor.Tensor
	for i, name := range k.Out {
		requireNear(t, c, load("out", name), outs[i], tolerance, name)
		if outs[i].RequiresGrad() { // indices are not differentiable
			roots, cotangents = append(roots, outs[i]), append(cotangents, load("weight", name))
		}
	}
	if len(wrt) == 0 {
		return
	}
	for i, g := range tensor.Backward(c, roots, cotangents, wrt) {
		requireNear(t, c, load("grad", k.Grad[i]), g, tolerance, "gradient of "+k.Grad[i])
	}
}

// requireNear compares relative to the larger of the number, a tenth of the largest in
// its tensor, and 0.1: the gradient of RMSNorm over one element is a difference of two
// numbers near 1 that agree in all digits but the last.
func requireNear(t *testing.T, c *tensor.Ctx, want, got *tensor.Tensor, tolerance float64, what string) {
	t.Helper()
	require.Equal(t, want.String(), got.String(), what)
	w, g := values(c, want), values(c, got)
	top := 0.0
	for _, x := range w {
		if !math.IsInf(x, 0) {
			top = max(top, math.Abs(x))
		}
	}
	for i, x := range w {
		if x != g[i] && !(math.Abs(x-g[i]) <= tolerance*max(math.Abs(x), top/10, 0.1)) {
			require.Failf(t, "values differ", "%s: element %d is %v: want %v (largest %v)", what, i, g[i], x, top)
		}
	}
}

// values are t's elements as float64.
func values(c *tensor.Ctx, t *tensor.Tensor) []float64 {
	return tensor.ToSlice[float64](c, tensor.Cast(c.NoGrad(), tensor.Detach(t), tensor.Float64))
}
