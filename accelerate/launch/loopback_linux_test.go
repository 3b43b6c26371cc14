// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// Where the loopback interface is down, as in a new network namespace, the launcher names it, also that of a job whose
// hosts come and go.
func TestLoopbackIsDown(t *testing.T) {
	for _, part := range []string{"launcher", "elastic"} {
		t.Run(part, func(t *testing.T) { requireLoopbackNamed(t, part) })
	}
}

func requireLoopbackNamed(t *testing.T, part string) {
	t.Helper()
	if os.Geteuid() != 0 {
		lacking.Skip(t, lacking.Hosts, "namespaces", "a network namespace can only be made by root")
	}
	cmd := exec.Command(os.Args[0], part, "1s", "alone", "2", "say", "x")
	cmd.Env = append(os.Environ(), role+"=1", raceAtOnce)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		lacking.Skip(t, lacking.Hosts, "namespaces", err.Error())
	}
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
	require.Contains(t, string(out), "the loopback interface lo is down: want it up, as by ip link set lo up")
}
