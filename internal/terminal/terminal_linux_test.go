// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// wrapper is not a file, but has the descriptor of one.
type wrapper struct{ *os.File }

func TestWidthAndColour(t *testing.T) {
	for _, name := range []string{"COLUMNS", "NO_COLOR", "CI", terminal.EnvColumns} {
		t.Setenv(name, "")
	}
	t.Setenv("TERM", "xterm")
	tty, other, err := screen.OpenTerminal(72, 24)
	require.NoError(t, err)
	defer tty.Close()
	defer other.Close()
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer out.Close()

	require.True(t, terminal.Is(wrapper{tty}))
	require.False(t, terminal.Is(out))
	require.Equal(t, 71, terminal.Width(wrapper{tty}))
	require.Zero(t, terminal.Width(out))
	require.Zero(t, terminal.Width(new(bytes.Buffer)))
	require.Equal(t, "\x1b[33mcareful\x1b[0m", terminal.Paint(tty, terminal.Yellow, "careful"))
	require.Empty(t, terminal.Paint(tty, terminal.Yellow, ""))
	for _, w := range []*os.File{out, in} {
		require.Equal(t, "careful", terminal.Paint(w, terminal.Yellow, "careful"), "a pipe has no colour")
	}

	t.Setenv("COLUMNS", "50")
	require.Equal(t, 71, terminal.Width(tty), "the terminal's own size counts")
	require.NoError(t, screen.SetSize(tty, 0, 0))
	require.Equal(t, 49, terminal.Width(tty))
	t.Setenv("COLUMNS", "")
	require.Equal(t, 79, terminal.Width(tty))
	t.Setenv(terminal.EnvColumns, "75")
	require.Equal(t, 75, terminal.Width(out), "a rank's lines go to the launcher's terminal")
	require.Equal(t, 79, terminal.Width(tty))
	require.False(t, terminal.Colour(out))
	t.Setenv(terminal.EnvColumns, "wide")
	require.Zero(t, terminal.Width(out))
}

func TestNoColour(t *testing.T) {
	tty, other, err := screen.OpenTerminal(80, 24)
	require.NoError(t, err)
	defer tty.Close()
	defer other.Close()
	for _, set := range []string{"TERM", "NO_COLOR", "CI"} {
		for _, name := range []string{"NO_COLOR", "CI"} {
			t.Setenv(name, "")
		}
		t.Setenv("TERM", "xterm")
		require.True(t, terminal.Colour(tty))
		require.True(t, terminal.Moves(tty))
		t.Setenv(set, map[string]string{"TERM": "dumb", "NO_COLOR": "1", "CI": "true"}[set])
		require.False(t, terminal.Colour(tty), set)
	}
}
