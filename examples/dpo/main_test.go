// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/program"
)

const folder = "../finetune/testdata/model"

// dpo runs the program on the tiny model, and returns what it printed.
func dpo(t *testing.T, out string, argv ...string) (string, error) {
	t.Helper()
	var printed bytes.Buffer
	if !slices.Contains(argv, "--train_file") && !slices.Contains(argv, "--dataset_name") {
		argv = append(argv, "--train_file", "../internal/pairs/pairs.jsonl")
	}
	argv = append([]string{"--model_name_or_path", folder, "--output_dir", out, "--report_to", "none", "--max_length",
		"64"}, argv...)
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

// weights are the bytes of a file that a run has saved.
func weights(t *testing.T, out, file string) []byte {
	text, err := os.ReadFile(filepath.Join(out, file))
	require.NoError(t, err)
	return text
}

// ranksRun has two steps of 8 pairs in 4 micro-batches, on any number of ranks, and evaluates after each.
func ranksRun(t *testing.T, out string, ranks int, more ...string) []record {
	argv := append([]string{"--num_replicas", strconv.Itoa(ranks), "--per_device_train_batch_size", "2",
		"--global_train_batch_size", "8", "--per_device_eval_batch_size", "2", "--max_steps", "4", "--logging_steps",
		"2", "--save_steps", "2", "--learning_rate", "2e-3", "--validation_file", "../internal/pairs/pairs.jsonl",
		"--eval_strategy", "steps", "--eval_steps", "2"}, more...)
	printed, err := dpo(t, out, argv...)
	require.NoError(t, err, printed)
	list := records(t, out, "rewards/margins")
	require.Len(t, list, 2)
	evals := records(t, out, "eval_rewards/margins")
	require.Len(t, evals, 2)
	for _, r := range append(list, evals...) {
		for key := range r {
			if strings.Contains(key, "per_second") || strings.Contains(key, "runtime") ||
				strings.HasPrefix(key, "memory") {
				delete(r, key)
			}
		}
	}
	return append(list, evals...)
}

// The whole model, an adapter with the model below it as the reference, an adapter that is trained further, and
// references that are computed before have one result on any number of ranks, whatever the ranks share, and after a
// resume.
func TestRanks(t *testing.T) {
	adapter := []string{"--use_peft", "--lora_target_modules", "all-linear"}
	for name, c := range map[string]struct {
		file string
		argv []string
		on2  []string // what the second run has beside another number of ranks
	}{
		"whole, in bf16":  {models.WeightsFile, []string{"--bf16"}, []string{"--gradient_checkpointing"}},
		"adapter":         {models.AdapterFile, adapter, nil},
		"trained further": {models.AdapterFile, []string{"--adapter", "testdata/adapter"}, nil},
		"computed before": {models.AdapterFile, append(adapter, "--precompute_ref_log_probs"), nil},
		"divided": {models.AdapterFile, append(adapter, "--lora_dropout", "0", "--tp_parts", "2"),
			[]string{"--tp_size", "2"}},
		"shards": {models.WeightsFile, nil, []string{"--fsdp", "full_shard"}},
		"shards, computed": {models.WeightsFile, []string{"--precompute_ref_log_probs"}, []string{"--fsdp",
			"full_shard"}},
	} {
		t.Run(name, func(t *testing.T) {
			one := t.TempDir()
			want := ranksRun(t, one, 1, c.argv...)
			for _, ranks := range []int{2, 4} {
				out := t.TempDir()
				got := ranksRun(t, out, ranks, append(c.on2, c.argv...)...)
				require.Equal(t, want, got, "%d ranks", ranks)
				require.Equal(t, weights(t, one, c.file), weights(t, out, c.file), "%d ranks", ranks)
			}
			out := t.TempDir()
			require.NoError(t, os.CopyFS(out, os.DirFS(one)))
			require.NoError(t, os.RemoveAll(filepath.Join(out, "checkpoint-4")))
			from := filepath.Join(out, "checkpoint-2")
			again := ranksRun(t, out, 2, append(c.argv, "--resume_from_checkpoint", from)...)
			require.Equal(t, want, again, "resumed")
			require.Equal(t, weights(t, one, c.file), weights(t, out, c.file), "resumed")
		})
	}
}

// Rows of the Hub train as those of a file do, by the split, the configuration and the columns that are named, and so
// do rows that are streamed.
func TestDatasets(t *testing.T) {
	text, err := os.ReadFile("../internal/pairs/pairs.jsonl")
	require.NoError(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	renamed := strings.ReplaceAll(string(text), `"prompt"`, `"question"`)
	renamed = strings.ReplaceAll(renamed, `"margin"`, `"messages": [], "margin"`)
	s := hubtest.New(t)
	s.Add("datasets/org/pairs", map[string]string{"README.md": "---\nconfigs:\n- config_name: short\n  data_files:\n" +
		"  - split: train_prefs\n    path: p/train.jsonl\n  - split: test_prefs\n    path: p/test.jsonl\n" +
		"- config_name: long\n  data_dir: q\n---\n", "p/train.jsonl": renamed, "p/test.jsonl": strings.ReplaceAll(
		strings.Join(lines[:6], ""), `"prompt"`, `"question"`)})
	hubtest.Environment(t, s.URL)
	argv := []string{"--max_steps", "4", "--logging_steps", "1", "--train_sampling_strategy", "sequential",
		"--use_peft", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--save_strategy",
		"no"}
	run := func(more ...string) []record {
		out := t.TempDir()
		printed, err := dpo(t, out, append(argv, more...)...)
		require.NoError(t, err, printed)
		if slices.Contains(more, "test_prefs") {
			require.Contains(t, printed, "train_prefs: 1 file, test_prefs: 1 file")
			require.FileExists(t, filepath.Join(out, "eval_results.json"))
		}
		var list []record
		for _, r := range records(t, out, "loss") {
			list = append(list, record{"loss": r["loss"], "grad_norm": r["grad_norm"]})
		}
		require.Len(t, list, 4)
		return list
	}
	named := []string{"--dataset_name", "org/pairs", "--dataset_config_name", "short", "--dataset_train_split",
		"train_prefs"}
	for _, key := range []string{"prompt=question", "chosen", "rejected", "margin"} {
		named = append(named, "--dataset_columns", key)
	}
	want := run()
	require.Equal(t, want, run(append(named, "--dataset_test_split", "test_prefs")...))
	stream := append(named, "--dataset_streaming", "--shuffle_buffer_size")
	require.Equal(t, want, run(append(stream, "0")...))
	require.Equal(t, want, run(append(stream, "0", "--num_replicas", "2", "--gradient_accumulation_steps", "1")...))
	require.NotEqual(t, want, run(append(stream, "9")...))

	for want, more := range map[string][]string{
		"org/pairs has no split train: want one of train_prefs, test_prefs": named[:4],
		"has several configurations: want one of short, long":               named[:2],
		"dataset_train_split":                             {"--dataset_train_split", "train_prefs"},
		"precompute_ref_log_probs: the rows are streamed": append(stream, "0", "--precompute_ref_log_probs"),
	} {
		_, err := dpo(t, t.TempDir(), append(argv, more...)...)
		require.ErrorContains(t, err, want)
	}
}

// What would be silently another training is refused, and rows of no use are counted.
func TestFaults(t *testing.T) {
	hubtest.Environment(t, "")
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(rows, []byte(`{"prompt": "a", "chosen": "b", "rejected": "c"}
{"prompt": "a", "chosen": "b", "rejected": "b"}
{"prompt": "a", "chosen": "b", "rejected": " "}
{"prompt": "a very long prompt of many tokens that nobody reads", "chosen": "b", "rejected": "c"}
`), 0o600))
	printed, err := dpo(t, t.TempDir(), "--train_file", rows, "--max_length", "12", "--num_train_epochs", "1",
		"--save_strategy", "no")
	require.NoError(t, err, printed)
	for _, want := range []string{"1 row of train_file: chosen and rejected are the same", rows + ": line 2",
		"1 row of train_file: an answer is empty",
		"1 row of train_file: the tokens to learn are after max_length"} {
		require.Contains(t, printed, want)
	}
	for argv, want := range map[string]string{
		"--loss_type kto":                        "want one of [sigmoid hinge ipo robust]",
		"--beta 0":                               "beta is 0 (flag --beta): want a positive number",
		"--loss_type ipo --label_smoothing 0.1":  "label_smoothing is 0.1 (flag --label_smoothing): want a number",
		"--max_length 3":                         "train_file: no row teaches anything",
		"--ref_model_name_or_path testdata/none": "ref_model_name_or_path: ",
		"--label_smoothing_factor 0.1":           "label_smoothing_factor has no effect on",
		"--cp_size 2 --num_replicas 2 --global_train_batch_size 8": "cp_size",
	} {
		_, err := dpo(t, t.TempDir(), strings.Fields(argv)...)
		require.ErrorContains(t, err, want)
	}
}
