// SPDX-License-Identifier: Apache-2.0

package env

import "fmt"

// The variables of torchrun's workers. lockstep launch sets them too.
const (
	varRank           = "RANK"
	varLocalRank      = "LOCAL_RANK"
	varLocalWorldSize = "LOCAL_WORLD_SIZE"
	varRunID          = "TORCHELASTIC_RUN_ID"
	// varAgentStore is True if torchrun's agent itself listens at MASTER_ADDR and MASTER_PORT.
	varAgentStore = "TORCHELASTIC_USE_AGENT_STORE"
)

// torchrunLauncher is torchrun, whatever sets the same variables, and a user who sets RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT by hand.
var torchrunLauncher = launcher{
	kind: Torchrun,
	sign: func(l Lookup) (string, string) {
		if has(l, VarLaunchID) != "" || isPyTorchJob(l) {
			return "", ""
		}
		return has(l, varRank, varRunID), ""
	},
	read:  readTorchrun,
	inner: func(l Lookup) bool { return has(l, varRunID) != "" },
}

func readTorchrun(r *reader) {
	r.need(fieldRank, &r.e.Rank, varRank)
	r.need(fieldWorldSize, &r.e.WorldSize, varWorldSize)
	r.localOfTorchrun()
	r.number(fieldNodeRank, &r.e.NodeRank, "GROUP_RANK")
	r.number(fieldNodes, &r.e.Nodes, "GROUP_WORLD_SIZE")
	r.hosts()
	r.text(fieldJobID, &r.e.JobID, varRunID)
	r.restarts()
	if r.e.WorldSize <= 1 {
		return
	}
	if !r.text(fieldMasterAddr, &r.e.MasterAddr, varMasterAddr) {
		r.missing(fieldMasterAddr, varMasterAddr)
	}
	if !r.number(fieldMasterPort, &r.e.MasterPort, varMasterPort) {
		r.missing(fieldMasterPort, varMasterPort)
	} else if r.e.MasterPort > 65535 || r.e.MasterPort == 0 {
		r.fault("%s is %d: want 1..65535", varMasterPort, r.e.MasterPort)
	}
	if has(r.lookup, varRunID) != "" && get(r.lookup, varAgentStore) == "True" {
		r.e.AgentStore = true
		r.say(fieldAgentStore, "True", varAgentStore)
	}
}

// localOfTorchrun reads the place on this host. DeepSpeed's launcher calls the number of
// local ranks LOCAL_SIZE. With neither of the two the rank has the host for itself.
func (r *reader) localOfTorchrun() {
	local := r.number(fieldLocalRank, &r.e.LocalRank, varLocalRank)
	size := r.number(fieldLocalWorldSize, &r.e.LocalWorldSize, varLocalWorldSize, "LOCAL_SIZE")
	switch {
	case local && !size && r.e.WorldSize == 1:
		r.set(fieldLocalWorldSize, &r.e.LocalWorldSize, 1, "a world of one")
	case local && !size:
		r.missing(fieldLocalWorldSize, varLocalWorldSize)
	case size && !local:
		r.missing(fieldLocalRank, varLocalRank)
	case !local && !size:
		r.alone(fmt.Sprintf("assumed, since %s and %s are not set: one rank on each host", varLocalRank,
			varLocalWorldSize))
	}
}

// restarts reads how often the job was started before.
func (r *reader) restarts() {
	r.number(fieldRestartCount, &r.e.RestartCount, "TORCHELASTIC_RESTART_COUNT")
	r.number(fieldMaxRestarts, &r.e.MaxRestarts, "TORCHELASTIC_MAX_RESTARTS")
}
