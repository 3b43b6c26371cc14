// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/program"
)

const folder = "../finetune/testdata/model"

// reward runs the program, and returns what it printed.
func reward(t *testing.T, model, out string, argv ...string) (string, error) {
	t.Helper()
	var printed bytes.Buffer
	argv = append([]string{"--model_name_or_path", model, "--output_dir", out, "--report_to", "none", "--max_length",
		"64", "--learning_rate", "2e-3", "--max_steps", "20", "--logging_steps", "1", "--save_strategy", "no",
		"--train_sampling_strategy", "sequential", "--per_device_train_batch_size", "2",
		"--gradient_accumulation_steps", "2"}, argv...)
	err := train(t.Context(), &program.Process{Name: "reward", Args: argv, Stdout: &printed, Stderr: &printed})
	return printed.String(), err
}

// records are the records of a run that have a key.
func records(t *testing.T, out, key string) []map[string]any {
	text, err := os.ReadFile(filepath.Join(out, "trainer_state.json"))
	require.NoError(t, err)
	var state struct {
		LogHistory []map[string]any `json:"log_history"`
	}
	require.NoError(t, json.Unmarshal(text, &state))
	return slices.DeleteFunc(state.LogHistory, func(r map[string]any) bool { return r[key] == nil })
}

// answers are the rows without their margins.
func answers(t *testing.T) string {
	text, err := os.ReadFile("../internal/pairs/pairs.jsonl")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	text = bytes.ReplaceAll(text, []byte(`"margin": 0.5`), []byte(`"margin": 0`))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// Losses, norms and figures of 20 steps are those of TRL's RewardTrainer.
func TestStepsAreThoseOfTRL(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var golden struct {
		Steps map[string][]map[string]float64
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	runs := map[string][]string{"margin": {"--train_file", "../internal/pairs/pairs.jsonl"},
		"centre": {"--center_rewards_coefficient", "0.05", "--train_file", answers(t)}}
	require.Len(t, golden.Steps, len(runs))
	for name, argv := range runs {
		out := t.TempDir()
		printed, err := reward(t, "testdata/model", out, argv...)
		require.NoError(t, err, printed)
		got := records(t, out, "grad_norm")
		require.Len(t, got, 20)
		for n, want := range golden.Steps[name] {
			require.Len(t, want, 6)
			for key, x := range want {
				require.InDelta(t, x, got[n][key], 1e-4, "%s: %s of step %d", name, key, n+1)
			}
		}
	}
}

// A language model gets a head, whose adapter is saved with it, and the model is one that can be trained further.
func TestLanguageModels(t *testing.T) {
	rows := []string{"--train_file", "../internal/pairs/pairs.jsonl", "--validation_file",
		"../internal/pairs/pairs.jsonl"}
	out := t.TempDir()
	printed, err := reward(t, folder, out, append(rows, "--eval_strategy", "steps", "--eval_steps", "10")...)
	require.NoError(t, err, printed)
	require.Contains(t, printed, "llama with a new head")
	evals := records(t, out, "eval_accuracy")
	require.Len(t, evals, 2)
	require.Less(t, evals[1]["eval_loss"], evals[0]["eval_loss"])
	config, err := os.ReadFile(filepath.Join(out, models.ConfigFile))
	require.NoError(t, err)
	require.Contains(t, string(config), "LlamaForSequenceClassification")
	printed, err = reward(t, out, t.TempDir(), rows...)
	require.NoError(t, err, printed)
	require.Contains(t, printed, "llama with its head")

	adapted := t.TempDir()
	printed, err = reward(t, folder, adapted, append(rows, "--use_peft", "--lora_target_modules", "all-linear")...)
	require.NoError(t, err, printed)
	require.FileExists(t, filepath.Join(adapted, models.AdapterFile))

	_, err = reward(t, folder, out, "--train_file", "../internal/pairs/pairs.jsonl", "--max_length", "4")
	require.ErrorContains(t, err, "train_file: no row teaches anything")
	_, err = reward(t, folder, out)
	require.ErrorContains(t, err, "train_file")
}
