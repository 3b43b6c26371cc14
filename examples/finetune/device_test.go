// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/simulated"
)

// A GPU trains as the CPU does, the whole model and an adapter, and with the same weights says the same.
func TestDevice(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, under which the interpreter takes minutes
	}
	adapter := []string{"--packing", "--use_peft", "--lora_target_modules", "all-linear"}
	for name, more := range map[string][]string{
		"padded":   nil,
		"packed":   {"--packing"},
		"adapter":  adapter,
		"bfloat16": append([]string{"--bf16", "--dtype", "bfloat16", "--gradient_checkpointing"}, adapter...),
	} {
		t.Run(name, func(t *testing.T) {
			losses, norms, answers := map[string][]float64{}, map[string][]float64{}, map[string]string{}
			simulated.Compare(t, func(device string) {
				out := t.TempDir()
				argv := append([]string{"--model_name_or_path", folder, "--train_file", "testdata/chats.jsonl",
					"--output_dir", out, "--assistant_only_loss", "--max_length", "64", "--max_new_tokens", "4",
					"--per_device_train_batch_size", "1", "--learning_rate", "2e-3", "--max_steps", "2",
					"--logging_steps", "1", "--save_strategy", "no", "--device", device}, more...)
				printed, err := finetune(t, argv...)
				require.NoError(t, err, printed)
				losses[device], norms[device] = simulated.Steps(t, out)
				text, err := os.ReadFile(filepath.Join(out, continuationsFile))
				require.NoError(t, err)
				answers[device] = string(text)
			})
			require.Len(t, losses["cpu"], 2)
			rounding := 1e-4
			if name == "bfloat16" {
				rounding = 2e-3
			}
			require.InEpsilonSlice(t, losses["cpu"], losses[simulated.Name], rounding)
			require.InEpsilonSlice(t, norms["cpu"], norms[simulated.Name], 10*rounding)
			require.Equal(t, answers["cpu"], answers[simulated.Name])
		})
	}
}
