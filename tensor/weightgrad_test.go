// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// stage is the last stage of a small language model: blocks of attention and a feed-forward part over the input of the
// stage before, to which the embeddings are added that the head is tied to.
type stage struct {
	c      *tensor.Ctx
	params []tensor.Named
	lower  tensor.DType // of Autocast
	again  bool         // blocks are checkpointed, one of the two within another checkpoint
	seed   float64      // the gradient of the loss
	log    []string     // parameters in the order of their hooks, and the bits that they saw
	runs   int          // of blocks
}

const stageTokens, stageWidth, stageVocabulary, stageHeads = 24, 16, 40, 2

func newStage(t *testing.T) *stage {
	s := &stage{c: newCtx(t), seed: 1}
	add := func(name string, shape ...int) {
		p := tensor.Normal(s.c.NoGrad(), tensor.Float32, uint64(len(s.params)), 0, 0.3, shape...).SetRequiresGrad(true)
		p.OnGrad(func(c *tensor.Ctx, p *tensor.Tensor) {
			s.log = append(s.log, fmt.Sprintf("%s %x", name, tensor.ReadBytes(c, p.Grad())))
		})
		s.params = append(s.params, tensor.Named{Name: name, Tensor: p})
	}
	const c = stageWidth
	add("wte", stageVocabulary, c)
	add("second", stageVocabulary, c)
	for i := range 2 {
		for _, p := range []string{"ln_1.weight", "ln_1.bias", "proj.bias", "down.bias", "rms"} {
			add(fmt.Sprintf("h.%d.%s", i, p), c)
		}
		add(fmt.Sprintf("h.%d.qkv", i), 3*c, c)
		add(fmt.Sprintf("h.%d.proj", i), c, c)
		add(fmt.Sprintf("h.%d.up", i), c, 4*c)
		add(fmt.Sprintf("h.%d.up.bias", i), 4*c)
		add(fmt.Sprintf("h.%d.down", i), 4*c, c)
	}
	add("shared", c, c)
	return s
}

func (s *stage) param(name string) *tensor.Tensor {
	for _, p := range s.params {
		if p.Name == name {
			return p.Tensor
		}
	}
	panic(name)
}

// block keeps h's shape. "shared" is used by both blocks, in each for two products.
func (s *stage) block(c *tensor.Ctx, i int, h *tensor.Tensor) *tensor.Tensor {
	s.runs++
	p := func(name string) *tensor.Tensor { return s.param(fmt.Sprintf("h.%d.%s", i, name)) }
	x := tensor.LayerNormLowered(c, h, p("ln_1.weight"), p("ln_1.bias"), 1e-5)
	qkv := tensor.Split(c, tensor.Linear(c, x, p("qkv"), nil), 1, stageWidth, stageWidth, stageWidth)
	for k := range qkv {
		heads := tensor.Reshape(c, qkv[k], 1, stageTokens, stageHeads, stageWidth/stageHeads)
		qkv[k] = tensor.Transpose(c, heads, 1, 2)
	}
	a, _ := tensor.Attention(c, qkv[0], qkv[1], qkv[2], tensor.AttentionOptions{Causal: true, Dropout: 0.1})
	a = tensor.Reshape(c, tensor.Transpose(c, a, 1, 2), stageTokens, stageWidth)
	h = tensor.Add(c, h, tensor.Dropout(c, tensor.AddMM(c, p("proj.bias"), a, p("proj")), 0.1))
	x = tensor.RMSNorm(c, h, p("rms"), 1e-5)
	x = tensor.MatMul(c, tensor.MatMul(c, x, s.param("shared")), s.param("shared"))
	x = tensor.AddMMActivated(c, p("up.bias"), x, p("up"), tensor.ActivationGELUTanh)
	return tensor.Add(c, h, tensor.Dropout(c, tensor.AddMM(c, p("down.bias"), x, p("down")), 0.1))
}

// microBatch is one under way.
type microBatch struct {
	c       *tensor.Ctx
	close   func(...*tensor.Tensor)
	x, loss *tensor.Tensor
}

