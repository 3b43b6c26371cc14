// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/screen"
)

// A phase has a bar on a terminal, which is gone in the end; what is written meanwhile stands above it.
func TestPhaseOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	for _, c := range []struct {
		unit callbacks.Unit
		want string
	}{{callbacks.Bytes, "/2.0 MB"}, {callbacks.Items, "/2000000"}} {
		tty, other, err := screen.OpenTerminal(80, 24)
		require.NoError(t, err)
		raw := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(other) // ends with an error when the terminal is closed
			raw <- all
		}()
		p := callbacks.NewPhase(tty, true, "reading text", 2_000_000, c.unit)
		p.Add(500_000)
		_, err = callbacks.TerminalOf(tty).Write([]byte("a line\n"))
		require.NoError(t, err)
		p.Set(2_000_000)
		p.Close()
		require.NoError(t, tty.Close())
		text := <-raw
		require.NoError(t, other.Close())
		require.Contains(t, string(text), "reading text 100% |████████████████████| (2")
		require.Contains(t, string(text), c.want)
		s := screen.New(80, 24)
		_, err = s.Write(text)
		require.NoError(t, err)
		require.Equal(t, "a line", s.Text())
		require.Empty(t, s.Broken())
	}
}

// Elsewhere it says nothing, or one line if it lasts.
func TestPhaseElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := callbacks.NewPhase(&out, true, "reading text", 200, callbacks.Bytes)
		p.Add(50)
		time.Sleep(time.Second)
		p.Add(10)
		require.Empty(t, out.String())
		time.Sleep(2 * time.Second)
		for range 3 {
			p.Add(10)
		}
		require.Equal(t, "reading text: 35 % after 3s\n", out.String())
		p.Close()
		out.Reset()

		p = callbacks.NewPhase(&out, true, "reading text", 0, callbacks.Bytes)
		p.Add(0)
		time.Sleep(time.Minute)
		p.Add(0)
		p.Close()
		require.Empty(t, out.String())
	})
	var none *callbacks.Phase
	none.Add(1)
	none.Set(1)
	none.Close()
}
