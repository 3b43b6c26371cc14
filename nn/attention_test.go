// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// naive composes self-attention out of elementary ops: expanded key heads, explicit scores,
// a softmax, and a mask of −1e9.
func naive(c *tensor.Ctx, m *nn.MultiheadAttention, x *tensor.Tensor, mask []bool) *tensor.Tensor {
	b, t, w := x.Size(0), x.Size(1), x.Size(2)
	d := w / m.Config.Heads
	project := func(l *nn.Linear, heads int) *tensor.Tensor {
		y := tensor.MatMul(c, x, tensor.Transpose(c, l.Weight.Tensor, 0, 1))
		if l.Bias != nil {
			y = tensor.Add(c, y, l.Bias.Tensor)
		}
		y = tensor.Transpose(c, tensor.Reshape(c, y, b, t, heads, d), 1, 2)
		if heads == m.Config.Heads {
			return y
		}
		group := m.Config.Heads / heads
		y = tensor.Expand(c, tensor.Reshape(c, y, b, heads, 1, t, d), b, heads, group, t, d)
		return tensor.Reshape(c, y, b, m.Config.Heads, t, d)
	}
	q, k, v := project(m.Q, m.Config.Heads), project(m.K, m.Config.KVHeads), project(m.V, m.Config.KVHeads)
	scores := tensor.Affine(c, tensor.MatMul(c, q, tensor.Transpose(c, k, 2, 3)), 1/math.Sqrt(float64(d)), 0)
	hide := make([]float64, b*t*t)
	for i := range hide {
		if bi, qi, ki := i/(t*t), i/t%t, i%t; m.Config.Causal && ki > qi || mask != nil && !mask[bi*t+ki] {
			hide[i] = -1e9
		}
	}
	scores = tensor.Add(c, scores, tensor.FromSlice(c, hide, b, 1, t, t))
	y := tensor.MatMul(c, tensor.Softmax(c, scores, -1), v)
	y = tensor.Reshape(c, tensor.Transpose(c, y, 1, 2), b, t, w)
	y = tensor.MatMul(c, y, tensor.Transpose(c, m.Out.Weight.Tensor, 0, 1))
	if m.Out.Bias != nil {
		y = tensor.Add(c, y, m.Out.Bias.Tensor)
	}
	return y
}

// Attention and its gradients are those of the naive composition, for all, grouped and
// single key heads.
func TestMultiheadAttention(t *testing.T) {
	const batch, length, width, heads = 2, 5, 12, 6
	for _, kvHeads := range []int{6, 3, 2, 1} {
		for _, causal := range []bool{false, true} {
			for _, masked := range []bool{false, true} {
				t.Run(fmt.Sprintf("kv%d causal=%v mask=%v", kvHeads, causal, masked), func(t *testing.T) {
					c := env()
					m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3).As(tensor.Float64),
						nn.AttentionConfig{Width: width, Heads: heads, KVHeads: kvHeads, NoQKVBias: causal,
							NoOutBias: causal, Causal: causal})
					require.Equal(t, []int{width / heads * kvHeads, width}, m.K.Weight.Shape())
					x := tensor.Normal(c.Ctx, tensor.Float64, 8, 0, 1, batch, length, width).SetRequiresGrad(true)
					var mask *tensor.Tensor
					var visible []bool
					if masked {
						visible = []bool{true, true, true, false, false, true, false, true, true, true}
						mask = tensor.FromSlice(c.Ctx, visible, batch, 1, 1, length)
					}
					check := func(forward func(c *nn.Ctx) *tensor.Tensor) (out []float64, grads [][]float64) {
						c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
							y := forward(c)
							weights := tensor.Normal(c.Ctx, tensor.Float64, 9, 0, 1, batch, length, width)
							leaves := []*tensor.Tensor{x}
							for _, p := range nn.NamedParameters(m) {
								leaves = append(leaves, p.Tensor)
							}
							for _, g := range tensor.Backward(c.Ctx, []*tensor.Tensor{y}, []*tensor.Tensor{weights},
								leaves) {
								grads = append(grads, tensor.ToSlice[float64](c.Ctx, g))
							}
							out = tensor.ToSlice[float64](c.Ctx, y)
							return nil
						})
						return out, grads
					}
					got, gotGrads := check(func(c *nn.Ctx) *tensor.Tensor {
						return m.Forward(c, x, nn.AttentionInput{Mask: mask})
					})
					want, wantGrads := check(func(c *nn.Ctx) *tensor.Tensor { return naive(c.Ctx, m, x, visible) })
					require.InDeltaSlice(t, want, got, 1e-12)
					for i := range wantGrads {
						require.InDeltaSlice(t, wantGrads[i], gotGrads[i], 1e-11, "gradient %d", i)
					}
				})
			}
		}
	}
}

