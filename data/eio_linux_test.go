// SPDX-License-Identifier: Apache-2.0

package data

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// A disk that fails under a token file (a loop device whose file was cut short) is an error that names the file.
func TestTokenFileOnAFailingDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		lacking.Skip(t, lacking.Hosts, "loop", "only root can mount a disk that fails")
	}
	dir := t.TempDir()
	disk, mount := filepath.Join(dir, "disk"), filepath.Join(dir, "mount")
	require.NoError(t, os.Mkdir(mount, 0o700))
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, 16<<20))
	for _, line := range [][]string{{"mkfs.ext4", "-q", "-F", disk}, {"mount", "-o", "loop", disk, mount}} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			lacking.Skip(t, lacking.Hosts, "loop", "no disk can be mounted: "+err.Error()+": "+string(out))
		}
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(mount, syscall.MNT_DETACH)) })
	path := filepath.Join(mount, "tokens.bin")
	w, err := CreateTokenFile(path, 10)
	require.NoError(t, err)
	require.NoError(t, w.Write(make([]int32, 2<<20)))
	require.NoError(t, w.Close())
	f, err := OpenTokenFile(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Fadvise(int(f.file.Fd()), 0, 0, unix.FADV_DONTNEED)) // it was synced
	require.NoError(t, os.Truncate(disk, 1<<20))
	err = f.ReadTokens(make([]int32, 1000), 1_900_000)
	require.ErrorIs(t, err, syscall.EIO)
	require.EqualError(t, err, "data: token file "+path+": reading 2000 bytes at 3800032: input/output error")
}
