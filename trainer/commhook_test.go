// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The values of the argument ddp_comm_hook are the hooks that there are, and what ddp_comm_state_option may hold is
// what they read.
func TestCommHooksHaveRows(t *testing.T) {
	var names []string
	for _, row := range catalog.CommHooks {
		names = append(names, row.Name)
		own := map[string]any{}
		for _, key := range row.Settings.Keys() {
			own[key] = nil
		}
		_, err := ddp.HookByName(row.Name, own)
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
				for _, name := range []string{"comm_hook.json", "pieces.json"} {
					path := checkpointPath(8) + "/" + name
					a, err := vfs.ReadFile(whole.disk, path, 1<<20)
					require.Equal(t, k.state, err == nil, "%v", err)
					b, err := vfs.ReadFile(fork, path, 1<<20)
					require.Equal(t, k.state, err == nil, "%v", err)
					require.Equal(t, a, b)
				}
				for rank := 1; k.state && rank <= 2; rank++ { // headers name the save
					path := fmt.Sprintf("%s/shard-%05d-of-00002.safetensors", checkpointPath(8), rank)
					require.Equal(t, tensorsOf(t, whole.disk, path), tensorsOf(t, fork, path), path)
				}
			}
			trainOnRanksFrom(t, whole.disk.CrashClone(nil), 4, set, resumeFrom(4))
			if !k.state {
				return
			}
			for rank := range 2 { // each writes its own, and rank 0 what all have
				file, err := safetensors.Open(whole.disk,
					fmt.Sprintf("%s/shard-%05d-of-00002.safetensors", checkpointPath(8), rank+1))
				require.NoError(t, err)
				require.NotEmpty(t, file.Entries())
				for _, e := range file.Entries() {
					require.Regexp(t, fmt.Sprintf("^comm_hook/(%d/|shared/).*", rank), e.Name)
				}
				require.NoError(t, file.Close())
			}
			old := inOneFile(t, whole.disk, 4)
			require.Equal(t, whole.weights, trainOnRanksFrom(t, old, 2, set, resumeFrom(4)).weights,
				"from a checkpoint of a version in which rank 0 wrote all of it")
		})
	}
}

// tensorsOf reads all tensors of a file.
func tensorsOf(t *testing.T, disk *vfs.Mem, path string) map[string][]byte {
	t.Helper()
	file, err := safetensors.Open(disk, path)
	require.NoError(t, err)
	defer file.Close()
	tensors := map[string][]byte{}
	for _, e := range file.Entries() {
		tensors[e.Name], err = file.ReadTensor(e.Name)
		require.NoError(t, err)
	}
	require.NotEmpty(t, tensors)
	return tensors
}

// inOneFile is a disk with a checkpoint as older versions wrote it: with the state of all ranks in one file.
func inOneFile(t *testing.T, disk *vfs.Mem, step int64) *vfs.Mem {
	t.Helper()
	ck, err := (&checkpoint.Store{Dir: out, FS: disk}).Open(ctx, filepath.Base(checkpointPath(step)))
	require.NoError(t, err)
	var parts []checkpoint.Part
	for _, f := range ck.Files {
		if strings.HasPrefix(f.Name, "shard-") || f.Name == "pieces.json" {
			continue
		}
		text, err := ck.ReadPart(f.Name)
		require.NoError(t, err)
		parts = append(parts, checkpoint.BytesPart(f.Name, text))
	}
	set, err := ck.OpenTensors("comm_hook")
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	var list []tensor.Named
	for _, name := range set.Names() {
		e, _ := set.Lookup(name)
		section, err := e.Section(e.Placement())
		require.NoError(t, err)
		raw, err := io.ReadAll(section)
		require.NoError(t, err)
		list = append(list, tensor.Named{Name: name, Tensor: tensor.FromBytes(c, raw, tensor.Float32, e.Numel())})
	}
	require.NoError(t, set.Close())
	parts = append(parts, checkpoint.Part{Name: "comm_hook.safetensors", Write: func(w io.Writer) error {
		return checkpoint.SaveTensors(c, w, list)
	}})
	old := vfs.NewMem()
	_, err = (&checkpoint.Store{Dir: out, FS: old}).Save(ctx, step, checkpoint.Content{RunID: ck.RunID, Parts: parts})
	require.NoError(t, err)
	return old
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