// TestMultiheadAttentionWindow: a window as long as the sequence changes nothing, one of a single key leaves each
// position itself.
func TestMultiheadAttentionWindow(t *testing.T) {
	c := env()
	m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3).As(tensor.Float64),
		nn.AttentionConfig{Width: 8, Heads: 2, KVHeads: 1, Causal: true})
	x := tensor.Normal(c.Ctx, tensor.Float64, 8, 0, 1, 2, 5, 8)
	run := func(window int) []float64 {
		m.Config.Window = window
		return tensor.ToSlice[float64](c.Ctx, m.Forward(c, x, nn.AttentionInput{}))
	}
	require.Equal(t, run(0), run(5))
	require.NotEqual(t, run(0), run(4))
	v := m.V.Forward(c, x)
	itself := tensor.ToSlice[float64](c.Ctx, m.Out.Forward(c, tensor.Concat(c.Ctx, 2, v, v)))
	require.InDeltaSlice(t, itself, run(1), 1e-12)
}

func TestMultiheadAttentionDropout(t *testing.T) {
	root := tensor.NewCtx(tensor.CPU())
	m := nn.NewMultiheadAttention(newInit(), nn.AttentionConfig{Width: 8, Heads: 2, KVHeads: 2, Causal: true})
	m.Config.DropoutP = 0.5
	x := tensor.Normal(root, tensor.Float32, 8, 0, 1, 2, 5, 8)
	run := func(training bool, seed uint64) []byte {
		c := nn.NewCtx(root.WithRandom(seed, 0), nil, training)
		return tensor.ReadBytes(root, m.Forward(c, x, nn.AttentionInput{}))
	}
	require.Equal(t, run(true, 1), run(true, 1))
	require.NotEqual(t, run(true, 1), run(true, 2))
	require.NotEqual(t, run(true, 1), run(false, 1))
	require.Equal(t, run(false, 1), run(false, 2))
}

func TestAttentionRefuses(t *testing.T) {
	c := env()
	for _, k := range [][3]int{{8, 3, 1}, {8, 4, 3}, {8, 2, -1}} {
		err := tensor.Try(func() {
			nn.NewMultiheadAttention(newInit(),
				nn.AttentionConfig{Width: k[0], Heads: k[1], KVHeads: k[2], Causal: true})
		})
		require.EqualError(t, err, fmt.Sprintf("nn.NewMultiheadAttention: width %d, %d heads, %d key heads: "+
			"want a width that divides into heads, or a HeadDim, and heads that divide into key heads",
			k[0], k[1], k[2]))
	}
	err := tensor.Try(func() { nn.SplitHeads(c, tensor.Zeros(c.Ctx, tensor.Float32, 1, 2, 8), 3) })
	require.EqualError(t, err, "nn.SplitHeads: width 8 does not divide into heads of 3")
}

func TestSplitAndMergeHeads(t *testing.T) {
	c := env()
	x := tensor.Arange(c.Ctx, tensor.Float32, 0, 1, 2*3*4)
	x = tensor.Reshape(c.Ctx, x, 2, 3, 4)
	h := nn.SplitHeads(c, x, 2)
	require.Equal(t, []int{2, 2, 3, 2}, h.Shape())
	require.True(t, h.SharesMemory(x))
	require.Equal(t, []float32{2, 3, 6, 7, 10, 11},
		tensor.ToSlice[float32](c.Ctx, tensor.Select(c.Ctx, tensor.Select(c.Ctx, h, 0, 0), 0, 1)))
	require.Equal(t, tensor.ToSlice[float32](c.Ctx, x), tensor.ToSlice[float32](c.Ctx, nn.MergeHeads(c, h)))
}

