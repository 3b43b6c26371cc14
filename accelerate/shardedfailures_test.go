// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// link is a block of a chain; before is called when it computes, and says whether it does.
type link struct {
	Inner  *nn.Linear `nn:"inner"`
	Extra  *nn.Linear `nn:"extra"` // used by batches that say so
	before func() bool
}

func (l *link) Forward(c *nn.Ctx, x *tensor.Tensor, extra bool) *tensor.Tensor {
	if l.before != nil && !l.before() {
		return x
	}
	return nn.Unit1(c, l, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		y := l.Inner.Forward(c, x)
		if extra {
			y = tensor.Add(c.Ctx, y, l.Extra.Forward(c, x))
		}
		return tensor.Tanh(c.Ctx, y)
	}, x)
}

// chain is a model of blocks.
type chain struct {
	Links []*link `nn:"links"`
}

func newChain(dev *tensor.Device) *chain {
	in, m := nn.NewInit(dev, 1), &chain{}
	for i := range 4 {
		of := in.Sub(fmt.Sprint("links.", i))
		m.Links = append(m.Links, &link{Inner: nn.NewLinear(of.Sub("inner"), nn.LinearConfig{In: 4, Out: 4}),
			Extra: nn.NewLinear(of.Sub("extra"), nn.LinearConfig{In: 4, Out: 4})})
	}
	return m
}

func (m *chain) units() (list []nn.Module) {
	for _, l := range m.Links {
		list = append(list, l)
	}
	return list
}

func (m *chain) loss(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
	_, extra := b.Tensors["extra"]
	y := nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, l := range m.Links {
			x = l.Forward(c, x, extra)
		}
		return x
	}, b.Tensors[data.Inputs])
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)
}

// trainChain trains two steps of eight micro-batches; trouble, if not nil, is asked before a block of the rank computes
// in a micro-batch. extra says which micro-batches use the other layer of the blocks.
func trainChain(t *testing.T, acc *accelerate.Accelerator, trouble func(step, block int) bool,
	extra func(place int) bool) (map[string]string, error) {
	m, ctx, step := newChain(acc.Device()), t.Context(), 0
	for i, l := range m.Links {
		if trouble != nil {
			l.before = func() bool { return trouble(step, i) }
		}
	}
	if err := acc.Prepare(ctx, m, adamW, m.units()...); err != nil {
		return nil, err
	}
	layout, err := acc.Layout()
	if err != nil {
		return nil, err
	}
	ranks := acc.DataRanks().WorldSize()
	for step = range 2 {
		var batches []*data.Batch
		for i := range 8 / ranks {
			place := 8/ranks*acc.DataRanks().Rank() + i
			if layout.Interleaved {
				place = i*ranks + acc.DataRanks().Rank()
			}
			place += 8 * step
			batches = append(batches, batch(acc.Ctx(), place, extra(place)))
		}
		if _, err := acc.Accumulate(ctx, batches, m.loss); err != nil {
			return nil, err
		}
		if _, err := acc.ClipGradNorm(ctx, 0.5); err != nil {
			return nil, err
		}
		if err := acc.Step(ctx); err != nil {
			return nil, err
		}
	}
	if err := acc.Unshard(ctx); err != nil {
		return nil, err
	}
	return weights(acc, m), nil
}

// A layer that the batches of one rank do not use, and one that no batch uses, leave the bits of one rank.
func TestShardedModelWithUnusedParameters(t *testing.T) {
	for name, uses := range map[string]func(place int) bool{"by some": func(place int) bool { return place%4 == 2 },
		"by none": nowhere} {
		var want map[string]string
		for _, strategy := range append([]shard.Strategy{shard.None}, strategies...) {
			ranks := accelerators(t, 4, nil,
				accelerate.WithSharding(accelerate.Sharding{Strategy: strategy, Gather: true}))
			errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
				got, err := trainChain(t, acc, nil, uses)
				if err == nil && acc.IsMain() && want == nil {
					want = got
				} else if err == nil && acc.IsMain() {
					require.True(t, equalWeights(want, got), "%s, %s", strategy, name)
				}
				return err
			})
			require.Equal(t, make([]error, 4), errs, "%s, %s", strategy, name)
		}
	}
}

