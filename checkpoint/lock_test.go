// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
)

func TestFolderHasOneHolder(t *testing.T) {
	dir := t.TempDir()
	first, second := quiet(nil, dir), quiet(nil, filepath.Join(dir, "."))
	release, err := first.Acquire(ctx)
	require.NoError(t, err)
	save(t, first, state{1, "x"})

	_, err = second.Save(ctx, 2, state{2, "x"}.content())
	var held *checkpoint.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, os.Getpid(), held.Holder.PID)
	require.ErrorContains(t, err, "is in use by process")
	require.ErrorAs(t, second.WriteFiles(ctx, state{2, "x"}.content().Parts), &held)
	_, err = second.Acquire(ctx)
	require.ErrorAs(t, err, &held)
	require.Equal(t, state{1, "x"}, latest(t, second), "reading needs no lock")
	require.Equal(t, ".lock LATEST checkpoint-1", names(t, vfs.OS, dir), "and nothing was written")

	again, err := first.Acquire(ctx)
	require.NoError(t, err, "a store may hold it more than once")
	release()
	release()
	_, err = second.Acquire(ctx)
	require.ErrorAs(t, err, &held)
	again()
	save(t, second, state{2, "x"})
	require.Equal(t, "LATEST checkpoint-1 checkpoint-2", names(t, vfs.OS, dir))
}

// abandoned leaves a lock file as a holder that was killed leaves it.
func abandoned(t *testing.T, dir string, h checkpoint.Holder) {
	text, err := json.Marshal(h)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.LockFile), text, 0o644))
}

func TestLockOfADeadProcessIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	host, err := os.Hostname()
	require.NoError(t, err)
	abandoned(t, dir, checkpoint.Holder{PID: 1, Host: host, Program: "clm"}) // process 1 lives, but does not hold it
	s, log := logged(nil, dir)
	save(t, s, state{1, "x"})
	require.Empty(t, log.String(), "without a wait")

	abandoned(t, dir, checkpoint.Holder{PID: 1, Host: "elsewhere", Program: "clm"})
	s.SetBeat(20 * time.Millisecond)
	save(t, s, state{2, "x"})
	require.Contains(t, log.String(), "did not release it")
	require.Contains(t, log.String(), "on host elsewhere")
	require.Equal(t, "LATEST checkpoint-1 checkpoint-2", names(t, vfs.OS, dir))
}

// A file system whose locks do not reach other hosts shows only the holder's signs of life.
func TestHolderOnAnotherHostShowsSignsOfLife(t *testing.T) {
	dir := t.TempDir()
	alive := checkpoint.Holder{PID: 7, Host: "elsewhere", Program: "clm"}
	abandoned(t, dir, alive)
	ended := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				alive.Beat++
				abandoned(t, dir, alive)
			}
		}
	}()
	s := quiet(nil, dir)
	s.SetBeat(200 * time.Millisecond)
	_, err := s.Save(ctx, 1, state{1, "x"}.content())
	close(stop)
	<-ended
	var held *checkpoint.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "elsewhere", held.Holder.Host)
	require.Equal(t, ".lock", names(t, vfs.OS, dir), "whose lock stays")

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.Acquire(cancelled)
	require.ErrorIs(t, err, context.Canceled)
}

func TestHolderShowsSignsOfLife(t *testing.T) {
	dir := t.TempDir()
	s := quiet(nil, dir)
	s.SetBeat(time.Millisecond)
	release, err := s.Acquire(ctx)
	require.NoError(t, err)
	defer release()
	require.Eventually(t, func() bool {
		var h checkpoint.Holder
		text, err := os.ReadFile(filepath.Join(dir, checkpoint.LockFile))
		return err == nil && json.Unmarshal(text, &h) == nil && h.Beat > 2
	}, 10*time.Second, time.Millisecond)
}

func TestPlantedLinksAreNotFollowed(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	victim := filepath.Join(elsewhere, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o644))
	for _, name := range []string{".tmp-file-LATEST", ".tmp-file-model.safetensors", "LATEST", "model.safetensors",
		".tmp-delete-checkpoint-1"} {
		require.NoError(t, os.Symlink(victim, filepath.Join(dir, name)))
	}
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, ".tmp-checkpoint-1-1")))
	s := quiet(nil, dir)
	require.NoError(t, s.WriteFiles(ctx, []checkpoint.Part{checkpoint.BytesPart("model.safetensors", []byte("ours"))}))
	save(t, s, state{1, "x"})
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
	require.Equal(t, "LATEST checkpoint-1 model.safetensors", names(t, vfs.OS, dir))

	require.NoError(t, os.Symlink(victim, filepath.Join(dir, checkpoint.LockFile)))
	_, err = s.Save(ctx, 2, state{2, "x"}.content())
	require.Error(t, err)
	text, err = os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
}

func TestCheckpointsOfOtherRunsStay(t *testing.T) {
	m := vfs.NewMem()
	s := quiet(m, "out")
	other := func(step int64) {
		c := state{step, "other"}.content()
		c.RunID = "other"
		_, err := s.Save(ctx, step, c)
		require.NoError(t, err)
	}
	other(1)
	other(2)
	for _, step := range []int64{2, 3, 4} {
		save(t, s, state{step, "x"})
	}
	deleted, err := s.Rotate(1, run)
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-2.replaced-3", "checkpoint-2", "checkpoint-3"}, deleted)
	require.Equal(t, "LATEST checkpoint-1 checkpoint-4", names(t, m, "out"))
}

// SetAside makes way for a new run. The old checkpoints can be loaded, and count in the rotation, as the oldest.
func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	s := quiet(vfs.OS, dir)
	for _, step := range []int64{10, 20, 30} {
		save(t, s, state{step, "old"})
	}
	foreign := filepath.Join(dir, "checkpoint-40")
	require.NoError(t, os.Mkdir(foreign, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "pytorch_model.bin"), []byte("precious"), 0o644))
	renamed, err := s.SetAside()
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-10.replaced-4", "checkpoint-20.replaced-4", "checkpoint-30.replaced-4"},
		renamed)
	_, err = s.Latest(ctx)
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorContains(t, err, "checkpoint-30.replaced-4")
	old, err := checkpoint.Open(ctx, filepath.Join(dir, "checkpoint-20.replaced-4"))
	require.NoError(t, err)
	require.Equal(t, state{20, "old"}, whole(t, old))

	info := save(t, s, state{10, "new"})
	require.EqualValues(t, 5, info.SaveID)
	require.Equal(t, state{10, "new"}, latest(t, s))
	deleted, err := s.Rotate(3, run)
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-10.replaced-4"}, deleted)

	renamed, err = s.SetAside()
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-10.replaced-6"}, renamed)
	save(t, s, state{10, "newest"})
	deleted, err = s.Rotate(2, run)
	require.NoError(t, err)
	require.Equal(t, []string{"checkpoint-20.replaced-4", "checkpoint-30.replaced-4"}, deleted)
	require.Equal(t, "LATEST checkpoint-10 checkpoint-10.replaced-6 checkpoint-40", names(t, vfs.OS, dir))
	require.FileExists(t, filepath.Join(foreign, "pytorch_model.bin"))
}
