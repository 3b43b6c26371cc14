// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// shardRun is a training run whose weights must not depend on how the model is spread.
type shardRun struct {
	ranks        int
	strategy     shard.Strategy
	share        bool // parameters
	replicas     int
	microBatches int // of a window
	steps        int64
	samples      int
	width        int  // of the model; 0 is 64
	deferred     bool // the model has no memory before it is cut
	set          func(a *args.TrainingArguments)
	also         func(s *accelerate.Sharding)
	// after is called behind each step
	after func(acc *accelerate.Accelerator, m *gpt2.Model) error
	// held, if not nil, takes the bytes of tensors on all ranks together when the last window's gradients are there
	held *int64
}

// corpus are sequences of tokens, of one length, so that a micro-batch's place says how many it has.
func corpus(n int) data.Source {
	length := 20
	if testing.Short() {
		length = 6
	}
	samples := make([][]int32, n)
	for i := range samples {
		samples[i] = make([]int32, length)
		for j := range samples[i] {
			samples[i][j] = int32((i*31 + j*j*(i%7+1) + 3) % 67)
		}
	}
	return data.NewSource(data.Slice[[]int32](samples), data.CausalLM(0))
}

// wideConfig is a small GPT-2 with dropout whose largest weights span several cells.
func wideConfig() gpt2.Config {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 67, 24, 64, 2, 4
	return cfg
}

// run trains on every rank and returns the weights of each afterwards.
func (r shardRun) run(t *testing.T) (weights []map[string]string, norms []float64) {
	t.Helper()
	sharding := accelerate.Sharding{Strategy: r.strategy, Gather: !r.share}
	if r.also != nil {
		r.also(&sharding)
	}
	weights = make([]map[string]string, r.ranks)
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.DDPTimeout = 2, 2*r.microBatches, r.ranks, 60
	a.DPReplicateSize = r.replicas
	if r.set != nil {
		r.set(a)
	}
	dev := tensor.NewCPU(2)
	defer dev.Close()
	require.NoError(t, accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		ctx := context.Background()
		cfg := wideConfig()
		cfg.NEmbd = cmp.Or(r.width, cfg.NEmbd)
		in := nn.NewInit(acc.Device(), 3)
		if r.deferred {
			in = in.Deferred()
		}
		m, err := gpt2.New(in, cfg)
		if err != nil {
			return err
		}
		newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
			return optim.DefaultAdamW().New(c, []*optim.Group{{Params: params, LR: 1e-2, WeightDecay: 0.1}}), nil
		}
		if err := acc.Prepare(ctx, m, newOptimizer, m.RecomputeUnits()...); err != nil {
			return err
		}
		windows, err := acc.Windows(ctx, corpus(r.samples), samplers.NewRandom(int64(r.samples), 5), r.steps)
		if err != nil {
			return err
		}
		for w, err := range windows.All() {
			if err != nil {
				return err
			}
			if _, err := acc.Accumulate(ctx, w.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
				if r.width == 0 {
					c = c.WithLossOnly()
				}
				return m.Forward(c, b).Loss
			}); err != nil {
				return err
			}
			if r.held != nil {
				if err := r.hold(acc); err != nil {
					return err
				}
			}
			norm := clip(t, acc, 1)
			if acc.IsMain() {
				norms = append(norms, norm)
			}
			require.NoError(t, acc.Step(t.Context()))
			if r.after != nil {
				if err := r.after(acc, m); err != nil {
					return err
				}
			}
		}
		if err := acc.Unshard(ctx); err != nil {
			return err
		}
		out := map[string]string{}
		for _, p := range nn.NamedParameters(m) {
			out[p.Name] = string(tensor.ReadBytes(acc.Ctx(), p.Tensor))
		}
		weights[acc.Rank()] = out
		return nil
	}, accelerate.WithSharding(sharding),
		accelerate.WithLogger(quiet), accelerate.WithDevice(dev)))
	return weights, norms
}

// hold takes the memory of all ranks while none computes.
func (r shardRun) hold(acc *accelerate.Accelerator) error {
	if err := acc.Barrier(context.Background()); err != nil {
		return err
	}
	if acc.IsMain() {
		*r.held = acc.Device().MemStats().InUse + int64(r.ranks)*acc.DataRanks().Allocated()
	}
	return acc.Barrier(context.Background())
}

