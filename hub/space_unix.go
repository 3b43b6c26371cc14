// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd

package hub

import "golang.org/x/sys/unix"

// freeSpace is what a user may still write to the file system of a folder, in bytes.
func freeSpace(dir string) (free int64, ok bool) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, false
	}
	return int64(fs.Bavail) * int64(fs.Bsize), true
}
