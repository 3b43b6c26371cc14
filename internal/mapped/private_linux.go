// SPDX-License-Identifier: Apache-2.0

package mapped

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// remote are file systems whose files other machines, or a program, may change or take away while they are mapped.
var remote = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "CIFS",
	unix.SMB2_SUPER_MAGIC: "SMB", unix.FUSE_SUPER_MAGIC: "FUSE", unix.V9FS_MAGIC: "9P",
	unix.CEPH_SUPER_MAGIC: "Ceph", unix.CODA_SUPER_MAGIC: "Coda", unix.AFS_SUPER_MAGIC: "AFS",
	unix.AFS_FS_MAGIC: "AFS", unix.OCFS2_SUPER_MAGIC: "OCFS2", 0x0BD00BD0: "Lustre", 0x01161970: "GFS2",
	0x47504653: "GPFS", 0x19830326: "BeeGFS", 0x786F4256: "a folder of VirtualBox's host",
}

// MapPrivate maps a file of a disk of this machine. Numbers in it must be little-endian, as this machine's are.
func MapPrivate(f *os.File) (*Private, error) {
	var fs unix.Statfs_t
	info, err := f.Stat()
	if err == nil {
		err = unix.Fstatfs(int(f.Fd()), &fs)
	}
	if err != nil {
		return nil, err
	}
	if name, ok := remote[int64(fs.Type)&0xFFFFFFFF]; ok {
		return nil, fmt.Errorf("%s lies on %s: %w", f.Name(), name, errors.ErrUnsupported)
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, fmt.Errorf("a big-endian machine: %w", errors.ErrUnsupported)
	}
	size := info.Size()
	if size <= 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("%s has %d bytes: %w", f.Name(), size, errors.ErrUnsupported)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", f.Name(), err)
	}
	Register(memory, f.Name())
	p := &Private{Memory: memory}
	runtime.AddCleanup(p, func(memory []byte) {
		Forget(memory)
		_ = unix.Munmap(memory) // it cannot fail for memory that is mapped
	}, memory)
	return p, nil
}
