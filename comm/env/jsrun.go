// SPDX-License-Identifier: Apache-2.0

package env

import (
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// jsrunLauncher is LSF's jsrun.
var jsrunLauncher = launcher{
	kind: Jsrun,
	sign: func(l Lookup) (string, string) { return has(l, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"), "" },
	read: func(r *reader) {
		r.need(fieldRank, &r.e.Rank, "JSM_NAMESPACE_RANK")
		r.need(fieldWorldSize, &r.e.WorldSize, "JSM_NAMESPACE_SIZE")
		r.need(fieldLocalRank, &r.e.LocalRank, "JSM_NAMESPACE_LOCAL_RANK")
		r.need(fieldLocalWorldSize, &r.e.LocalWorldSize, "JSM_NAMESPACE_LOCAL_SIZE")
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
	path := get(r.lookup, "LSB_DJOB_RANKFILE")
	if path == "" {
		return
	}
	text, err := vfs.ReadFile(vfs.OS, path, 16<<20)
	if err != nil {
		r.fault("LSB_DJOB_RANKFILE: %v", err)
		return
	}
	hosts := strings.Fields(string(text))
	for _, h := range hosts {
		if h != hosts[0] {
			r.e.MasterAddr = h
			r.say(fieldMasterAddr, h, "first compute node in LSB_DJOB_RANKFILE")
			return
		}
	}
}
