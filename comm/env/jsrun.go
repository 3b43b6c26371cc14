// SPDX-License-Identifier: Apache-2.0

package env

import (
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// jsrunLauncher is LSF's jsrun.
var jsrunLauncher = launcher{
	kind: Jsrun,
	sign: func(l Lookup) (string, string) { return has(l, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"), "" },
	read: func(r *reader) {
		r.place("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE")
		r.hosts()
		r.text(fieldJobID, &r.e.JobID, "LSB_JOBID")
		if r.e.LocalWorldSize < r.e.WorldSize && has(r.lookup, VarMasterAddr) == "" {
			r.rankFile()
		}
		r.master("set it to the host of rank 0")
	},
}

// rankFile takes the master from LSF's list of hosts: the first is the launch node, the
// second runs rank 0.
func (r *reader) rankFile() {
	path := r.lookup.Get("LSB_DJOB_RANKFILE")
	if path == "" {
		return
	}
	text, err := vfs.ReadFile(vfs.OS, path, 16<<20)
	if err != nil {
		r.fault("LSB_DJOB_RANKFILE: %v", err)
		return
	}
	hosts := slices.Compact(strings.Fields(string(text)))
	if len(hosts) > 1 {
		r.e.MasterAddr = hosts[1]
		r.say(fieldMasterAddr, hosts[1], "first compute node in LSB_DJOB_RANKFILE")
	}
}
