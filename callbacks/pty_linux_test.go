// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/screen"
)

// TestTerminal runs under a display on a real terminal of the system. The standard logger writes to the same one, and
// to where it wrote before when the run is over.
func TestTerminal(t *testing.T) {
	terminal, other, err := screen.OpenTerminal(90, 30)
	require.NoError(t, err)
	defer other.Close()
	require.Same(t, callbacks.TerminalOf(terminal), callbacks.TerminalOf(terminal))
	before, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(before); log.SetFlags(flags) }()
	log.SetOutput(terminal)
	log.SetFlags(0)
	t.Setenv("TERM", "dumb")
	require.True(t, callbacks.Display(args.Default(""), terminal).(*callbacks.Progress).NoBar)
	t.Setenv("TERM", "xterm")
	show := callbacks.Display(args.Default(""), terminal)
	require.False(t, show.(*callbacks.Progress).NoBar)
	quietly := args.Default("")
	quietly.DisableTQDM = new(true)
	require.True(t, callbacks.Display(quietly, terminal).(*callbacks.Progress).NoBar)

	raw := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(other) // ends with an error when the terminal is closed
		raw <- all
	}()
	l := sixSteps(show)
	l.handler.Add(watch{f: func(e *callbacks.Event) {
		if e.Kind == callbacks.Save {
			log.Print("from the standard logger")
		}
		if e.Kind == callbacks.Evaluate {
			require.NoError(t, screen.SetSize(terminal, 60, 30))
		}
	}})
	l.run(t)
	require.Equal(t, io.Writer(terminal), log.Writer())
	require.NoError(t, terminal.Close())

	s := screen.New(90, 30)
	_, err = s.Write(<-raw)
	require.NoError(t, err)
	require.Empty(t, s.Broken())
	lines := s.Lines()
	require.Equal(t, 2, strings.Count(s.Text(), "saved out/checkpoint-"))
	require.Equal(t, 2, strings.Count(s.Text(), "\nfrom the standard logger\n"))
	require.NotContains(t, s.Text(), "|")
	require.Contains(t, lines[len(lines)-1], "train  step 6/6  epoch 1.50  train_loss 1.5000")
	for i, line := range lines {
		limit := 89
		if i > 4 { // the first evaluation came before
			limit = 59
		}
		require.LessOrEqual(t, len([]rune(line)), limit, line)
	}
}

// TestColours: names of lines, the loss of evaluations and levels have colour on a terminal, unless NO_COLOR is set; in
// a pipe there is no escape byte.
func TestColours(t *testing.T) {
	for _, name := range []string{"CI", "NO_COLOR", "LOCKSTEP_COLUMNS"} {
		t.Setenv(name, "")
	}
	t.Setenv("TERM", "xterm")
	run := func(out, in *os.File) string {
		text := make(chan string)
		go func() {
			all, _ := io.ReadAll(in) // ends with an error when the terminal is closed
			text <- string(all)
		}()
		sixSteps(callbacks.Display(args.Default(""), out)).run(t)
		logger := slog.New(callbacks.NewLogHandler(callbacks.AboveBar(out), slog.LevelInfo))
		logger.Info("fine")
		logger.Warn("a rank is slow, and so are those that wait for it", "rank", 1, "seconds",
			"twelve or thirteen, or more")
		logger.Error("lost")
		require.NoError(t, out.Close())
		return <-text
	}
	terminal, other, err := screen.OpenTerminal(80, 30)
	require.NoError(t, err)
	defer other.Close()
	text := run(terminal, other)
	require.Contains(t, text, "\x1b[1meval\x1b[0m  step 3  \x1b[32meval_loss 1.0000\x1b[0m")
	require.Contains(t, text, "\x1b[1msaved\x1b[0m out/checkpoint-3\r\n")
	require.Contains(t, text, " INFO fine\r\n")
	require.Contains(t, text, " \x1b[33mWARN\x1b[0m a rank is slow, and so are those that wait for it\r\n"+
		"  rank 1  seconds twelve or thirteen, or more\r\n")
	require.Contains(t, text, " \x1b[31mERROR\x1b[0m lost\r\n")

	t.Setenv("NO_COLOR", "1")
	plain, other2, err := screen.OpenTerminal(80, 30)
	require.NoError(t, err)
	defer other2.Close()
	require.NotRegexp(t, `\x1b\[\d*m`, run(plain, other2))

	t.Setenv("NO_COLOR", "")
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	text = run(out, in)
	require.NotContains(t, text, "\x1b")
	require.NotContains(t, text, "\r")
	require.Contains(t, text, "seconds twelve or thirteen")
}

// TestRankOfALauncher: the lines of a rank fit the launcher's terminal, though they go into a pipe, where no bar is.
func TestRankOfALauncher(t *testing.T) {
	t.Setenv("LOCKSTEP_COLUMNS", "66")
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	sixSteps(callbacks.Display(args.Default(""), out)).run(t)
	require.NoError(t, out.Close())
	text, err := io.ReadAll(in)
	require.NoError(t, err)
	require.NotContains(t, string(text), "\x1b")
	require.NotContains(t, string(text), "\r")
	require.Contains(t, string(text), "\neval  step 3  eval_loss 1.0000\n")
	for line := range strings.Lines(string(text)) {
		require.LessOrEqual(t, len(line), 67, line)
	}
}
