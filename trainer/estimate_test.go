// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// What is predicted without computing anything is what a run takes, to the byte or nearly.
func TestEstimateMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices: not under the race detector")
	}
	small := gpt2.DefaultConfig()
	small.NLayer, small.NEmbd, small.NHead, small.VocabSize, small.NPositions = 2, 48, 3, 997, 32
	large := small
	large.NLayer, large.NEmbd, large.NHead, large.VocabSize, large.NPositions = 4, 128, 4, 3000, 64
	for name, k := range map[string]struct {
		cfg   gpt2.Config
		set   func(a *args.TrainingArguments)
		dtype tensor.DType // of parameters; Invalid: float32
	}{
		"small":         {cfg: small, set: func(*args.TrainingArguments) {}},
		"large":         {cfg: large, set: func(*args.TrainingArguments) {}},
		"accumulation":  {cfg: small, set: func(a *args.TrainingArguments) { a.GradientAccumulationSteps = 4 }},
		"checkpointing": {cfg: large, set: func(a *args.TrainingArguments) { a.GradientCheckpointing = true }},
		"sgd":           {cfg: small, set: func(a *args.TrainingArguments) { a.Optim = args.OptimSGD }},
		"momentum": {cfg: small, set: func(a *args.TrainingArguments) {
			a.Optim, a.OptimArgs = args.OptimSGD, "momentum=0.9"
		}},
		"bf16": {cfg: large, set: bf16},
		"bf16, checkpointing": {cfg: large, set: func(a *args.TrainingArguments) {
			a.BF16, a.GradientCheckpointing = true, true
		}},
		"bfloat16": {cfg: large, set: func(*args.TrainingArguments) {}, dtype: tensor.BFloat16},
		"bfloat16, plain": {cfg: large, set: func(a *args.TrainingArguments) {
			a.HalfUpdate = args.HalfUpdatePlain
		}, dtype: tensor.BFloat16},
	} {
		t.Run(name, func(t *testing.T) {
			a := args.Default(out)
			a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy = 3, 3, args.StrategyNo
			k.set(a)
			dt := k.dtype
			if dt == tensor.Invalid {
				dt = tensor.Float32
			}
			t.Setenv("RANK", "1") // of a launcher, which an estimate does not care about
			t.Setenv("WORLD_SIZE", "2")
			got, err := trainer.EstimateMemory(a, nil, 1, func(in *nn.Init) (models.Model, error) {
				return gpt2.New(in.As(dt), k.cfg)
			}, example(t, k.cfg))
			require.NoError(t, err)
			t.Setenv("RANK", "")
			t.Setenv("WORLD_SIZE", "")

			dev := tensor.NewCPU(1)
			defer dev.Close()
			m, err := gpt2.New(nn.NewInit(dev, 1).As(dt), k.cfg)
			require.NoError(t, err)
			a.SkipMemoryMetrics = false
			tr := newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev),
				trainer.WithTrainData(blank(60, k.cfg)))
			res, err := tr.Train()
			require.NoError(t, err)
			measured := dev.MemStats().Peak
			t.Logf("estimated %+v, measured %d", *got, measured)
			require.InEpsilon(t, measured, got.Peak, 0.02)
			last := tr.State().LogHistory[len(tr.State().LogHistory)-1]
			require.EqualValues(t, measured, last["train_mem_peak"], "the last record tells")
			require.EqualValues(t, got.Peak, last["train_mem_peak_estimated"], "from the batches that came")
			require.EqualValues(t, got.Peak, res.Metrics["train_mem_peak_estimated"])
			if runtime.GOOS == "linux" {
				require.Contains(t, last, "train_mem_cpu_alloc_delta")
				require.GreaterOrEqual(t, last["train_mem_cpu_peaked_delta"], 0.0)
			}
			n := int64(nn.NumParameters(m))
			require.Equal(t, n*int64(dt.Size()), got.Parameters)
			sets := int64(1)
			if name == "accumulation" {
				sets = 3 // log2(4) + 1
			}
			require.Equal(t, sets*4*n, got.Gradients)
			state := 8 * n
			switch name {
			case "sgd":
				state = 0
			case "momentum":
				state = 4 * n
			case "bfloat16": // with compensations
				state = 10 * n
			}
			require.Equal(t, state, got.OptimizerState)
			require.Equal(t, got.Peak, got.Parameters+got.Gradients+got.OptimizerState+got.Activations)
		})
	}
}

