// SPDX-License-Identifier: Apache-2.0

//go:build linux

package flight_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
)

const envChild = "FLIGHT_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" { // a rank that waits
		g := local.New(1, comm.Options{})[0]
		flight.Watch(g, "child", slog.Default())
		fmt.Println("ready")
		time.Sleep(time.Minute)
		return
	}
	os.Exit(m.Run())
}

// waiting makes two ranks of which rank 1 does not come to the second call.
func waiting(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(flight.EnvDir, "")
	groups := local.New(2, comm.Options{Timeout: time.Minute})
	var first []*comm.Handle
	for _, g := range groups {
		first = append(first, g.Barrier(comm.Label("first")))
		t.Cleanup(func() { _ = g.Close() })
		t.Cleanup(flight.Watch(g, "job 1", slog.Default()))
	}
	for _, h := range first {
		require.NoError(t, h.Wait(t.Context()))
	}
	groups[0].Barrier(comm.Label("second"))
	t.Cleanup(func() { groups[0].Abort(nil) })
	require.Eventually(t, func() bool {
		entries := groups[0].Flight().Entries
		return len(entries) == 2 && entries[1].State == comm.Started
	}, 10*time.Second, time.Millisecond)
}

func requireCulprit(t *testing.T, dir string) {
	t.Helper()
	report, err := comm.Diagnose(dir)
	require.NoError(t, err)
	require.Len(t, report.Records, 2)
	require.Len(t, report.Findings, 1)
	require.Contains(t, report.Findings[0].Text, `rank 1 did not come to barrier #2 "second"`)
	require.Contains(t, report.Findings[0].Text, "rank 0 waited")
}

func TestAProcessThatIsAskedWritesItsFlightRecords(t *testing.T) {
	waiting(t)
	w, err := flight.Ask(t.Context(), os.Getpid())
	require.NoError(t, err)
	require.Empty(t, w.Error)
	require.Equal(t, []string{flight.Dir("job 1")}, w.Dirs)
	requireCulprit(t, w.Dirs[0])
}

func TestASignalWritesFlightRecords(t *testing.T) {
	waiting(t)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR2))
	dir := flight.Dir("job 1")
	require.Eventually(t, func() bool {
		report, err := comm.Diagnose(dir)
		return err == nil && len(report.Records) == 2
	}, 10*time.Second, 10*time.Millisecond)
	requireCulprit(t, dir)
}

func TestAProcessWithoutRanksHasNoFlightRecords(t *testing.T) {
	_, err := flight.Ask(t.Context(), os.Getpid())
	require.ErrorIs(t, err, flight.ErrNoRank)
	g := local.New(1, comm.Options{})[0]
	stop := flight.Watch(g, "job", slog.Default())
	t.Setenv(flight.EnvDir, t.TempDir())
	_, err = flight.Ask(t.Context(), os.Getpid())
	require.NoError(t, err)
	stop()
	stop() // for a second time
	_, err = flight.Ask(t.Context(), os.Getpid())
	require.ErrorIs(t, err, flight.ErrNoRank)
	require.NoError(t, g.Close())
	_, err = flight.Ask(t.Context(), 1<<22+1) // above the highest number that Linux gives
	require.ErrorIs(t, err, flight.ErrNoProcess)
}

func TestAStoppedProcessIsCalledStopped(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(exe)
	child.Env = append(os.Environ(), envChild+"=1", flight.EnvDir+"="+t.TempDir())
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, flight.Descendants(os.Getpid()), child.Process.Pid)
	_, err = flight.Ask(t.Context(), child.Process.Pid)
	require.NoError(t, err)

	require.NoError(t, child.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err = syscall.Wait4(child.Process.Pid, &status, syscall.WUNTRACED, nil) // until it stands
	require.NoError(t, err)
	require.True(t, status.Stopped())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = flight.Ask(ctx, child.Process.Pid)
	require.ErrorContains(t, err, "it is stopped: kill -CONT continues it")
	require.NoError(t, child.Process.Signal(syscall.SIGCONT))
	_, err = flight.Ask(t.Context(), child.Process.Pid)
	require.NoError(t, err)
}

func TestFlightRecordsOfOldJobsAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(flight.EnvDir, "")
	var dirs []string
	for i := range 20 {
		dir := flight.Dir(fmt.Sprint("../job ", i))
		require.NoError(t, os.MkdirAll(dir, 0o700))
		age := time.Now().Add(time.Duration(i-20) * time.Hour)
		require.NoError(t, os.Chtimes(dir, age, age))
		dirs = append(dirs, dir)
	}
	flight.Dir("next")
	entries, err := os.ReadDir(filepath.Dir(dirs[0]))
	require.NoError(t, err)
	require.Len(t, entries, 15)
	require.NoDirExists(t, dirs[4])
	require.DirExists(t, dirs[5])
}

func TestFlightRecordsAreNotWrittenToAnothersFolder(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv(flight.EnvDir, "")
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(tmp, fmt.Sprint("lockstep-", os.Geteuid()))))
	require.Empty(t, flight.Dir("job"))
	g := local.New(1, comm.Options{})[0]
	defer g.Close()
	defer flight.Watch(g, "job", slog.Default())()
	w, err := flight.Ask(t.Context(), os.Getpid())
	require.NoError(t, err)
	require.Contains(t, w.Error, "is not a folder of this user")
	require.Empty(t, w.Dirs)
}
