// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package callbacks

// residentMemory gives nothing: the system is not asked.
func residentMemory() (rss, peak int64) { return 0, 0 }