// What is predicted of a sharded run is what its ranks hold, whose peaks do not come at the same time.
func TestEstimateOfShardedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices: not under the race detector")
	}
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 2, 256, 4, 997, 32
	estimate := func(ranks int, set func(a *args.TrainingArguments)) *trainer.MemoryEstimate {
		a := args.Default(out)
		a.PerDeviceTrainBatchSize = 2
		set(a)
		e, err := trainer.EstimateMemory(a, nil, ranks, func(in *nn.Init) (models.Model, error) {
			return gpt2.New(in, cfg)
		}, example(t, cfg))
		require.NoError(t, err)
		return e
	}
	whole := estimate(2, zero(0))
	for _, k := range []struct {
		ranks                   int
		set                     func(a *args.TrainingArguments)
		params, grads, state    float64 // of the whole
		comesAndGoes, recompute bool
	}{
		{2, zero(1), 1, 1, 0.5, false, false}, {2, zero(2), 1, 0.5, 0.5, true, false},
		{2, fullShard, 0.5, 0.5, 0.5, true, false}, {4, fullShard, 0.25, 0.25, 0.25, true, true},
		{2, func(a *args.TrainingArguments) { a.FSDP = []string{"shard_grad_op"} }, 0.5, 0.5, 0.5, true, false},
	} {
		set := func(a *args.TrainingArguments) {
			k.set(a)
			a.GradientCheckpointing = k.recompute
		}
		e := estimate(k.ranks, set)
		// small matrices leave many places at the borders of cells empty
		require.InEpsilon(t, k.params*float64(whole.Parameters), e.Parameters, 0.1)
		require.InEpsilon(t, k.grads*float64(whole.Gradients), e.Gradients, 0.1)
		require.InEpsilon(t, k.state*float64(whole.OptimizerState), e.OptimizerState, 0.1)
		require.Equal(t, k.comesAndGoes, e.Gathered > 0)

		dev := tensor.NewCPU(1)
		m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
		require.NoError(t, err)
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy, a.NumReplicas = 2, 2, args.StrategyNo, k.ranks
		a.SkipMemoryMetrics = false
		set(a)
		sharding := accelerate.Sharding{Strategy: shard.Strategy(a.ShardStrategy()), Gather: true}
		a.FSDP, a.ZeroStage = nil, 0
		res, err := newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev), trainer.WithSharding(sharding),
			trainer.WithTrainData(blank(40, cfg))).Train()
		require.NoError(t, err)
		measured, estimated := res.Metrics["train_mem_peak"], res.Metrics["train_mem_peak_estimated"]
		t.Logf("%d ranks, %s: estimated %+v, measured %.0f", k.ranks, sharding.Strategy, *e, measured)
		require.EqualValues(t, max(e.Start, e.Peak), estimated)
		require.LessOrEqual(t, measured, 1.02*estimated)
		require.Greater(t, measured, 0.7*estimated)
		dev.Close()
	}
}

// Ranks that divide matrices or tokens hold what is predicted for them: of matrices, their gradients and moments their
// parts, and all of the rest.
func TestEstimateOfDividedMemory(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 2, 64, 4, 256, 64
	h := cfg.NEmbd
	divided := cfg.NLayer*(12*h*h+7*h) + cfg.VocabSize*h // c_attn and c_fc have biases that are divided too
	whole := cfg.NLayer*6*h + (cfg.NPositions+2)*h
	for _, k := range []struct{ tp, cp, replicas int }{{1, 2, 1}, {2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}} {
		t.Run(fmt.Sprintf("tp %d, cp %d, %d replicas", k.tp, k.cp, k.replicas), func(t *testing.T) {
			a := args.Default(out)
			a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy = 8, 2, args.StrategyNo
			a.TPSize, a.CPSize, a.NumReplicas = k.tp, k.cp, k.tp*k.cp*k.replicas
			e, err := trainer.EstimateMemory(a, nil, a.NumReplicas, func(in *nn.Init) (models.Model, error) {
				return gpt2.New(in, cfg)
			}, example(t, cfg))
			require.NoError(t, err)
			n := int64(divided/k.tp + whole)
			require.Equal(t, []int64{4 * n, 4 * n, 8 * n}, []int64{e.Parameters, e.Gradients, e.OptimizerState})

			ranks := a.NumReplicas
			a.NumReplicas, a.SkipMemoryMetrics = 1, false
			peaks := make([]float64, ranks) // each rank has a device of its own
			require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
				dev := tensor.NewCPU(1)
				defer dev.Close()
				m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
				if err != nil {
					return err
				}
				res, err := newTrainer(vfs.NewMem(), m, a.Clone(), trainer.WithGroup(g), trainer.WithDevice(dev),
					trainer.WithTrainData(blank(32, cfg))).Train()
				if err == nil {
					peaks[g.Rank()] = res.Metrics["train_mem_peak"]
				}
				return err
			}))
			t.Logf("estimated %+v, measured %.0f", *e, peaks)
			for _, peak := range peaks {
				require.InEpsilon(t, float64(e.Peak), peak, 0.02)
			}
		})
	}
}

