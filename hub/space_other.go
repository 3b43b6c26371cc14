// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || freebsd || windows)

package hub

// freeSpace is unknown.
func freeSpace(string) (free int64, ok bool) { return 0, false }
