// SPDX-License-Identifier: Apache-2.0

package hub

import "golang.org/x/sys/windows"

// freeSpace is what a user may still write to the disk of a folder, in bytes.
func freeSpace(dir string) (free int64, ok bool) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, false
	}
	var n uint64
	if err := windows.GetDiskFreeSpaceEx(name, &n, nil, nil); err != nil {
		return 0, false
	}
	return int64(min(n, 1<<62)), true
}