// Parameters, gradients and AdamW's state take the part of data parallelism's memory that the papers say, and what the
// borders of cells leave empty.
func TestShardedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices: not under the race detector")
	}
	limits := map[shard.Strategy]float64{shard.Optimizer: 0.755, shard.Gradients: 0.63,
		shard.GradOp: 0.51, shard.Full: 0.51}
	measure := func(s shard.Strategy, share bool) float64 {
		var held int64
		shardRun{ranks: 2, microBatches: 2, steps: 2, samples: 8, width: 512, strategy: s, share: share,
			held: &held}.run(t)
		return float64(held)
	}
	whole := measure(shard.None, false)
	for strategy, limit := range limits {
		require.LessOrEqual(t, measure(strategy, false), limit*whole, strategy)
	}
	require.LessOrEqual(t, measure(shard.Full, true), 0.51*whole)
}

// A training whose state alone is more than the host's memory is refused with what it needs, and goes on sharded.
func TestMemoryThatDoesNotSuffice(t *testing.T) {
	run := func(s shard.Strategy) error {
		ranks := accelerators(t, 4, nil, accelerate.WithSharding(accelerate.Sharding{Strategy: s}))
		return errors.Join(job(t, ranks, func(acc *accelerate.Accelerator) error {
			_, err := trainChain(t, acc, nil, nowhere)
			return err
		})...)
	}
	defer accelerate.SetHostLimit(8 * 5 * 4 * 16 * 3)() // of 8 layers of 20 parameters, three times 16 bytes
	err := run(shard.None)
	require.ErrorContains(t, err,
		"accelerate: each of the 4 ranks on this host needs 0.0 MiB (parameters 0.0 MiB, gradients ")
	require.ErrorContains(t, err,
		"and the memory of a test is 0.0 MiB: want fsdp full_shard, or offload_optimizer disk")
	require.NoError(t, run(shard.Full))
}

var strategies = []shard.Strategy{shard.Optimizer, shard.Gradients, shard.GradOp,
	shard.Full}

// epochs are sizes of two epochs whose last windows do not reach every rank; one window each, under the race detector.
func epochs(microBatches int) (samples int, steps int64) {
	if testing.Short() {
		return 26, 2
	}
	return 3*microBatches - 2, 4
}

// However the model is spread, the weights are those of one rank that has everything: with dropout, clipping, tied
// weights, a window of more micro-batches than deterministic ranks, and epochs whose last window does not reach every
// rank.
func TestShardedHasTheBitsOfOneRank(t *testing.T) {
	for _, microBatches := range []int{8, 24} {
		samples, steps := epochs(microBatches)
		want, norms := shardRun{ranks: 1, microBatches: microBatches, steps: steps, samples: samples}.run(t)
		for _, strategy := range strategies {
			for _, ranks := range []int{2, 3, 4, 8} {
				if microBatches%ranks != 0 || ranks == 3 && strategy == shard.Optimizer {
					continue // ZeRO-1 adds a rank's micro-batches first, as data parallelism does
				}
				if testing.Short() && (microBatches == 8 || ranks > 3) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %d ranks, %d micro-batches", strategy, ranks, microBatches), func(t *testing.T) {
					got, n := shardRun{ranks: ranks, strategy: strategy, microBatches: microBatches, steps: steps,
						samples: samples}.run(t)
					require.Equal(t, norms, n)
					for rank := range got {
						require.True(t, equalWeights(want[0], got[rank]), "rank %d", rank)
					}
				})
				if strategy != shard.Full {
					continue
				}
				name := fmt.Sprintf("shared parameters, %d ranks, %d micro-batches", ranks, microBatches)
				t.Run(name, func(t *testing.T) {
					got, n := shardRun{ranks: ranks, strategy: strategy, microBatches: microBatches, steps: steps,
						samples: samples, share: true}.run(t)
					require.Equal(t, norms, n)
					for rank := range got {
						require.True(t, equalWeights(want[0], got[rank]), "rank %d", rank)
					}
				})
			}
		}
	}
}

// So have five and six ranks, whose windows have as many micro-batches.
func TestFullShardOnFiveAndSixRanks(t *testing.T) {
	for _, set := range []func(a *args.TrainingArguments){nil,
		func(a *args.TrainingArguments) { a.BF16, a.GradientCheckpointing = true, true }} {
		r := shardRun{ranks: 1, microBatches: 30, steps: 3, samples: 75, set: set}
		want, norms := r.run(t)
		r.strategy = shard.Full
		for _, r.ranks = range []int{5, 6} {
			for _, r.share = range []bool{false, true} {
				if testing.Short() && r.share == (r.ranks == 6) {
					continue
				}
				got, n := r.run(t)
				require.Equal(t, norms, n, "%d ranks", r.ranks)
				for rank := range got {
					require.True(t, equalWeights(want[0], got[rank]), "rank %d of %d", rank, r.ranks)
				}
			}
		}
	}
}

