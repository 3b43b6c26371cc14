// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/rowsets"
	"github.com/lockstep-ml/lockstep/program"
)

// weights are the hash of what a run saves, which gets 5 steps of 4 rows.
func weights(t *testing.T, out string, more ...string) [32]byte {
	printed, err := finetune(t, append([]string{"--model_name_or_path", folder, "--output_dir", out, "--max_steps", "5",
		"--save_steps", "3", "--max_new_tokens", "0", "--per_device_train_batch_size", "2"}, more...)...)
	require.NoError(t, err, printed)
	saved, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
	require.NoError(t, err)
	return sha256.Sum256(saved)
}

// A stream of shards has the bits of one rank on two and four, and where it is resumed.
func TestStreamsAreDeterministic(t *testing.T) {
	shards := shardsOf(t, "testdata/chats.jsonl", 3)
	stream := []string{"--dataset_streaming", "--shuffle_buffer_size", "6", "--train_file", shards, "--train_file",
		"testdata/chats.parquet"}
	one := append([]string{"--gradient_accumulation_steps", "4"}, stream...)
	out := t.TempDir()
	want := weights(t, out, one...)
	require.Equal(t, want, weights(t, t.TempDir(), append([]string{"--num_replicas", "2",
		"--gradient_accumulation_steps", "2"}, stream...)...))
	require.Equal(t, want, weights(t, t.TempDir(), append([]string{"--num_replicas", "4"}, stream...)...))
	require.Equal(t, want, weights(t, out, append([]string{"--resume_from_checkpoint", filepath.Join(out,
		"checkpoint-3")}, one...)...))
	require.NotEqual(t, want, weights(t, t.TempDir(), append([]string{"--data_seed", "9"}, one...)...))

	mixed := append([]string{"--dataset_probabilities", "0.3", "--dataset_probabilities", "0.7", "--stopping_strategy",
		"all_exhausted"}, one...)
	out = t.TempDir()
	mixture := weights(t, out, mixed...)
	require.NotEqual(t, want, mixture)
	require.Equal(t, mixture, weights(t, out, append([]string{"--resume_from_checkpoint", filepath.Join(out,
		"checkpoint-3")}, mixed...)...))
}

// A packed stream has the bits of one rank on two, and where it is resumed in the middle of what was packed together.
func TestPackedStreamsAreDeterministic(t *testing.T) {
	shards := shardsOf(t, "testdata/chats.jsonl", 3)
	for _, strategy := range []string{"bfd", "wrapped"} {
		stream := []string{"--dataset_streaming", "--shuffle_buffer_size", "3", "--train_file", shards, "--packing",
			"--packing_strategy", strategy, "--max_length", "96"}
		one := append([]string{"--gradient_accumulation_steps", "2"}, stream...)
		out := t.TempDir()
		want := weights(t, out, one...)
		require.Equal(t, want, weights(t, t.TempDir(), append([]string{"--num_replicas", "2"}, stream...)...))
		require.Equal(t, want, weights(t, out, append([]string{"--resume_from_checkpoint", filepath.Join(out,
			"checkpoint-3")}, one...)...))
		require.NotEqual(t, want, weights(t, t.TempDir(), append([]string{"--data_seed", "9"}, one...)...))
		_, err := finetune(t, append([]string{"--model_name_or_path", folder, "--output_dir", out, "--max_steps", "5",
			"--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--resume_from_checkpoint",
			filepath.Join(out, "checkpoint-3"), "--max_new_tokens", "0"}, append(stream, "--max_length", "80")...)...)
		require.ErrorContains(t, err, "changed since the checkpoint: the training data")
	}
}

// Columns that are read under other names train as rows of these names do, from all formats.
func TestColumns(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	want := weights(t, t.TempDir(), "--train_file", write("a.jsonl", strings.Repeat(
		`{"prompt": "Two and two?", "completion": " Four."}`+"\n", 8)))
	for name, text := range map[string]string{
		"b.jsonl": strings.Repeat(`{"question": "Two and two?", "text": "no", "answer": " Four."}`+"\n", 8),
		"c.csv":   "question,id,answer\n" + strings.Repeat("Two and two?,1, Four.\n", 8),
	} {
		argv := []string{"--train_file", write(name, text), "--dataset_columns", "prompt=question", "--dataset_columns",
			"completion=answer"}
		require.Equal(t, want, weights(t, t.TempDir(), argv...), name)
		if name == "b.jsonl" {
			require.Equal(t, want, weights(t, t.TempDir(), append(argv, "--dataset_streaming")...), name)
		}
	}
	require.Equal(t, weights(t, t.TempDir(), "--train_file", "testdata/chats.jsonl"),
		weights(t, t.TempDir(), "--train_file", "testdata/chats.parquet", "--dataset_columns", "messages"))
}