func (s *stage) forward(m int) *microBatch {
	c, end := s.c.WithRandom(7, int64(m*stageTokens)).Autocast(s.lower).OpenScope()
	ids := make([]int64, stageTokens)
	for i := range ids {
		ids[i] = int64((i*i*7 + m*11) % stageVocabulary)
	}
	tokens := tensor.FromSlice(c, ids, stageTokens)
	x := tensor.Normal(c.NoGrad(), tensor.Float32, uint64(100+m), 0, 1, stageTokens, stageWidth).Boundary()
	h := tensor.Add(c, x, tensor.Embedding(c, s.param("wte"), tokens))
	h = tensor.Add(c, h, tensor.Embedding(c, s.param("second"), tokens))
	for i := range 2 {
		h = s.run(c, i, h)
	}
	loss := tensor.LinearCrossEntropy(c, h, s.param("wte"), nil, tokens, -100)
	loss = tensor.Add(c, loss, total(c, tensor.Exp(c, s.param("second"))))
	return &microBatch{c, end, x, loss}
}

// run runs block i.
func (s *stage) run(c *tensor.Ctx, i int, h *tensor.Tensor) *tensor.Tensor {
	body := func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor { return one(s.block(c, i, in[0])) }
	if !s.again {
		return c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { return body(c, one(h)) })[0]
	}
	var params []*tensor.Tensor
	for _, p := range s.params {
		params = append(params, p.Tensor)
	}
	if i == 1 {
		return tensor.Checkpoint(c, "block", body, one(h), params)[0]
	}
	return tensor.Checkpoint(c, "outer", func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		return tensor.Checkpoint(c, "inner", body, in, params)
	}, one(h), params)[0]
}

// backward returns the bits of the input's gradient and ends the scope of the micro-batch.
func (s *stage) backward(m *microBatch, opts ...tensor.BackwardOption) []byte {
	seed := tensor.Full(m.c.NoGrad(), tensor.Float32, s.seed)
	g := tensor.Backward(m.c, one(m.loss), one(seed), one(m.x), opts...)
	bits := tensor.ReadBytes(m.c, g[0])
	m.close()
	return bits
}

// The input gradients at once and the weight gradients later, with other micro-batches in between, have the bits of one
// Backward, and the hooks see them in the same order.
func TestDelayWeightGrads(t *testing.T) {
	const micro = 3
	for _, s := range []stage{
		{}, {again: true}, {lower: tensor.BFloat16}, {lower: tensor.BFloat16, again: true},
		{lower: tensor.Float16, again: true, seed: 64}, {lower: tensor.Float16, seed: 1e38},
	} {
		name := fmt.Sprintf("autocast %v, checkpoints %v, seed %g", s.lower, s.again, s.seed)
		start := func() *stage {
			run := newStage(t)
			run.lower, run.again, run.seed = s.lower, s.again, max(s.seed, 1)
			return run
		}
		whole := start()
		var want [][]byte
		for m := range micro {
			want = append(want, whole.backward(whole.forward(m), tensor.Accumulating()))
		}

		split := start()
		var got [][]byte
		var store tensor.WeightGradStore
		var open []*microBatch
		forward := func() { open = append(open, split.forward(len(got)+len(open))) }
		input := func() {
			logged := len(split.log)
			got = append(got, split.backward(open[0], tensor.DelayWeightGrads(&store)))
			open = open[1:]
			require.Len(t, split.log, logged, "no weight has a gradient yet")
		}
		weight := func() { store.Pop(split.c) }
		for _, action := range []func(){
			forward, forward, input, forward, input, weight, weight, input, weight,
		} {
			action()
		}
		require.Equal(t, want, got, "%s: input gradients", name)
		require.Equal(t, whole.log, split.log, "%s: gradients after each micro-batch", name)
		require.Len(t, whole.log, micro*len(whole.params), "%s: every parameter has one", name)
		require.Equal(t, whole.runs, split.runs, "%s: runs of blocks", name)
		require.Zero(t, store.Len())
		require.NoError(t, store.Close())
	}
}

