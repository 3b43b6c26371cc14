// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/simulated"
)

// A GPU trains as the CPU does, with each kind of reference.
func TestDevice(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, under which the interpreter takes minutes
	}
	for name, more := range map[string][]string{
		"a copy":               nil,
		"without the adapter":  {"--use_peft", "--lora_target_modules", "all-linear"},
		"the adapter as it is": {"--adapter", "testdata/adapter"},
		"precomputed":          {"--precompute_ref_log_probs"},
	} {
		t.Run(name, func(t *testing.T) {
			losses, norms, margins := map[string][]float64{}, map[string][]float64{}, map[string][]any{}
			simulated.Compare(t, func(device string) {
				out := t.TempDir()
				printed, err := dpo(t, out, append([]string{"--learning_rate", "2e-2", "--max_steps", "2",
					"--logging_steps", "1", "--save_strategy", "no", "--per_device_train_batch_size", "1", "--device",
					device}, more...)...)
				require.NoError(t, err, printed)
				losses[device], norms[device] = simulated.Steps(t, out)
				for _, r := range records(t, out, "rewards/margins") {
					margins[device] = append(margins[device], r["rewards/margins"])
				}
			})
			require.Len(t, losses["cpu"], 2)
			require.InEpsilonSlice(t, losses["cpu"], losses[simulated.Name], 1e-4)
			require.InEpsilonSlice(t, norms["cpu"], norms[simulated.Name], 1e-3)
			require.NotZero(t, margins["cpu"][1])
			require.InDeltaSlice(t, margins["cpu"], margins[simulated.Name], 1e-4)
		})
	}
}
