// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/lora"
)

// Losses, norms and rates of 50 steps of an adapter are those of TRL's SFTTrainer with PEFT (testdata/lora.py). What is
// saved has the adapter alone.
func TestStepsOfAdaptersAreThoseOfTRL(t *testing.T) {
	text, err := os.ReadFile("testdata/lora.json")
	require.NoError(t, err)
	var want golden
	require.NoError(t, json.Unmarshal(text, &want))
	require.Len(t, want.Steps, 50)
	out := t.TempDir()
	printed, err := finetune(t, "--model_name_or_path", folder, "--train_file", "testdata/chats.jsonl", "--output_dir",
		out, "--assistant_only_loss", "--max_length", "64", "--learning_rate", "2e-2", "--max_steps", "50",
		"--logging_steps", "1", "--save_steps", "25", "--train_sampling_strategy", "sequential",
		"--per_device_train_batch_size", "4", "--max_new_tokens", "0", "--adapter", "testdata/adapter")
	require.NoError(t, err, printed)
	text, err = os.ReadFile(filepath.Join(out, "trainer_state.json"))
	require.NoError(t, err)
	var state struct {
		LogHistory []step `json:"log_history"`
	}
	require.NoError(t, json.Unmarshal(text, &state))
	n := 0
	for _, got := range state.LogHistory {
		if got.Loss == nil {
			continue
		}
		require.InEpsilon(t, *want.Steps[n].Loss, *got.Loss, 1e-4, "loss of step %d", n+1)
		require.InEpsilon(t, want.Steps[n].GradNorm, got.GradNorm, 1e-4, "norm of step %d", n+1)
		require.InEpsilon(t, want.Steps[n].LearningRate, got.LearningRate, 1e-9, "rate of step %d", n+1)
		n++
	}
	require.Equal(t, 50, n)
	for _, dir := range []string{out, filepath.Join(out, "checkpoint-50")} {
		require.FileExists(t, filepath.Join(dir, models.AdapterFile))
		require.NoFileExists(t, filepath.Join(dir, models.WeightsFile))
	}
}

// Settings of an adapter that nothing would use are refused.
func TestAdapterFlags(t *testing.T) {
	for argv, want := range map[string]string{
		"--lora_r 8":                              "want true with settings of LoRA",
		"--use_peft --adapter a":                  "use_peft, which makes a new adapter, or adapter",
		"--use_peft --lora_dropout 1":             "lora_dropout is 1 (flag --lora_dropout): want a probability",
		"--use_peft --lora_alpha 0":               "lora_alpha is 0 (flag --lora_alpha): want a number other than 0",
		"--use_peft --use_dora true":              "adapters by this name: want use_peft, lora_r",
		"--use_peft --lora_target_modules c_attn": "target_modules (c_attn) chooses no module: want",
	} {
		_, err := finetune(t, append([]string{"--model_name_or_path", folder, "--train_file", "testdata/chats.jsonl",
			"--output_dir", t.TempDir()}, strings.Fields(argv)...)...)
		require.ErrorContains(t, err, want)
	}
}

// The run says what is trained, and warns of a rank that is more than a layer's weight can have.
func TestWhatIsTrainedIsPrinted(t *testing.T) {
	for argv, want := range map[string]string{
		"--lora_r 8":  `adapter    rank 8 of \d+ layers, [\d,]+ parameters are trained, [\d.]+% of all`,
		"--lora_r 80": `warning    rank 80 is more than the \d+ features of model.layers.0.self_attn.q_proj, the`,
	} {
		printed, err := finetune(t, append([]string{"--model_name_or_path", folder, "--train_file",
			"testdata/chats.jsonl", "--output_dir", t.TempDir(), "--max_steps", "1", "--max_length", "64",
			"--max_new_tokens", "0", "--save_strategy", "no", "--use_peft", "--lora_target_modules", "all-linear"},
			strings.Fields(argv)...)...)
		require.NoError(t, err, printed)
		require.Regexp(t, want, printed)
		require.Equal(t, argv == "--lora_r 80", strings.Contains(printed, "warning    rank"), printed)
	}
}

// An adapter of a GGUF file names the file, and is trained further on it.
func TestAdaptersOfGGUF(t *testing.T) {
	base, err := filepath.Abs("../../models/testdata/gguf/llama.gguf")
	require.NoError(t, err)
	out, again := t.TempDir(), t.TempDir()
	run := func(argv ...string) (string, error) {
		return finetune(t, append(argv, "--model_name_or_path", base, "--train_file", "testdata/chats.jsonl",
			"--max_steps", "2", "--max_length", "96", "--save_strategy", "no", "--max_new_tokens", "0")...)
	}
	printed, err := run("--output_dir", out, "--use_peft")
	require.NoError(t, err, printed)
	cfg, err := lora.ReadConfig(out)
	require.NoError(t, err)
	require.Equal(t, base, cfg.BaseModel)
	require.NoFileExists(t, filepath.Join(out, models.WeightsFile))
	printed, err = run("--output_dir", again, "--adapter", out)
	require.NoError(t, err, printed)
	_, err = finetune(t, "--model_name_or_path", "../../models/testdata/gguf/llama3.gguf", "--adapter", out,
		"--train_file", "testdata/chats.jsonl", "--output_dir", again, "--max_steps", "1")
	require.ErrorContains(t, err, "the adapter was trained on the model of "+base)
}
