// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
)

// parts are the files of a checkpoint.
var parts = []string{
	"config.json", "generation_config.json", "manifest.json", "model.safetensors", "optimizer.json",
	"optimizer.safetensors", "progress.json",
	"rng_state.json", "sampler.json", "scheduler.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json",
	"training_args.json",
}

// names lists a folder.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// figures reads a file of metrics.
func figures(t testing.TB, elem ...string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	readJSON(t, &out, elem...)
	return out
}

func readJSON(t testing.TB, v any, elem ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, v), "%s", text)
}

func TestRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "folder")
	r := succeed(t, tiny(t, out, "--prompt", "The old", "--prompt", "A")...)

	require.Equal(t, []string{
		"LATEST", "all_results.json", "checkpoint-15", "checkpoint-20", "config.json", "eval_results.json",
		"generation_config.json", "log.jsonl",
		"model.safetensors", "runs", "tokenizer.json", "tokenizer_config.json", "train_results.json",
		"trainer_state.json", "training_args.json",
	}, names(t, out))
	for _, c := range []string{"checkpoint-15", "checkpoint-20"} {
		require.Equal(t, parts, names(t, filepath.Join(out, c)))
	}
	events, err := filepath.Glob(filepath.Join(out, "runs", "*", "events.out.tfevents.*"))
	require.NoError(t, err)
	require.NotEmpty(t, events)

	all, train, eval := figures(t, out, "all_results.json"), figures(t, out, "train_results.json"),
		figures(t, out, "eval_results.json")
	for key, v := range train {
		require.Equal(t, v, all[key], key)
	}
	for key, v := range eval {
		require.Equal(t, v, all[key], key)
	}
	require.Contains(t, train, "train_loss")
	require.InEpsilon(t, math.Exp(all["eval_loss"]), all["perplexity"], 1e-12)
	require.Less(t, all["eval_loss"], math.Log(300), "the loss of knowing nothing")
	require.Less(t, all["eval_nats_per_byte"], math.Log(256))
	require.Positive(t, all["eval_nats_per_byte"])

	var state struct {
		GlobalStep int                `json:"global_step"`
		LogHistory []callbacks.Record `json:"log_history"`
	}
	readJSON(t, &state, out, "trainer_state.json")
	require.Equal(t, 20, state.GlobalStep)
	require.Len(t, state.LogHistory, 4+2+1, "four of steps, two evaluations, and the end")

	for _, want := range []string{
		"settings   ", "max_steps 20", "train_file ", " documents, ",
		"model      gpt2 of 1 layer, width 32, 2 heads, 23,392 parameters\n",
		"samples    ", "model      saved to " + out + "\n", "baseline   ", " nats per byte, by counting ",
		", the model is ",
		"sample 1 of 2:\nThe old", "\nsample 2 of 2:\nA",
	} {
		require.Contains(t, r.stdout, want)
	}
	require.NotContains(t, r.stdout, "adam_beta1", "it is a default")
	require.NotContains(t, r.stdout, "demonstration")
	for _, want := range []string{"step 5  epoch ", "  learning_rate ", "  train_tokens_per_second ", "step 10  epoch ",
		"  eval_loss ", "  eval_nats_per_byte ",
		"saved " + filepath.Join(out, "checkpoint-5"), "saved " + filepath.Join(out, "checkpoint-20")} {
		require.Contains(t, r.stderr, want)
	}
}

// TestEvaluate trains a little and evaluates the saved model on other files.
func TestEvaluate(t *testing.T) {
	dir := t.TempDir()
	model, noise, text := filepath.Join(dir, "model"), filepath.Join(dir, "noise.bin"), filepath.Join(dir, "text.txt")
	succeed(t, tiny(t, model, "--max_steps", "200", "--save_strategy", "no", "--eval_strategy", "no")...)
	before := names(t, model)

	r := rand.New(rand.NewPCG(3, 4))
	random := make([]byte, 64<<10)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	require.NoError(t, os.WriteFile(noise, random, 0o666))
	require.NoError(t, os.WriteFile(text, []byte(clmtest.English(r, 64<<10)), 0o666))

	nats := map[string]float64{}
	for _, file := range []string{noise, text} {
		out := filepath.Join(dir, "eval", filepath.Base(file))
		got := succeed(t, "--do_eval", "--model_name_or_path", model, "--validation_file", file, "--output_dir", out,
			"--block_size", "32")
		require.NotContains(t, got.stdout, "saved")
		require.Subset(t, []string{"all_results.json", "eval_results.json", "log.jsonl", "runs"}, names(t, out),
			"nothing was trained, no model is saved")
		m := figures(t, out, "eval_results.json")
		for _, key := range []string{"eval_loss", "perplexity", "eval_nats_per_byte", "eval_samples_per_second"} {
			require.Contains(t, m, key)
		}
		nats[file] = m["eval_nats_per_byte"]
	}
	require.Greater(t, nats[noise], 5.0, "nobody can predict noise")
	require.Less(t, nats[text], 2.0, "such sentences it has seen")
	require.Greater(t, nats[text], 0.5, "but the words of each are chosen at random")
	require.Equal(t, before, names(t, model), "an evaluation leaves the model's folder alone")
}

