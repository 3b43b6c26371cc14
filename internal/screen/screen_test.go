// SPDX-License-Identifier: Apache-2.0

package screen_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
)

func TestScreen(t *testing.T) {
	s := screen.New(5, 3)
	write := func(text string) {
		for _, b := range []byte(text) { // characters and sequences come in pieces
			_, err := s.Write([]byte{b})
			require.NoError(t, err)
		}
	}
	write("ab█d\rx\n")
	require.Equal(t, "xb█d", s.Text())
	write("12345\r\x1b[J6")
	require.Equal(t, "xb█d\n6", s.Text())
	require.Empty(t, s.Broken())
	write("\n123456\n")
	require.Equal(t, []string{"xb█d", "6", "12345", "6"}, s.Lines())
	require.Equal(t, []string{"12345"}, s.Broken())
	write("abcd\r")
	s.Resize(3)
	require.Equal(t, 3, s.Width())
	require.Equal(t, []string{"xb█d", "6", "123", "45", "6", "abc", "d"}, s.Lines())
	write("\x1b[J!")
	require.Equal(t, "xb█d\n6\n123\n45\n6\n!", s.Text())
	write("\x1b[33m?\x1b[0m")
	require.Equal(t, "xb█d\n6\n123\n45\n6\n!?", s.Text(), "colours are left out")
	s = screen.New(6, 3)
	write("abc\n京都x\x1b[3D\x1b[K\x1b[1A\x1b[1CZ")
	require.Equal(t, "abcZ\n京", s.Text())
	write("\n京都京都")
	require.Equal(t, "abcZ\n京都京\n都", s.Text())
	require.Panics(t, func() { write("\x1b[2K") })
}
