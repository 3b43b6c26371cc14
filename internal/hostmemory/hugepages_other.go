// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostmemory

// WantHugePages does nothing: these systems decide by themselves.
func WantHugePages([]byte) {}
