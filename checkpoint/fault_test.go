// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// scenario is something done to a folder while operations fail.
type scenario struct {
	name   string
	before func(t *testing.T, m *vfs.Mem)  // what the folder holds; all durable
	do     func(s *checkpoint.Store) error // what is disturbed
	older  []state                         // what may be loaded if do fails; empty: nothing was there
	newer  state                           // what must be loaded if do succeeds
}

func saving(st state) func(*checkpoint.Store) error {
	return func(s *checkpoint.Store) error {
		_, err := s.Save(ctx, st.Step, st.content())
		return err
	}
}

func holding(states ...state) func(*testing.T, *vfs.Mem) {
	return func(t *testing.T, m *vfs.Mem) {
		for _, st := range states {
			save(t, quiet(m, "out"), st)
		}
	}
}

// interrupted leaves the folder between the two renames of a replacement.
func interrupted(t *testing.T, m *vfs.Mem) {
	holding(state{5, "old"})(t, m)
	inject, _ := errorfs.From(2, func(k errorfs.Kind) bool { return k == errorfs.Rename }, errorfs.ErrCrashed)
	require.ErrorIs(t, saving(state{5, "lost"})(quiet(errorfs.Wrap(m, inject), "out")), errorfs.ErrCrashed)
	require.NoError(t, m.SyncDir("out"))
	require.Equal(t, ".old-checkpoint-5-2 LATEST", names(t, m, "out"))
}

func scenarios() []scenario {
	return []scenario{
		{"first", holding(), saving(state{5, "new"}), nil, state{5, "new"}},
		{"next", holding(state{5, "old"}), saving(state{10, "new"}), []state{{5, "old"}}, state{10, "new"}},
		{"same step", holding(state{5, "old"}), saving(state{5, "new"}), []state{{5, "old"}}, state{5, "new"}},
		{"older step", holding(state{5, "old"}, state{10, "old"}), saving(state{5, "new"}), []state{{10, "old"}},
			state{5, "new"}},
		{"after an interruption", interrupted, saving(state{5, "new"}), []state{{5, "old"}}, state{5, "new"}},
		{"another after an interruption", interrupted, saving(state{10, "new"}), []state{{5, "old"}}, state{10, "new"}},
		{"rotation", holding(state{5, "old"}, state{10, "old"}, state{15, "old"}), func(s *checkpoint.Store) error {
			_, err := s.Rotate(1, run)
			return err
		}, []state{{15, "old"}}, state{15, "old"}},
	}
}

