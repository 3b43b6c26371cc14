// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
	"github.com/lockstep-ml/lockstep/program"
)

var facts = []string{"gpt2 of 2 layers", "width 128", "4 heads", program.Count(929_280, "parameter")}

func TestLine(t *testing.T) {
	var out bytes.Buffer
	p := &program.Process{Stdout: &out}
	p.Line("model", facts...)
	p.Line("a long name", "with a fact")
	p.Line("nothing")
	require.Equal(t, "model      gpt2 of 2 layers, width 128, 4 heads, 929,280 parameters\n"+
		"a long name with a fact\nnothing\n", out.String())
	require.Zero(t, p.Width())
}

// Long lines continue in the next one on a terminal, and stay whole elsewhere; blanks stay.
func TestPrintf(t *testing.T) {
	const text = "two:    %s\n\n  %s indented and so long that it is folded\nno end"
	tty, other, err := screen.OpenTerminal(30, 24)
	require.NoError(t, err)
	defer other.Close()
	defer tty.Close()
	p := &program.Process{Stdout: tty}
	p.Printf(text, "b", "c")
	const want = "two:    b\r\n\r\n  c indented and so long that\r\n    it is folded\r\nno end"
	drawn := make([]byte, len(want))
	_, err = io.ReadFull(other, drawn)
	require.NoError(t, err)
	require.Equal(t, want, string(drawn))

	var out bytes.Buffer
	p.Stdout = &out
	p.Printf(text, "b", "c")
	require.Equal(t, "two:    b\n\n  c indented and so long that it is folded\nno end", out.String())
}

// Names have colour on a terminal, and lines fit it; in a pipe there is no escape byte, whatever the length.
func TestLineOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("CI", "")
	for _, c := range []struct{ noColour, want string }{
		{"", "\x1b[1mmodel\x1b[0m      gpt2 of 2 layers, width 128,\r\n           4 heads, 929,280 parameters\r\n"},
		{"1", "model      gpt2 of 2 layers, width 128,\r\n           4 heads, 929,280 parameters\r\n"},
	} {
		t.Setenv("NO_COLOR", c.noColour)
		tty, other, err := screen.OpenTerminal(40, 24)
		require.NoError(t, err)
		p := &program.Process{Stdout: tty}
		require.Equal(t, 39, p.Width())
		p.Line("model", facts...)
		drawn := make([]byte, len(c.want))
		_, err = io.ReadFull(other, drawn)
		require.NoError(t, err)
		require.Equal(t, c.want, string(drawn))
		require.NoError(t, errors.Join(tty.Close(), other.Close()))

		in, out, err := os.Pipe()
		require.NoError(t, err)
		p.Stdout = out
		p.Line("model", facts...)
		require.NoError(t, out.Close())
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		require.Equal(t, "model      gpt2 of 2 layers, width 128, 4 heads, 929,280 parameters\n", string(text))
		require.NoError(t, in.Close())
	}
}

// The error that ends a program is red, and folded between words.
func TestErrorOnATerminal(t *testing.T) {
	tty, other, err := screen.OpenTerminal(40, 24)
	require.NoError(t, err)
	defer other.Close()
	cmd := command(t, "fail at length")
	cmd.Env = append(cmd.Env, "TERM=xterm", "CI=", "NO_COLOR=")
	cmd.Stderr = tty
	require.Error(t, cmd.Run())
	require.NoError(t, tty.Close())
	text, _ := io.ReadAll(other) // ends with an error when the terminal is closed
	require.Regexp(t, `^\x1b\[31m[^ ]+:\x1b\[0m \w`, string(text))
	s := screen.New(40, 24)
	_, err = s.Write(text)
	require.NoError(t, err)
	require.Empty(t, s.Broken())
	require.Contains(t, s.Text(), "\n  ")
}
