// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// The values of the argument ddp_comm_hook are the hooks that there are, and what ddp_comm_state_option may hold is
// what they read.
func TestCommHooksHaveRows(t *testing.T) {
	var names []string
	for name, settings := range args.CommHookSettings() {
		names = append(names, string(name))
		own := map[string]any{}
		for _, key := range settings {
			own[key] = nil
		}
		_, err := ddp.HookByName(string(name), own)
		require.NoError(t, err)
	}
	require.ElementsMatch(t, ddp.HookNames(), names)
}

// What compression still owes to the gradients is in a checkpoint: a resumed run ends with the bits of an uninterrupted
// one. On other ranks it goes on with what all of them owe.
func TestResumeUnderCompression(t *testing.T) {
	exact := trainOnRanks(t, 2)
	steps := []int64{2, 4}
	if testing.Short() {
		steps = steps[1:]
	}
	for _, k := range []struct {
		hook    args.CommHook
		options map[string]any
		state   bool
	}{
		{args.CommHookPowerSGD, map[string]any{"start_powerSGD_iter": 2, "min_compression_rate": 1}, true},
		{args.CommHookTopK, map[string]any{"density": 0.1}, true},
		{args.CommHookInt8, nil, false},
	} {
		t.Run(string(k.hook), func(t *testing.T) {
			t.Parallel()
			set := func(a *args.TrainingArguments) { a.DDPCommHook, a.DDPCommStateOption = k.hook, k.options }
			whole := trainOnRanks(t, 2, set)
			require.NotEqual(t, exact.weights, whole.weights, "it is lossy")
			for _, step := range steps {
				fork := whole.disk.CrashClone(nil)
				again := trainOnRanksFrom(t, fork, 2, set, resumeFrom(step))
				require.Equal(t, whole.weights, again.weights, "from step %d", step)
				names := []string{"comm_hook.json", "comm_hook.safetensors"}
				for _, name := range names {
					path := checkpointPath(8) + "/" + name
					a, err := vfs.ReadFile(whole.disk, path, 1<<20)
					require.Equal(t, k.state, err == nil, "%v", err)
					b, err := vfs.ReadFile(fork, path, 1<<20)
					require.Equal(t, k.state, err == nil, "%v", err)
					require.Equal(t, a, b)
				}
			}
			trainOnRanksFrom(t, whole.disk.CrashClone(nil), 4, set, resumeFrom(4))
		})
	}
}

// Ranks that step on their own have one state at a checkpoint: a resumed run ends with the bits of an uninterrupted
// one, wherever the checkpoint lies between two averages. The last window of an epoch does not reach every rank.
func TestResumeUnderLocalSGD(t *testing.T) {
	exact := trainOnRanks(t, 2)
	starts, steps := []int{0, 3}, []int64{2, 4, 6}
	if testing.Short() {
		starts, steps = starts[1:], steps[1:2]
	}
	for _, start := range starts {
		set := func(a *args.TrainingArguments) { a.LocalSGDSteps, a.StartLocalSGDIter = 3, start }
		whole := trainOnRanks(t, 2, set)
		require.NotEqual(t, exact.weights, whole.weights, "it is lossy")
		for _, step := range steps {
			again := trainOnRanksFrom(t, whole.disk.CrashClone(nil), 2, set, resumeFrom(step))
			require.Equal(t, whole.weights, again.weights, "start %d, from step %d", start, step)
		}
		trainOnRanksFrom(t, whole.disk.CrashClone(nil), 4, set, resumeFrom(4))
	}
	one := trainOnRanks(t, 1)
	set := func(a *args.TrainingArguments) { a.LocalSGDSteps = 3 }
	require.Equal(t, one.weights, trainOnRanks(t, 1, set).weights, "one rank has nobody to average with")
}
