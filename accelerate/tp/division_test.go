// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// settings are what a run is like.
type settings struct {
	parts     int // 0: the sums of each rank at once
	inner     int // of the MLP; 0: 64
	steps     int // 0: 8
	width     int // 0: 32
	lower     tensor.DType
	recompute bool
	dropout   float64
	plan      map[string]string   // in place of the model's
	config    string              // "": a GPT-2
	on        onRanks             // nil: goroutines
	hooks     func(tree *nn.Tree) // nil: none
	// norm is of the gradients; nil: Division.Norm
	norm func(d *tp.Division, c *tensor.Ctx, params []tensor.Named) (float64, error)
}

const (
	rows, length, vocabulary = 2, 7, 61
	micro                    = 2 // micro-batches of a step
)

func (s settings) model(t testing.TB) models.TensorParallel {
	if s.config != "" {
		m, err := models.FromConfig(nn.NewInit(tensor.CPU(), 1), []byte(s.config))
		require.NoError(t, err)
		return m.(models.TensorParallel)
	}
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, length, cmp.Or(s.width, 32), 2, 8
	inner := cmp.Or(s.inner, 64)
	cfg.NInner = &inner
	cfg.AttnPdrop, cfg.ResidPdrop, cfg.EmbdPdrop = s.dropout, s.dropout, s.dropout
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	return m
}

func batch(c *tensor.Ctx, step int) *data.Batch {
	n := length - step%3
	ids := make([]int64, rows*n)
	for i := range ids {
		ids[i] = int64((step*31 + i*i*7 + i) % vocabulary)
	}
	t := tensor.FromSlice(c.NoGrad(), ids, rows, n)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t}, Size: rows,
		Count: float64(rows * (n - 1))}
}

// result is what a run ends with: the bits of losses, norms, weights and the optimizer's state.
type result struct {
	hash  string
	norms []float64
}

// run trains on ranks that share the model; all must end with the same.
func (s settings) run(t *testing.T, ranks int) result {
	var mu sync.Mutex
	results := map[string]result{}
	on := s.on
	if on == nil {
		on = local.Run
	}
	require.NoError(t, on(ranks, comm.Options{}, func(g *comm.Group) error {
		r, err := s.rank(t, g)
		mu.Lock()
		results[r.hash] = r
		mu.Unlock()
		return err
	}))
	require.Len(t, results, 1, "all ranks have the same")
	return slices.Collect(maps.Values(results))[0]
}

func (s settings) rank(t *testing.T, g *comm.Group) (r result, err error) {
	ctx, m, root := context.Background(), s.model(t), tensor.NewCtx(tensor.CPU())
	styles := m.TPPlan()
	maps.Copy(styles, s.plan)
	plan, err := tp.ParsePlan(styles)
	if err != nil {
		return r, err
	}
	d, err := tp.Divide(root, m, tp.Config{Group: g, Plan: plan, Parts: s.parts})
	if err != nil {
		return r, err
	}
	if s.hooks != nil {
		s.hooks(d.Tree())
	}
	params := d.Tree().Parameters()
	opt := optim.DefaultAdamW().New(root, []*optim.Group{{LR: 1e-2, WeightDecay: 0.01, Params: params}})
	h := sha256.New()
	number := func(x float64) { h.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(x))) }
	for step := range cmp.Or(s.steps, 8) {
		for i := range micro {
			number(s.pass(root, d, m, step*micro+i))
		}
		norm, err := d.Norm(ctx, root)
		if s.norm != nil {
			norm, err = s.norm(d, root, params)
		}
		if err != nil {
			return r, err
		}
		number(norm)
		r.norms = append(r.norms, norm)
		opt.ScaleGrads(optim.ClipFactor(norm, 1))
		opt.Step(root)
		opt.ZeroGrad()
	}
	state := opt.State()
	for _, key := range slices.Sorted(maps.Keys(state.Tensors)) {
		name := key[:strings.LastIndexByte(key, '.')]
		x := state.Tensors[key]
		if at, _ := d.Placement(name); !at.WholeBox() {
			if x, err = d.Whole(ctx, root, name, x); err != nil {
				return r, err
			}
		}
		h.Write([]byte(key))
		h.Write(tensor.ReadBytes(root, x))
	}
	if err := d.Join(ctx, root); err != nil {
		return r, err
	}
	for _, p := range nn.NamedParameters(m) {
		h.Write(tensor.ReadBytes(root, p.Tensor))
	}
	r.hash = fmt.Sprintf("%x", h.Sum(nil)[:8])
	return r, nil
}