// The store holds the inputs and output gradients of products beyond their scope, nothing more, until Pop, Close, or
// the garbage collector frees them.
func TestWeightGradStoreMemory(t *testing.T) {
	for _, again := range []bool{false, true} {
		s := newStage(t)
		s.again = again
		before := inUse(s.c)
		var grads int64
		for _, p := range s.params {
			grads += int64(p.Bytes())
		}
		var store tensor.WeightGradStore
		for m := range 2 {
			s.backward(s.forward(m), tensor.DelayWeightGrads(&store))
		}
		require.Equal(t, 2, store.Len())
		require.Equal(t, before+store.Bytes(), inUse(s.c))
		const row = 4 * stageTokens * stageWidth // x and dZ of: qkv 1+3, proj 1+1, shared 1+1 twice, up 1+4, down 4+1
		const products = 2 * 20 * row
		norms := int64(2 * 3 * 4 * stageWidth)
		head := int64(4*stageVocabulary*stageWidth + 4)   // its gradient, and that of the loss
		tables := int64(8*stageTokens + row)              // ids, and the gradient of the embeddings
		second := int64(4 * stageVocabulary * stageWidth) // its gradient by Exp
		require.Equal(t, 2*(products+norms+head+tables+second), store.Bytes(), "checkpoints %v", again)

		var last int64
		s.param("wte").OnGrad(func(c *tensor.Ctx, _ *tensor.Tensor) { last = inUse(c) })
		store.Pop(s.c)
		require.Equal(t, inUse(s.c), last, "each product frees what was held for it")
		require.Equal(t, before+store.Bytes()+grads, inUse(s.c))
		err := store.Close()
		require.ErrorContains(t, err, "the weight gradients of 1 Backwards are lost")
		require.Zero(t, store.Len())
		require.Zero(t, store.Bytes())
		require.Equal(t, before+grads, inUse(s.c))

		func() {
			var forgotten tensor.WeightGradStore
			s.backward(s.forward(0), tensor.DelayWeightGrads(&forgotten))
			require.Greater(t, inUse(s.c), before+grads+products/2)
		}()
		s.c.Device().Collect()
		require.Equal(t, before+grads, inUse(s.c))
	}
}

// Pop reads no weights: a strategy that shards them need not gather them again.
func TestPopReadsNoWeights(t *testing.T) {
	for _, lower := range []tensor.DType{tensor.Invalid, tensor.BFloat16} {
		s := newStage(t)
		s.lower = lower
		var store tensor.WeightGradStore
		s.backward(s.forward(0), tensor.DelayWeightGrads(&store))
		for _, p := range s.params {
			p.Unload()
			p.DropLowered()
		}
		store.Pop(s.c)
		for _, p := range s.params {
			require.NotNil(t, p.Grad(), p.Name)
		}
	}
}

func TestDelayWeightGradsWithoutScope(t *testing.T) {
	c := newCtx(t)
	x, w := tensor.Ones(c, tensor.Float64, 4, 8), tensor.Ones(c, tensor.Float64, 8, 8).SetRequiresGrad(true)
	before := inUse(c)
	func() {
		var store tensor.WeightGradStore
		y := tensor.Linear(c, tensor.Tanh(c, tensor.Linear(c, x, w, nil)), w, nil)
		backward(c, total(c, y), tensor.DelayWeightGrads(&store))
		require.Nil(t, w.Grad())
		require.Greater(t, inUse(c), before)
	}()
	c.Device().Collect()
	require.Equal(t, before, inUse(c))
	runtime.KeepAlive(x)
	runtime.KeepAlive(w)
}

