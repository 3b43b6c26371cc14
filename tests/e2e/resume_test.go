// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
)

// requireSameEnd checks that two output folders hold the same end of a run of so many
// steps: weights, optimizer, counters and figures, bit for bit.
func requireSameEnd(t testing.TB, want, got string, steps int) {
	t.Helper()
	last := "checkpoint-" + strconv.Itoa(steps)
	files := []string{"model.safetensors", "tokenizer.json", "config.json"}
	for _, f := range []string{"model.safetensors", "optimizer.safetensors", "optimizer.json", "scheduler.json",
		"rng_state.json", "sampler.json", "tokenizer.json"} {
		files = append(files, filepath.Join(last, f))
	}
	for _, f := range files {
		w, err := os.ReadFile(filepath.Join(want, f))
		require.NoError(t, err)
		g, err := os.ReadFile(filepath.Join(got, f))
		require.NoError(t, err)
		require.True(t, slices.Equal(w, g), "%s of %s is not that of %s", f, got, want)
	}
	for _, key := range []string{"eval_loss", "perplexity", "eval_nats_per_byte", "train_loss"} {
		require.Equal(t, figures(t, want, "all_results.json")[key], figures(t, got, "all_results.json")[key], key)
	}
	require.Equal(t, history(t, want, last), history(t, got, last), "losses on the way")
	for _, name := range names(t, got) {
		require.False(t, strings.HasPrefix(name, "."), "%s is left over", name)
	}
}

// history lists what was logged up to a checkpoint, without speeds.
func history(t testing.TB, elem ...string) []string {
	t.Helper()
	var state struct {
		LogHistory []callbacks.Record `json:"log_history"`
	}
	readJSON(t, &state, append(elem, "trainer_state.json")...)
	var lines []string
	for _, r := range state.LogHistory {
		line := ""
		for _, key := range []string{"step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss"} {
			if v, ok := r.Number(key); ok {
				line += fmt.Sprintf("%s %g ", key, v)
			}
		}
		lines = append(lines, line)
	}
	require.NotEmpty(t, lines)
	return lines
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

func TestResume(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	succeed(t, tiny(t, whole, "--save_total_limit", "none", "--dropout", "0.1")...)
	for name, from := range map[string]string{"path": filepath.Join(whole, "checkpoint-5"),
		"other": filepath.Join(whole, "checkpoint-15")} {
		out := filepath.Join(dir, name)
		r := succeed(t, tiny(t, out, "--dropout", "0.1", "--resume_from_checkpoint", from)...)
		require.NotContains(t, r.stderr, "\nstep 5 ", "it does not start over")
		requireSameEnd(t, whole, out, 20)
	}

	// What a run had written when it was at step 10.
	out := filepath.Join(dir, "last")
	require.NoError(t, os.CopyFS(filepath.Join(out, "checkpoint-5"), os.DirFS(filepath.Join(whole, "checkpoint-5"))))
	require.NoError(t, os.CopyFS(filepath.Join(out, "checkpoint-10"), os.DirFS(filepath.Join(whole, "checkpoint-10"))))
	r := succeed(t, tiny(t, out, "--dropout", "0.1", "--resume_from_checkpoint", "last")...)
	require.NotContains(t, r.stderr, "\nstep 10 ")
	require.Contains(t, r.stderr, "step 15 ")
	requireSameEnd(t, whole, out, 20)

	// A run that is done has nothing left to do.
	r = succeed(t, tiny(t, out, "--dropout", "0.1", "--resume_from_checkpoint", "last")...)
	require.NotContains(t, r.stderr, "  loss ")
	requireSameEnd(t, whole, out, 20)
}

// moment is when a process is killed.
type moment struct {
	saves  int           // after so many saves
	inside bool          // and once the next is being written
	delay  time.Duration // and so much later
}

func randomMoment(r *rand.Rand) moment {
	m := moment{saves: r.IntN(4), inside: r.IntN(2) == 0}
	micros := 8000 // a step and a save
	switch {
	case m.inside:
		micros = 2000
	case m.saves == 0:
		micros = 160_000 // somewhere from the first instruction to the first steps
	}
	m.delay = time.Duration(r.IntN(micros)) * time.Microsecond
	return m
}

// strike waits for the moment and kills the process; it reports whether a checkpoint was
// being written when it struck or a little before.
func (m moment) strike(p *process, out string) (inside bool) {
	for range m.saves {
		if !p.await("saved ") {
			return false
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.await("\x00") // what no line contains: to the end
	}()
	inside = m.inside && awaitWriting(out, done)
	time.Sleep(m.delay)
	p.signal(os.Kill)
	<-done
	return inside
}

// awaitWriting polls for the temporary folder of a save, until done.
func awaitWriting(out string, done <-chan struct{}) bool {
	for {
		if m, _ := filepath.Glob(filepath.Join(out, ".tmp-checkpoint-*")); len(m) > 0 {
			return true
		}
		select {
		case <-done:
			return false
		default:
		}
	}
}

// TestKilledRunsEndAsUndisturbedOnes kills runs again and again, continues with "last", and requires the end of the run
// that nobody killed. With -short it is a third of the kills.
func TestKilledRunsEndAsUndisturbedOnes(t *testing.T) {
	kills := 30
	if testing.Short() {
		kills = 10
	}
	const steps = 24
	r := rand.New(rand.NewPCG(5, 6))
	dir := t.TempDir()
	inside := 0
	for run := 0; kills > 0; run++ {
		every := strconv.Itoa(1 + run%2)
		flags := []string{"--max_steps", strconv.Itoa(steps), "--save_steps", every, "--eval_steps", "6",
			"--logging_steps", "1", "--dropout", "0.1"}
		whole, out := filepath.Join(dir, "every"+every), filepath.Join(dir, "run"+strconv.Itoa(run))
		if run < 2 {
			succeed(t, tiny(t, whole, flags...)...)
		}
		for alive := true; alive; {
			argv := tiny(t, out, flags...)
			before := latest(t, out)
			if before != nil {
				argv = append(argv, "--resume_from_checkpoint", "last")
			}
			p := start(t, argv...)
			if kills > 0 {
				if randomMoment(r).strike(p, out) {
					inside++
				}
			}
			got := p.wait()
			if alive = got.code != 0; alive {
				require.Equal(t, -1, got.code, "%s", got.stderr)
				kills--
			}
			requireNoLoss(t, out, before, got.stderr)
		}
		requireSameEnd(t, whole, out, steps)
	}
	t.Logf("%d kills fell into the writing of a checkpoint", inside)
	require.Positive(t, inside)
}

// requireNoLoss checks that the newest checkpoint is at least the one that was there before
// and the last that the process told of.
func requireNoLoss(t testing.TB, out string, before *checkpoint.Checkpoint, stderr string) {
	t.Helper()
	told := int64(-1)
	if before != nil {
		told = before.Step
	}
	for line := range strings.Lines(stderr) {
		if _, step, ok := strings.Cut(strings.TrimSpace(line), "checkpoint-"); ok && strings.HasPrefix(line, "saved ") {
			n, err := strconv.ParseInt(step, 10, 64)
			require.NoError(t, err)
			told = max(told, n)
		}
	}
	if now := latest(t, out); told >= 0 {
		require.NotNil(t, now, "step %d was saved", told)
		require.GreaterOrEqual(t, now.Step, told)
	}
}
