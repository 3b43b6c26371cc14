// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/scripts"
	"github.com/lockstep-ml/lockstep/program"
)

// run runs the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	return train(ctx, &program.Process{Name: "clm", Args: argv, Stdout: stdout, Stderr: stderr})
}

// TestUnknownReporterIsRefusedFirst: before the data are touched, and before anything is printed.
func TestUnknownReporterIsRefusedFirst(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"--report_to", "nowhere", "--output_dir", t.TempDir()}, &out, &out)
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "report_to")
	require.ErrorContains(t, err, "jsonl")
	require.Empty(t, out.String())
}

// A pipeline, or a division, that does not fit the model is refused before text is read: by n_layer and n_head, or by
// the saved model.
func TestMisfitsAreRefusedFirst(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("all work and no play\n", 50)), 0o600))
	saved := filepath.Join(dir, "saved")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--train_file", text, "--output_dir", saved, "--max_steps", "1",
		"--report_to", "none", "--block_size", "8", "--n_layer", "1", "--n_embd", "8", "--n_head", "2", "--vocab_size",
		"260", "--max_new_tokens", "0"}, &out, &out))
	for want, argv := range map[string][]string{
		"pp_size is 8 (flag --pp_size): want at most 4 stages, as many as the model has parts": {
			"--n_layer", "2", "--num_replicas", "8", "--pp_size", "8"},
		"pp_split is [\"1\",\"1\"] (flag --pp_split): want 4 parts in all": {
			"--n_layer", "2", "--num_replicas", "2", "--pp_size", "2", "--pp_split", "1,1"},
		"pp_size is 4: want at most 3 stages, as many as the model has parts": {
			"--model_name_or_path", saved, "--num_replicas", "4", "--pp_size", "4"},
		"transformer.h.0.attn has 1 key head on 2 ranks: want a cp_size (sp_size) among 1": {"--n_head", "1",
			"--num_replicas", "2", "--sp_size", "2"},
		"9 heads: they do not divide into 2 parts: want tp_parts among 1, 3, 9, and a tp_size that divides it": {
			"--n_head", "9", "--n_embd", "72", "--num_replicas", "2", "--tp_size", "2"},
		"2 heads: they do not divide into 4 parts": {"--model_name_or_path", saved,
			"--num_replicas", "2", "--tp_size", "2", "--tp_parts", "4"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), append(argv, "--train_file", filepath.Join(dir, "none.txt"), "--output_dir",
			filepath.Join(dir, "refused")), &out, &out)
		var usage *args.Error
		require.ErrorAs(t, err, &usage)
		require.ErrorContains(t, err, want)
	}
}

// TestFlagsOfTheScript: the script's flags are known, and all faults come at once.
func TestFlagsOfTheScript(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"--config_overrides", "n_embd=8", "--report_to", "clearml",
		"--n_layer", "0", "--output_dir", t.TempDir()}, &out, &out)
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	var keys []string
	for _, f := range usage.Faults {
		keys = append(keys, f.Key)
	}
	require.ElementsMatch(t, []string{"config_overrides", "report_to", "n_layer"}, keys)
	require.ErrorContains(t, err, "not built yet: other settings of a new model")
	require.Empty(t, out.String())
}

// TestSettingsAreNoRows: a flag of the script's that is built has left the table of those that are not.
func TestSettingsAreNoRows(t *testing.T) {
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"--help"}, &out, &out), args.ErrHelp)
	require.Contains(t, out.String(), "--model_name_or_path ")
	for _, k := range scripts.RunCLM() {
		require.NotContains(t, out.String(), "--"+k.Name+" ", "delete its row in examples/internal/scripts")
	}
}

// TestParametersOfBFloat16: a model is trained in bfloat16, saved so, and loaded by what was saved.
func TestParametersOfBFloat16(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("A line of a text that is easy to learn.\n", 60)),
		0o666))
	saved := func(from, dir string, more ...string) map[string]any {
		var out bytes.Buffer
		flags := append([]string{"--output_dir", dir, "--train_file", text, "--max_steps", "2", "--block_size", "16",
			"--max_new_tokens", "0",
			"--report_to", "none", "--disable_tqdm"}, more...)
		if from == "" {
			flags = append(flags, "--n_layer", "1", "--n_embd", "8", "--n_head", "2", "--vocab_size", "260")
		} else {
			flags = append(flags, "--model_name_or_path", from)
		}
		require.NoError(t, run(t.Context(), flags, &out, &out), out.String())
		config := map[string]any{}
		file, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(file, &config))
		return config
	}
	half := filepath.Join(dir, "half")
	require.Equal(t, "bfloat16", saved("", half, "--dtype", "bfloat16")["torch_dtype"])
	require.Equal(t, "bfloat16", saved(half, filepath.Join(dir, "auto"), "--torch_dtype", "auto", "--half_update",
		"stochastic")["torch_dtype"])
	require.Equal(t, "float32", saved(half, filepath.Join(dir, "default"))["torch_dtype"])
}

func TestUnknownDType(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"--dtype", "bf16", "--output_dir", t.TempDir()}, &out, &out)
	require.ErrorContains(t, err, "auto, bfloat16, float16")
	require.Empty(t, out.String())
}