// pass runs forward and backward for a micro-batch.
func (s settings) pass(root *tensor.Ctx, d *tp.Division, m models.TensorParallel, step int) (loss float64) {
	c := nn.NewCtx(root.WithRandom(3, int64(step*rows)).Autocast(s.lower), d.Tree(), true).WithLossOnly()
	if s.recompute {
		c = c.WithRecompute(m.(models.Recomputable).RecomputeUnits())
	}
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		b := batch(c.Ctx, step)
		out := m.Forward(c, b)
		loss = tensor.Item(c.Ctx, out.Loss) / b.Count
		seed := tensor.Full(c.Ctx, tensor.Float32, 1/(micro*b.Count))
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, []*tensor.Tensor{seed}, nil)
		return nil
	})
	return loss
}

var _ models.TensorParallel = (*gpt2.Model)(nil)

// normsByTokens are styles of a GPT-2's norms.
var normsByTokens = map[string]string{"transformer.h.*.ln_1": "sequence_parallel",
	"transformer.h.*.ln_2": "sequence_parallel", "transformer.ln_f": "sequence_parallel"}

// The same parts have the same bits on any number of ranks: losses, norms, weights and moments of 8 steps.
func TestAnyNumberOfRanksHasTheBitsOfOne(t *testing.T) {
	for name, s := range map[string]settings{
		"float32":             {parts: 4, inner: 2048},
		"eight parts":         {parts: 8},
		"dropout":             {parts: 4, dropout: 0.1},
		"recomputed":          {parts: 4, recompute: true, dropout: 0.1},
		"bf16":                {parts: 4, lower: tensor.BFloat16},
		"bf16, wide":          {parts: 4, lower: tensor.BFloat16, inner: 2048, recompute: true, dropout: 0.1},
		"tokens":              {parts: 4, plan: normsByTokens, dropout: 0.1},
		"tokens, empty parts": {parts: 8, plan: normsByTokens, lower: tensor.BFloat16, recompute: true},
		"wide heads":          {parts: 4, width: 384, steps: 2, inner: 1536},
	} {
		t.Run(name, func(t *testing.T) {
			one := s.run(t, 1)
			for ranks := 2; ranks <= s.parts; ranks *= 2 {
				if testing.Short() && ranks < s.parts { // they share what as many ranks as parts do
					continue
				}
				require.Equal(t, one.hash, s.run(t, ranks).hash, "%d ranks", ranks)
			}
		})
	}
}

// Without common parts the bits depend on the number of ranks. The kernels add 256 products at a time, so ranks have
// more than 512 of the sum's each: with fewer, blocks and parts can be the same.
func TestSumsOfRanksAtOnceDiffer(t *testing.T) {
	for _, inner := range []int{2304, 2560, 3072} {
		s := settings{inner: inner, steps: 2}
		one, two, four := s.run(t, 1).hash, s.run(t, 2).hash, s.run(t, 4).hash
		require.NotEqual(t, one, two, "inner %d", inner)
		require.NotEqual(t, one, four, "inner %d", inner)
		require.NotEqual(t, two, four, "inner %d", inner)
	}
}

