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
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
)

// childFolder makes the test binary the process that is killed: it names the folder.
const childFolder = "LOCKSTEP_TEST_CHECKPOINT_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" {
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
