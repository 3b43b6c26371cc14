// SPDX-License-Identifier: Apache-2.0

package cp_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Ragged labels: the loss is the mean over all labels, and has the bits of one process. The mean of the ranks' means is
// another.
func TestRaggedLabels(t *testing.T) {
	for _, method := range []*cp.Method{cp.Gather, cp.Ulysses} {
		r := run{chunks: 4, method: method, steps: 1, noDropout: true}
		_, want, _ := r.on(t, 1)
		_, got, _ := r.on(t, 2)
		require.Equal(t, want, got)
		whole, _ := r.gradients(t, 0)
		require.InEpsilon(t, whole, got[0].Loss, 1e-6)
	}

	var mu sync.Mutex
	var means []float64
	var total cp.Sum
	r := run{chunks: 4, noDropout: true}
	require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
		b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
		for _, p := range tree.Parameters() {
			tensor.ScaleInto(c.NoGrad(), p.Tensor, 3) // losses of a new model differ little
		}
		passes, err := cp.New(cp.Config{Group: g, Chunks: 4})
		if err != nil {
			return err
		}
		own := cp.Sum{} // of this rank
		_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			sum, err := passes.Forward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
				loss, count := m.Forward(c, b).Loss, 0.0
				for _, label := range tensor.ToSlice[int64](c.NoGrad(), b.Tensors[data.ShiftLabels]) {
					if label != tensor.IgnoreIndex {
						count++
					}
				}
				own.Loss += tensor.Item(c.Ctx, loss)
				own.Count += count
				return cp.Output{Loss: loss, Count: count}, nil
			})
			mu.Lock()
			defer mu.Unlock()
			total, means = sum, append(means, own.Loss/own.Count)
			return nil, err
		})
		return err
	}))
	mean := total.Loss / total.Count
	require.EqualValues(t, 23+3, total.Count)
	require.Greater(t, math.Abs((means[0]+means[1])/2-mean), 1e-3)
}

// Every rank attends to the same number of key blocks under a causal mask. With contiguous chunks the last rank attends
// to half as many again as the mean, and to more on more ranks. A rank's work by Ulysses is that of its heads.
func TestBalance(t *testing.T) {
	for _, method := range []*cp.Method{cp.Gather, cp.Ulysses, cp.Ring} {
		for _, ranks := range []int{2, 4} {
			r := run{chunks: 8, method: method, steps: 1, length: 32}
			most := func() float64 { // of the ranks' work, over the mean
				_, sums, work := r.on(t, ranks)
				total := int64(0)
				for _, n := range work {
					total += n
				}
				const heads, layers = 4, 2
				require.EqualValues(t, heads*layers*8*9/2, total, "%v on %d ranks", method, ranks)
				require.InEpsilon(t, 3.35, sums[0].Loss/sums[0].Count, 0.02, "the loss of a new model")
				return float64(slices.Max(work)) * float64(ranks) / float64(total)
			}
			require.LessOrEqual(t, most(), 1.1, "%v on %d ranks", method, ranks)
			if r.contiguous = true; method == cp.Ulysses {
				require.LessOrEqual(t, most(), 1.1, "%v on %d ranks", method, ranks)
			} else {
				require.GreaterOrEqual(t, most(), 1.4, "%v on %d ranks", method, ranks)
			}
		}
	}
}

// step runs one pass on two ranks and returns the error of each.
func (r run) step(t *testing.T, loss func(rank int, m models.Model, c *nn.Ctx, b *data.Batch) (cp.Output,
	error)) (errs [2]error) {
	t.Helper()
	_ = local.Run(2, comm.Options{}, func(g *comm.Group) error {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
		b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
		p, err := cp.New(cp.Config{Group: g, Chunks: r.chunks, Method: r.method, Params: tree.Parameters()})
		if err != nil {
			return err
		}
		_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			_, err := p.ForwardBackward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
				return loss(g.Rank(), m, c, b)
			}, 1, cp.Accumulate)
			return nil, err
		})
		errs[g.Rank()] = err
		return err
	})
	return errs
}

func plainLoss(_ int, m models.Model, c *nn.Ctx, b *data.Batch) (cp.Output, error) {
	return cp.Output{Loss: m.Forward(c, b).Loss, Count: b.Count}, nil
}

