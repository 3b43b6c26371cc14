// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// damage is what happens to one file of a checkpoint; keep false deletes it.
type damage func(data []byte) (after []byte, keep bool)

func truncate(b []byte) ([]byte, bool) { return b[:len(b)-1], true }
func empty([]byte) ([]byte, bool)      { return nil, true }
func remove([]byte) ([]byte, bool)     { return nil, false }
func lengthen(b []byte) ([]byte, bool) { return append(b, 0), true }

func replace(old, new string) damage {
	return func(b []byte) ([]byte, bool) { return bytes.Replace(b, []byte(old), []byte(new), 1), true }
}

func inflict(t *testing.T, m *vfs.Mem, path string, d damage) {
	t.Helper()
	before, err := vfs.ReadFile(m, path, 1<<20)
	require.NoError(t, err)
	after, keep := d(bytes.Clone(before))
	if !keep {
		require.NoError(t, m.Remove(path))
		return
	}
	require.NotEqual(t, before, after)
	overwrite(t, m, path, after)
}

func TestDamagedFilesAreNamed(t *testing.T) {
	for _, c := range []struct {
		file   string
		damage damage
		want   string
	}{
		{"model.safetensors", remove, "missing"},
		{"model.safetensors", empty, "empty: want 700 bytes"},
		{"model.safetensors", truncate, "truncated: 699 of 700 bytes"},
		{"model.safetensors", lengthen, "701 bytes: want 700"},
		{"model.safetensors", replace("new", "nfw"), "damaged: its SHA-256 is "},
		{"empty.json", lengthen, "1 bytes: want 0"},
		{"manifest.json", remove, "missing: this is not a complete checkpoint"},
		{"manifest.json", empty, "empty file"},
		{"manifest.json", replace("}\n", ""), "not JSON: "},
		{"manifest.json", replace(`"step": 10`, `"step": 11`), "damaged: its own hash"},
		{"manifest.json", replace("model.", "m0del."), "damaged: its own hash"},
		{"manifest.json", replace(`"format_version": 1`, `"format_version": 2`),
			"format version 2: this program reads version 1"},
		{"manifest.json", replace(`"step"`, `"stop"`), `unknown field "stop"`},
		{"manifest.json", lengthen, "not JSON"},
	} {
		m := vfs.NewMem()
		s, log := logged(m, "out")
		save(t, s, state{5, "old"})
		info := save(t, s, state{10, "new"})
		path := filepath.Join(info.Path, c.file)
		inflict(t, m, path, c.damage)

		_, err := s.Open(ctx, "checkpoint-10")
		var corrupt *checkpoint.CorruptError
		require.ErrorAs(t, err, &corrupt, c.want)
		require.Equal(t, path, corrupt.Path)
		require.Contains(t, corrupt.Problem, c.want)
		require.Equal(t, 1, strings.Count(err.Error(), path), "the one file, once: %v", err)

		require.Empty(t, log.String())
		require.Equal(t, state{5, "old"}, latest(t, s), "%s: %s", c.file, c.want)
		require.Contains(t, log.String(), "falling back")
		require.Contains(t, log.String(), c.file)
		require.Contains(t, log.String(), "checkpoint-10")
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	info := save(t, s, state{5, "x"})
	for _, file := range []string{"manifest.json", "trainer_state.json", "model.safetensors"} {
		path := filepath.Join(info.Path, file)
		good, err := vfs.ReadFile(m, path, 1<<20)
		require.NoError(t, err)
		for bit := range 8 * len(good) {
			bad := bytes.Clone(good)
			bad[bit/8] ^= 1 << (bit % 8)
			overwrite(t, m, path, bad)
			ck, err := s.Open(ctx, "checkpoint-5")
			if err == nil {
				// White space in the manifest, or the case of a key, may change: what is said does not.
				require.Equal(t, "manifest.json", file)
				require.Equal(t, info, ck.Info, "bit %d", bit)
			}
		}
		overwrite(t, m, path, good)
	}
	require.Equal(t, state{5, "x"}, latest(t, s))
}

func TestAllDamagedFilesAreListed(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	info := save(t, s, state{5, "x"})
	inflict(t, m, filepath.Join(info.Path, "model.safetensors"), truncate)
	inflict(t, m, filepath.Join(info.Path, "trainer_state.json"), remove)
	_, err := s.Open(ctx, "checkpoint-5")
	require.ErrorContains(t, err, "model.safetensors: truncated")
	require.ErrorContains(t, err, "trainer_state.json: missing")

	_, err = s.Latest(ctx)
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorContains(t, err, "model.safetensors: truncated")
	_, err = s.Open(ctx, "checkpoint-6")
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorContains(t, err, filepath.Join("out", "checkpoint-6")+" does not exist")
	_, err = s.Open(ctx, filepath.Join("checkpoint-5", "model.safetensors"))
	require.ErrorContains(t, err, "is a file: want a folder")
}

func TestPathsInAManifestStayInTheFolder(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	require.NoError(t, vfs.MkdirAll(m, filepath.Join("out", "checkpoint-5")))
	manifest := checkpoint.Manifest{FormatVersion: 1, SaveID: 1, Step: 5,
		Files: []checkpoint.File{{Name: "../../etc/passwd"}}}
	text, err := checkpoint.EncodeManifest(&manifest)
	require.NoError(t, err)
	overwrite(t, m, filepath.Join("out", "checkpoint-5", "manifest.json"), text)
	_, err = s.Open(ctx, "checkpoint-5")
	require.ErrorContains(t, err, `part "../../etc/passwd"`)
}

func TestBrokenPointers(t *testing.T) {
	for _, c := range []struct {
		damage damage
		want   string
	}{
		{remove, "no LATEST file"},
		{empty, "empty file"},
		{truncate, ""}, // the line's end alone: no harm
		{replace("}", ""), "not JSON"},
		{replace("checkpoint-10", "../../etc"), `names \"../../etc\": want checkpoint-<step>`},
		{replace("checkpoint-10", "checkpoint-11"), "checkpoint-11 does not exist"},
		{replace(`"format_version":1`, `"format_version":9`), "format version 9"},
	} {
		m := vfs.NewMem()
		s, log := logged(m, "out")
		save(t, s, state{20, "old"})
		save(t, s, state{10, "new"})
		inflict(t, m, filepath.Join("out", "LATEST"), c.damage)
		require.Equal(t, state{10, "new"}, latest(t, s), "the newest by save id")
		if c.want == "" {
			require.Empty(t, log.String())
		} else {
			require.Contains(t, log.String(), c.want)
		}
		info := save(t, s, state{30, "next"})
		require.EqualValues(t, 3, info.SaveID, "ids go on")
		require.Equal(t, state{30, "next"}, latest(t, s))
	}
}

func TestUnreadableFilesAreNotCalledDamaged(t *testing.T) {
	m := vfs.NewMem()
	save(t, quiet(m, "out"), state{5, "x"})
	reads := func(k errorfs.Kind) bool { return k == errorfs.Read }
	for n := 1; ; n++ {
		inject, reached := errorfs.Nth(n, reads, errorfs.ErrIO)
		_, err := quiet(errorfs.Wrap(m, inject), "out").Open(ctx, "checkpoint-5")
		if !reached() {
			require.NoError(t, err)
			require.Greater(t, n, 5)
			return
		}
		require.ErrorIs(t, err, errorfs.ErrIO)
		var corrupt *checkpoint.CorruptError
		require.NotErrorAs(t, err, &corrupt)
	}
}

func TestPartsThatChangeAfterOpening(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	info := save(t, s, state{5, "x"})
	ck, err := s.Open(ctx, "checkpoint-5")
	require.NoError(t, err)
	inflict(t, m, filepath.Join(info.Path, "trainer_state.json"), replace("x", "y"))
	_, err = ck.ReadPart("trainer_state.json")
	require.ErrorContains(t, err, "changed since")
	inflict(t, m, filepath.Join(info.Path, "trainer_state.json"), lengthen)
	_, err = ck.ReadPart("trainer_state.json")
	require.ErrorContains(t, err, "too large")
}
