// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
)

// onTerminal runs the program on a terminal of 30 lines. look is called when something was written, and may type.
func onTerminal(t *testing.T, columns int, argv []string, look func(s *screen.Screen, keyboard io.Writer)) (
	*screen.Screen, int) {
	t.Helper()
	terminal, other, err := screen.OpenTerminal(columns, 30)
	require.NoError(t, err)
	defer other.Close()
	cmd := command(t, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.Env = append(cmd.Env, "TERM=xterm")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that Ctrl-C reaches it
	require.NoError(t, cmd.Start())
	require.NoError(t, terminal.Close())
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()

	s := screen.New(columns, 30)
	for block := make([]byte, 4096); ; {
		n, err := other.Read(block)
		// A read may bring several drawings: look at each.
		for _, drawing := range bytes.SplitAfter(block[:n], []byte("\r")) {
			_, _ = s.Write(drawing)
			look(s, other)
		}
		if err != nil {
			break // the program has ended
		}
	}
	_ = cmd.Wait() // the caller looks at the exit code
	return s, cmd.ProcessState.ExitCode()
}

// requireTidy requires no line of a display broken, and nothing left of a bar.
func requireTidy(t *testing.T, s *screen.Screen) {
	t.Helper()
	require.NotContains(t, s.Text(), "|", "a bar is left")
	for _, line := range s.Broken() {
		require.NotRegexp(t, `^(training|step|eval|train|saved|stopped|resume) `, line)
	}
}

// TestTerminal trains on a terminal: records stand above one bar, which is gone in the end.
func TestTerminal(t *testing.T) {
	phases := map[string]bool{"reading text ": false, "tokenizer ": false, "tokenizing ": false, "evaluating ": false}
	s, code := onTerminal(t, 100, tiny(t, "out", "--max_steps", "40", "--max_new_tokens", "0"),
		func(s *screen.Screen, _ io.Writer) {
			for phase := range phases {
				phases[phase] = phases[phase] || regexp.MustCompile(phase+` +\d+% \|`).MatchString(s.Text())
			}
			require.LessOrEqual(t, strings.Count(s.Text(), "% |"), 1, "%s", s.Text())
		})
	require.Zero(t, code, "%s", s.Text())
	for phase, seen := range phases {
		require.True(t, seen, phase)
	}
	requireTidy(t, s)
	for _, want := range []string{
		`training on cpu \(\w+, \d+ threads?\), 1 rank, float32:( |\n  )23\.4k parameters, [\d,]+ samples, 40 steps of 8\n`,
		`\nstep  5/40  epoch [\d.]+  loss \d\.\d{4}  grad_norm \d\.\d{4}  lr \d\.\d\de-\d\d +[\d.]+k? tokens/s`,
		`\neval  step 40  eval_loss \d\.\d{4}  nats_per_byte \d\.\d{4}  perplexity [\d.]+ +[\d.]+s\n` +
			`saved out/checkpoint-40\ntrain  step 40/40  `,
	} {
		require.Regexp(t, regexp.MustCompile(want), s.Text())
	}
	require.Equal(t, 1, strings.Count(s.Text(), "training on "))
	require.Equal(t, 1, strings.Count(s.Text(), "saved out/checkpoint-20"))
}

// TestTerminalInterrupt types Ctrl-C: the last lines say what happened and where to continue.
func TestTerminalInterrupt(t *testing.T) {
	typed := false
	s, code := onTerminal(t, 100,
		tiny(t, "out", "--max_steps", "100000", "--eval_strategy", "no", "--save_strategy", "no"),
		func(s *screen.Screen, keyboard io.Writer) {
			if !typed && strings.Contains(s.Text(), "\nstep ") {
				typed = true
				_, err := keyboard.Write([]byte{3})
				require.NoError(t, err)
			}
		})
	require.Equal(t, 130, code, "%s", s.Text())
	requireTidy(t, s)
	require.Regexp(t, `\nSIGINT: stopping after what is under way; [^\n]+\n`, s.Text())
	require.Regexp(t,
		`\nresume from out/checkpoint-\d+\nclm: trainer: interrupted after step \d+: SIGINT$`, s.Text())
	require.NotContains(t, s.Text(), "stopped after", "the error says it")
	require.NotContains(t, s.Text(), "^C")
}
