// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// adapterArgs train an adapter for 6 steps of 16 samples, saved after 3 and 6.
func adapterArgs(set ...func(*args.TrainingArguments)) *args.TrainingArguments {
	a := rankArgs(1)
	a.GlobalTrainBatchSize, a.GradientAccumulationSteps, a.MaxSteps, a.SaveSteps, a.LoggingSteps = 16, 1, 6, 3, 3
	a.EvalStrategy, a.EvalSteps, a.LearningRate, a.WeightDecay = args.StrategyNo, nil, 1e-2, 0.1
	inParts(a)
	for _, f := range set {
		f(a)
	}
	return a
}

// divided and staged are two ranks that share matrices, or have stages.
func divided(a *args.TrainingArguments) { a.NumReplicas, a.TPSize, a.TPParts = 2, 2, 0 }
func staged(a *args.TrainingArguments)  { a.NumReplicas, a.PPSize = 2, 2 }

// adapterRun trains an adapter of a model of four heads.
func adapterRun(t *testing.T, disk *vfs.Mem, m *gpt2.Model, cfg lora.Config, a *args.TrainingArguments,
	opts ...trainer.Option) (map[string][]byte, *trainer.Trainer, error) {
	cfg.R, cfg.TargetModules, cfg.Init = 2, lora.AllLinear, lora.InitRandom
	adapter, err := lora.New(m, cfg)
	require.NoError(t, err)
	opts = append(opts, trainer.WithTrainData(raggedTexts(51)), trainer.WithAdapter(adapter))
	tr := newTrainer(disk, m, a, opts...)
	_, err = tr.Train()
	return weights(m), tr, err
}

// An adapter has the bits of one rank on any number of ranks, whatever they share: the frozen model as well.
func TestAdaptersOnRanks(t *testing.T) {
	ranks := func(n int, set ...func(*args.TrainingArguments)) []func(*args.TrainingArguments) {
		return append(set, func(a *args.TrainingArguments) { a.NumReplicas = n })
	}
	shards := func(kind string) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.FSDP, a.FSDPShareParameters = []string{kind}, false }
	}
	recompute := func(a *args.TrainingArguments) { a.GradientCheckpointing = true }
	none := lora.Config{}
	cases := map[string]struct {
		cfg   lora.Config
		dtype tensor.DType
		set   []func(*args.TrainingArguments)
	}{
		"2":                  {lora.Config{Dropout: 0.1, ModulesToSave: []string{"ln_f"}}, tensor.Float32, ranks(2)},
		"4":                  {lora.Config{Bias: lora.BiasAll}, tensor.Float32, ranks(4)},
		"4 recomputed":       {none, tensor.BFloat16, ranks(4, recompute)},
		"2 full_shard":       {lora.Config{Dropout: 0.1}, tensor.BFloat16, ranks(2, shards("full_shard"))},
		"4 shard_grad_op":    {lora.Config{Bias: lora.BiasLoRAOnly}, tensor.Float32, ranks(4, shards("shard_grad_op"))},
		"2 divided":          {none, tensor.Float32, ranks(2, divided)},
		"4 divided, sharded": {none, tensor.BFloat16, ranks(4, divided, shards("full_shard"))},
		"2 stages":           {none, tensor.Float32, ranks(2, staged)},
		"8":                  {none, tensor.Float32, ranks(8, divided, staged, shards("full_shard"), recompute)},
	}
	short := []string{"4", "2 full_shard", "8"} // the race detector's run
	for _, name := range short {
		require.Contains(t, cases, name)
	}
	for name, c := range cases {
		if testing.Short() && !slices.Contains(short, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			model := func() *gpt2.Model { return fourHeadsAs(t, c.dtype) }
			frozen := weights(model())
			disk := vfs.NewMem()
			want, _, err := adapterRun(t, disk, model(), c.cfg, adapterArgs())
			require.NoError(t, err)
			other := vfs.NewMem()
			got, _, err := adapterRun(t, other, model(), c.cfg, adapterArgs(c.set...))
			require.NoError(t, err)
			require.Len(t, got, len(want))
			changed := 0
			for name, bits := range want {
				require.True(t, bytes.Equal(bits, got[name]), name)
				if was, ok := frozen[name]; ok && !bytes.Equal(was, bits) {
					changed++
				}
			}
			require.Equal(t, c.cfg.Bias != "" || c.cfg.ModulesToSave != nil, changed > 0, "what is frozen stays")
			for _, file := range []string{models.AdapterFile, models.AdapterConfigFile, "optimizer.safetensors"} {
				require.Equal(t, read(t, disk, out+"/checkpoint-6/"+file), read(t, other, out+"/checkpoint-6/"+file))
			}
		})
	}
}

