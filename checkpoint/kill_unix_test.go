// SPDX-License-Identifier: Apache-2.0

//go:build unix

package checkpoint_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
)

// childFolder makes the test binary the process that is killed: it names the folder.
const childFolder = "LOCKSTEP_TEST_CHECKPOINT_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" && os.Getenv("RANK") != "" {
		fmt.Fprintln(os.Stderr, saveShardsForever(dir))
		os.Exit(3)
	} else if dir != "" {
		fmt.Fprintln(os.Stderr, saveForever(dir))
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// saveForever saves the steps 1 to 4 in turn, over and over, tells on standard output
// which save ids are done, and returns only with an error.
func saveForever(dir string) error {
	s := &checkpoint.Store{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	for i := 0; ; i++ {
		st := state{int64(i%4) + 1, fmt.Sprintf("%d.%d", os.Getpid(), i)}
		info, err := s.Save(ctx, st.Step, st.content())
		if err != nil {
			return err
		}
		if _, err := fmt.Println(info.SaveID); err != nil {
			return err
		}
		if _, err := s.Rotate(2, run); err != nil {
			return err
		}
	}
}

func TestKilledAtRandomMoments(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	s := quiet(nil, dir)
	var last int64
	for round := range 30 {
		done := killedChild(t, dir, time.Duration(r.IntN(15_000))*time.Microsecond)
		ck, err := s.Latest(ctx)
		require.NoError(t, err, "round %d", round)
		whole(t, ck)
		require.GreaterOrEqual(t, ck.SaveID, done, "a save that has returned is the least that is found")
		require.GreaterOrEqual(t, ck.SaveID, last, "and what was found once is not lost")
		last = ck.SaveID
	}
	require.Greater(t, last, int64(30), "each process has saved at least once")

	save(t, s, state{100, "after"})
	_, err := s.Rotate(1, run)
	require.NoError(t, err)
	require.Equal(t, "LATEST checkpoint-100", names(t, vfs.OS, dir), "and all leftovers are gone")
}

// killedChild starts a process that saves, kills it a while after its first save has
// ended, and returns the last save id that it told.
func killedChild(t *testing.T, dir string, while time.Duration) (done int64) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childFolder+"="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	first, readErr := lines.ReadString('\n')
	time.Sleep(while)
	_ = cmd.Process.Kill() // a process that has ended already is told below
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	_ = cmd.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "the process ended by itself: %s", stderr.String())
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.NoError(t, readErr)

	whole := strings.Split(first+string(rest), "\n")
	require.GreaterOrEqual(t, len(whole), 2)
	done, err = strconv.ParseInt(whole[len(whole)-2], 10, 64)
	require.NoError(t, err)
	return done
}

// killsVariable is the number of kills of TestRanksKilledInsideShardedSaves, for runs that take longer.
const killsVariable = "LOCKSTEP_CHECKPOINT_KILLS"

// saveShardsForever is saveForever of one rank among processes.
func saveShardsForever(dir string) error {
	c, err := rendezvous.FromEnv()
	if err != nil {
		return err
	}
	c.Timeout = time.Minute
	g, err := shm.Join(ctx, c, comm.Options{Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	s := quiet(nil, dir)
	for i := 0; ; i++ {
		st := state{int64(i%4) + 1, fmt.Sprint(i)}
		info, err := s.SaveShards(ctx, g, st.Step, st.sharded(g.Rank(), g.Size()))
		if err != nil {
			return err
		}
		if g.Rank() != 0 {
			continue
		}
		if _, err := fmt.Println(info.SaveID); err != nil {
			return err
		}
		if _, err := s.Rotate(2, run); err != nil {
			return err
		}
	}
}

// A rank, or all of them, killed at any moment of a save leaves a folder that can be loaded; the others end by
// themselves.
func TestRanksKilledInsideShardedSaves(t *testing.T) {
	kills := 10
	if v := os.Getenv(killsVariable); v != "" {
		var err error
		kills, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	s := quiet(nil, dir)
	var last int64
	for round := range kills {
		who := r.IntN(3) // rank 0, rank 1, both
		done := killedRanks(t, dir, who, time.Duration(r.IntN(15_000))*time.Microsecond)
		ck, err := s.Latest(ctx)
		require.NoError(t, err, "round %d", round)
		wholeShards(t, ck)
		require.GreaterOrEqual(t, ck.SaveID, done, "a save that has returned is the least that is found")
		require.GreaterOrEqual(t, ck.SaveID, last, "and what was found once is not lost")
		last = ck.SaveID
		if who == 1 {
			require.NotContains(t, names(t, vfs.OS, dir), ".tmp-checkpoint", "rank 0 clears up what rank 1 began")
		}
	}
	require.GreaterOrEqual(t, last, int64(kills), "each job has saved at least once")
	save(t, s, state{100, "after"})
	_, err := s.Rotate(1, run)
	require.NoError(t, err)
	require.Equal(t, "LATEST checkpoint-100", names(t, vfs.OS, dir), "and all leftovers are gone")
}

// killedRanks starts two ranks that save, kills one, or both if who is 2, a while after their first save has ended,
// waits for the other, and returns the last save id that rank 0 told.
func killedRanks(t *testing.T, dir string, who int, while time.Duration) (done int64) {
	t.Helper()
	port := commtest.FreePort(t)
	procs, errs := make([]*exec.Cmd, 2), make([]strings.Builder, 2)
	var out io.Reader
	for k := range procs {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childFolder+"="+dir, fmt.Sprint("RANK=", k), "WORLD_SIZE=2",
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, env.VarJobToken+"="+string(commtest.Token))
		cmd.Stderr = &errs[k]
		if k == 0 {
			var err error
			out, err = cmd.StdoutPipe()
			require.NoError(t, err)
		}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all went well
		procs[k] = cmd
	}
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	time.Sleep(while)
	for k, cmd := range procs {
		if who == k || who == 2 {
			_ = cmd.Process.Kill() // one that has ended already is told below
		}
	}
	require.NoError(t, err)
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	for k, cmd := range procs {
		_ = cmd.Wait()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.Equal(t, who == k || who == 2, status.Signaled(), "rank %d: %s", k, errs[k].String())
		if !status.Signaled() {
			require.Equal(t, 3, status.ExitStatus())
			require.Contains(t, errs[k].String(), "is lost", "rank %d names the other", k)
		}
	}
	whole := strings.Split(first+string(rest), "\n")
	require.GreaterOrEqual(t, len(whole), 2)
	done, err = strconv.ParseInt(whole[len(whole)-2], 10, 64)
	require.NoError(t, err)
	return done
}