// Tokens that are fed in parts through a cache have the outputs of all at once, with grouped key heads too.
func TestMultiheadAttentionCache(t *testing.T) {
	c := env()
	const batch, length, width = 2, 6, 8
	m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3).As(tensor.Float64),
		nn.AttentionConfig{Width: width, Heads: 4, KVHeads: 2, Causal: true})
	x := tensor.Normal(c.Ctx, tensor.Float64, 8, 0, 1, batch, length, width)
	want := tensor.ToSlice[float64](c.Ctx, m.Forward(c, x, nn.AttentionInput{}))
	cache := nn.NewKVCache(c, nn.KVCacheConfig{Layers: 1, Batch: batch, Tokens: length, Dim: 2,
		DType: tensor.Float64})
	defer cache.Free()
	for _, parts := range [][]int{{6}, {1, 2, 3}, {5, 1}} {
		cache.Reset()
		var ys []*tensor.Tensor
		for _, n := range parts {
			at := cache.Len()
			ys = append(ys, m.Forward(c, tensor.Slice(c.Ctx, x, 1, at, at+n),
				nn.AttentionInput{Cache: cache.Layer(0)}))
			cache.Advance(n)
		}
		require.Equal(t, cache.Cap(), cache.Len())
		require.InDeltaSlice(t, want, tensor.ToSlice[float64](c.Ctx, tensor.Concat(c.Ctx, 1, ys...)), 1e-12, "%v",
			parts)
	}
}

// A model that does not ask for the padding of its rows would compute with it: the cache refuses that.
func TestPaddedRowsAreNotOverlooked(t *testing.T) {
	c := env()
	m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3), nn.AttentionConfig{Width: 4, Heads: 2, Causal: true})
	cache := nn.NewKVCache(c, nn.KVCacheConfig{Layers: 1, Batch: 2, Tokens: 8, Dim: 2, DType: tensor.Float32})
	defer cache.Free()
	x := tensor.Normal(c.Ctx, tensor.Float32, 8, 0, 1, 2, 2, 4)
	run := func(mask *tensor.Tensor) error {
		return tensor.Try(func() {
			m.Forward(c, x, nn.AttentionInput{Cache: cache.Layer(0), Mask: nn.KeyMask(c, mask)})
			cache.Advance(2)
		})
	}
	cache.Pad([]int{0, 1})
	require.ErrorContains(t, run(nil), "rows of the batch are padded: want a model that computes with")
	for range 2 {
		_, mask := cache.Padded(c, 2)
		require.NoError(t, run(mask))
		require.ErrorContains(t, run(nil), "rows of the batch are padded", "each step needs its own")
	}
	cache.Reset()
	require.NoError(t, run(nil))
}