// The plan of a rank of a pipeline, whose matrices and tokens are divided too, or whose stages are sharded, is what it
// takes. A real rank may hold a message for longer, which is small beside the rest.
func TestEstimateOfDividedStages(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 2, 64, 4, 128, 16
	deep := cfg
	deep.NLayer = 4
	none := func(*args.TrainingArguments) {}
	for _, k := range []struct {
		mesh comm.Mesh
		name string
		cfg  gpt2.Config
		set  func(a *args.TrainingArguments)
	}{
		{comm.Mesh{PP: 2}, "", cfg, none}, {comm.Mesh{PP: 2, TP: 2}, "", cfg, none},
		{comm.Mesh{PP: 2, CP: 2, TP: 2}, "", cfg, none},
		{comm.Mesh{PP: 2, DPReplicate: 2}, "", deep, none},
		{comm.Mesh{PP: 2, DPShard: 2}, "full_shard", deep, fullShard},
		{comm.Mesh{PP: 2, DPShard: 2}, "full_shard, bf16", deep, func(a *args.TrainingArguments) {
			fullShard(a)
			a.BF16 = true
		}},
		{comm.Mesh{PP: 2, DPShard: 2}, "shard_grad_op", deep, func(a *args.TrainingArguments) {
			a.FSDP = []string{"shard_grad_op"}
		}},
		{comm.Mesh{PP: 2, DPShard: 2}, "zero 1", deep, zero(1)},
		{comm.Mesh{PP: 2, DPShard: 2}, "zero 2", deep, zero(2)},
		{comm.Mesh{PP: 2, DPReplicate: 2, DPShard: 2}, "full_shard", cfg, fullShard},
		{comm.Mesh{PP: 2, DPShard: 2, TP: 2}, "full_shard", cfg, fullShard},
		{comm.Mesh{PP: 2, CP: 2}, "full_shard", cfg, fullShard},
	} {
		t.Run(fmt.Sprint(k.mesh, " ", k.name), func(t *testing.T) {
			a := args.Default(out)
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.MaxSteps = 1, 4, 2
			a.SaveStrategy, a.SkipMemoryMetrics, a.FSDPShareParameters = args.StrategyNo, false, false
			k.set(a)
			a.PPSize, a.CPSize, a.TPSize = k.mesh.PP, max(k.mesh.CP, 1), max(k.mesh.TP, 1)
			a.DPReplicateSize, a.DPShardSize = max(k.mesh.DPReplicate, 1), max(k.mesh.DPShard, 1)
			ranks := k.mesh.Size(^comm.Axes(0))
			full, err := k.mesh.Of(ranks)
			require.NoError(t, err)
			play := trainer.Play{Args: a, Mesh: full, Batch: example(t, k.cfg),
				Model: func(in *nn.Init) (models.Model, error) { return gpt2.New(in, k.cfg) }}
			list, _, err := play.EstimateMemory()
			require.NoError(t, err)
			peaks := make([]float64, ranks)
			require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
				dev := tensor.NewCPU(1)
				defer dev.Close()
				m, err := gpt2.New(nn.NewInit(dev, 1).Deferred(), k.cfg)
				if err != nil {
					return err
				}
				res, err := newTrainer(vfs.NewMem(), m, a.Clone(), trainer.WithGroup(g), trainer.WithDevice(dev),
					trainer.WithTrainData(blank(64, k.cfg))).Train()
				if err == nil {
					peaks[g.Rank()] = res.Metrics["train_mem_peak"]
				}
				return err
			}))
			most := make([]float64, len(list)) // the shards of later ranks may be smaller
			for rank, peak := range peaks {
				stage := full.Coord(rank, comm.PP)
				most[stage] = max(most[stage], peak)
			}
			for stage, e := range list {
				t.Logf("stage %d: %+v, measured %.0f: %.4f", stage, *e, most[stage], most[stage]/float64(e.Peak))
				require.InEpsilon(t, float64(e.Peak), most[stage], 0.02, "stage %d", stage)
				require.LessOrEqual(t, e.Parameters+e.OptimizerState+e.Gathered, e.Peak)
			}
		})
	}
}

