// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// mounted is a command that covers the folder dir with its own file system, which nobody else sees, with the same files
// unless it is read-only; runs the program there; and leaves dir as the program left it there.
func mounted(t testing.TB, options, dir string, argv ...string) *exec.Cmd {
	t.Helper()
	const script = `options=$1 dir=$2; shift 2
mkdir -p "$dir" && cp -R "$dir" "$dir.before" && mount -t tmpfs -o "$options" none "$dir" || exit 99
[ "$options" = ro ] || cp -R "$dir.before/." "$dir" || exit 98
"$@"
code=$?
cp -R "$dir" "$dir.after" || exit 97
exit $code`
	cmd := command(t, argv...)
	cmd.Args = append([]string{"sh", "-c", script, "sh", options, dir, cmd.Path}, argv...)
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	cmd.Path = sh
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}
	return cmd
}

// canMount tells whether this system lets a test mount file systems; many containers do
// not.
func canMount(t testing.TB) bool {
	t.Helper()
	out, err := mounted(t, "size=4k", filepath.Join(t.TempDir(), "dir"), "--help").CombinedOutput()
	if err != nil {
		t.Logf("no file system can be mounted here: %v: %s", err, out)
	}
	return err == nil
}

// TestFullDisk fills a small file system. Where none can be mounted, TestFileSizeLimit has
// made the same calls fail.
func TestFullDisk(t *testing.T) {
	if !canMount(t) {
		return
	}
	requireFailedSave(t, "no space left on device", func(t testing.TB, out string, argv []string) result {
		r := finish(t, mounted(t, "size=1m", out, argv...))
		require.NoError(t, os.RemoveAll(out))
		require.NoError(t, os.Rename(out+".after", out))
		return r
	})
}

// TestReadOnlyOutput cannot take the right to write from root, but a file system can.
func TestReadOnlyOutput(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	var r result
	switch {
	case os.Geteuid() != 0:
		require.NoError(t, os.Mkdir(out, 0o555))
		r = clm(t, tiny(t, out)...)
	case canMount(t):
		r = finish(t, mounted(t, "ro", out, tiny(t, out)...))
	default:
		out = "/proc/out"
		r = clm(t, tiny(t, out)...)
	}
	requireOneError(t, r, 1, "output_dir "+out, "want a folder that can be written to")
	require.NotContains(t, r.stdout, "model  ", "nothing was trained before")
}