// What fails frees what it holds.
func TestDelayWeightGradsFails(t *testing.T) {
	s := newStage(t)
	before := inUse(s.c)
	var store tensor.WeightGradStore
	require.Contains(t, misuse(t, func() { store.Pop(s.c) }).Msg, "the store of weight gradients is empty")

	m := s.forward(0)
	tensor.Backward(m.c, one(m.loss), nil, one(m.x), tensor.DelayWeightGrads(&store))
	require.Contains(t, misuse(t, func() { tensor.Backward(m.c, one(m.loss), nil, one(m.x)) }).Msg,
		"the graph of Add is gone")
	m.close()
	store.Pop(s.c)
	require.Contains(t, misuse(t, func() { store.Pop(s.c) }).Msg, "want one Pop for each Backward")
	for _, p := range s.params {
		p.ZeroGrad()
	}
	require.Equal(t, before, inUse(s.c))

	x := tensor.Ones(s.c, tensor.Float32, 3, stageWidth)
	y := tensor.Linear(s.c, x, s.param("shared"), nil)
	backward(s.c, total(s.c, y), tensor.DelayWeightGrads(&store))
	tensor.FillInto(s.c, x, 2)
	require.Contains(t, misuse(t, func() { store.Pop(s.c) }).Msg,
		"a tensor that Linear saved for its gradient was changed in place since")
	require.Zero(t, store.Len())

	y = tensor.Linear(s.c, x, s.param("shared"), nil)
	backward(s.c, total(s.c, y), tensor.DelayWeightGrads(&store))
	x.Free()
	require.Contains(t, misuse(t, func() { store.Pop(s.c) }).Msg, "used after it was freed")
	y.Free()
	require.Nil(t, s.param("shared").Grad())

	stop := s.param("h.0.up").OnGrad(func(*tensor.Ctx, *tensor.Tensor) { panic("stop") })
	for _, s.again = range []bool{false, true} {
		s.backward(s.forward(0), tensor.DelayWeightGrads(&store))
		require.Panics(t, func() { store.Pop(s.c) })
	}
	stop()
	for _, p := range s.params {
		p.ZeroGrad()
	}
	s.c.Device().Collect()
	require.Equal(t, before, inUse(s.c))

	s.again = true
	broken := square
	broken.Backward = func(*tensor.Ctx, []*tensor.Tensor, []*tensor.Tensor, []bool) []*tensor.Tensor { panic("stop") }
	require.Panics(t, func() {
		s.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			x := tensor.Custom(c, broken, tensor.Ones(c, tensor.Float32, stageTokens, stageWidth).Boundary())[0]
			backward(c, total(c, s.run(c, 0, x)), tensor.DelayWeightGrads(&store))
			return nil
		})
	})
	require.Zero(t, store.Len())
	require.Equal(t, before, inUse(s.c))
}

// What wrt names is computed at once, leaves too; a root that is a leaf waits; and a retained graph stays as it was.
func TestDelayWeightGradsAtTheEdges(t *testing.T) {
	c := newCtx(t)
	var store tensor.WeightGradStore
	delay := tensor.DelayWeightGrads(&store)
	x, w := leaf(c, 2), leaf(c, 3)
	got := tensor.Backward(c, one(tensor.Mul(c, x, w)), nil, one(w), delay)
	require.Equal(t, []float64{2}, values(c, got[0]))
	require.Nil(t, x.Grad())
	store.Pop(c)
	require.Equal(t, []float64{3}, gradOf(c, x))
	require.Nil(t, w.Grad())

	require.Nil(t, tensor.Backward(c, one(x), one(vec(c, 5)), nil, delay))
	require.Equal(t, []float64{3}, gradOf(c, x))
	store.Pop(c)
	require.Equal(t, []float64{8}, gradOf(c, x))

	// A gradient that the next stage sent outlives its scope, and its memory must not be received into before Pop.
	m := tensor.Ones(c, tensor.Float64, 2, 2).SetRequiresGrad(true)
	for _, reused := range []bool{false, true} {
		var sent *tensor.Tensor
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y := tensor.Linear(c, tensor.Ones(c, tensor.Float64, 2, 2), m, nil)
			sent = tensor.FromSlice(c, []float64{1, 2, 3, 4}, 2, 2)
			tensor.Backward(c, one(y), one(sent), nil, delay)
			return nil
		})
		if reused {
			tensor.FillInto(c, sent, 7)
			require.Contains(t, misuse(t, func() { store.Pop(c) }).Msg, "Linear saved for its gradient was changed")
			continue
		}
		store.Pop(c)
		require.Equal(t, []float64{4, 4, 6, 6}, gradOf(c, m))
	}

	h := newHead(c.Device(), 20, 4, 50)
	want := h.grads(h.c, h.fused(h.c))
	loss := h.fused(h.c)
	first := h.grads(h.c, loss, tensor.DelayWeightGrads(&store), tensor.RetainGraph())
	require.Equal(t, [][]float32{nil, nil, nil}, first)
	require.Equal(t, want, h.grads(h.c, loss))
	store.Pop(h.c)
	require.Equal(t, want[1], tensor.ToSlice[float32](h.c, h.weight.Grad()), "it was not scaled in place")
}
