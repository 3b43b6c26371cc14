// SPDX-License-Identifier: Apache-2.0

package callbacks

import "runtime/metrics"

// Memory adds to each record what memory the process holds, in bytes: memory_rss and memory_rss_peak, resident memory
// as the system counts it (where it tells: Linux both, macOS the peak), and memory_heap, the live and not yet collected
// objects of the Go heap, which tensors are not part of.
type Memory struct{ Base }

// OnLog adds the figures.
func (*Memory) OnLog(e *Event) error {
	rss, peak := residentMemory()
	if rss > 0 {
		e.Record["memory_rss"] = rss
	}
	if peak > 0 {
		e.Record["memory_rss_peak"] = peak
	}
	e.Record["memory_heap"] = heapMemory()
	return nil
}

// ResidentMemory returns the process's resident memory and its peak so far, in bytes; 0 where the system does not tell.
// It is for package trainer's log.
func ResidentMemory() (rss, peak int64) { return residentMemory() }

func heapMemory() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
