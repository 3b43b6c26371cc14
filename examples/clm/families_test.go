// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
)

// Llama and Qwen 3 train to the same bits on 1, 2, 4 and 8 ranks, whole and spread, with and without recomputation.
func TestFamiliesTrainToTheSameBits(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	lines := bytes.Repeat([]byte("A line, and another one that follows it.\n"), 60)
	require.NoError(t, os.WriteFile(text, lines, 0o600))
	for _, family := range []string{"llama", "qwen3"} {
		config := filepath.Join(dir, family+".json")
		require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "`+family+`", "hidden_size": 16,
			"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
			"head_dim": 6, "max_position_embeddings": 16, "attention_dropout": 0.1,
			"tie_word_embeddings": true}`), 0o600))
		train := func(flags ...string) []byte {
			out := filepath.Join(dir, "out")
			var printed bytes.Buffer
			require.NoError(t, run(t.Context(), append(flags, "--config_name", config, "--vocab_size", "260",
				"--train_file", text, "--block_size", "16", "--max_steps", "3", "--global_train_batch_size", "8",
				"--per_device_train_batch_size", "1", "--learning_rate", "1e-2", "--report_to", "none", "--output_dir",
				out, "--overwrite_output_dir", "--max_new_tokens", "0", "--save_strategy", "no", "--do_train"),
				&printed, &printed), "%s", &printed)
			weights, err := os.ReadFile(filepath.Join(out, models.WeightsFile))
			require.NoError(t, err)
			return weights
		}
		seen := map[string]bool{}
		for precision, ways := range map[string][][]string{
			"--bf16=false": {{"--num_replicas", "2"}, {"--num_replicas", "4", "--zero_stage", "2"},
				{"--num_replicas", "8", "--fsdp", "full_shard", "--gradient_checkpointing"},
				{"--num_replicas", "2", "--pp_size", "2"}},
			"--bf16": {{"--num_replicas", "4", "--fsdp", "full_shard"},
				{"--num_replicas", "2", "--gradient_checkpointing"}},
		} {
			one := train(precision)
			seen[string(one)] = true
			for _, flags := range ways {
				other := train(append(flags, precision)...)
				require.True(t, bytes.Equal(one, other), "%s %s %v", family, precision, flags)
			}
		}
		require.Len(t, seen, 2, "a control: bf16 has other bits")
	}
}
