// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
)

// TestInterruptedLauncher sends Ctrl-C at random moments, during the start too, and requires
// exit code 130 and nothing left: no process, no file, no port. 16 times with and without
// saving, 8 with -short: each kind of moment over each engine.
func TestInterruptedLauncher(t *testing.T) {
	t.Parallel()
	times := 16
	if testing.Short() {
		times = 8
	}
	for name, save := range map[string]bool{"saving": true, "not saving": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(8, uint64(len(name))))
			longest, stepped := time.Duration(0), ""
			for i := range times {
				out := filepath.Join(t.TempDir(), "out")
				took := interrupt(t, r, out, i, save)
				longest = max(longest, took)
				if requireSaved(t, out, save) {
					stepped = out
				}
			}
			t.Logf("the longest took %v", longest)
			require.Equal(t, save, stepped != "", "some interrupts came during training")
			if save {
				requireResumes(t, stepped)
			}
		})
	}
}

// interrupt starts a job and interrupts it: every fourth time it is within the first
// moments, else after some steps. It returns how long the end took.
func interrupt(t *testing.T, r *rand.Rand, out string, i int, save bool) time.Duration {
	t.Helper()
	backend := []string{"shm", "tcp"}[i/2%2]
	argv := tiny(out, "--max_steps", "1000000", "--eval_strategy", "no", "--save_steps", "1000000", "--ddp_backend",
		backend,
		"--save_on_interrupt="+strconv.FormatBool(save))
	p := start(t, launched(2, argv))
	port := 0
	if i%4 == 3 {
		time.Sleep(time.Duration(r.IntN(150_000)) * time.Microsecond)
		port = p.port()
	} else {
		p.awaitPrinted(fmt.Sprintf("step %d ", 1+r.IntN(8)))
		port = p.port()
		require.NotZero(t, port)
		time.Sleep(time.Duration(r.IntN(3_000)) * time.Microsecond)
	}
	at := time.Now()
	p.signal(syscall.SIGINT)
	text := p.requireEnd(130)
	took := p.endedAt.Sub(at)
	require.Less(t, took, limit, "%s", text)
	require.NotContains(t, text, "failed first", "an interrupt is no failure")
	if port != 0 {
		requireFree(t, port)
	}
	return took
}

// latest opens the checkpoint that a resume would take, every hash verified; nil if there
// is none.
func latest(t testing.TB, out string) *checkpoint.Checkpoint {
	t.Helper()
	s := &checkpoint.Store{Dir: out, Log: slog.New(slog.DiscardHandler)}
	c, err := s.Latest(context.Background())
	if err != nil {
		require.ErrorIs(t, err, checkpoint.ErrNone)
		return nil
	}
	return c
}

// requireSaved checks that an interrupted run has a checkpoint only if it was to save one,
// and nothing by half; it reports whether there is one.
func requireSaved(t testing.TB, out string, save bool) bool {
	t.Helper()
	partial, err := filepath.Glob(filepath.Join(out, ".tmp-*"))
	require.NoError(t, err)
	require.Empty(t, partial)
	if c := latest(t, out); c != nil {
		require.True(t, save, "%s was not wanted", c.Path)
		require.Positive(t, c.Step)
		return true
	}
	if save {
		require.NotContains(t, logged(out), `"loss":`, "it had made steps, and saved none")
	}
	return false
}

// logged is a run's log, "" if it had none yet.
func logged(out string) string {
	text, err := os.ReadFile(filepath.Join(out, "log.jsonl"))
	if err != nil {
		return ""
	}
	return string(text)
}

// requireResumes checks that an interrupted job continues where it was.
func requireResumes(t *testing.T, out string) {
	t.Helper()
	step := latest(t, out).Step
	end := int(step) + 5
	p := succeed(t,
		launched(2, tiny(out, "--max_steps", strconv.Itoa(end), "--eval_strategy", "no", "--resume_from_checkpoint",
			"last")))
	require.NotContains(t, p.stderr.String(), fmt.Sprintf("] step %d ", step))
	require.Contains(t, p.stderr.String(), fmt.Sprintf("] step %d ", step+1))
	require.True(t, strings.HasSuffix(latest(t, out).Path, fmt.Sprintf("checkpoint-%d", end)))
}

// TestInterruptedRanksWaitForTheSave signals ranks as srun and mpirun do, all at once. Those kill every rank when the
// first has failed, so none may end before the checkpoint is complete.
func TestInterruptedRanksWaitForTheSave(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	ranks := startRanks(t, 2, func(int) (argv, env []string) {
		return tiny(out, "--max_steps", "1000000", "--eval_strategy", "no", "--save_steps", "1000000", "--n_layer", "2",
			"--n_embd", "512"), nil
	})
	ranks[0].awaitPrinted("step 1 ")
	for _, p := range ranks {
		p.signal(syscall.SIGTERM)
	}
	<-ranks[1].ended
	_, err := os.Stat(filepath.Join(out, "LATEST"))
	require.NoError(t, err, "rank 1 ended while rank 0 was saving")
	for _, p := range ranks {
		p.wait()
		require.Equal(t, 130, p.code(), "%s", p.stderr)
	}
	require.NotNil(t, latest(t, out))
}
