// SPDX-License-Identifier: Apache-2.0

//go:build unix

package usertemp

import (
	"io/fs"
	"os"
	"syscall"
)

// ownedByUs reports whether a folder belongs to this user and to nobody else.
func ownedByUs(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid() && info.Mode().Perm()&0o077 == 0
}