// A layer with a window sees the same through a cache that has dropped what no window reaches any more, a hidden token
// included, and the cache of one layer of two does not grow with the text.
func TestMultiheadAttentionWindowCache(t *testing.T) {
	c := env()
	const batch, length, width, window = 1, 290, 4, 40
	layers := [2]*nn.MultiheadAttention{}
	for i, w := range []int{window, 0} {
		layers[i] = nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3).As(tensor.Float64),
			nn.AttentionConfig{Width: width, Heads: 2, KVHeads: 1, Causal: true, Window: w})
	}
	x := tensor.Normal(c.Ctx, tensor.Float64, 8, 0, 1, batch, length, width)
	seen := make([]int32, batch*length)
	for i := range seen {
		seen[i] = int32(i % 9)
	}
	mask := tensor.FromSlice(c.Ctx, seen, batch, length)
	run := func(x *tensor.Tensor, cache *nn.KVCache) *tensor.Tensor {
		keys := nn.KeyMask(c, tensor.Slice(c.Ctx, mask, 1, 0, cache.Len()+x.Size(1)))
		for i, m := range layers {
			x = m.Forward(c, x, nn.AttentionInput{Cache: cache.Layer(i), Mask: keys})
		}
		cache.Advance(x.Size(1))
		return x
	}
	want := tensor.ToSlice[float64](c.Ctx, run(x, nil))
	cache := nn.NewKVCache(c, nn.KVCacheConfig{Layers: 2, Batch: batch, Tokens: length, Dim: 2,
		DType: tensor.Float64, Windows: []int{window, 0}})
	for _, part := range []int{1, 7, 150} {
		cache.Reset()
		var ys []*tensor.Tensor
		for at := 0; at < length; at += part {
			ys = append(ys, run(tensor.Slice(c.Ctx, x, 1, at, min(at+part, length)), cache))
		}
		got := tensor.ToSlice[float64](c.Ctx, tensor.Concat(c.Ctx, 1, ys...))
		require.InDeltaSlice(t, want, got, 1e-12, "parts of %d", part)
		if part == 1 {
			require.InDelta(t, length-64, cache.Layer(0).Start(1), 64, "128 tokens are kept at most")
			require.Zero(t, cache.Layer(1).Start(1))
		}
	}
	require.ErrorContains(t, tensor.Try(func() {
		layers[0].Forward(c, tensor.Slice(c.Ctx, x, 1, 0, 1), nn.AttentionInput{Cache: cache.Layer(0)})
	}), "291 tokens: the cache has room for 290")
	cache.Free()
}

// A module whose projections are slices, heads of them, computes these heads: the parts' sum is the whole. That is what
// tensor parallelism relies on.
func TestMultiheadAttentionOfSlices(t *testing.T) {
	c := env()
	c = c.With(c.NoGrad())
	const batch, length, width, dim = 2, 5, 8, 3
	cfg := nn.AttentionConfig{Width: width, Heads: 4, KVHeads: 2, HeadDim: dim, Causal: true, NoOutBias: true,
		QKNorm: true, NormEps: 1e-3}
	m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3).As(tensor.Float64), cfg)
	require.Equal(t, []int{4 * dim, width}, m.Q.Weight.Shape())
	require.Equal(t, []int{2 * dim, width}, m.K.Weight.Shape())
	require.Equal(t, []int{width, 4 * dim}, m.Out.Weight.Shape())
	require.NotNil(t, m.V.Bias)
	require.Nil(t, m.Out.Bias)
	x := tensor.Normal(c.Ctx, tensor.Float64, 8, 0, 1, batch, length, width)
	cos, sin := nn.RoPE{Dim: 2}.Tables(c, tensor.Arange(c.Ctx, tensor.Int32, 0, 1, length))
	in := nn.AttentionInput{Cos: cos, Sin: sin}
	cut := func(p *nn.Parameter, dim, part int) *nn.Parameter {
		n := p.Size(dim) / 2
		return &nn.Parameter{Tensor: tensor.Slice(c.Ctx, tensor.Detach(p.Tensor), dim, part*n, (part+1)*n)}
	}
	rows := func(l *nn.Linear, part int) *nn.Linear {
		return &nn.Linear{Weight: cut(l.Weight, 0, part), Bias: cut(l.Bias, 0, part)}
	}
	var sum *tensor.Tensor
	for part := range 2 {
		slice := &nn.MultiheadAttention{Q: rows(m.Q, part), K: rows(m.K, part), V: rows(m.V, part),
			Out: &nn.Linear{Weight: cut(m.Out.Weight, 1, part)}, QNorm: m.QNorm, KNorm: m.KNorm, Config: m.Config}
		y := slice.Forward(c, x, in)
		if sum == nil {
			sum = y
		} else {
			sum = tensor.Add(c.Ctx, sum, y)
		}
	}
	requireClose(t, m.Forward(c, x, in), sum, 1e-12, "the sum of two halves")
}

