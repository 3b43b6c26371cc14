// SPDX-License-Identifier: Apache-2.0

package env

import "fmt"

// The variables of torchrun's workers. lockstep launch sets them too.
const (
	VarRank           = "RANK"
	VarWorldSize      = "WORLD_SIZE"
	VarLocalRank      = "LOCAL_RANK"
	VarLocalWorldSize = "LOCAL_WORLD_SIZE"
	VarNodeRank       = "GROUP_RANK"
	VarNodes          = "GROUP_WORLD_SIZE"
	VarMasterAddr     = "MASTER_ADDR"
	VarMasterPort     = "MASTER_PORT"
	VarRunID          = "TORCHELASTIC_RUN_ID"
	VarRestartCount   = "TORCHELASTIC_RESTART_COUNT"
	VarMaxRestarts    = "TORCHELASTIC_MAX_RESTARTS"
	// VarAgentStore is True if torchrun's agent itself listens at MASTER_ADDR and MASTER_PORT.
	VarAgentStore = "TORCHELASTIC_USE_AGENT_STORE"
)

// torchrunLauncher is torchrun, whatever sets the same variables, and a user who sets RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT by hand.
var torchrunLauncher = launcher{
	kind: Torchrun,
	sign: func(l Lookup) (string, string) {
		if has(l, VarLaunchID) != "" || isPyTorchJob(l) {
			return "", ""
		}
		return has(l, VarRank, VarRunID), ""
	},
	read:  readTorchrun,
	inner: func(l Lookup) bool { return has(l, VarRunID) != "" },
}

func readTorchrun(r *reader) {
	r.need(fieldRank, &r.e.Rank, VarRank)
	r.need(fieldWorldSize, &r.e.WorldSize, VarWorldSize)
	r.localOfTorchrun()
	r.number(fieldNodeRank, &r.e.NodeRank, VarNodeRank)
	r.number(fieldNodes, &r.e.Nodes, VarNodes)
	r.hosts()
	r.text(fieldJobID, &r.e.JobID, VarRunID)
	r.restarts()
	if r.e.WorldSize <= 1 {
		return
	}
	r.address(VarMasterAddr)
	if !r.number(fieldMasterPort, &r.e.MasterPort, VarMasterPort) {
		r.missing(fieldMasterPort, VarMasterPort)
	} else if r.e.MasterPort > 65535 || r.e.MasterPort == 0 {
		r.fault("%s is %d: want 1..65535", VarMasterPort, r.e.MasterPort)
	}
	if has(r.lookup, VarRunID) != "" && r.lookup.Get(VarAgentStore) == "True" {
		r.e.AgentStore = true
		r.say(fieldAgentStore, "True", VarAgentStore)
	}
}

// localOfTorchrun reads the place on this host. DeepSpeed's launcher calls the number of
// local ranks LOCAL_SIZE. With neither of the two the rank has the host for itself.
func (r *reader) localOfTorchrun() {
	local := r.number(fieldLocalRank, &r.e.LocalRank, VarLocalRank)
	size := r.number(fieldLocalWorldSize, &r.e.LocalWorldSize, VarLocalWorldSize, "LOCAL_SIZE")
	switch {
	case local && !size && r.e.WorldSize == 1:
		r.set(fieldLocalWorldSize, &r.e.LocalWorldSize, 1, "a world of one")
	case local && !size:
		r.missing(fieldLocalWorldSize, VarLocalWorldSize)
	case size && !local:
		r.missing(fieldLocalRank, VarLocalRank)
	case !local && !size:
		r.alone(fmt.Sprintf("assumed, since %s and %s are not set: one rank on each host", VarLocalRank,
			VarLocalWorldSize))
	}
}

// restarts reads how often the job was started before.
func (r *reader) restarts() {
	r.number(fieldRestartCount, &r.e.RestartCount, VarRestartCount)
	r.number(fieldMaxRestarts, &r.e.MaxRestarts, VarMaxRestarts)
}