// Replicas that are each spread over a part of the ranks have those bits too, also where an epoch's last window reaches
// one of them alone, and where one has a rank that others have not.
func TestHybridShardedHasTheBitsOfOneRank(t *testing.T) {
	const microBatches = 24
	samples, steps := epochs(microBatches)
	want, norms := shardRun{ranks: 1, microBatches: microBatches, steps: steps, samples: samples}.run(t)
	for i, strategy := range strategies {
		for j, n := range []struct{ ranks, replicas int }{{4, 2}, {6, 2}, {8, 2}, {8, 4}, {12, 4}} {
			if n.ranks/n.replicas == 3 && strategy == shard.Optimizer {
				continue
			}
			if testing.Short() && n.ranks != 4 && n.ranks != 6 {
				continue
			}
			share := (i+j)%2 == 0 // each strategy and each number of ranks has both
			t.Run(fmt.Sprintf("%s, %d replicas on %d ranks, shared %v", strategy, n.replicas, n.ranks, share),
				func(t *testing.T) {
					got, norm := shardRun{ranks: n.ranks, replicas: n.replicas, strategy: strategy,
						microBatches: microBatches, steps: steps, samples: samples, share: share}.run(t)
					require.Equal(t, norms, norm)
					for rank := range got {
						require.True(t, equalWeights(want[0], got[rank]), "rank %d", rank)
					}
				})
		}
	}
}

// So have units of other sizes than blocks.
func TestShardedUnitsOfOtherSizes(t *testing.T) {
	want, _ := shardRun{ranks: 1, microBatches: 8, steps: 2, samples: 20}.run(t)
	for name, set := range map[string]func(a *args.TrainingArguments){
		"by class": func(a *args.TrainingArguments) {
			a.FSDPTransformerLayerClsToWrap = []string{"GPT2MLP", "gpt2.Attention"}
		},
		"by size": func(a *args.TrainingArguments) { a.FSDPMinNumParams = 5000 },
	} {
		got, _ := shardRun{ranks: 2, strategy: shard.Full, microBatches: 8, steps: 2, samples: 20, set: set}.run(t)
		for rank := range got {
			require.True(t, equalWeights(want[0], got[rank]), "%s: rank %d", name, rank)
		}
	}
}

// A model of several buckets has those bits too: the gradient of a tied weight begins before its bucket's turn.
func TestShardedBuckets(t *testing.T) {
	r := shardRun{ranks: 1, microBatches: 4, steps: 2, samples: 16, width: 192,
		set: func(a *args.TrainingArguments) { a.DDPBucketCapMB = 1 }}
	want, norms := r.run(t)
	r.ranks = 2
	for i := range strategies {
		if r.strategy = strategies[i]; testing.Short() && i%2 == 0 {
			continue
		}
		got, n := r.run(t)
		require.Equal(t, norms, n, r.strategy)
		require.True(t, equalWeights(want[0], got[1]), r.strategy)
	}
}

func equalWeights(a, b map[string]string) bool {
	for name, bits := range a {
		if b[name] != bits {
			return false
		}
	}
	return len(a) == len(b)
}

// byNorm is a transform that looks at a whole parameter.
type byNorm struct{}

func (byNorm) Traits() optim.Traits { return optim.Traits{} }

func (byNorm) State(tensor.Named) []optim.StateTensor { return nil }

func (byNorm) Apply(*tensor.Ctx, tensor.Named, *optim.Group, *optim.Slot, *tensor.Tensor) {}

// An optimizer that does not promise to compute element by element is refused by name.
func TestOptimizersThatNeedWholeParametersAreRefused(t *testing.T) {
	a := args.Default("")
	a.NumReplicas = 2
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		m, err := gpt2.New(nn.NewInit(acc.Device(), 3), wideConfig())
		if err != nil {
			return err
		}
		lamb := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
			return optim.New(c, "lamb", []*optim.Group{{Params: params, LR: 1e-2}}, optim.L2{}, byNorm{}), nil
		}
		return acc.Prepare(t.Context(), m, lamb, m.RecomputeUnits()...)
	}, accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full}), accelerate.WithLogger(quiet))
	require.ErrorContains(t, err, "accelerate: optimizer lamb needs whole parameters, and they are sharded: want no "+
		"fsdp, zero_stage and dp_shard_size, or an optimizer whose transforms are all elementwise (optim.Traits)")
}

// Shards of gradients are summed exactly: a model that is sharded takes no communication hook.
func TestShardingRefusesHooks(t *testing.T) {
	for _, strategy := range strategies {
		for what, hook := range map[string]func(a *args.TrainingArguments) []accelerate.Option{
			"power_sgd": func(a *args.TrainingArguments) []accelerate.Option {
				a.DDPCommHook = args.CommHookPowerSGD
				return nil
			},
			"bf16": func(*args.TrainingArguments) []accelerate.Option {
				return []accelerate.Option{accelerate.WithCommHook(ddp.BF16Compress)}
			},
		} {
			a := rankArgs(2)
			opts := append(hook(a), accelerate.WithLogger(quiet),
				accelerate.WithSharding(accelerate.Sharding{Strategy: strategy}))
			err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
				return acc.Prepare(t.Context(), newNet(acc.Device(), 1), nil)
			}, opts...)
			require.EqualError(t, err, fmt.Sprintf("accelerate: ddp_comm_hook %s with a model that is sharded "+
				"(%s): want no hook, since shards of gradients are summed exactly, or no sharding", what, strategy))
		}
	}
}