// Where ranks share the parameters, the plan counts a rank's part of them, and of what products read of them in bf16.
func TestEstimateOfSharedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices: not under the race detector")
	}
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 4, 256, 4, 97, 16
	for _, bf16 := range []bool{false, true} {
		dev := tensor.NewCPU(1)
		m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
		require.NoError(t, err)
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy, a.NumReplicas, a.BF16 = 1, 3, args.StrategyNo, 2, bf16
		a.FSDP, a.SkipMemoryMetrics, a.DDPBucketCapMB = []string{"full_shard"}, false, 1
		e, err := trainer.EstimateSharedMemory(a, nil, 2, func(in *nn.Init) (models.Model, error) {
			return gpt2.New(in, cfg)
		}, example(t, cfg))
		require.NoError(t, err)
		n := float64(nn.NumParameters(m))
		bytes := 2.0 // of a float32, on each of two ranks
		if bf16 {
			bytes = 3 // and of a bfloat16
		}
		require.InEpsilon(t, bytes*n, e.Parameters, 0.05)
		res, err := newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev),
			trainer.WithTrainData(blank(40, cfg))).Train()
		require.NoError(t, err)
		measured, estimated := res.Metrics["train_mem_peak"], res.Metrics["train_mem_peak_estimated"]
		t.Logf("bf16 %v: estimated %+v, measured %.0f", bf16, *e, measured)
		require.EqualValues(t, max(e.Start, e.Peak), estimated)
		require.LessOrEqual(t, measured, 1.02*estimated)
		require.Greater(t, measured, 0.8*estimated)
		dev.Close()
	}
}

// example makes batches like those of the model of cfg.
func example(t *testing.T, cfg gpt2.Config) func(c *tensor.Ctx, samples int) *data.Batch {
	m, err := gpt2.New(nn.NewInit(tensor.NewMeta(), 1), cfg)
	require.NoError(t, err)
	return func(c *tensor.Ctx, samples int) *data.Batch { return m.ExampleBatch(c, samples, 0) }
}

// blank are samples as long as the model of cfg takes.
func blank(samples int, cfg gpt2.Config) data.Source {
	list := make(data.Slice[[]int32], samples)
	for i := range list {
		list[i] = make([]int32, cfg.NPositions)
	}
	return data.NewSource(list, data.CausalLM(0))
}

// On two ranks each needs what one alone does; a model that is not made from a configuration has no estimate.
func TestMemoryMetrics(t *testing.T) {
	train := func(m models.Model, src data.Source, set func(*args.TrainingArguments)) map[string]float64 {
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy = 2, 3, args.StrategyNo
		set(a)
		res, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(src)).Train()
		require.NoError(t, err)
		return res.Metrics
	}
	require.NotContains(t, train(newGPT2(t, 0), texts(16), func(*args.TrainingArguments) {}), "train_mem_peak")
	on := func(a *args.TrainingArguments) { a.SkipMemoryMetrics = false }
	for _, gas := range []int{1, 4} {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		cfg := gpt2.DefaultConfig()
		cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 2, 48, 3, 997, 32
		m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
		require.NoError(t, err)
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy, a.NumReplicas, a.GradientAccumulationSteps = 2, 3,
			args.StrategyNo, 2, gas
		a.SkipMemoryMetrics = false
		res, err := newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev), trainer.WithTrainData(texts(64))).Train()
		require.NoError(t, err)
		measured, estimated := res.Metrics["train_mem_peak"], res.Metrics["train_mem_peak_estimated"]
		require.LessOrEqual(t, measured, 1.02*estimated)
		require.Greater(t, measured, 0.7*estimated, "the ranks' peaks do not come at the same time")
	}
	plain := train(&unnamed{newMLP(t, 1, 1)}, source(points(16)), on)
	require.Positive(t, plain["train_mem_peak"])
	require.NotContains(t, plain, "train_mem_peak_estimated")
}

// unnamed is a model without a configuration.
type unnamed struct {
	Inner *mlp.Model `nn:"inner"`
}

func (u *unnamed) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	var out models.Output
	nn.Unit(c, u, func(c *nn.Ctx, _ []*tensor.Tensor) []*tensor.Tensor {
		out = u.Inner.Forward(c, b)
		return []*tensor.Tensor{out.Loss, out.Logits}
	})
	return out
}