// What attention cannot compute by chunks is refused, with what would work.
func TestAttentionRefuses(t *testing.T) {
	three := func(in *nn.Init) models.Model {
		m := newCustom(in, nn.AttentionConfig{Causal: true})
		cfg := nn.AttentionConfig{Width: 24, Heads: 9, KVHeads: 3, HeadDim: 4}
		m.Attn = nn.NewMultiheadAttention(in.Sub("three"), cfg)
		return m
	}
	direct := func(in *nn.Init) models.Model { return &ownAttention{newCustom(in, nn.AttentionConfig{})} }
	masked := func(in *nn.Init) models.Model { return &ownMask{newCustom(in, nn.AttentionConfig{})} }
	for want, r := range map[string]run{
		"3 key heads on 2 ranks: want a cp_size (sp_size) among 1, powers of two that divide the key heads, or " +
			"cp_strategy gather": {method: cp.Ulysses, model: three},
		"a mask of shape [1 1 6 6]: want one of keys, [batch, heads or 1, 1, 6], which can be divided among ranks; " +
			"order in time is Causal, and a sliding window Window": {model: masked},
		"only a chunk of them is here: want nn.AttentionConfig.Attend": {model: direct},
	} {
		r.chunks = 4
		for _, err := range r.step(t, plainLoss) {
			require.ErrorContains(t, err, want)
		}
	}
}

// ownMask is a model that makes a mask [1,1,T,T].
type ownMask struct{ *custom }

func (m *ownMask) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.CausalLM(c, m.custom, m.Head, b, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		n := ids.Size(1)
		x, mask := m.Embed.Forward(c, ids), tensor.Full(c.Ctx, tensor.Bool, 1, 1, 1, n, n)
		return m.Attn.Forward(c, x, nn.AttentionInput{Mask: mask})
	})
}

// ownAttention is a model that attends by itself, to the tokens that it gets.
type ownAttention struct{ *custom }

func (m *ownAttention) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.CausalLM(c, m.custom, m.Head, b, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		x := nn.SplitHeads(c, m.Embed.Forward(c, ids), 4)
		y, _ := tensor.Attention(c.Ctx, x, x, x, tensor.AttentionOptions{Causal: true})
		return nn.MergeHeads(c, y)
	})
}

// An error or a panic in the pass of one chunk ends those of the others, and memory comes back.
func TestErrorsOfAChunk(t *testing.T) {
	broken := errors.New("broken")
	for _, fail := range []func() error{func() error { return broken }, func() error { panic(broken) }} {
		r, calls := run{chunks: 4, noDropout: true}, 0
		dev := tensor.NewCPU(1)
		c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
		b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
		p, err := cp.New(cp.Config{Chunks: 4, Params: tree.Parameters()})
		require.NoError(t, err)
		before := dev.MemStats().InUse
		_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			_, err := p.ForwardBackward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
				if calls++; calls == 3 {
					return cp.Output{}, fail()
				}
				return plainLoss(0, m, c, b)
			}, 1, cp.Accumulate)
			return nil, err
		})
		require.ErrorIs(t, err, broken)
		require.Equal(t, before, dev.MemStats().InUse)
		runtime.KeepAlive([]any{b, m})
		require.NoError(t, dev.Close())
	}
}

// A rank that fails in the middle of a pass ends the others'.
func TestLostRank(t *testing.T) {
	broken := errors.New("broken")
	errs := run{chunks: 4}.step(t, func(rank int, m models.Model, c *nn.Ctx, b *data.Batch) (cp.Output, error) {
		if rank == 1 {
			return cp.Output{}, broken
		}
		return plainLoss(rank, m, c, b)
	})
	require.ErrorIs(t, errs[1], broken)
	require.ErrorContains(t, errs[0], "rank 1")
}

// Ring agrees with gathered keys to a millionth, and a step gives back all of its memory but the gradients.
func TestRing(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		r := run{chunks: 8, noDropout: true, length: 64}
		want, a := r.gradients(t, 1)
		r.method = cp.Ring
		got, b := r.gradients(t, ranks)
		require.InEpsilon(t, want, got, 1e-6)
		requireNear(t, a, b, "%d ranks", ranks)
	}
}

// requireNear demands gradients that agree to a millionth.
func requireNear(t *testing.T, want, got [][]float32, what string, of ...any) {
	t.Helper()
	for i := range want {
		off, norm := 0.0, 0.0
		for j := range want[i] {
			off += math.Pow(float64(want[i][j]-got[i][j]), 2)
			norm += math.Pow(float64(want[i][j]), 2)
		}
		require.Less(t, math.Sqrt(off), 1e-6*math.Sqrt(norm)+1e-6, "parameter %d: %s", i, fmt.Sprintf(what, of...))
	}
}