// read is a file of a disk in memory.
func read(t *testing.T, disk *vfs.Mem, path string) []byte {
	text, err := vfs.ReadFile(disk, path, 1<<20)
	require.NoError(t, err)
	return text
}

// fourHeadsAs is fourHeads without dropout and of another dtype.
func fourHeadsAs(t testing.TB, dt tensor.DType) *gpt2.Model {
	cfg := fourHeads(t).Cfg
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1).As(dt), cfg)
	require.NoError(t, err)
	return m
}

// A checkpoint has the adapter and its state alone. A run that goes on from it ends with the bits of one that was not
// interrupted, and refuses another adapter, another model below it, and a checkpoint of a whole model.
func TestCheckpointsOfAdapters(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, models.SaveWeights(fourHeadsAs(t, tensor.Float32), base))
	cfg := lora.Config{BaseModel: base, ModulesToSave: []string{"ln_f"}}
	disk := vfs.NewMem()
	want, tr, err := adapterRun(t, disk, fourHeadsAs(t, tensor.Float32), cfg, adapterArgs())
	require.NoError(t, err)
	for _, file := range []string{models.WeightsFile, models.ConfigFile} {
		_, err := disk.Stat(out + "/checkpoint-3/" + file)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	require.Less(t, len(read(t, disk, out+"/checkpoint-3/optimizer.safetensors")), 20_000)
	var about models.AdaptedBase
	require.NoError(t, json.Unmarshal(read(t, disk, out+"/checkpoint-3/adapter_base.json"), &about))
	require.Equal(t, base, about.Path)
	require.Len(t, about.SHA256, 64)
	require.NoError(t, tr.SaveModel("saved"))
	require.Equal(t, read(t, disk, out+"/checkpoint-6/"+models.AdapterFile), read(t, disk, "saved/"+models.AdapterFile))

	resume := func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = out + "/checkpoint-3" }
	full := func(a *args.TrainingArguments) { a.NumReplicas, a.FSDP = 2, []string{"full_shard"} }
	for _, set := range []func(*args.TrainingArguments){resume, full, divided, staged} {
		got, _, err := adapterRun(t, disk, fourHeadsAs(t, tensor.Float32), cfg, adapterArgs(resume, set))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	fails := func(want string, cfg lora.Config) {
		t.Helper()
		_, _, err := adapterRun(t, disk, fourHeadsAs(t, tensor.Float32), cfg, adapterArgs(resume))
		require.ErrorContains(t, err, want)
	}
	cfg.Alpha = 9
	fails("the saved adapter has lora_alpha 8, this one 9: want the same", cfg)
	cfg.Alpha, cfg.Dropout = 8, 0.25
	fails("the saved adapter has lora_dropout 0, this one 0.25: want the same", cfg)
	cfg.Dropout, cfg.ModulesToSave = 0, nil
	fails("base_model.model.transformer.ln_f.bias is not expected", cfg)
	cfg.ModulesToSave = []string{"ln_f"}
	require.Equal(t, "float32", about.Precision)
	_, _, err = adapterRun(t, disk, fourHeadsAs(t, tensor.BFloat16), cfg, adapterArgs(resume))
	require.ErrorContains(t, err, "the model below the adapter was float32, and is bfloat16 now: want the same (dtype)")
	other := t.TempDir()
	m := fourHeadsAs(t, tensor.Float32)
	m.Transformer.LNF.Bias.SetRequiresGrad(false)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	tensor.CopyInto(c, m.Transformer.LNF.Bias.Tensor, tensor.Ones(c, tensor.Float32, 8))
	require.NoError(t, models.SaveWeights(m, other))
	cfg.BaseModel = other
	fails("the adapter was trained on the model of "+base+" (SHA-256", cfg)
	text, err := os.ReadFile(filepath.Join(base, models.WeightsFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(other, models.WeightsFile), text, 0o600))
	got, _, err := adapterRun(t, disk, fourHeadsAs(t, tensor.Float32), cfg, adapterArgs(resume)) // it was moved
	require.NoError(t, err)
	require.Equal(t, want, got)
	whole := func(more ...func(*args.TrainingArguments)) error {
		_, err := newTrainer(disk, fourHeadsAs(t, tensor.Float32), adapterArgs(more...),
			trainer.WithTrainData(raggedTexts(51))).Train()
		return err
	}
	require.ErrorContains(t, whole(resume), "it has an adapter, and the run trains the whole model: want trainer.With")
	disk = vfs.NewMem()
	require.NoError(t, whole())
	fails("it has no adapter", cfg)
}

