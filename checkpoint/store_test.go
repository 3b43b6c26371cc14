// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

// quiet is a store that logs nowhere.
func quiet(fsys vfs.FS, dir string) *checkpoint.Store {
	return &checkpoint.Store{Dir: dir, FS: fsys, Log: slog.New(slog.DiscardHandler)}
}

// logged is a store that logs into the returned buffer.
func logged(fsys vfs.FS, dir string) (*checkpoint.Store, *bytes.Buffer) {
	var log bytes.Buffer
	return &checkpoint.Store{Dir: dir, FS: fsys, Log: slog.New(slog.NewTextHandler(&log, nil))}, &log
}

// run is the run that the tests' checkpoints are of.
const run = "run-x"

// state tells the checkpoints of the tests apart.
type state struct {
	Step int64  `json:"step"`
	Gen  string `json:"gen"`
}

func (s state) String() string { return fmt.Sprintf("%d/%s", s.Step, s.Gen) }

// weights is a part whose every byte depends on the state.
func (s state) weights() []byte { return bytes.Repeat([]byte(s.String()+"."), 100) }

// content writes the weights in two pieces.
func (s state) content() checkpoint.Content {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return checkpoint.Content{RunID: run, Parts: []checkpoint.Part{
		{Name: "model.safetensors", Write: func(w io.Writer) error {
			b := s.weights()
			if _, err := w.Write(b[:37]); err != nil {
				return err
			}
			_, err := w.Write(b[37:])
			return err
		}},
		checkpoint.BytesPart("trainer_state.json", text),
		checkpoint.BytesPart("empty.json", nil),
	}}
}

func save(t testing.TB, s *checkpoint.Store, st state) checkpoint.Info {
	t.Helper()
	info, err := s.Save(ctx, st.Step, st.content())
	require.NoError(t, err)
	return info
}

// whole requires that the checkpoint is one of the states in every part, and returns it.
func whole(t testing.TB, ck *checkpoint.Checkpoint) state {
	t.Helper()
	var st state
	require.NoError(t, ck.ReadJSON("trainer_state.json", &st))
	require.Equal(t, st.Step, ck.Step)
	data, err := ck.ReadPart("model.safetensors")
	require.NoError(t, err)
	require.Equal(t, string(st.weights()), string(data))
	data, err = ck.ReadPart("empty.json")
	require.NoError(t, err)
	require.Empty(t, data)
	return st
}

func latest(t testing.TB, s *checkpoint.Store) state {
	t.Helper()
	ck, err := s.Latest(ctx)
	require.NoError(t, err)
	return whole(t, ck)
}

func names(t testing.TB, fsys vfs.FS, dir string) string {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

// overwrite gives the named file other contents.
func overwrite(t testing.TB, fsys vfs.FS, name string, data []byte) {
	t.Helper()
	require.NoError(t, vfs.RemoveAll(fsys, name))
	require.NoError(t, vfs.WriteFile(fsys, name, data))
}

func TestSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := &checkpoint.Store{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	_, err := s.Latest(ctx)
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorIs(t, err, fs.ErrNotExist)

	first := save(t, s, state{5, "x"})
	require.EqualValues(t, 1, first.SaveID)
	require.Equal(t, filepath.Join(dir, "checkpoint-5"), first.Path)
	second := save(t, s, state{10, "x"})
	require.EqualValues(t, 2, second.SaveID)
	require.Equal(t, "checkpoint-10", second.Name())
	require.Equal(t, state{10, "x"}, latest(t, s))
	require.Equal(t, "LATEST checkpoint-10 checkpoint-5", names(t, vfs.OS, dir))
	require.Equal(t, "empty.json manifest.json model.safetensors trainer_state.json", names(t, vfs.OS, first.Path))

	ck, err := checkpoint.Open(ctx, first.Path)
	require.NoError(t, err)
	require.Equal(t, state{5, "x"}, whole(t, ck))
	require.Equal(t, first, ck.Info)
	require.True(t, ck.Has("empty.json"))
	require.False(t, ck.Has("optimizer.json"))
	_, err = ck.ReadPart("optimizer.json")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "checkpoint-5 has no optimizer.json")
	require.ErrorContains(t, ck.ReadJSON("model.safetensors", &struct{}{}), "model.safetensors: ")

	infos, err := s.List()
	require.NoError(t, err)
	require.Equal(t, []checkpoint.Info{first, second}, infos)
}