// list is the names in the folder, none if it does not exist.
func list(m *vfs.Mem) (names []string) {
	entries, _ := m.ReadDir("out")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// check requires that the folder can be loaded and saved into.
func (sc scenario) check(t *testing.T, m *vfs.Mem, done error, when string) {
	t.Helper()
	s := quiet(m, "out")
	ck, err := s.Latest(ctx)
	switch {
	case done == nil:
		require.NoError(t, err, when)
		require.Equal(t, sc.newer, whole(t, ck), when)
	case err != nil:
		require.ErrorIs(t, err, checkpoint.ErrNone, when)
		require.Empty(t, sc.older, "%s: %v", when, err)
	default:
		require.Contains(t, append(slices.Clone(sc.older), sc.newer), whole(t, ck), when)
	}
	for _, name := range list(m) {
		if strings.HasPrefix(name, "checkpoint-") {
			_, err := s.Open(ctx, name)
			require.NoError(t, err, "%s: what has a checkpoint's name is one", when)
		}
	}
	save(t, s, state{20, "after"})
	require.Equal(t, state{20, "after"}, latest(t, s), when)
	for _, name := range strings.Fields(names(t, m, "out")) {
		require.False(t, strings.HasPrefix(name, "."), "%s: %s is left over", when, name)
	}
}

func TestEachOperationFailsInTurn(t *testing.T) {
	onDisk := func(k errorfs.Kind) bool { return k == errorfs.Create || k == errorfs.Write || k == errorfs.Mkdir }
	faults := []struct {
		name   string
		inject func(n int) (errorfs.Injector, func() bool)
	}{
		{"EIO", func(n int) (errorfs.Injector, func() bool) { return errorfs.Nth(n, nil, errorfs.ErrIO) }},
		{"ENOSPC", func(n int) (errorfs.Injector, func() bool) {
			return errorfs.Nth(n, errorfs.Kind.Changes, errorfs.ErrNoSpace)
		}},
		{"short write", func(n int) (errorfs.Injector, func() bool) {
			return errorfs.Nth(n, onDisk, errorfs.ErrShortWrite)
		}},
		{"full disk", func(n int) (errorfs.Injector, func() bool) {
			return errorfs.From(n, onDisk, errorfs.ErrShortWrite)
		}},
		{"dead disk", func(n int) (errorfs.Injector, func() bool) { return errorfs.From(n, nil, errorfs.ErrIO) }},
	}
	for _, sc := range scenarios() {
		for _, fault := range faults {
			t.Run(sc.name+"/"+fault.name, func(t *testing.T) {
				failed := 0
				for n := 1; ; n++ {
					m := vfs.NewMem()
					sc.before(t, m)
					inject, reached := fault.inject(n)
					err := sc.do(quiet(errorfs.Wrap(m, inject), "out"))
					if err != nil {
						failed++
					}
					sc.check(t, m, err, fmt.Sprintf("operation %d (%v)", n, err))
					if !reached() {
						require.NoError(t, err)
						break
					}
				}
				require.True(t, failed > 2 || sc.name == "rotation", "the faults make saves fail")
			})
		}
	}
}

func TestFullDiskLeavesOlderCheckpointsAlone(t *testing.T) {
	writes := func(k errorfs.Kind) bool { return k == errorfs.Write }
	for n := 1; n <= 3; n++ { // the model, the state, the manifest
		m := vfs.NewMem()
		save(t, quiet(m, "out"), state{5, "old"})
		inject, _ := errorfs.From(n, writes, errorfs.ErrShortWrite)
		_, err := quiet(errorfs.Wrap(m, inject), "out").Save(ctx, 10, state{10, "new"}.content())
		require.ErrorIs(t, err, errorfs.ErrNoSpace)
		require.ErrorContains(t, err, "saving "+filepath.Join("out", "checkpoint-10"))
		require.Equal(t, "LATEST checkpoint-5", names(t, m, "out"), "the temporary folder is gone at once")
		require.Equal(t, state{5, "old"}, latest(t, quiet(m, "out")))
	}
}

func TestFailedReplacementIsUndoneAtOnce(t *testing.T) {
	m := vfs.NewMem()
	save(t, quiet(m, "out"), state{5, "old"})
	inject, _ := errorfs.Nth(2, func(k errorfs.Kind) bool { return k == errorfs.Rename }, errorfs.ErrIO)
	_, err := quiet(errorfs.Wrap(m, inject), "out").Save(ctx, 5, state{5, "new"}.content())
	require.ErrorIs(t, err, errorfs.ErrIO)
	require.Equal(t, []string{"LATEST", "checkpoint-5"}, list(m))
	ck, err := quiet(m, "out").Open(ctx, "checkpoint-5")
	require.NoError(t, err)
	require.Equal(t, state{5, "old"}, whole(t, ck))
}

func TestCrashAfterEachOperation(t *testing.T) {
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			for n := 1; ; n++ {
				m := vfs.NewMem()
				sc.before(t, m)
				inject, reached := errorfs.From(n, errorfs.Kind.Changes, errorfs.ErrCrashed)
				err := sc.do(quiet(errorfs.Wrap(m, inject), "out"))
				sc.check(t, m.CrashClone(nil), err, fmt.Sprintf("crash at %d, all unsynced lost (%v)", n, err))
				for seed := range uint64(8) {
					r := rand.New(rand.NewPCG(seed, uint64(n)))
					sc.check(t, m.CrashClone(r), err, fmt.Sprintf("crash at %d, seed %d (%v)", n, seed, err))
				}
				// A killed process loses nothing of what it has handed to the system.
				sc.check(t, m, err, fmt.Sprintf("killed at %d (%v)", n, err))
				if !reached() {
					require.NoError(t, err)
					break
				}
			}
		})
	}
}

// A crash of the crash's repair must be as harmless.
func TestCrashTwice(t *testing.T) {
	base := state{5, "old"}
	for first := 1; first < 25; first++ {
		for second := 1; second < 25; second += 3 {
			m := vfs.NewMem()
			save(t, quiet(m, "out"), base)
			inject, _ := errorfs.From(first, errorfs.Kind.Changes, errorfs.ErrCrashed)
			_ = saving(state{5, "one"})(quiet(errorfs.Wrap(m, inject), "out"))
			m = m.CrashClone(rand.New(rand.NewPCG(uint64(first), uint64(second))))
			inject, _ = errorfs.From(second, errorfs.Kind.Changes, errorfs.ErrCrashed)
			_ = saving(state{5, "two"})(quiet(errorfs.Wrap(m, inject), "out"))
			m = m.CrashClone(rand.New(rand.NewPCG(uint64(second), uint64(first))))
			require.Contains(t, []state{base, {5, "one"}, {5, "two"}}, latest(t, quiet(m, "out")),
				"crash at %d, then at %d", first, second)
		}
	}
}
