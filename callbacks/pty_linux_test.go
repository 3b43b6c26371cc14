// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"io"
	"log"
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
