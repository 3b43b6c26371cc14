// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// readOnly runs a command where only one folder can be written, as in a container with a read-only root: not /tmp, and
// not /dev/shm.
const readOnly = `mount --bind "$0" "$0" && mount -o remount,bind,ro / && mount -t tmpfs -o ro none /dev/shm &&
	exec "$@"`

// TestReadOnlyRoot requires a launched job to need no writable folder except its output's.
func TestReadOnlyRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		lacking.Skip(t, lacking.Hosts, "namespaces", "only root can make a read-only root")
	}
	dir := t.TempDir()
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	require.NoError(t, os.Mkdir(out, 0o755))
	inside := append([]string{"unshare", "--mount", "sh", "-c"}, readOnly, out)
	if text, err := exec.Command(inside[0], append(inside[1:], "sh", "-c", "! touch /tmp/x /dev/shm/x")...).
		CombinedOutput(); err != nil {
		lacking.Skip(t, lacking.Hosts, "namespaces", "no read-only root can be made: "+string(text))
	}
	succeed(t, plain(tiny(whole)))
	p := start(t, append(inside, launched(2, tiny(out))...))
	p.requireEnd(0)
	requireSameEnd(t, whole, out, 24)

	bad := start(t, append(inside, launched(2, tiny(out, "--learning_rate", "-1"))...))
	bad.wait()
	require.NotZero(t, bad.code())
	require.Contains(t, bad.stderr.String(), "learning_rate", "the launcher has the rank's error")
	require.NotContains(t, bad.stderr.String(), "no error file")
}