// Outputs and gradients are those of transformers' attentions: Llama's rotary positions, Qwen's biases and norms.
func TestAttentionGoldens(t *testing.T) {
	type goldenCase struct {
		Name    string
		Params  []string
		Theta   float64
		Heads   int
		KVHeads int     `json:"kv_heads"`
		HeadDim int     `json:"head_dim"`
		QKVBias bool    `json:"qkv_bias"`
		OutBias bool    `json:"out_bias"`
		NormEps float64 `json:"norm_eps"`
	}
	var manifest struct{ Cases []goldenCase }
	g := openGolden(t, "attention", &manifest)
	require.Len(t, manifest.Cases, 4)
	for _, k := range manifest.Cases {
		c := env()
		x := g.load(c, k.Name+"/x").SetRequiresGrad(true)
		m := nn.NewMultiheadAttention(newInit(), nn.AttentionConfig{Width: x.Size(2), Heads: k.Heads,
			KVHeads: k.KVHeads, HeadDim: k.HeadDim, NoQKVBias: !k.QKVBias, NoOutBias: !k.OutBias,
			QKNorm: k.NormEps > 0, NormEps: k.NormEps, Causal: true})
		wrt := []*tensor.Tensor{x}
		var names []string
		for _, p := range nn.NamedParameters(m) {
			tensor.CopyInto(c.With(c.NoGrad()).Ctx, p.Tensor, g.load(c, k.Name+"/param/"+p.Name))
			names, wrt = append(names, p.Name), append(wrt, p.Tensor)
		}
		require.ElementsMatch(t, k.Params, names, k.Name)
		c = c.WithPositions(g.load(c, k.Name+"/positions"))
		cos, sin := nn.RoPE{Dim: k.HeadDim, Theta: k.Theta}.Tables(c, c.TokenPositions(c.Positions, 0))
		requireClose(t, g.load(c, k.Name+"/cos"), cos, 2e-6, k.Name+": cosines")
		requireClose(t, g.load(c, k.Name+"/sin"), sin, 2e-6, k.Name+": sines")
		for _, c := range []*nn.Ctx{c, c.WithRecompute([]nn.Module{m})} {
			y := m.Forward(c, x, nn.AttentionInput{Cos: cos, Sin: sin})
			requireClose(t, g.load(c, k.Name+"/y"), y, 2e-6, k.Name)
			weights := g.load(c, k.Name+"/weights")
			grads := tensor.Backward(c.Ctx, []*tensor.Tensor{y}, []*tensor.Tensor{weights}, wrt)
			for i, name := range append([]string{"x"}, names...) {
				requireClose(t, g.load(c, k.Name+"/grad/"+name), grads[i], 1e-5, k.Name+": gradient of "+name)
			}
		}
	}
}

// Positions come from the context, or are counted from the tokens that a cache holds.
func TestTokenPositions(t *testing.T) {
	c := env()
	ids := tensor.Zeros(c.Ctx, tensor.Int64, 2, 3)
	require.Equal(t, []int32{4, 5, 6}, tensor.ToSlice[int32](c.Ctx, c.TokenPositions(ids, 4)))
	for _, shape := range [][]int{{3}, {2, 3}} {
		p := tensor.Zeros(c.Ctx, tensor.Int64, shape...)
		require.Same(t, p, c.WithPositions(p).TokenPositions(ids, 4))
	}
	for _, shape := range [][]int{{2}, {1, 3}, {3, 2}, {}} {
		p := tensor.Zeros(c.Ctx, tensor.Int64, shape...)
		require.ErrorContains(t, tensor.Try(func() { c.WithPositions(p).TokenPositions(ids, 4) }),
			"for tokens of shape [2 3]: want [2 3] or [3]")
	}
	require.ErrorContains(t, tensor.Try(func() { nn.RoPE{Dim: 3}.Tables(c, ids) }),
		"nn.RoPE: Dim is 3: want an even number of elements")
}

// Hooks and recomputation work for a module one of whose inputs is not there.
func TestMissingInputs(t *testing.T) {
	m := nn.NewMultiheadAttention(newInit(), nn.AttentionConfig{Width: 8, Heads: 2})
	root, tree := tensor.NewCtx(tensor.CPU()), nn.Walk(m)
	x := tensor.Normal(root, tensor.Float32, 8, 0, 1, 2, 5, 8).SetRequiresGrad(true)
	run := func(c *nn.Ctx) []byte {
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			x.ZeroGrad()
			y := tensor.Sum(c.Ctx, m.Forward(c, x, nn.AttentionInput{}), nil, false)
			tensor.Backward(c.Ctx, []*tensor.Tensor{y}, nil, nil)
			return nil
		})
		return tensor.ReadBytes(root, x.Grad())
	}
	c := nn.NewCtx(root, tree, true)
	want := run(c)
	require.Equal(t, want, run(c.WithRecompute([]nn.Module{m})))
	var log []string
	tree.AddHooks(m, recorder(&log, "m"))
	require.Equal(t, want, run(c))
	require.Equal(t, []string{"m pre-forward", "m post-forward", "m pre-backward", "m post-backward"}, log)
}

