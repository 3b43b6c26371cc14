// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
)

// TestRanksOnATerminal: the lines of ranks fit the terminal of their launcher, behind its prefixes, and no fact is said
// twice at the end.
func TestRanksOnATerminal(t *testing.T) {
	tty, other, err := screen.OpenTerminal(80, 24)
	require.NoError(t, err)
	defer other.Close()
	line := launched(2, tiny(filepath.Join(t.TempDir(), "out"), "--max_steps", "4", "--max_new_tokens", "0"))
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "TERM=xterm")
	cmd.Stdout, cmd.Stderr = tty, tty
	require.NoError(t, cmd.Start())
	require.NoError(t, tty.Close())
	s := screen.New(80, 24)
	_, _ = io.Copy(s, other) // ends with an error when the program has ended
	require.NoError(t, cmd.Wait(), "%s", s.Text())
	require.Empty(t, s.Broken())
	require.Regexp(t, `\n\[0\] eval  step 4  eval_loss \d`, s.Text())
	require.Regexp(t, `\n\[0\] train  step 4/4  .*train_loss \d`, s.Text())
	require.Regexp(t, `\n\[0\] baseline   \d\.\d+ nats per byte, by counting`, s.Text())
	for _, once := range []string{"] text  ", "train_loss ", "] eval  step 4  ", "] baseline  "} {
		require.Equal(t, 1, strings.Count(s.Text(), once), "%s\n%s", once, s.Text())
	}
}
