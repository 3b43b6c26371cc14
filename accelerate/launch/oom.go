// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/hostmemory"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// oomKills counts processes that the kernel killed for want of memory: in this process's
// cgroup and on the whole host. A count that cannot be read is 0 and not known.
type oomKills struct {
	cgroup, host           uint64
	cgroupKnown, hostKnown bool
}

// readOOMKills reads both counters; root is the file system's root.
func readOOMKills(root fs.FS) oomKills {
	var k oomKills
	text, _ := hostmemory.CgroupFile(root, "memory.events", "memory.oom_control")
	k.cgroup, k.cgroupKnown = counter(text)
	if text, err := fs.ReadFile(root, "proc/vmstat"); err == nil {
		k.host, k.hostKnown = counter(text)
	}
	return k
}

// counter finds the line "oom_kill n".
func counter(text []byte) (uint64, bool) {
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if number, ok := strings.CutPrefix(s.Text(), "oom_kill "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// hint says what the counters tell about a SIGKILL that nobody here has sent.
func (before oomKills) hint(after oomKills) string {
	switch {
	case after.cgroupKnown && after.cgroup > before.cgroup:
		return fmt.Sprintf("out of memory: the kernel killed %s of this job's cgroup since the ranks were started",
			quantity.Of(int64(after.cgroup-before.cgroup), "process"))
	case after.hostKnown && after.host > before.host:
		return fmt.Sprintf("probably out of memory: the kernel killed %s on this host since the ranks were started",
			quantity.Of(int64(after.host-before.host), "process"))
	case after.cgroupKnown || after.hostKnown:
		return "not out of memory by the kernel's count: somebody or the scheduler sent the signal"
	}
	return "perhaps out of memory; the kernel's count cannot be read here"
}
