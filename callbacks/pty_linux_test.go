package callbacks_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

// openPty opens a terminal of the given size; what is written to it can be read from the other end.
func openPty(t *testing.T, columns, rows uint16) (terminal, other *os.File) {
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { other.Close() })
	fd := int(other.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	resizePty(t, terminal, columns, rows)
	return terminal, other
}

func resizePty(t *testing.T, terminal *os.File, columns, rows uint16) {
	require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

// TestTerminal runs under a display on a real terminal of the system. The standard logger writes to the same one, and to where it
// wrote before when the run is over.
func TestTerminal(t *testing.T) {
	terminal, other := openPty(t, 90, 30)
	require.Same(t, callbacks.TerminalOf(terminal), callbacks.TerminalOf(terminal))
	before, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(before); log.SetFlags(flags) }()
	log.SetOutput(terminal)
	log.SetFlags(0)
	show := callbacks.Display(args.Default(""), terminal)
	require.IsType(t, &callbacks.Progress{}, show)
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
			resizePty(t, terminal, 60, 30)
		}
	}})
	l.run(t)
	require.Equal(t, io.Writer(terminal), log.Writer())
	require.NoError(t, terminal.Close())

	s := newScreen(90, 30)
	_, err := s.Write(<-raw)
	require.NoError(t, err)
	require.Empty(t, s.tooLong())
	lines := s.lines()
	require.Equal(t, 2, strings.Count(s.text(), "saved out/checkpoint-"))
	require.Equal(t, 2, strings.Count(s.text(), "\nfrom the standard logger\n"))
	require.NotContains(t, s.text(), "|")
	require.Contains(t, lines[len(lines)-1], "train  step 6/6  epoch 1.50  train_loss 1.5000")
	for i, line := range lines {
		limit := 89
		if i > 4 { // the first evaluation came before
			limit = 59
		}
		require.LessOrEqual(t, len([]rune(line)), limit, line)
	}
}
