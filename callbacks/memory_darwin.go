// SPDX-License-Identifier: Apache-2.0

package callbacks

import "golang.org/x/sys/unix"

// residentMemory returns the peak, which getrusage counts in bytes here; the present amount is not available without
// cgo.
func residentMemory() (rss, peak int64) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, 0
	}
	return 0, usage.Maxrss
}