// A context may replace the attention of all modules: it gets rotated queries and keys and the options, also when a
// module is recomputed.
func TestWithAttention(t *testing.T) {
	const batch, length, width, heads = 2, 5, 12, 6
	m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3),
		nn.AttentionConfig{Width: width, Heads: heads, KVHeads: 3, Causal: true, Window: 3})
	root := tensor.NewCtx(tensor.CPU())
	x := tensor.Normal(root.NoGrad(), tensor.Float32, 4, 0, 1, batch, length, width).SetRequiresGrad(true)
	run := func(change func(c *nn.Ctx) *nn.Ctx) (out [][]byte) {
		change(nn.NewCtx(root, nn.Walk(m), true)).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			y := m.Forward(c, x, nn.AttentionInput{})
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, y, nil, false)}, nil, nil)
			out = [][]byte{tensor.ReadBytes(root, y), tensor.ReadBytes(root, x.Grad())}
			return nil
		})
		x.ZeroGrad()
		return out
	}
	want, calls := run(func(c *nn.Ctx) *nn.Ctx { return c }), 0
	replaced := func(c *nn.Ctx, q, k, v *tensor.Tensor, opt tensor.AttentionOptions) *tensor.Tensor {
		calls++
		require.Equal(t, tensor.AttentionOptions{Causal: true, Window: 3}, opt)
		require.Equal(t, []int{batch, 3, length, 2}, k.Shape())
		y, _ := tensor.Attention(c.Ctx, q, k, v, opt)
		return y
	}
	require.Equal(t, want, run(func(c *nn.Ctx) *nn.Ctx { return c.WithAttention(replaced) }))
	require.Equal(t, 1, calls)
	require.Equal(t, want, run(func(c *nn.Ctx) *nn.Ctx {
		return c.WithAttention(replaced).WithRecompute([]nn.Module{m})
	}))
	require.Equal(t, 3, calls)
}

// Joined caches refuse what would compute with the positions or the masks of others.
func TestJoinedCachesRefuse(t *testing.T) {
	c := env()
	cfg := nn.KVCacheConfig{Layers: 1, Batch: 1, Tokens: 8, Dim: 2, DType: tensor.Float32}
	one, two := nn.NewKVCache(c, cfg), nn.NewKVCache(c, cfg)
	m := nn.NewMultiheadAttention(nn.NewInit(tensor.CPU(), 3), nn.AttentionConfig{Width: 4, Heads: 2, Causal: true})
	x := tensor.Normal(c.Ctx, tensor.Float32, 8, 0, 1, 2, 1, 4)
	k := nn.JoinKVCaches(one, two)
	run := func(x, mask *tensor.Tensor) error {
		return tensor.Try(func() { m.Forward(c, x, nn.AttentionInput{Cache: k.Layer(0), Mask: mask}) })
	}
	require.ErrorContains(t, run(x, nil), "want a model that computes with the positions of KVCache.Padded")
	k.Padded(c, 1)
	require.ErrorContains(t, run(tensor.Slice(c.Ctx, x, 0, 0, 1), nil), "2 joined caches with a batch of 1")
	require.ErrorContains(t, run(x, tensor.FromSlice(c.Ctx, []bool{true, true}, 2, 1, 1, 1)), "and no mask")
	require.NoError(t, run(x, nil))
	require.ErrorContains(t, tensor.Try(func() { nn.JoinKVCaches() }), "no caches")
	require.ErrorContains(t, tensor.Try(func() { nn.JoinKVCaches(one, k) }), "cache 1 has 2 rows")
	one.Free()
	two.Free()
}