// NoSync changes no sum of sharded gradients either, which it does not keep from being exchanged.
func TestNoSyncOfShardedModels(t *testing.T) {
	gradients := func(strategy shard.Strategy, noSync int) (sums map[string]string, exchanges int) {
		ranks := accelerators(t, 2, func(_ int, a *args.TrainingArguments) { a.GradientAccumulationSteps = 4 },
			accelerate.WithSharding(accelerate.Sharding{Strategy: strategy, Gather: true}))
		errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, nil); err != nil {
				return err
			}
			layout, err := acc.Layout()
			if err != nil {
				return err
			}
			for i := range 4 {
				microBatch := layout.MicroBatch(i)
				pass := func() error {
					acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor {
						acc.Backward(c, m.loss(c, batch(c.Ctx, microBatch, true)), 8, microBatch, i == 3)
						return nil
					})
					return nil
				}
				if i < noSync {
					inner := pass
					pass = func() error { return acc.NoSync(inner) }
				}
				if err := pass(); err != nil {
					return err
				}
			}
			if err := acc.Reduce(t.Context()); err != nil {
				return err
			}
			if acc.IsMain() {
				sums = map[string]string{}
				for _, p := range acc.Trained() {
					sums[p.Name] = string(tensor.ReadBytes(acc.Ctx(), p.Grad()))
				}
				for _, e := range acc.LossRanks().Group().Flight().Entries {
					if strings.HasPrefix(e.Label, "gradients") {
						exchanges++
					}
				}
			}
			return nil
		})
		require.Equal(t, []error{nil, nil}, errs)
		return sums, exchanges
	}
	for _, strategy := range strategies {
		want, exchanges := gradients(strategy, 0)
		require.NotEmpty(t, want)
		got, again := gradients(strategy, 3)
		require.Equal(t, want, got, strategy)
		require.Equal(t, exchanges, again, strategy)
	}
}

// A model that is made without memory has the same bits under every strategy, and is never whole on a rank that
// gathers.
func TestDeferredModels(t *testing.T) {
	want, norms := shardRun{ranks: 1, microBatches: 8, steps: 2, samples: 20}.run(t)
	for _, strategy := range append([]shard.Strategy{shard.None}, strategies...) {
		for _, share := range []bool{false, true} {
			if testing.Short() && share && strategy != shard.Full { // parameters are not shared
				continue
			}
			got, n := shardRun{ranks: 4, strategy: strategy, microBatches: 8, steps: 2, samples: 20, share: share,
				deferred: true}.run(t)
			require.Equal(t, norms, n)
			for rank := range got {
				require.True(t, equalWeights(want[0], got[rank]), "%s: rank %d", strategy, rank)
			}
		}
	}

	half := func(a *args.TrainingArguments) { a.BF16 = true }
	want, _ = shardRun{ranks: 1, microBatches: 8, steps: 2, samples: 20, set: half}.run(t)
	for _, ranks := range []int{1, 2} {
		got, _ := shardRun{ranks: ranks, microBatches: 8, steps: 2, samples: 20, deferred: true, set: half}.run(t)
		require.True(t, equalWeights(want[0], got[0]), "bf16, %d ranks", ranks)
	}

	dev := tensor.NewMeta()
	defer dev.Close()
	group, engine := fake.New(0, 8, comm.Options{Log: quiet})
	engine.Mirror = true
	acc, err := accelerate.New(args.Default(""), accelerate.WithGroup(group), accelerate.WithDevice(dev),
		accelerate.WithLogger(quiet),
		accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full, Gather: true}))
	require.NoError(t, err)
	defer func() { require.NoError(t, acc.Close()) }()
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 24, 256, 4, 100, 16
	m, err := gpt2.New(nn.NewInit(dev, 3).Deferred(), cfg)
	require.NoError(t, err)
	require.Zero(t, dev.MemStats().InUse)
	require.NoError(t, acc.Prepare(t.Context(), m, nil, m.RecomputeUnits()...))
	whole := int64(4 * nn.NumParameters(m))
	require.Less(t, dev.MemStats().Peak, whole/8+whole/8, "its shards, and a unit on the way")
	require.Less(t, dev.MemStats().InUse, whole/8+whole/50)
}