// What ranks that share a model easily get wrong changes the bits at each width: a norm of gradients that counts whole
// parameters once for each rank, and gradients of norms that are those of a rank's tokens alone.
func TestFaultySumsDiffer(t *testing.T) {
	counted := func(g *comm.Group) func(*tp.Division, *tensor.Ctx, []tensor.Named) (float64, error) {
		return func(_ *tp.Division, c *tensor.Ctx, params []tensor.Named) (float64, error) {
			own := optim.GradNorm(c, params)
			squares := []float64{own * own}
			err := g.AllReduce(comm.Of(squares), comm.Sum).Wait(context.Background())
			return math.Sqrt(squares[0]), err
		}
	}
	for _, inner := range []int{2304, 2560, 3072} {
		s := settings{parts: 4, inner: inner, steps: 2, plan: normsByTokens}
		one := s.run(t, 1)
		require.Equal(t, one, s.run(t, 4), "inner %d", inner)
		plain := settings{parts: 4, inner: inner, steps: 1} // sums over all tokens at once
		require.InEpsilon(t, one.norms[0], plain.run(t, 4).norms[0], 1e-6)
		require.NoError(t, local.Run(4, comm.Options{}, func(g *comm.Group) error {
			faulty := s
			faulty.norm = counted(g)
			r, err := faulty.rank(t, g)
			assert.NotEqual(t, one.hash, r.hash, "inner %d: the norm", inner)
			if err != nil {
				return err
			}
			faulty = plain
			faulty.hooks = func(tree *nn.Tree) { ownTokens(tree, g) }
			r, err = faulty.rank(t, g)
			assert.Greater(t, math.Abs(r.norms[0]/one.norms[0]-1), 1e-5, "inner %d: the gradients of norms", inner)
			return err
		}))
	}
}

// ownTokens makes the gradients of norms those of a rank's tokens.
func ownTokens(tree *nn.Tree, g *comm.Group) {
	tree.Modules(func(_ string, m nn.Module) {
		if _, ok := m.(*nn.LayerNorm); !ok {
			return
		}
		tree.AddHooks(m, &nn.Hooks{Around: func(c *nn.Ctx, run nn.RunFunc, in []*tensor.Tensor) []*tensor.Tensor {
			others := c.WithParam(func(_ *nn.Ctx, _ string, p *tensor.Tensor) *tensor.Tensor {
				return tensor.Detach(p)
			})
			n := in[0].Size(1)
			from, to := g.Rank()*n/g.Size(), (g.Rank()+1)*n/g.Size()
			var outs []*tensor.Tensor
			for _, tokens := range []struct {
				c        *nn.Ctx
				from, to int
			}{{others, 0, from}, {c, from, to}, {others, to, n}} {
				x := tensor.Slice(c.Ctx, in[0], 1, tokens.from, tokens.to)
				outs = append(outs, run(tokens.c, []*tensor.Tensor{x})...)
			}
			return []*tensor.Tensor{tensor.Concat(c.Ctx, 1, outs...)}
		}})
	})
}

// A norm that counts parameters once for each rank that has them is too large; Norm counts them once.
func TestNormCountsWholeParametersOnce(t *testing.T) {
	s := settings{parts: 4, steps: 2}
	one := s.run(t, 1)
	s.norm = func(_ *tp.Division, c *tensor.Ctx, params []tensor.Named) (float64, error) {
		return optim.GradNorm(c, params), nil
	}
	usual := s.run(t, 1)
	require.InEpsilon(t, usual.norms[0], one.norms[0], 1e-12)

	s.norm = nil
	two := s.run(t, 2)
	require.Equal(t, one, two)
	require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
		counted := s
		counted.norm = func(_ *tp.Division, c *tensor.Ctx, params []tensor.Named) (float64, error) {
			own := optim.GradNorm(c, params)
			squares := []float64{own * own}
			err := g.AllReduce(comm.Of(squares), comm.Sum).Wait(context.Background())
			return math.Sqrt(squares[0]), err
		}
		r, err := counted.rank(t, g)
		if g.Rank() == 0 {
			require.Greater(t, r.norms[0], 1.05*one.norms[0])
			require.NotEqual(t, one.hash, r.hash)
		}
		return err
	}))
}
