// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func whole(seed uint64) plan {
	return newPlan(seed, func(kind) bool { return false }, func(layout) bool { return false })
}

// TestScenariosRepeat requires the same scenarios of a seed, others of another, and all of them possible.
func TestScenariosRepeat(t *testing.T) {
	differ := 0
	for i := range 300 {
		s := whole(7).scenario(i)
		require.Equal(t, s, whole(7).scenario(i))
		if s.String() != whole(8).scenario(i).String() {
			differ++
		}
		groups := map[string]bool{}
		for _, f := range s.faults {
			require.Contains(t, f.kind.trait().layouts, s.layout, s)
			require.False(t, groups[f.kind.trait().group], "%s: two of a group", s)
			groups[f.kind.trait().group] = true
			require.Less(t, f.step, steps, s)
		}
		require.NotEmpty(t, s.faults)
		require.LessOrEqual(t, s.ranks, 4)
		require.Zero(t, s.ranks%s.stages, s)
		require.True(t, s.layout.launchers() < 2 || s.ranks%2 == 0, s)
	}
	require.Greater(t, differ, 250)
}

// TestTourHasEveryKind requires each kind once in the first scenarios, the harmless ones among themselves, and only
// what can be had.
func TestTourHasEveryKind(t *testing.T) {
	count := map[kind]int{}
	tour := whole(1).tour()
	for i, kinds := range tour {
		s := whole(1).scenario(i)
		require.Len(t, s.faults, len(kinds))
		for _, f := range s.faults {
			count[f.kind]++
			require.Equal(t, s.harmless(), f.kind.trait().harmless, s)
		}
	}
	require.Len(t, count, len(traits))
	for k, n := range count {
		require.Equal(t, 1, n, k)
		require.NotNil(t, actions[k], k)
	}
	require.LessOrEqual(t, len(tour), 14, "a minute must be enough")

	p := newPlan(1, func(k kind) bool { return k == diskFull }, func(l layout) bool { return l == hosts })
	for i := range 200 {
		s := p.scenario(i)
		require.NotEqual(t, hosts, s.layout)
		require.False(t, s.has(diskFull) || s.has(linkCut), s)
	}
}

// TestHarnessCanFail is the self-check that comes before every run, and what a self-check says of a harness that sees
// nothing.
func TestHarnessCanFail(t *testing.T) {
	out := t.TempDir()
	good := result{bits: map[string][]byte{}, figures: map[string]bool{}}
	for i := range 10 {
		name := filepath.Join(fmt.Sprintf("checkpoint-%d", i), "model.safetensors")
		require.NoError(t, os.MkdirAll(filepath.Join(out, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(out, name), []byte{1, 2, 3}, 0o600))
	}
	var log bytes.Buffer
	for i := range steps {
		fmt.Fprintf(&log, "{\"step\": %d, \"loss\": %d.5}\n", i, i)
	}
	require.NoError(t, os.WriteFile(filepath.Join(out, "log.jsonl"), log.Bytes(), 0o600))
	good, err := readResult(out)
	require.NoError(t, err)
	require.Len(t, good.bits, 10)
	require.Len(t, good.figures, steps)
	require.NoError(t, selfCheck(t.TempDir(), good))
	require.ErrorContains(t, selfCheck(t.TempDir(), result{}), "want more")

	name := filepath.Join(out, "checkpoint-3", "model.safetensors")
	require.NoError(t, os.WriteFile(name, []byte{1, 2, 2}, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(out, ".lock"), nil, 0o600))
	bad, err := readResult(out)
	require.NoError(t, err)
	err = good.compare(bad)
	require.ErrorContains(t, err, "wrong bits in checkpoint-3/model.safetensors")
	require.ErrorContains(t, err, "leftover in output_dir: .lock")
	require.NoError(t, os.Remove(name))
	bad, err = readResult(out)
	require.NoError(t, err)
	require.ErrorContains(t, good.compare(bad), "missing in output_dir: checkpoint-3/model.safetensors")
	require.NoError(t, os.Symlink("/dev/null", name))
	_, err = readResult(out)
	require.ErrorContains(t, err, "not a regular file")
}

// TestTracesAreSeen requires panics found, and not the word for ranks of one process.
func TestTracesAreSeen(t *testing.T) {
	require.NoError(t, traces("4 ranks as goroutines\n"))
	for _, text := range []string{"panic: x", "goroutine 7 [running]:", "runtime error: index", "fatal error: all"} {
		require.Error(t, traces("[0] "+text))
	}
}

// TestOptions requires what is not a number refused.
func TestOptions(t *testing.T) {
	read := func(pairs ...string) (options, error) {
		return readOptions(func(name string) string {
			if i := slices.Index(pairs, name); i >= 0 {
				return pairs[i+1]
			}
			return ""
		})
	}
	o, err := read("CHAOS_SEED", "7", "CHAOS_SECONDS", "60", "CHAOS_SCENARIO", "3")
	require.NoError(t, err)
	require.Equal(t, options{seconds: 60, seed: 7, scenario: 3}, o)
	o, err = read()
	require.NoError(t, err)
	require.Equal(t, 600, o.seconds)
	require.Equal(t, -1, o.scenario)
	for _, bad := range []string{"CHAOS_SEED", "CHAOS_SECONDS", "CHAOS_SCENARIO"} {
		_, err := read(bad, "-1")
		require.ErrorContains(t, err, bad)
	}
}

// TestProcessesAreFound requires the variables of a process that has the marker, and no other.
func TestProcessesAreFound(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"CHAOS_JOB=found", "RANK=1", "RANK=3"}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	})
	require.Eventually(t, func() bool { return len(living("CHAOS_JOB=found")) == 1 }, patience, patience/10000)
	p := living("CHAOS_JOB=found")[0]
	require.Equal(t, cmd.Process.Pid, p.pid)
	require.Equal(t, 3, p.rank())
	require.False(t, p.guard())
	require.Equal(t, os.Getpid(), parent(p.pid))
	require.Empty(t, living("CHAOS_JOB=nobody"))
}