// TestSettings says the same thing in three places: the flag wins over the environment, the
// environment over the file, the file over the default.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	file, out := filepath.Join(dir, "run.yaml"), filepath.Join(dir, "out")
	require.NoError(t,
		os.WriteFile(file, []byte("learning_rate: 0.001\nmax_steps: 3\nseed: 7\nweight_decay: 0.25\nn_head: 4\n"),
			0o666))
	texts, err := corpus()
	require.NoError(t, err)
	cmd := command(t, "--config", file, "--max_steps", "5", "--train_file", texts, "--output_dir", out, "--n_layer",
		"1", "--n_embd", "32", "--vocab_size", "300",
		"--block_size", "32", "--max_new_tokens", "0", "--log_level", "info")
	cmd.Env = append(cmd.Env, "LOCKSTEP_LEARNING_RATE=0.002", "LOCKSTEP_MAX_STEPS=4", "LOCKSTEP_SEED=8")
	r := finish(t, cmd)
	require.Equal(t, 0, r.code, "%s", r.stderr)
	for key, want := range map[string]string{
		"max_steps": "5 +flag --max_steps", "learning_rate": "0.002 +env LOCKSTEP_LEARNING_RATE",
		"seed":         "8 +env LOCKSTEP_SEED",
		"weight_decay": "0.25 +file .*run.yaml", "n_head": "4 +file .*run.yaml",
	} {
		require.Regexp(t, `(?m)^  `+key+" +"+want+"$", r.stdout)
	}
	require.Contains(t, r.stdout, "gpt2 of 1 layer, width 32, 4 heads")
	var saved map[string]any
	readJSON(t, &saved, out, "training_args.json")
	for key, want := range map[string]float64{"max_steps": 5, "learning_rate": 0.002, "seed": 8, "weight_decay": 0.25,
		"adam_beta2": 0.999} {
		require.EqualValues(t, want, saved[key], key)
	}

	require.NoError(t, os.WriteFile(file, []byte("learning_rat: 0.001\n"), 0o666))
	requireOneError(t, clm(t, "--config", file), 2, "learning_rat", "run.yaml", "learning_rate")
}

// TestMemoryIsFlat compares what the process holds at step 50 with all that follows.
func TestMemoryIsFlat(t *testing.T) {
	out := t.TempDir()
	succeed(t, tiny(t, out, "--max_steps", "200", "--logging_steps", "10", "--eval_steps", "25", "--save_steps", "25",
		"--report_to", "jsonl")...)
	text, err := os.ReadFile(filepath.Join(out, "log.jsonl"))
	require.NoError(t, err)
	for _, key := range []string{"memory_rss", "memory_rss_peak"} {
		at50, later := int64(0), int64(0)
		for _, r := range records(t, text) {
			bytes, ok := r.Number(key)
			if step, _ := r.Number("step"); ok && step >= 50 {
				if at50 == 0 {
					at50 = int64(bytes)
				}
				later = max(later, int64(bytes))
			}
		}
		if key == "memory_rss_peak" || runtime.GOOS == "linux" {
			require.Positive(t, at50, "%s is not in the log", key)
		}
		t.Logf("%s: %d KiB at step 50, %d KiB at most afterwards", key, at50>>10, later>>10)
		require.Less(t, later-at50, int64(4<<20), key)
	}
}

// records reads JSON Lines.
func records(t testing.TB, text []byte) []callbacks.Record {
	t.Helper()
	var list []callbacks.Record
	for line := range bytes.Lines(text) {
		var r callbacks.Record
		require.NoError(t, json.Unmarshal(line, &r), "%s", line)
		list = append(list, r)
	}
	require.NotEmpty(t, list)
	return list
}