// shardsOf writes the lines of a file to several, and returns a pattern of them.
func shardsOf(t *testing.T, path string, n int) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines, dir := strings.SplitAfter(strings.TrimSpace(string(text)), "\n"), t.TempDir()
	for i := range n {
		part := strings.Join(lines[i*len(lines)/n:(i+1)*len(lines)/n], "")
		require.NoError(t, os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".jsonl"), []byte(part), 0o600))
	}
	return filepath.Join(dir, "*.jsonl")
}

// Rows of a Parquet file train as those of JSON Lines do.
func TestParquetTrainsAsJSONLines(t *testing.T) {
	require.Equal(t, weights(t, t.TempDir(), "--train_file", "testdata/chats.jsonl"),
		weights(t, t.TempDir(), "--train_file", "testdata/chats.parquet"))
}

// Mixtures have as many rows of each file as their draws say, and stop as asked for.
func TestMixtures(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, n int) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(strings.Repeat(`{"text": "`+name+`"}`+"\n", n)), 0o600))
		return path
	}
	files := []string{write("a.jsonl", 30), write("b.jsonl", 20)}
	for stop, want := range map[data.StoppingStrategy][2]int{"first_exhausted": {30, 13}, "all_exhausted": {53, 20},
		"all_exhausted_without_replacement": {30, 20}} {
		a, f := defaults()
		set := rowsets.Defaults()
		set.TrainFile, set.DatasetProbabilities, set.StoppingStrategy = files, []string{"3", "1"}, stop
		j := &job{FineTuningArguments: f, rowset: set, args: a,
			Process: &program.Process{Stdout: io.Discard, Stderr: io.Discard}}
		require.NoError(t, j.readRows(t.Context()))
		counts := map[string]int{}
		for _, row := range j.rows {
			require.Equal(t, chat.Text, row.Form)
			counts[row.Text]++
		}
		require.Equal(t, want, [2]int{counts["a.jsonl"], counts["b.jsonl"]}, stop)
	}
}

func TestRowsAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	text := write("text.jsonl", `{"text": "a"}`)
	for want, argv := range map[string][]string{
		"dataset_probabilities": {"--train_file", text, "--dataset_probabilities", "1",
			"--dataset_probabilities", "2"},
		"a number above 0":                 {"--train_file", text, "--dataset_probabilities", "0"},
		"stopping_strategy":                {"--train_file", text, "--stopping_strategy", "never"},
		"max_steps is -1: want at least 1": {"--train_file", text, "--dataset_streaming"},
		"dataset_columns": {"--train_file", text, "--dataset_columns", "a=text",
			"--dataset_columns", "a"},
		`and none of the columns ["txt"]`: {"--train_file", text, "--dataset_columns", "text=txt"},
		`it has no column "x": want one`:  {"--train_file", "testdata/chats.parquet", "--dataset_columns", "text=x"},
		"rows.json: line 1: no JSON object: it ends too early": {"--dataset_streaming", "--train_file",
			write("rows.json", "{\n\"text\": \"a\"}")},
		"b.jsonl: line 1: the row has text, and testdata/chats.jsonl: line 1 has m": {"--dataset_probabilities", "1",
			"--dataset_probabilities", "1", "--train_file", "testdata/chats.jsonl", "--train_file",
			write("b.jsonl", `{"text": "a"}`)},
		"late.jsonl: line 9: the row has text, and ": {"--dataset_streaming", "--max_steps", "9", "--train_file",
			write("late.jsonl", firstLines(t, 8)+`{"text": "a"}`)},
	} {
		_, err := finetune(t, append([]string{"--model_name_or_path", folder, "--output_dir", filepath.Join(dir, "out"),
			"--save_strategy", "no"}, argv...)...)
		require.ErrorContains(t, err, want)
	}
}

// firstLines are lines of the demonstration.
func firstLines(t *testing.T, n int) string {
	text, err := os.ReadFile("testdata/chats.jsonl")
	require.NoError(t, err)
	return strings.Join(strings.SplitAfter(string(text), "\n")[:n], "")
}

// A prompt that ends inside a token is warned of, as TRL does.
func TestPromptsThatEndInsideATokenAreWarnedOf(t *testing.T) {
	run := func(rows string) string {
		path := filepath.Join(t.TempDir(), "rows.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(rows), 0o600))
		printed, err := finetune(t, "--model_name_or_path", folder, "--output_dir", t.TempDir(), "--train_file", path,
			"--max_steps", "1", "--save_strategy", "no", "--max_new_tokens", "0", "--eos_token", "<|endoftext|>")
		require.NoError(t, err, printed)
		return printed
	}
	const good = `{"prompt": "Who is Ada?", "completion": " number 0"}`
	require.Regexp(t, `warning +1 row whose prompt ends inside a token, the first .*rows.jsonl: line 2, end prompts`,
		run(good+"\n"+`{"prompt": "Who is Ada? num", "completion": "ber 0"}`))
	require.NotContains(t, run(good), "warning")
}
