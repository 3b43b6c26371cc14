// SPDX-License-Identifier: Apache-2.0

package env

import (
	"fmt"
	"strconv"
	"strings"
)

// slurmLauncher is srun. The script of a batch job and a shell on a compute node have a
// task's variables too, though nobody started other tasks beside them.
var slurmLauncher = launcher{
	kind: Slurm,
	sign: func(l Lookup) (string, string) {
		if has(l, "SLURM_PROCID") == "" {
			return "", ""
		}
		if has(l, "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS") == "" {
			return "", "SLURM_PROCID is set, but no step's variables (SLURM_STEP_ID): this is the batch script " +
				"itself, not a task. Start ranks with srun"
		}
		if has(l, "SLURM_PTY_PORT") != "" {
			return "", "SLURM_PTY_PORT is set: this is a shell under srun --pty, not a task. Start ranks with srun"
		}
		return "SLURM_PROCID", ""
	},
	read: readSlurm,
}

func readSlurm(r *reader) {
	r.need(fieldRank, &r.e.Rank, "SLURM_PROCID")
	r.need(fieldWorldSize, &r.e.WorldSize, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
	r.need(fieldLocalRank, &r.e.LocalRank, "SLURM_LOCALID")
	r.number(fieldNodeRank, &r.e.NodeRank, "SLURM_NODEID")
	r.number(fieldNodes, &r.e.Nodes, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
	r.slurmTasksHere()
	r.hosts()
	r.slurmJob()
	r.number(fieldRestartCount, &r.e.RestartCount, "SLURM_RESTART_COUNT") // how often the job was requeued
	r.slurmMaster()
	r.master("want SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, or set it to the host of rank 0")
}

// slurmTasksHere finds the number of tasks on this node in a list such as "4(x2),3".
func (r *reader) slurmTasksHere() {
	name := has(r.lookup, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
	switch {
	case name != "" && r.e.NodeRank != Unknown:
		counts, err := expandCounts(r.lookup.Get(name))
		if err == nil && r.e.NodeRank >= len(counts) {
			err = fmt.Errorf("it has %d nodes, and this is node %d (SLURM_NODEID)", len(counts), r.e.NodeRank)
		}
		if err != nil {
			r.fault("%s is %q: %v", name, r.lookup.Get(name), err)
			return
		}
		r.set(fieldLocalWorldSize, &r.e.LocalWorldSize, counts[r.e.NodeRank], name)
	case r.number(fieldLocalWorldSize, &r.e.LocalWorldSize, "SLURM_NTASKS_PER_NODE"):
	case r.e.Nodes == 1 || r.e.WorldSize == 1:
		r.set(fieldLocalWorldSize, &r.e.LocalWorldSize, r.e.WorldSize, "all ranks are on this host")
	default:
		r.missing(fieldLocalWorldSize, "SLURM_STEP_TASKS_PER_NODE (with SLURM_NODEID)", "SLURM_NTASKS_PER_NODE")
	}
}

// slurmJob makes an id of job and step, since the steps of a job may run side by side.
func (r *reader) slurmJob() {
	job := has(r.lookup, "SLURM_JOB_ID", "SLURM_JOBID")
	if job == "" {
		return
	}
	id, source := r.lookup.Get(job), job
	if step := has(r.lookup, "SLURM_STEP_ID", "SLURM_STEPID"); step != "" {
		id, source = id+"."+r.lookup.Get(step), job+", "+step
	}
	r.e.JobID = id
	r.say(fieldJobID, id, source)
}

// slurmMaster takes the first host of the step. SLURM_LAUNCH_NODE_IPADDR would be the host
// where srun was called.
func (r *reader) slurmMaster() {
	name := has(r.lookup, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
	if name == "" || r.e.WorldSize <= 1 || r.e.Nodes == 1 || has(r.lookup, VarMasterAddr) != "" {
		return
	}
	hosts, err := ExpandHostList(r.lookup.Get(name))
	if err != nil {
		r.fault("%s: %v", name, err)
		return
	}
	r.e.MasterAddr = hosts[0]
	r.say(fieldMasterAddr, hosts[0], "first host of "+name)
}

// expandCounts reads Slurm's short form of a list of counts: "2(x3),1" is 2, 2, 2, 1.
func expandCounts(text string) ([]int, error) {
	var counts []int
	for part := range strings.SplitSeq(text, ",") {
		number, times, repeated := strings.Cut(part, "(x")
		n, err := strconv.Atoi(strings.TrimSpace(number))
		k := 1
		if repeated && err == nil {
			var closed bool
			times, closed = strings.CutSuffix(times, ")")
			if k, err = strconv.Atoi(times); !closed {
				k = 0
			}
		}
		if err != nil || n < 1 || k < 1 || k > maxHosts {
			return nil, fmt.Errorf("%q is not a count: want a form such as 4(x2),3", part)
		}
		for range k {
			counts = append(counts, n)
		}
	}
	return counts, nil
}
