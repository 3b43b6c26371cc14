// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/procfs"
)

// guardsOf are the launcher's guards, by the name that they give themselves.
func (l *launched) guardsOf(t *testing.T) []int {
	t.Helper()
	var pids []int
	require.Eventually(t, func() bool {
		pids = nil
		for _, pid := range procfs.Processes() {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
			if err == nil && strings.Contains(string(text), "("+guardName+") S "+strconv.Itoa(l.cmd.Process.Pid)) {
				pids = append(pids, pid)
			}
		}
		return len(pids) == guardCount
	}, 20*time.Second, 5*time.Millisecond)
	return pids
}

// armed is how many targets the kernel switch of a process has.
func armed(pid int) (n int) {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, path := range paths {
		text, _ := os.ReadFile(path) // it may have been closed
		var position, flags int
		if _, err := fmt.Sscanf(string(text), "pos:\t%d\nflags:\t%o", &position, &flags); err == nil &&
			flags&unix.O_ASYNC != 0 {
			n++
		}
	}
	return n / 2
}

// Whichever guards are killed together with the launcher: nothing of what the ranks have started keeps running, in
// whatever sessions. If a guard is left, the temporary folder is removed too.
func TestLauncherAndGuardsKilledTogether(t *testing.T) {
	const ranks, generations = 2, 4
	for mask := range 1 << guardCount {
		t.Run(fmt.Sprintf("guards %03b", mask), func(t *testing.T) {
			t.Parallel()
			l := startLauncher(t, time.Minute, "guard", ranks, ranks*generations, "dynasty", strconv.Itoa(generations))
			killed := []int{l.cmd.Process.Pid}
			for i, pid := range l.guardsOf(t) {
				text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
				require.NoError(t, err)
				require.NotContains(t, string(text), os.Args[0], "pkill -f with the program's name")
				if mask>>i&1 != 0 {
					killed = append(killed, pid)
				}
			}
			// each rank's group, and the three generations after it, which are in other sessions
			for _, pid := range killed {
				require.Eventually(t, func() bool { return armed(pid) == ranks*generations }, 20*time.Second,
					5*time.Millisecond, "process %d has %d targets", pid, armed(pid))
			}
			for _, pid := range killed { // none of them may act before it is killed
				require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
			}
			for _, pid := range killed {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			require.Eventually(t, func() bool { return len(markedProcesses(t, l.mark)) == 0 }, 20*time.Second,
				5*time.Millisecond)
			l.end(t)
			left, err := os.ReadDir(l.temp)
			require.NoError(t, err)
			if mask != 1<<guardCount-1 {
				require.Empty(t, left)
			}
		})
	}
}

// Guards that come later, and processes that leave later, are targets of the kernel too; what has ended is none.
func TestKernelSwitchKeepsUp(t *testing.T) {
	l := startLauncher(t, time.Minute, "guard", 1, 2, "dynasty", "2")
	has := func(targets int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			ready, found := true, map[int]int{}
			for _, pid := range append(l.guardsOf(t), l.cmd.Process.Pid) { // a guard may just be replaced
				found[pid] = armed(pid)
				ready = ready && found[pid] == targets
			}
			if ready {
				return
			}
			require.True(t, time.Now().Before(deadline), "targets of each process: want %d: %v", targets, found)
		}
	}
	has(2)
	first := l.guardsOf(t)[0]
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	require.Eventually(t, func() bool { return !slices.Contains(l.guardsOf(t), first) }, 20*time.Second,
		5*time.Millisecond)
	has(2)
	stray := 0
	for _, line := range l.ready { // in any order
		var pid int
		_, err := fmt.Sscanf(line, "[0] %d ready", &pid)
		require.NoError(t, err, l.ready)
		if session, err := unix.Getsid(pid); err == nil && session == pid {
			stray = pid
		}
	}
	require.NotZero(t, stray, l.ready)
	require.NoError(t, syscall.Kill(stray, syscall.SIGKILL))
	has(1)
	require.NoError(t, l.cmd.Process.Signal(os.Interrupt))
	code, _, _ := l.end(t)
	require.Equal(t, 130, code)
	requireNothingLeft(t, l.mark)
}

// Without guards the kernel ends what ranks have started, too.
func TestLauncherKilledWithoutGuards(t *testing.T) {
	l := startLauncher(t, time.Minute, "alone", 2, 2*4, "dynasty", "4")
	require.Eventually(t, func() bool { return armed(l.cmd.Process.Pid) == 2*4 }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, l.cmd.Process.Kill())
	require.Eventually(t, func() bool { return len(markedProcesses(t, l.mark)) == 0 }, 20*time.Second,
		5*time.Millisecond)
	l.end(t)
}

// Processes of a launch are found wherever they have gone, and looked for only when there are new ones.
func TestStrays(t *testing.T) {
	id := random(8)
	s := newStrays(id)
	require.Empty(t, s.look(nil))
	child := exec.Command("sleep", "60")
	child.Env = []string{string(launchMarker(id))}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, child.Start())
	pid := child.Process.Pid
	require.Eventually(t, func() bool { return s.look(nil)[pid] }, 20*time.Second, time.Millisecond)
	require.Empty(t, s.look(map[int]bool{pid: true}), "it is in a group of the ranks")
	require.Contains(t, s.look(nil), pid)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Empty(t, s.look(nil))
	s.last = 1 << 30 // the numbers have begun again
	require.NotEmpty(t, s.newcomers())
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
