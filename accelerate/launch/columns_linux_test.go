// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"io"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// Ranks know how long their lines may be on the launcher's terminal, behind a prefix; where a stream goes elsewhere too
// lines may have any length.
func TestColumns(t *testing.T) {
	t.Setenv(terminal.EnvColumns, "500") // of a launcher around this one, whose width is none of the ranks'
	both, err := ParseStreams("3")
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		change func(*bench)
		want   string
	}{
		{"terminal", func(*bench) {}, "75"},
		{"with log files", func(b *bench) { b.LogDir = t.TempDir() }, ""},
		{"with log files of what is shown", func(b *bench) { b.Tee, b.LogDir = both, t.TempDir() }, ""},
		{"into a file", func(b *bench) { b.Stderr = &b.err }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tty, other, err := screen.OpenTerminal(80, 24)
			require.NoError(t, err)
			defer other.Close()
			b := newBench(t, 1, "environ")
			b.Stdout, b.Stderr = tty, tty
			c.change(b)
			text := make(chan string)
			go func() {
				all, _ := io.ReadAll(other) // ends with an error when the terminal is closed
				text <- string(all)
			}()
			require.NoError(t, b.run(t))
			require.NoError(t, tty.Close())
			m := regexp.MustCompile(`\[0\] ` + terminal.EnvColumns + `=(\d+)\r`).FindStringSubmatch(<-text)
			if c.want == "" {
				require.Empty(t, m)
				return
			}
			require.NotEmpty(t, m)
			require.Equal(t, c.want, m[1])
		})
	}
}
