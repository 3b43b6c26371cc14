// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// saved trains a small GPT-2 and returns its run's folder, with the checkpoint of step 1 and the whole model.
func saved(t *testing.T, set func(a *args.TrainingArguments)) string {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 16, 8, 64, 1, 2
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	a := args.Default(filepath.Join(t.TempDir(), "run"))
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.MaxSteps, a.SaveSteps = 1, 4, 1, 1
	a.SaveStrategy = args.StrategySteps
	set(a)
	texts := make(data.Slice[[]int32], 4)
	for i := range texts {
		texts[i] = []int32{1, 2, int32(i)}
	}
	tr := trainer.New(m, a, trainer.WithTrainData(data.NewSource(texts, data.CausalLM(0))), trainer.WithDisplay(nil))
	_, err = tr.Train()
	require.NoError(t, err)
	require.NoError(t, tr.SaveModel(""))
	require.NoError(t, tr.Close())
	return a.OutputDir
}

func TestMergeWeights(t *testing.T) {
	text := func(elem ...string) string {
		b, err := os.ReadFile(filepath.Join(elem...))
		require.NoError(t, err)
		return string(b)
	}
	one := saved(t, func(a *args.TrainingArguments) {})
	many := saved(t, func(a *args.TrainingArguments) {
		a.NumReplicas, a.FSDP, a.FSDPStateDictType = 4, []string{"full_shard"}, args.ShardedStateDict
	})
	checkpoint := filepath.Join(many, "checkpoint-1")
	require.NoFileExists(t, filepath.Join(checkpoint, "model.safetensors"))
	for _, from := range []string{checkpoint, many} {
		to := filepath.Join(t.TempDir(), "merged", "here")
		code, out, errs := output(nil, "merge-weights", from, to, "--optimizer")
		require.Zero(t, code, errs)
		require.Equal(t, filepath.Join(to, "model.safetensors"), strings.SplitN(out, "\n", 2)[0])
		for _, name := range []string{"model.safetensors", "config.json", "optimizer.safetensors", "optimizer.json"} {
			require.Equal(t, text(one, "checkpoint-1", name), text(to, name), name)
			require.Contains(t, out, filepath.Join(to, name)+"\n")
		}
		require.Equal(t, text(one, "model.safetensors"), text(to, "model.safetensors"))
	}
	to := filepath.Join(t.TempDir(), "merged")
	for _, step := range []struct {
		from, size string
		split      bool
	}{{checkpoint, "50KB", true}, {checkpoint, "50MB", false}, {many, "20000", true}} {
		code, _, errs := output(nil, "merge-weights", step.from, to, "--max-shard-size", step.size)
		require.Zero(t, code, errs)
		parts, err := filepath.Glob(filepath.Join(to, "model-*-of-*.safetensors"))
		require.NoError(t, err)
		require.Equal(t, step.split, len(parts) > 1, "%v", parts)
		whole := filepath.Join(t.TempDir(), "whole")
		code, _, errs = output(nil, "merge-weights", to, whole)
		require.Zero(t, code, errs)
		require.Equal(t, text(one, "model.safetensors"), text(whole, "model.safetensors"))
	}
	empty := t.TempDir()
	for want, argv := range map[string][]string{
		"0 words: want two, a CHECKPOINT and an OUTPUT folder":        {},
		"has no weights: want the folder of a checkpoint, a run or":   {empty, to},
		"no such file or directory":                                   {filepath.Join(empty, "none"), to},
		"the weights are read from":                                   {checkpoint, checkpoint + "/."},
		`max_shard_size: size "5XB": want a number of bytes`:          {many, to, "--max_shard_size", "5XB"},
		"the optimizer's state: ":                                     {to, empty, "--optimizer"},
		"unknown flag --max_shrad_size; did you mean --max_shard_siz": {many, to, "--max_shrad_size", "1"},
	} {
		code, _, errs := output(nil, append([]string{"merge-weights"}, argv...)...)
		require.NotZero(t, code)
		require.Contains(t, errs, want)
	}
	requireMergeKeepsFiles(t, one, many, to)
	path := filepath.Join(checkpoint, "shard-00002-of-00004.safetensors")
	damaged := []byte(text(path))
	damaged[len(damaged)-1] ^= 1
	require.NoError(t, os.WriteFile(path, damaged, 0o644))
	code, _, errs := output(nil, "merge-weights", checkpoint, to)
	require.Equal(t, exitError, code)
	require.Contains(t, errs, "shard-00002-of-00004.safetensors")
	require.Equal(t, text(one, "model.safetensors"), func() string {
		whole := filepath.Join(t.TempDir(), "whole")
		require.Zero(t, (&program{stdout: io.Discard, stderr: io.Discard}).run([]string{"merge-weights", to, whole}))
		return text(whole, "model.safetensors")
	}(), "a failed merge leaves what was there")
}

// requireMergeKeepsFiles: files that merge-weights did not write stay, whatever their names are.
func requireMergeKeepsFiles(t *testing.T, one, many, merged string) {
	t.Helper()
	refuses := func(from, to, want string) {
		t.Helper()
		before := folder(t, to)
		code, _, errs := output(nil, "merge-weights", from, to)
		require.Equal(t, exitError, code)
		require.Contains(t, errs, want)
		require.Equal(t, before, folder(t, to))
	}
	refuses(one, one, "the weights are read from")
	refuses(one, many, "config.json, model.safetensors")
	other := t.TempDir() // another model's shards
	for _, name := range []string{"model-00001-of-00002.safetensors", "model.safetensors.index.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(other, name), []byte(name), 0o644))
	}
	refuses(one, other, "holds files that merge-weights did not write (model-00001-of-00002.safetensors, "+
		"model.safetensors.index.json): want an empty or a new folder")

	notes := filepath.Join(merged, "notes.txt")
	require.NoError(t, os.WriteFile(notes, []byte("mine"), 0o644))
	code, _, errs := output(nil, "merge-weights", one, merged)
	require.Zero(t, code, errs)
	require.FileExists(t, notes)
	config := filepath.Join(merged, "config.json")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, append(text, '\n'), 0o644))
	refuses(one, merged, "did not write (config.json)")
	require.NoError(t, os.WriteFile(config, text, 0o644))
}

// folder is the text of every file of a folder, by name.
func folder(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if !e.IsDir() && e.Name() != ".lock" {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			files[e.Name()] = string(text)
		}
	}
	return files
}

// Weights of a run that has gone wrong are not merged without a word.
func TestMergeRefusesNaN(t *testing.T) {
	run := saved(t, func(a *args.TrainingArguments) {})
	weights := filepath.Join(run, "checkpoint-1", "model.safetensors")
	text, err := os.ReadFile(weights)
	require.NoError(t, err)
	copy(text[len(text)-4:], []byte{0, 0, 0xc0, 0x7f})
	from := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(from, "model.safetensors"), text, 0o644))
	to := filepath.Join(t.TempDir(), "merged")
	code, _, errs := output(nil, "merge-weights", from, to)
	require.Equal(t, exitError, code)
	require.Regexp(t, `: transformer\.\S+ has 1 of \d+ elements that are NaN or infinite`, errs)
	require.NoDirExists(t, to)
	code, _, errs = output(nil, "merge-weights", from, to, "--allow-nonfinite")
	require.Zero(t, code, errs)
	merged, err := os.ReadFile(filepath.Join(to, "model.safetensors"))
	require.NoError(t, err)
	require.Equal(t, text, merged)
}