func TestStepsThatStartAgainFromZero(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	save(t, s, state{5, "old"})
	save(t, s, state{10, "old"})
	info := save(t, s, state{5, "new"})
	require.EqualValues(t, 3, info.SaveID)
	require.Equal(t, state{5, "new"}, latest(t, s), "the newest save, not the largest step")
	require.Equal(t, "LATEST checkpoint-10 checkpoint-5", names(t, m, "out"))

	require.NoError(t, m.Remove(filepath.Join("out", "LATEST")))
	require.Equal(t, state{5, "new"}, latest(t, s))
}

func TestForeignFoldersAreNeverDeleted(t *testing.T) {
	m := vfs.NewMem()
	for _, name := range []string{"checkpoint-5", "checkpoint-7", "checkpoint-x", "checkpoint-05", ".tmp-mine",
		"runs"} {
		require.NoError(t, vfs.MkdirAll(m, filepath.Join("out", name)))
		require.NoError(t, vfs.WriteFile(m, filepath.Join("out", name, "pytorch_model.bin"), []byte("precious")))
	}
	require.NoError(t, vfs.WriteFile(m, filepath.Join("out", "checkpoint-9"), []byte("a file")))
	s, log := logged(m, "out")
	_, err := s.Latest(ctx)
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorContains(t, err, "not a complete checkpoint of Lockstep")

	for _, step := range []int64{1, 5, 9} {
		save(t, s, state{step, "x"})
	}
	require.Contains(t, log.String(), "was renamed")
	_, err = s.Rotate(1, run)
	require.NoError(t, err)
	require.Equal(t, ".tmp-mine LATEST checkpoint-05 checkpoint-5.replaced-2 checkpoint-7 checkpoint-9 "+
		"checkpoint-9.replaced-3 checkpoint-x runs",
		names(t, m, "out"))
	data, err := vfs.ReadFile(m, filepath.Join("out", "checkpoint-5.replaced-2", "pytorch_model.bin"), 100)
	require.NoError(t, err)
	require.Equal(t, "precious", string(data))
	require.Equal(t, state{9, "x"}, latest(t, s))
}

func TestBadContentIsRefused(t *testing.T) {
	part := func(name string) checkpoint.Part { return checkpoint.BytesPart(name, nil) }
	for _, c := range []struct {
		step  int64
		parts []checkpoint.Part
		want  string
	}{
		{-1, []checkpoint.Part{part("a")}, "checkpoint of step -1: want a step of at least 0"},
		{0, nil, "no parts"},
		{0, []checkpoint.Part{part("a"), part("A")}, `part "A" is given twice`},
		{0, []checkpoint.Part{part("")}, `part ""`},
		{0, []checkpoint.Part{part("../a")}, `part "../a"`},
		{0, []checkpoint.Part{part("a/b")}, `part "a/b"`},
		{0, []checkpoint.Part{part(`a\b`)}, `part "a\\b"`},
		{0, []checkpoint.Part{part("c:")}, `part "c:"`},
		{0, []checkpoint.Part{part(".a")}, `part ".a"`},
		{0, []checkpoint.Part{part("a.")}, `part "a."`},
		{0, []checkpoint.Part{part("Manifest.json")}, "the name is taken"},
		{0, []checkpoint.Part{part("LATEST")}, "the name is taken"},
	} {
		m := vfs.NewMem()
		_, err := quiet(m, "out").Save(ctx, c.step, checkpoint.Content{Parts: c.parts})
		require.ErrorContains(t, err, c.want)
		require.Empty(t, names(t, m, "."), "nothing is written")
	}
}

