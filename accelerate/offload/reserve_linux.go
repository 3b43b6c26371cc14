// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/mapped"
)

// reserve takes the disk's space now: a file with holes would end the process once the disk is full.
func reserve(f *os.File, n int) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, int64(n))
	if errors.Is(err, unix.EOPNOTSUPP) { // as on NFS
		return mapped.Zeros(f, n)
	}
	return err
}
