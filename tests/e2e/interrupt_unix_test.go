// SPDX-License-Identifier: Apache-2.0

//go:build unix

package e2e

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var interrupts = map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM}

// TestInterrupt requires the step finished, a checkpoint, exit code 130, and nothing lost for a run that continues from
// there.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	flags := []string{"--max_steps", "250", "--logging_steps", "1", "--eval_steps", "100", "--save_steps", "1000",
		"--dropout", "0.1"}
	succeed(t, tiny(t, whole, flags...)...)
	for name, signal := range interrupts {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(dir, name)
			p := start(t, tiny(t, out, flags...)...)
			require.True(t, p.await("step 5 "))
			p.signal(signal)
			r := p.wait()
			requireOneError(t, r, 130, "clm: trainer: interrupted after step ", ": "+name+"\n")
			require.NotContains(t, r.stdout, "sample:")

			saved := latest(t, out)
			require.NotNil(t, saved)
			require.GreaterOrEqual(t, saved.Step, int64(5))
			require.Less(t, saved.Step, int64(250))
			require.Contains(t, r.stderr, "saved "+filepath.Join(out, "checkpoint-"+strconv.FormatInt(saved.Step, 10)))
			require.Equal(t, parts, names(t, saved.Path))

			succeed(t, tiny(t, out, append(flags, "--resume_from_checkpoint", "last")...)...)
			requireSameEnd(t, whole, out, 250)
		})
	}
}

func TestInterruptWithoutSaving(t *testing.T) {
	for name, signal := range interrupts {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			p := start(t, tiny(t, out, "--max_steps", "1000", "--logging_steps", "1", "--eval_strategy", "no",
				"--save_steps", "4", "--save_total_limit", "none",
				"--save_on_interrupt=false")...)
			require.True(t, p.await("step 5 "))
			p.signal(signal)
			requireOneError(t, p.wait(), 130, "clm: trainer: interrupted after step ")
			saved, err := filepath.Glob(filepath.Join(out, "checkpoint-*"))
			require.NoError(t, err)
			require.NotEmpty(t, saved)
			for _, c := range saved {
				step, err := strconv.Atoi(filepath.Base(c)[len("checkpoint-"):])
				require.NoError(t, err)
				require.Zero(t, step%4, "an interrupt saved %s", c)
			}
		})
	}
}

// TestSecondInterrupt sends two during a step of a minute: the second must not wait for it.
func TestSecondInterrupt(t *testing.T) {
	for name, signal := range interrupts {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			r := interruptTwice(t, signal, tiny(t, out, "--log_level", "info", "--n_layer", "4", "--n_embd", "256",
				"--gradient_accumulation_steps", "10000"))
			status, ok := r.state.Sys().(syscall.WaitStatus)
			require.True(t, ok)
			require.True(t, status.Signaled(), "exit code %d: it finished the step\n%s", r.code, r.stderr)
			require.Equal(t, signal, status.Signal())
			require.Nil(t, latest(t, out))
		})
	}
}

// interruptTwice sends the signals during the first step. A step does not tell that it has
// begun: if the first signal came too early, the run has ended by itself, and the next try
// waits longer.
func interruptTwice(t *testing.T, signal syscall.Signal, argv []string) result {
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		p := start(t, argv...)
		require.True(t, p.await("training on cpu "), "%s", &p.stderr)
		time.Sleep(pause)
		p.signal(signal)
		p.await("interrupt again to stop at once")
		time.Sleep(400 * time.Millisecond) // a second signal within 300 ms counts as the first
		p.signal(signal)
		r := p.wait()
		if r.code != 130 || !strings.Contains(r.stderr, "after step 0") || pause > 5*time.Second {
			return r
		}
	}
}
