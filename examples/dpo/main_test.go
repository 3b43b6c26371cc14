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

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/program"
)

const folder = "../finetune/testdata/model"

// dpo runs the program on the tiny model, and returns what it printed.
func dpo(t *testing.T, out string, argv ...string) (string, error) {
	t.Helper()
	var printed bytes.Buffer
	argv = append([]string{"--model_name_or_path", folder, "--train_file", "../internal/pairs/pairs.jsonl", "--output_dir", out,
		"--report_to", "none", "--max_length", "64"}, argv...)
	err := train(t.Context(), &program.Process{Name: "dpo", Args: argv, Stdout: &printed, Stderr: &printed})
	return printed.String(), err
}

// record is a record of a run, by name.
type record map[string]any

// records are the records of a run that have a key.
func records(t *testing.T, out, key string) []record {
	text, err := os.ReadFile(filepath.Join(out, "trainer_state.json"))
	require.NoError(t, err)
	var state struct {
		LogHistory []record `json:"log_history"`
	}
	require.NoError(t, json.Unmarshal(text, &state))
	return slices.DeleteFunc(state.LogHistory, func(r record) bool { return r[key] == nil })
}

type golden struct {
	Forms map[string]struct {
		Rows     []json.RawMessage
		Prompt   [][]int32 `json:"prompt_ids"`
		Chosen   [][]int32 `json:"chosen_ids"`
		Rejected [][]int32 `json:"rejected_ids"`
		Scored   [][2][]int32
	}
	Steps map[string][]record
}

func readGolden(t *testing.T) (g golden) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	return g
}

// Rows of all forms have the tokens of TRL's DPOTrainer and of its RewardTrainer.
func TestSamplesAreThoseOfTRL(t *testing.T) {
	saved, err := language.Open(folder)
	require.NoError(t, err)
	base := language.Tuned[language.Model]{Pretrained: saved, Line: func(string, ...string) {}}
	e, _, err := base.Encoder(language.Texts{Conversations: true})
	require.NoError(t, err)
	g := readGolden(t)
	require.Len(t, g.Forms, 4)
	for name, form := range g.Forms {
		require.NotEmpty(t, form.Rows)
		for i, text := range form.Rows {
			row, err := chat.ParsePair(text)
			require.NoError(t, err)
			s, err := e.EncodePair(row, chat.KeepStart)
			require.NoError(t, err, "%s %d", name, i)
			require.Equal(t, slices.Concat(form.Prompt[i], form.Chosen[i]), s.Chosen, "%s %d", name, i)
			require.Equal(t, slices.Concat(form.Prompt[i], form.Rejected[i]), s.Rejected, "%s %d", name, i)
			require.Len(t, form.Prompt[i], s.ChosenStart, "%s %d", name, i)
			require.Len(t, form.Prompt[i], s.RejectedStart, "%s %d", name, i)
			require.Equal(t, form.Scored[i], [2][]int32{s.Chosen, s.Rejected}, "%s %d", name, i)
		}
	}
}

// steps20 are the flags of golden.py.
func steps20(more ...string) []string {
	return append([]string{"--learning_rate", "2e-3", "--max_steps", "20", "--logging_steps", "1", "--save_strategy",
		"no", "--train_sampling_strategy", "sequential", "--per_device_train_batch_size", "2",
		"--gradient_accumulation_steps", "2"}, more...)
}

// Losses, norms, rewards and log-probabilities of 20 steps are those of TRL's DPOTrainer.
func TestStepsAreThoseOfTRL(t *testing.T) {
	g := readGolden(t)
	runs := map[string][]string{
		"sigmoid":     nil,
		"hinge":       {"--beta", "0.3", "--loss_type", "hinge"},
		"ipo":         {"--beta", "0.2", "--loss_type", "ipo"},
		"robust":      {"--beta", "0.2", "--loss_type", "robust", "--label_smoothing", "0.1"},
		"smoothing":   {"--beta", "0.2", "--label_smoothing", "0.2"},
		"cut":         {"--beta", "0.5", "--max_length", "26"},
		"precomputed": {"--beta", "0.5", "--precompute_ref_log_probs"},
		"adapter":     {"--learning_rate", "2e-2", "--adapter", "testdata/adapter"},
	}
	require.Len(t, g.Steps, len(runs))
	for name, argv := range runs {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			printed, err := dpo(t, out, steps20(argv...)...)
			require.NoError(t, err, printed)
			got, want := records(t, out, "grad_norm"), g.Steps[name]
			require.Len(t, got, 20)
			require.Len(t, want, 20)
			for n, w := range want {
				require.Len(t, w, 9)
				for key, x := range w {
					require.InDelta(t, x, got[n][key], 1e-4*max(1, abs(x.(float64))), "%s of step %d", key, n+1)
				}
			}
		})
	}
}

func abs(x float64) float64 { return max(x, -x) }
