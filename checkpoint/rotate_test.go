// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

func TestRotate(t *testing.T) {
	for _, c := range []struct {
		name    string
		saves   []int64
		limit   int
		protect []string
		deleted string
	}{
		{"no limit", []int64{1, 2, 3}, 0, nil, ""},
		{"negative limit", []int64{1, 2, 3}, -1, nil, ""},
		{"below the limit", []int64{1, 2, 3}, 4, nil, ""},
		{"at the limit", []int64{1, 2, 3}, 3, nil, ""},
		{"oldest first", []int64{1, 2, 3, 4}, 2, nil, "1 2"},
		{"only the newest", []int64{1, 2, 3}, 1, nil, "1 2"},
		{"limit 1 and another best: two stay", []int64{1, 2, 3}, 1, []string{"checkpoint-1"}, "2"},
		{"limit 1 and the best is the newest", []int64{1, 2, 3}, 1, []string{"checkpoint-3"}, "1 2"},
		{"the best counts towards the limit", []int64{1, 2, 3, 4}, 2, []string{"checkpoint-1"}, "2 3"},
		{"the best by a path that has moved", []int64{1, 2, 3}, 1, []string{"/elsewhere/checkpoint-2"}, "1"},
		{"several protected", []int64{1, 2, 3, 4}, 1, []string{"checkpoint-1", "checkpoint-2"}, "3"},
		{"protected that does not exist", []int64{1, 2, 3}, 2, []string{"checkpoint-9", ""}, "1"},
		{"steps that do not grow", []int64{100, 200, 50}, 2, nil, "100"},
		{"the just written has the smallest step", []int64{100, 200, 50}, 1, nil, "100 200"},
		{"a step saved again is new", []int64{1, 2, 3, 1}, 2, nil, "2"},
		{"digits do not sort as text", []int64{8, 9, 10, 11}, 2, nil, "8 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := vfs.NewMem()
			s := quiet(m, "out")
			left := map[string]bool{}
			for _, step := range c.saves {
				left[save(t, s, state{step, "x"}).Name()] = true
			}
			deleted, err := s.Rotate(c.limit, run, c.protect...)
			require.NoError(t, err)
			require.Equal(t, c.deleted, strings.ReplaceAll(strings.Join(deleted, " "), "checkpoint-", ""))
			for _, name := range deleted {
				delete(left, name)
			}
			infos, err := s.List()
			require.NoError(t, err)
			for _, info := range infos {
				require.True(t, left[info.Name()])
			}
			require.Len(t, infos, len(left))
			require.NotContains(t, names(t, m, "out"), ".tmp")
			require.Equal(t, c.saves[len(c.saves)-1], latest(t, s).Step)
		})
	}
}

func TestRotateKeepsWhatLatestNames(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	save(t, s, state{1, "x"})
	save(t, s, state{2, "x"})
	inject, _ := errorfs.Nth(2, func(k errorfs.Kind) bool { return k == errorfs.Rename }, errorfs.ErrIO)
	_, err := quiet(errorfs.Wrap(m, inject), "out").Save(ctx, 3, state{3, "x"}.content())
	require.ErrorContains(t, err, "the checkpoint is complete, but LATEST does not name it")
	deleted, err := s.Rotate(1, run)
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-1"}, deleted)
	require.Equal(t, state{2, "x"}, latest(t, s))
}

func TestRotateCountsCompleteCheckpointsOnly(t *testing.T) {
	m := vfs.NewMem()
	s, log := logged(m, "out")
	for step := range int64(4) {
		save(t, s, state{step, "x"})
	}
	inflict(t, m, filepath.Join("out", "checkpoint-2", "model.safetensors"), truncate)
	deleted, err := s.Rotate(2, run)
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-0"}, deleted, "1 and 3 can be loaded; 2 is evidence")
	require.Contains(t, log.String(), "truncated")
	require.Equal(t, "LATEST checkpoint-1 checkpoint-2 checkpoint-3", names(t, m, "out"))
}

// A folder that another program wrote is left alone without a word; one that may be a damaged checkpoint is named.
func TestRotateIsSilentAboutFoldersOfOthers(t *testing.T) {
	m := vfs.NewMem()
	s, log := logged(m, "out")
	for folder, file := range map[string]string{"checkpoint-7": "training_args.bin", "checkpoint-8": "half"} {
		require.NoError(t, vfs.MkdirAll(m, filepath.Join("out", folder)))
		require.NoError(t, vfs.WriteFile(m, filepath.Join("out", folder, file), []byte("x")))
	}
	save(t, s, state{1, "x"})
	save(t, s, state{2, "x"})
	_, err := s.Rotate(1, run)
	require.NoError(t, err)
	require.NotContains(t, log.String(), "checkpoint-7")
	require.Contains(t, log.String(), "checkpoint-8")
	_, err = m.Stat("out/checkpoint-7/training_args.bin")
	require.NoError(t, err)
}

func TestRotateGoesOnAfterAnError(t *testing.T) {
	m := vfs.NewMem()
	for step := range int64(3) {
		save(t, quiet(m, "out"), state{step, "x"})
	}
	stuck := errorfs.Wrap(m, func(op errorfs.Op) error {
		if op.Kind == errorfs.Rename && op.Path == "out/checkpoint-0" {
			return errorfs.ErrIO
		}
		return nil
	})
	deleted, err := quiet(stuck, "out").Rotate(1, run)
	require.ErrorIs(t, err, errorfs.ErrIO)
	require.ErrorContains(t, err, "deleting "+filepath.Join("out", "checkpoint-0"))
	require.Equal(t, []string{"checkpoint-1"}, deleted)
	_, err = quiet(m, "no").Rotate(1, run)
	require.Error(t, err)
}