func TestFailingPartsLeaveNothing(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	save(t, s, state{5, "x"})
	before := names(t, m, "out")
	boom := errors.New("boom")
	good := checkpoint.BytesPart("a.json", []byte("{}"))

	_,
		err := s.Save(ctx, 10,
		checkpoint.Content{Parts: []checkpoint.Part{good,
			{Name: "b.json", Write: func(io.Writer) error { return boom }}}})
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "checkpoint-10: part b.json: boom")
	require.Equal(t, before, names(t, m, "out"))

	require.PanicsWithError(t, "boom", func() {
		_,
			_ = s.Save(ctx, 10,
			checkpoint.Content{Parts: []checkpoint.Part{good,
				{Name: "b.json", Write: func(io.Writer) error { panic(boom) }}}})
	})
	require.Equal(t, before, names(t, m, "out"))

	cancelled, cancel := context.WithCancel(ctx)
	_,
		err = s.Save(cancelled, 5,
		checkpoint.Content{Parts: []checkpoint.Part{{Name: "b.json", Write: func(w io.Writer) error {
			cancel()
			_, err := w.Write(make([]byte, 3<<20))
			return err
		}}}})
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Save(cancelled, 5, checkpoint.Content{Parts: []checkpoint.Part{checkpoint.BytesPart("b.json", nil)}})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, before, names(t, m, "out"))
	_, err = s.Latest(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Open(cancelled, "checkpoint-5")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, state{5, "x"}, latest(t, s), "and the store is not locked")
}

func TestFolderThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, vfs.WriteFile(vfs.OS, file, nil))
	for _, dir := range []string{file, filepath.Join(file, "out")} {
		_, err := quiet(nil, dir).Save(ctx, 5, state{5, "x"}.content())
		require.ErrorContains(t, err, file)
		_, err = quiet(nil, dir).Latest(ctx)
		require.Error(t, err)
		_, err = quiet(nil, dir).Open(ctx, "checkpoint-5")
		require.Error(t, err)
	}

	m := vfs.NewMem()
	save(t, quiet(m, "out"), state{5, "x"})
	readOnly := errorfs.Wrap(m, func(op errorfs.Op) error {
		if op.Kind.Changes() && op.Kind != errorfs.Close {
			return fs.ErrPermission
		}
		return nil
	})
	_, err := quiet(readOnly, "out").Save(ctx, 10, state{10, "x"}.content())
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "saving "+filepath.Join("out", "checkpoint-10"))
	require.Equal(t, state{5, "x"}, latest(t, quiet(readOnly, "out")), "loading changes nothing")
}

func TestWriteFiles(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	part := func(data string) checkpoint.Part { return checkpoint.BytesPart("train_results.json", []byte(data)) }
	require.NoError(t,
		s.WriteFiles(ctx, []checkpoint.Part{part("old"), checkpoint.BytesPart("config.json", []byte("{}"))}))
	n := 1
	for ; ; n++ {
		inject, reached := errorfs.Nth(n, nil, errorfs.ErrShortWrite)
		err := quiet(errorfs.Wrap(m, inject), "out").WriteFiles(ctx, []checkpoint.Part{part("new")})
		data, readErr := vfs.ReadFile(m.CrashClone(nil), filepath.Join("out", "train_results.json"), 100)
		require.NoError(t, readErr)
		if !reached() {
			require.NoError(t, err)
			require.Equal(t, "new", string(data))
			break
		}
		require.ErrorIs(t, err, errorfs.ErrNoSpace)
		require.Equal(t, "old", string(data))
	}
	require.Equal(t, 10, n, "stat, lock, read-dir, create, write, sync, close, rename, sync-dir")
	require.Equal(t, "config.json train_results.json", names(t, m, "out"))
	require.ErrorContains(t, s.WriteFiles(ctx, []checkpoint.Part{checkpoint.BytesPart("a/b", nil)}), `part "a/b"`)

	f, err := m.Create(filepath.Join("out", ".tmp-file-all_results.json-0123456789abcdef"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, s.WriteFiles(ctx, []checkpoint.Part{part("newer")}))
	require.Equal(t, "config.json train_results.json", names(t, m, "out"), "what a killed process left is swept up")
}
