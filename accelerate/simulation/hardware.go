// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Link is a connection of a rank.
type Link struct {
	Bandwidth float64 // bytes per second in each direction
	Latency   float64 // seconds from the start of a message to its first byte
}

// time is that of a message of so many bytes.
func (l Link) time(bytes float64) float64 { return l.Latency + bytes/l.Bandwidth }

// Hardware is what each rank of a job has.
type Hardware struct {
	FLOPS           float64 // floating-point operations per second that products reach
	MemoryBandwidth float64 // bytes per second that all other kernels reach
	RanksPerHost    int
	Within, Across  Link    // to ranks of the same host, and of other hosts
	Disk            float64 // bytes per second at which a rank reads a checkpoint
	Start           float64 // seconds from the start of a job's processes to its first step, without the checkpoint
}

// Default is NVIDIA's A100 with half its peaks, eight to a host: 156 TFLOP/s in bfloat16, 1 TB/s of memory, 300 GB/s to
// the same host (NVLink, one direction) and 25 GB/s to others (200 Gb/s InfiniBand for each).
func Default() Hardware {
	return Hardware{FLOPS: 156e12, MemoryBandwidth: 1e12, RanksPerHost: 8, Within: Link{300e9, 3e-6},
		Across: Link{25e9, 10e-6}, Disk: 1e9, Start: 20}
}

// Check refuses figures that no hardware has.
func (h Hardware) Check() error {
	for _, f := range []struct {
		name  string
		value float64
		least float64
	}{
		{"flops", h.FLOPS, 1}, {"memory_bandwidth", h.MemoryBandwidth, 1}, {"bandwidth", h.Within.Bandwidth, 1},
		{"host_bandwidth", h.Across.Bandwidth, 1}, {"latency", h.Within.Latency, 0},
		{"host_latency", h.Across.Latency, 0}, {"disk_bandwidth", h.Disk, 1}, {"start_seconds", h.Start, 0},
	} {
		if !(f.value >= f.least) || math.IsInf(f.value, 0) {
			return fmt.Errorf("simulation: %s is %v: want a number of at least %v", f.name, f.value, f.least)
		}
	}
	if h.RanksPerHost < 1 {
		return fmt.Errorf("simulation: ranks_per_host is %d: want at least 1", h.RanksPerHost)
	}
	return nil
}

// Kernel is the time of a kernel: that of its operations or that of its bytes, whichever is longer.
func (h Hardware) Kernel(k tensor.KernelSpan) float64 {
	return max(k.FLOPs/h.FLOPS, k.Bytes/h.MemoryBandwidth)
}

// host is that of a rank.
func (h Hardware) host(rank int) int { return rank / h.RanksPerHost }

// link connects two ranks.
func (h Hardware) link(a, b int) Link {
	if h.host(a) == h.host(b) {
		return h.Within
	}
	return h.Across
}
