// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/simulated"
)

// A GPU trains as the CPU does: a model with a new head, one that has a head, and an adapter.
func TestDevice(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, under which the interpreter takes minutes
	}
	for name, run := range map[string]struct {
		model string
		more  []string
	}{
		"a new head": {folder, nil},
		"its head":   {"testdata/model", nil},
		"adapter": {folder, []string{"--use_peft", "--lora_target_modules", "all-linear", "--lora_task_type", "SEQ_CLS",
			"--lora_modules_to_save", "score"}},
	} {
		t.Run(name, func(t *testing.T) {
			losses, norms := map[string][]float64{}, map[string][]float64{}
			simulated.Compare(t, func(device string) {
				out := t.TempDir()
				argv := append([]string{"--train_file", "../internal/pairs/pairs.jsonl", "--max_steps", "2",
					"--device", device}, run.more...)
				printed, err := reward(t, run.model, out, argv...)
				require.NoError(t, err, printed)
				losses[device], norms[device] = simulated.Steps(t, out)
			})
			require.Len(t, losses["cpu"], 2)
			require.InEpsilonSlice(t, losses["cpu"], losses[simulated.Name], 1e-4)
			require.InEpsilonSlice(t, norms["cpu"], norms[simulated.Name], 1e-3)
		})
	}
}