// A checkpoint that ranks wrote which share matrices or have stages is that of one rank.
func TestCheckpointsOfAdaptersOnMeshes(t *testing.T) {
	cfg := lora.Config{ModulesToSave: []string{"ln_f"}}
	model := func() *gpt2.Model { return fourHeadsAs(t, tensor.Float32) }
	want, _, err := adapterRun(t, vfs.NewMem(), model(), cfg, adapterArgs())
	require.NoError(t, err)
	resume := func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = out + "/checkpoint-3" }
	for name, set := range map[string]func(*args.TrainingArguments){"divided": divided, "stages": staged} {
		disk := vfs.NewMem()
		_, _, err := adapterRun(t, disk, model(), cfg, adapterArgs(set))
		require.NoError(t, err, name)
		for _, again := range [][]func(*args.TrainingArguments){{resume}, {resume, set}} {
			got, _, err := adapterRun(t, disk, model(), cfg, adapterArgs(again...))
			require.NoError(t, err, name)
			require.Equal(t, want, got, name)
		}
	}
}

// The best adapter is in the model when training ends, and it alone is read from its checkpoint.
func TestBestAdapterIsLoaded(t *testing.T) {
	for name, ranks := range map[string]func(*args.TrainingArguments){
		"1": func(*args.TrainingArguments) {},
		"2 full_shard": func(a *args.TrainingArguments) {
			a.NumReplicas, a.FSDP, a.FSDPShareParameters = 2, []string{"full_shard"}, false
		},
	} {
		disk := vfs.NewMem()
		a := adapterArgs(ranks, func(a *args.TrainingArguments) {
			a.EvalStrategy, a.EvalSteps, a.LoadBestModelAtEnd = args.StrategySteps, new(3.0), true
			a.MetricForBestModel, a.GreaterIsBetter = "eval_loss", new(true) // the first is the best
		})
		got, tr, err := adapterRun(t, disk, fourHeadsAs(t, tensor.Float32),
			lora.Config{ModulesToSave: []string{"ln_f"}}, a, trainer.WithEvalData(raggedTexts(7)))
		require.NoError(t, err, name)
		require.Equal(t, "checkpoint-3", filepath.Base(*tr.State().BestModelCheckpoint), name)
		require.NoError(t, tr.SaveModel("saved"))
		best, last := read(t, disk, out+"/checkpoint-3/"+models.AdapterFile),
			read(t, disk, out+"/checkpoint-6/"+models.AdapterFile)
		require.NotEqual(t, best, last, name)
		require.Equal(t, best, read(t, disk, "saved/"+models.AdapterFile), name)
		require.NotEmpty(t, got)
	}
}

// An adapter that would not be saved is refused, and so is dropout of features that ranks have parts of.
func TestAdaptersAreSaved(t *testing.T) {
	m := fourHeadsAs(t, tensor.Float32)
	a, err := lora.New(m, lora.Config{})
	require.NoError(t, err)
	fails := func(want string, opts ...trainer.Option) {
		t.Helper()
		tr := newTrainer(vfs.NewMem(), m, adapterArgs(), append(opts, trainer.WithTrainData(raggedTexts(51)))...)
		_, err := tr.Train()
		require.ErrorContains(t, err, want)
	}
	fails("belongs to an adapter: want WithAdapter, which saves it")
	m.LMHead.Weight.SetRequiresGrad(true)
	fails("transformer.wte.weight is trained but is not part of the adapter", trainer.WithAdapter(a))
	m.LMHead.Weight.SetRequiresGrad(false)
	a.Deactivate()
	fails("lora_A.default.weight is not trained: want an active adapter", trainer.WithAdapter(a))
	_, _, err = adapterRun(t, vfs.NewMem(), fourHeadsAs(t, tensor.Float32), lora.Config{Dropout: 0.1},
		adapterArgs(divided))
	require.ErrorContains(t, err, "lora_dropout of transformer.h.*.")
	require.Equal(t, 1, strings.Count(err.Error(), "lora_dropout of"))
}
