// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guardsOf are the launcher's guards, by the name that they give themselves.
func (l *launched) guardsOf(t *testing.T) []int {
	t.Helper()
	var pids []int
	require.Eventually(t, func() bool {
		pids = nil
		for _, pid := range processIDs() {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
			if err == nil && strings.Contains(string(text), "("+guardName+") S "+strconv.Itoa(l.cmd.Process.Pid)) {
				pids = append(pids, pid)
			}
		}
		return len(pids) == guardCount
	}, 20*time.Second, 5*time.Millisecond)
	return pids
}

// Whoever kills the launcher and all guards except one at once leaves nothing running, whichever guard is left.
func TestGuardsAndLauncherKilledTogether(t *testing.T) {
	for survivor := range guardCount {
		l := startLauncher(t, time.Minute, "guard", 2, 2, "family")
		guards := l.guardsOf(t)
		for i, pid := range guards {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
			require.NoError(t, err)
			require.NotContains(t, string(text), os.Args[0], "pkill -f with the program's name")
			if i != survivor { // it must not be the one that acts
				require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
			}
		}
		require.NoError(t, l.cmd.Process.Signal(syscall.SIGSTOP)) // it must replace none
		for i, pid := range guards {
			if i != survivor {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
		require.NoError(t, l.cmd.Process.Kill())
		require.Eventually(t, func() bool { return len(markedProcesses(t, l.mark)) == 0 }, 20*time.Second,
			5*time.Millisecond)
		l.end(t)
		left, err := os.ReadDir(l.temp)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// Guards that are killed one after the other are replaced, and the last ones know what the first ones did.
func TestKilledGuardsAreReplaced(t *testing.T) {
	l := startLauncher(t, time.Minute, "guard", 2, 2, "family")
	first := l.guardsOf(t)
	for _, pid := range first {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	for _, pid := range l.guardsOf(t) {
		require.NotContains(t, first, pid)
	}
	require.NoError(t, l.cmd.Process.Kill())
	require.Eventually(t, func() bool { return len(markedProcesses(t, l.mark)) == 0 }, 20*time.Second,
		5*time.Millisecond)
	l.end(t)
}
