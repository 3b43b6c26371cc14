// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newStream(shown *bytes.Buffer) *stream {
	return &stream{prefix: "[7] ", console: &console{}, shown: shown, logger: slog.New(slog.DiscardHandler)}
}

func TestStreamLines(t *testing.T) {
	for _, row := range []struct{ in, want string }{
		{"", ""},
		{"a", "[7] a\n"},
		{"a\nb\n", "[7] a\n[7] b\n"},
		{"\n\n", "[7] \n[7] \n"},
		{"10%\r20%\rdone\n", "[7] 10%\r[7] 20%\r[7] done\n"},
		{"dos\r\nline\r\n", "[7] dos\r\n[7] line\r\n"},
		{"end\r", "[7] end\r"},
		{strings.Repeat("x", maxLine+1), "[7] " + strings.Repeat("x", maxLine) + "\n[7] x\n"},
	} {
		var shown bytes.Buffer
		s := newStream(&shown)
		_, err := s.Write([]byte(row.in))
		require.NoError(t, err)
		s.close()
		require.Equal(t, row.want, shown.String())
	}
}

// However a text is cut, the console shows the same.
func TestStreamPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a\r\n]{0,20}`).Draw(t, "text")
		var whole, pieces bytes.Buffer
		s := newStream(&whole)
		s.Write([]byte(text))
		s.close()
		s = newStream(&pieces)
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			s.Write(rest[:n])
			rest = rest[n:]
		}
		s.close()
		require.Equal(t, whole.String(), pieces.String())
	})
}

func TestStreamTail(t *testing.T) {
	s := newStream(nil)
	s.shown = nil
	for i := range 100 {
		fmt.Fprintf(s, "line %d\n", i)
	}
	require.Len(t, s.lines(), tailLines)
	require.Equal(t, "line 99", s.lines()[tailLines-1])
	fmt.Fprint(s, "10%\r20%\r\n\n"+strings.Repeat("é", tailColumns)+"\n")
	last := s.lines()
	require.Equal(t, "20%", last[tailLines-2])
	require.Equal(t, strings.Repeat("é", tailColumns/2)+" …", last[tailLines-1])
	fmt.Fprint(s, "panic: boom\n\ngoroutine 1 [running]:\n")
	for i := range 100 {
		fmt.Fprintf(s, "frame %d\n", i)
	}
	require.Equal(t, []string{"panic: boom", "goroutine 1 [running]:", "frame 0"}, s.lines()[:3])
	require.Len(t, s.lines(), tailLines)
}

type brokenWriter struct{ writes int }

func (w *brokenWriter) Write([]byte) (int, error) {
	w.writes++
	return 0, errors.New("gone")
}

// A rank goes on when nobody reads the console any more and when its log cannot be written.
func TestStreamOutlivesItsReaders(t *testing.T) {
	var warnings bytes.Buffer
	broken := &brokenWriter{}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	s := &stream{console: &console{}, shown: broken, file: file, logger: slog.New(slog.NewTextHandler(&warnings, nil))}
	for range 3 {
		n, err := s.Write([]byte("x\n"))
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}
	s.close()
	require.Equal(t, 1, broken.writes)
	require.Equal(t, 1, strings.Count(warnings.String(), "a rank's log is truncated"))
}
