// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Every optimizer ends with the same weights and state on 1, 2 and 3 ranks (4 where it needs whole parameters), and
// when a run is resumed on another number of ranks under another strategy.
func TestEveryOptimizerOnAnyNumberOfRanks(t *testing.T) {
	for _, row := range catalog.Optimizers {
		name := row.AllNames()[0]
		t.Run(name, func(t *testing.T) {
			train := func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
				return trainWide(t, disk, ranks, "", false, append(set, func(a *args.TrainingArguments) {
					a.Optim, a.MaxSteps, a.WeightDecay = args.Optim(name), 4, 0.1
					a.AdamBeta2 = 0.9 // so that few steps are enough to move a parameter by its second moment
				})...)
			}
			cfg, err := optim.ByName(name, nil, nil)
			require.NoError(t, err)
			many, spread := 3, fullShard
			opt := cfg.New(tensor.NewCtx(tensor.CPU()), nil)
			require.Equal(t, row.Whole, opt.NeedsWhole() || opt.Blocks() > 1)
			if opt.NeedsWhole() {
				many, spread = 4, func(*args.TrainingArguments) {} // DDP's sums have one order on 1, 2, 4 and 8 ranks
			}
			first := train(vfs.NewMem(), 1)
			others := train(vfs.NewMem(), many, spread)
			require.Equal(t, first.weights, others.weights, "%d ranks", many)
			resumed := others.disk.CrashClone(nil)
			two := train(resumed, 2, zero(0), func(a *args.TrainingArguments) {
				a.ResumeFromCheckpoint = out + "/checkpoint-2"
			})
			require.Equal(t, first.weights, two.weights, "resumed on 2 ranks")
			for _, part := range []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"} {
				path := out + "/checkpoint-4/" + part
				require.Equal(t, content(t, first.disk, path), content(t, resumed, path), part)
			}
		})
	}
}

// State in 8 bits is cut where its blocks begin: fifty steps end with the same weights and state on 1, 2 and 3 ranks,
// and when they are resumed on another number of ranks, from one file or from what each rank saved. The parameters end
// with short blocks, and some ranks have the last few elements of one alone.
func TestEightBitStateInShards(t *testing.T) {
	train := func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
		cfg := gpt2.DefaultConfig()
		cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 8, 66, 1, 2
		cfg.BosTokenID, cfg.EosTokenID = nil, nil
		m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
		require.NoError(t, err)
		return trainModel(t, m, disk, ranks, append(set, shardsArgs, func(a *args.TrainingArguments) {
			a.Optim, a.MaxSteps, a.WeightDecay, a.SaveSteps = "adamw_bnb_8bit", 50, 0.1, 25
			a.GlobalTrainBatchSize, a.AdamBeta2 = 12, 0.9
		})...)
	}
	resumed := func(of rankRun, ranks int, set ...func(*args.TrainingArguments)) rankRun {
		return train(of.disk.CrashClone(nil), ranks, append(set, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = out + "/checkpoint-25"
		})...)
	}
	first := train(vfs.NewMem(), 1)
	two, three := train(vfs.NewMem(), 2, zero(2)), train(vfs.NewMem(), 3, fullShard)
	for name, run := range map[string]rankRun{"2 ranks": two, "3 ranks": three,
		"2 ranks after 3": resumed(three, 2, zero(3)), "3 ranks after 2": resumed(two, 3, fullShard),
		"1 rank after 3 files": resumed(train(vfs.NewMem(), 3, fullShard, scattered), 1)} {
		require.Equal(t, first.weights, run.weights, name)
		for _, part := range []string{"optimizer.safetensors", "optimizer.json"} {
			path := out + "/checkpoint-50/" + part
			require.Equal(t, content(t, first.disk, path), content(t, run.disk, path), "%s: %s", name, part)
		}
	}
}

// Muon moves matrices by their momentum, and the embeddings by AdamW: the trainer says which tables are.
func TestMuonLeavesEmbeddingsToAdamW(t *testing.T) {
	run := trainWide(t, vfs.NewMem(), 1, "", false, func(a *args.TrainingArguments) {
		a.Optim, a.MaxSteps = "muon", 2
	})
	names := tensorNames(t, run.disk, out+"/checkpoint-2/optimizer.safetensors")
	for _, name := range []string{"transformer.wte.weight.exp_avg", "transformer.wpe.weight.exp_avg",
		"transformer.ln_f.bias.exp_avg", "transformer.h.0.attn.c_attn.weight.momentum_buffer"} {
		require.Contains(t, names, name)
	}
	require.NotContains(t, names, "transformer.wte.weight.momentum_buffer")
}