// Dropout of attention weights draws the same for a ring on any number of ranks, in recomputation and in backward
// passes too: a step along the gradient changes the loss as much as it says.
func TestRingDropout(t *testing.T) {
	r := run{chunks: 8, method: cp.Ring, attention: 0.3}
	loss, grads := r.gradients(t, 1)
	plain, _ := run{chunks: 8, method: cp.Ring}.gradients(t, 1)
	require.Greater(t, math.Abs(plain-loss), 1e-3, "nothing is dropped")
	for _, ranks := range []int{2, 4} {
		again := r
		again.recompute = ranks == 4
		got, b := again.gradients(t, ranks)
		require.InEpsilon(t, loss, got, 1e-6)
		requireNear(t, grads, b, "%d ranks", ranks)
	}
	const step = 1e-4
	along := func(by float64) float64 {
		moved := r
		moved.model = func(in *nn.Init) models.Model {
			m := r.newModel(in)
			for i, p := range nn.NamedParameters(m) {
				c := tensor.NewCtx(p.Device()).NoGrad()
				g := tensor.FromSlice(c, grads[i], p.Shape()...)
				tensor.ScaleInto(c, g, by)
				tensor.AddInto(c, p.Tensor, g)
			}
			return m
		}
		loss, _ := moved.gradients(t, 1)
		return loss
	}
	norm := 0.0
	for _, g := range grads {
		for _, x := range g {
			norm += float64(x) * float64(x)
		}
	}
	require.InEpsilon(t, norm, (along(step)-along(-step))/(2*step), 1e-2)
}

// Between the passes a layer holds no keys and values of other chunks: with gathered keys a layer takes no more memory
// than with a ring, which never has them.
func TestGatherHoldsOneLayer(t *testing.T) {
	held := func(method *cp.Method, layers, length int) int64 {
		r := run{chunks: 4, method: method, length: length, noDropout: true, layers: layers}
		var after int64
		var mu sync.Mutex
		errs := r.step(t, func(rank int, m models.Model, c *nn.Ctx, b *data.Batch) (cp.Output, error) {
			out, err := plainLoss(rank, m, c, b)
			mu.Lock()
			defer mu.Unlock()
			if rank == 0 {
				after = c.Device().MemStats().InUse
			}
			return out, err
		})
		require.NoError(t, errors.Join(errs[:]...))
		return after
	}
	layer := func(method *cp.Method) float64 {
		return float64(held(method, 3, 64) - held(method, 2, 64))
	}
	require.LessOrEqual(t, layer(cp.Gather), layer(cp.Ring))
}

// A step gives back all of its memory except the gradients, also where one rank alone uses a parameter, whose gradient
// is then the same on all.
func TestMemoryOfAStep(t *testing.T) {
	for _, method := range []*cp.Method{cp.Gather, cp.Ulysses, cp.Ring} {
		grads := make([][]byte, 2)
		require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
			r := run{chunks: 4, noDropout: true}
			dev := tensor.NewCPU(1)
			defer dev.Close()
			c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
			b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
			extra := tensor.Named{Name: "extra", Tensor: tensor.Ones(c, tensor.Float32, 3).SetRequiresGrad(true)}
			params := append(tree.Parameters(), extra)
			p, err := cp.New(cp.Config{Group: g, Chunks: 4, Method: method, Params: params})
			if err != nil {
				return err
			}
			before := dev.MemStats().InUse
			_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
				_, err := p.ForwardBackward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
					out, err := plainLoss(0, m, c, b)
					if g.Rank() == 1 {
						out.Loss = tensor.Add(c.Ctx, out.Loss, tensor.Sum(c.Ctx, extra.Tensor, nil, false))
					}
					return out, err
				}, 1, cp.Accumulate)
				return nil, err
			})
			if err != nil {
				return err
			}
			grads[g.Rank()] = tensor.ReadBytes(c.NoGrad(), extra.Grad())
			for _, q := range params {
				q.ZeroGrad()
			}
			require.Equal(t, before, dev.MemStats().InUse)
			runtime.KeepAlive([]any{b, m})
			return nil
		}))
		require.Equal(t, grads[0], grads[1])
		require.NotEmpty(t, grads[0])
	}
}

