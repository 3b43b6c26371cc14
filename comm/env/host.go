// SPDX-License-Identifier: Apache-2.0

package env

import (
	"runtime"
	"strconv"

	"github.com/lockstep-ml/lockstep/internal/hostmemory"
)

// Host is what this process may use of the machine.
type Host struct {
	// Cores is the number of processors that the process may run on at once: affinity and
	// the cgroup's limit count, and GOMAXPROCS if it is set.
	Cores int `json:"cores"`
	// CoresSource says which of them decided.
	CoresSource string `json:"cores_source"`
	// Memory is the limit in bytes; 0 where it is not known.
	Memory uint64 `json:"memory"`
	// MemorySource says whether that is the machine's memory or the cgroup's limit.
	MemorySource string `json:"memory_source"`
}

// ReadHost looks at the machine.
func ReadHost(lookup Lookup) Host {
	h := Host{Cores: runtime.GOMAXPROCS(0), CoresSource: "processors that this process may use"}
	switch {
	case lookup.Get("GOMAXPROCS") != "":
		h.CoresSource = "GOMAXPROCS"
	case h.Cores < runtime.NumCPU():
		h.CoresSource = "the cgroup's limit of " + strconv.Itoa(runtime.NumCPU()) + " processors"
	}
	h.Memory, h.MemorySource = hostmemory.Limit()
	return h
}