// What goes wrong on one rank of a sharded model is told on all, and the next training is not disturbed.
func TestShardedFailures(t *testing.T) {
	broken := errors.New("a block failed")
	for name, c := range map[string]struct {
		trouble func(step, block int, others *sync.WaitGroup) bool // of rank 1
		check   func(t *testing.T, rank int, err error)
	}{
		"a block panics": {
			func(step, block int, _ *sync.WaitGroup) bool {
				if step == 1 && block == 2 {
					panic(broken)
				}
				return true
			},
			func(t *testing.T, rank int, err error) {
				require.ErrorContains(t, err, "a block failed", "rank %d", rank)
			},
		},
		"blocks are skipped": {
			func(step, block int, _ *sync.WaitGroup) bool { return step == 0 || block == 0 || block == 3 },
			func(t *testing.T, rank int, err error) {
				var mismatch *comm.MismatchError
				require.ErrorAs(t, err, &mismatch, "rank %d", rank)
				require.ErrorContains(t, err, "links.2")
				require.ErrorContains(t, err, "links.3")
			},
		},
		"a block hangs": {
			func(step, block int, others *sync.WaitGroup) bool {
				if step == 1 && block == 2 {
					others.Wait() // until they have given up
				}
				return true
			},
			func(t *testing.T, rank int, err error) {
				if rank != 1 {
					require.ErrorContains(t, err, "timed out after 2s", "rank %d", rank)
					require.ErrorContains(t, err, "rank 1 did not arrive")
				}
				require.Error(t, err)
			},
		},
	} {
		for _, strategy := range []shard.Strategy{shard.GradOp, shard.Full} {
			t.Run(fmt.Sprint(name, ", ", strategy), func(t *testing.T) {
				sharding := accelerate.WithSharding(accelerate.Sharding{Strategy: strategy, Gather: true})
				errs := make([]error, 4)
				var ranks, others sync.WaitGroup
				others.Add(3)
				// which a rank that does not hang must meet on a busy machine
				for r, g := range local.New(4, comm.Options{Timeout: 2 * time.Second, Log: quiet}) {
					ranks.Go(func() {
						acc, err := accelerate.New(rankArgs(4), sharding, accelerate.WithGroup(g),
							accelerate.WithLogger(quiet))
						require.NoError(t, err)
						var trouble func(step, block int) bool
						if r == 1 {
							trouble = func(step, block int) bool { return c.trouble(step, block, &others) }
						} else {
							defer others.Done()
						}
						defer func() { require.NoError(t, acc.Close()) }()
						defer func() {
							if p := recover(); p != nil {
								errs[r] = fmt.Errorf("panic: %v", p)
							}
							acc.Abort(errs[r])
						}()
						_, errs[r] = trainChain(t, acc, trouble, nowhere)
					})
				}
				began := time.Now()
				ranks.Wait()
				require.Less(t, time.Since(began), patience)
				for r, err := range errs {
					c.check(t, r, err)
				}
				errs = job(t, accelerators(t, 4, nil, sharding), func(acc *accelerate.Accelerator) error {
					_, err := trainChain(t, acc, nil, nowhere)
					return err
				})
				require.Equal(t, make([]error, 4), errs, "the next training")
			})
		}
	}
}

// Clipping and stepping return an error where another rank is lost, as Reduce does.
func TestStepsReturnLostRanks(t *testing.T) {
	lost := errors.New("rank 1 left")
	sharded := accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Gradients})
	local := func(_ int, a *args.TrainingArguments) { a.LocalSGDSteps = 1 }
	for name, ranks := range map[string]func() []*accelerate.Accelerator{
		"sharded":   func() []*accelerate.Accelerator { return accelerators(t, 2, nil, sharded) },
		"local SGD": func() []*accelerate.Accelerator { return accelerators(t, 2, local) },
	} {
		for _, at := range []string{"clip", "step"} {
			t.Run(name+", "+at, func(t *testing.T) {
				errs := job(t, ranks(), func(acc *accelerate.Accelerator) error {
					m := newNet(acc.Device(), 1)
					if err := acc.Prepare(t.Context(), m, adamW); err != nil {
						return err
					}
					own := []*data.Batch{batch(acc.Ctx(), acc.Rank(), true)}
					if _, err := acc.Accumulate(t.Context(), own, m.loss); err != nil {
						return err
					}
					if at == "clip" && acc.Rank() == 1 {
						return lost
					}
					if _, err := acc.ClipGradNorm(t.Context(), 1); err != nil {
						return fmt.Errorf("clip: %w", err)
					}
					if acc.Rank() == 1 {
						return lost
					}
					if err := acc.Step(t.Context()); err != nil {
						return fmt.Errorf("step: %w", err)
					}
					return nil
				})
				require.Equal(t, lost, errs[1])
				var abort *comm.AbortError
				require.ErrorAs(t, errs[0], &abort)
				require.Equal(t, 1, abort.Rank)
				require.ErrorContains(t, errs[0], at+": accelerate: ")
			})
		}
	}
}

// Prepare refuses a function that makes no optimizer, and returns its error.
func TestPrepareChecksTheOptimizer(t *testing.T) {
	acc, err := accelerate.New(rankArgs(1))
	require.NoError(t, err)
	broken, none := errors.New("no such optimizer"), error(nil)
	for _, err := range []error{broken, none} {
		got := acc.Prepare(t.Context(), newNet(acc.Device(), 1), func(*tensor.Ctx,
			[]tensor.Named) (*optim.Optimizer, error) {
			return nil, err
		})
		if err != nil {
			require.ErrorIs(t, got, err)
		} else {
			require.ErrorContains(t, got, "returned no optimizer: want one")
		}
		require.Nil(t, acc.Optimizer())
	}
}
