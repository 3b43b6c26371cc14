// SPDX-License-Identifier: Apache-2.0

//go:build unix

package offload

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps a new file without a name, of n bytes of zeros that the disk has for it.
func mapFile(dir string, n int) (memory []byte, err error) {
	f, err := os.CreateTemp(dir, "lockstep-offload-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	if err := reserve(f, n); err != nil {
		return nil, fmt.Errorf("reserving disk space: %w", err)
	}
	memory, err = unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping: %w", err)
	}
	return memory, nil
}

func unmapFile(memory []byte) error { return unix.Munmap(memory) }
