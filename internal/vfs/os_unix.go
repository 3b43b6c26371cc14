// SPDX-License-Identifier: Apache-2.0

//go:build unix

package vfs

import (
	"errors"
	"os"
	"syscall"
)

// syncDir fsyncs a folder. Network and user-space file systems that cannot do that say
// EINVAL or ENOTSUP; they are taken at their word that there is nothing to sync.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, d.Close())
}