func tensorNames(t *testing.T, disk *vfs.Mem, path string) (names []string) {
	r, err := safetensors.Open(disk, path)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	for _, e := range r.Entries() {
		names = append(names, e.Name)
	}
	return names
}

// A sharded run refuses an optimizer that needs whole parameters, by name.
func TestOptimizersOfWholeParametersRefuseShards(t *testing.T) {
	for _, name := range []string{"adafactor", "lamb", "muon", "stable_adamw", "schedule_free_sgd"} {
		a := rankArgs(2)
		shardsArgs(a)
		fullShard(a)
		a.Optim = args.Optim(name)
		_, err := newTrainer(vfs.NewMem(), wideGPT2(t, ""), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(13))).Train()
		require.ErrorContains(t, err, "optimizer "+name+" needs whole parameters")
		require.ErrorContains(t, err, "and they are sharded: want no fsdp, "+
			"zero_stage and dp_shard_size")
	}
}

// The state of large matrices is saved in 8 bits, that of embeddings and of small parameters in float32; torchao's
// optimizer has no exception for embeddings.
func TestEightBitStateInCheckpoints(t *testing.T) {
	state := func(optim args.Optim) []safetensors.Entry {
		cfg := gpt2.DefaultConfig()
		cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 128, 8, 64, 1, 2
		cfg.BosTokenID, cfg.EosTokenID = nil, nil
		m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
		require.NoError(t, err)
		run := trainModel(t, m, vfs.NewMem(), 1, shardsArgs, func(a *args.TrainingArguments) {
			a.Optim, a.MaxSteps = optim, 2
		})
		r, err := safetensors.Open(run.disk, out+"/checkpoint-2/optimizer.safetensors")
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		return r.Entries()
	}
	const matrix, table = "transformer.h.0.attn.c_attn.weight.", "transformer.wte.weight."
	bits := map[string]tensor.DType{}
	for _, e := range state("paged_adamw_8bit") {
		bits[e.Name] = e.DType
	}
	require.Equal(t, tensor.Uint8, bits[matrix+"exp_avg_8bit"])
	require.Equal(t, tensor.Float32, bits[matrix+"exp_avg_sq_absmax"])
	require.Zero(t, bits[matrix+"exp_avg"])
	require.Equal(t, tensor.Float32, bits[table+"exp_avg"])
	require.Equal(t, tensor.Float32, bits["transformer.h.0.ln_1.weight.exp_avg_sq"])
	names := map[string]bool{}
	for _, e := range state("adamw_torch_8bit") {
		names[e.Name] = true
	}
	require.True(t, names[table+"exp_avg_8bit"])
}

// A schedule-free optimizer evaluates and saves the average of its weights, leaves it in the model at the end, and
// trains with the bits of a run that never evaluated or saved.
func TestScheduleFreeEvaluatesAverages(t *testing.T) {
	for _, optim := range []args.Optim{"schedule_free_adamw", "schedule_free_sgd"} {
		train := func(set ...func(*args.TrainingArguments)) (*trainer.Trainer, rankRun) {
			a := rankArgs(1)
			shardsArgs(a)
			a.Optim, a.MaxSteps, a.LRSchedulerType, a.WarmupSteps = optim, 4, "constant", 2
			a.LearningRate, a.EvalStrategy, a.EvalSteps = 0.01, args.StrategySteps, new(2.0)
			for _, f := range set {
				f(a)
			}
			disk, m := vfs.NewMem(), wideGPT2(t, "")
			tr := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)))
			_, err := tr.Train()
			require.NoError(t, err)
			return tr, rankRun{weights(m), nil, disk}
		}
		tr, run := train()
		_, quiet := train(func(a *args.TrainingArguments) {
			a.EvalStrategy, a.EvalSteps, a.SaveStrategy = args.StrategyNo, nil, args.StrategyNo
		})
		require.Equal(t, quiet.weights, run.weights)

		last := 0.0
		for _, record := range tr.State().LogHistory {
			if loss, ok := record.Number("eval_loss"); ok {
				last = loss
			}
		}
		again, err := tr.Evaluate()
		require.NoError(t, err)
		require.Equal(t, last, again["eval_loss"])

		read := func(file, name string) []byte {
			r, err := safetensors.Open(run.disk, out+"/checkpoint-4/"+file)
			require.NoError(t, err)
			defer func() { require.NoError(t, r.Close()) }()
			raw, err := r.ReadTensor(name)
			require.NoError(t, err)
			return raw
		}
		const name = "transformer.h.0.attn.c_attn.weight"
		require.Equal(t, run.weights[name], read("model.safetensors", name))
		require.NotEqual(t, run.weights[name], read("optimizer.safetensors", name+".train_weight"))
	}
}