// Calls run beside computation: keys and values of a chunk are gathered while the next one runs, and those of a ring go
// on while a rank attends to them. A chunk that fails meanwhile, or a rank, leaves no memory behind.
func TestCallsRunBesideComputation(t *testing.T) {
	broken := errors.New("broken")
	for _, method := range []*cp.Method{cp.Gather, cp.Ring} {
		for _, failing := range []int{0, 2, 3} { // a call of the loss function on rank 1; 0: none
			err := local.Run(2, comm.Options{}, func(g *comm.Group) error {
				r := run{chunks: 4, noDropout: true}
				dev := tensor.NewCPU(1)
				defer dev.Close()
				c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
				b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
				p, err := cp.New(cp.Config{Group: g, Chunks: 4, Method: method, Params: tree.Parameters()})
				if err != nil {
					return err
				}
				issued := func(label string) (n int) {
					for _, e := range g.Flight().Entries {
						if e.Label == label {
							n++
						}
					}
					return n
				}
				ring := -1 // messages before the first attention
				defer c.Trace(t.Context(), func(k tensor.KernelSpan) {
					if strings.Contains(strings.ToLower(k.Name), "attention") && ring < 0 {
						ring = issued("ring")
					}
				})()
				before, calls, gathers := dev.MemStats().InUse, 0, 0
				for range 2 {
					_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
						loss := func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
							if calls++; calls == 2 {
								gathers = issued("keys")
							}
							if calls == failing && g.Rank() == 1 {
								return cp.Output{}, broken
							}
							return plainLoss(0, m, c, b)
						}
						_, err := p.ForwardBackward(t.Context(), c, b, loss, 1,
							func(*tensor.Ctx, []*tensor.Tensor, []*tensor.Tensor) {})
						return nil, err
					})
					if err != nil {
						break
					}
				}
				if method == cp.Gather {
					assert.Equal(t, 1, gathers, "when the second chunk begins")
				} else if failing != 2 {
					assert.Equal(t, 2*2*2, ring, "k and v of two chunks, there and back, at the first attention")
				}
				assert.Equal(t, before, dev.MemStats().InUse, "%v, call %d fails", method, failing)
				runtime.KeepAlive([]any{b, m})
				return err
			})
			if failing == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, broken)
			}
		}
	}
}

// However many chunks a rank has, the gradients of a parameter exist once, except while they are added.
func TestGradientsOfChunksAreNotHeld(t *testing.T) {
	peak := func(chunks int) (above, params int64) {
		r := run{chunks: chunks, noDropout: true, layers: 6, length: 16}
		dev := tensor.NewCPU(1)
		defer dev.Close()
		c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
		b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
		for _, p := range tree.Parameters() {
			params += int64(p.Numel()) * 4
		}
		p, err := cp.New(cp.Config{Chunks: chunks, Params: tree.Parameters()})
		require.NoError(t, err)
		before := dev.MemStats().InUse
		r.context(c, m, tree, b).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			_, err = p.ForwardBackward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
				return plainLoss(0, m, c, b)
			}, 1, func(*tensor.Ctx, []*tensor.Tensor, []*tensor.Tensor) { above = dev.MemStats().Peak - before })
			require.NoError(t, err)
			return nil
		})
		return above, params
	}
	few, params := peak(2)
	many, _ := peak(8)
	require.Less(t, many-few, params, "%d of 8 chunks, %d of 2; parameters %d", many, few, params)
}

// most is the most memory that the first rank has in a step, without the model and the batch.
func (r run) most(t *testing.T, ranks int) (most int64) {
	r.noDropout, r.model = true, func(in *nn.Init) models.Model {
		return newCustom(in, nn.AttentionConfig{Causal: true})
	}
	require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
		b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
		p, err := cp.New(cp.Config{Group: g, Chunks: r.chunks, Method: r.method, Params: tree.Parameters()})
		if err != nil {
			return err
		}
		before := dev.MemStats().InUse
		defer c.Trace(t.Context(), func(k tensor.KernelSpan) {
			if g.Rank() == 0 {
				most = max(most, dev.MemStats().InUse-before)
			}
		})()
		_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			_, err := p.ForwardBackward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
				return plainLoss(0, m, c, b)
			}, 1, cp.Accumulate)
			return nil, err
		})
		runtime.KeepAlive([]any{b, m})
		return err
	}))
	return most
}

// A ring holds the keys and values of two ranks, however many there are: if a sequence grows with the ranks, a rank's
// memory does not.
func TestRingHoldsTwoRanks(t *testing.T) {
	for _, masked := range []bool{false, true} {
		for _, lower := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			on := func(ranks int) int64 {
				r := run{chunks: 2 * ranks, method: cp.Ring, length: 2 * ranks * 32, mask: masked, lower: lower}
				return r.most(t, ranks)
			}
			few, many := on(4), on(8)
			require.LessOrEqual(t, many, few+few/10, "mask %v, %v", masked, lower) // labels of all tokens
		}
	}
}

// The gradients of keys are not held for each chunk: four times as many take two more levels of the tree.
func TestGradientsOfKeysAreNotHeld(t *testing.T) {
	for _, method := range []*cp.Method{cp.Gather, cp.Ulysses} {
		in := func(chunks int) int64 { return run{chunks: chunks, method: method, length: 512}.most(t, 2) }
		few, many := in(4), in(16)
		require.LessOrEqual(t, many, few+few/4, method)
	}
}
