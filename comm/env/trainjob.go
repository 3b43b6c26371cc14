// SPDX-License-Identifier: Apache-2.0

package env

// trainJobLauncher is Kubeflow's TrainJob, whose PET_ variables are meant for a launcher in
// the pod. With one rank in a pod the program can do without one.
var trainJobLauncher = launcher{
	kind: TrainJob,
	sign: func(l Lookup) (string, string) {
		if has(l, VarRank, VarLaunchID) != "" {
			return "", "" // a launcher has read them
		}
		if n := l.Get("PET_NNODES"); n != "" && n != "1" && n != "1:1" {
			return "PET_NNODES", ""
		}
		return has(l, "PET_NODE_RANK"), ""
	},
	read: func(r *reader) {
		r.need(fieldRank, &r.e.Rank, "PET_NODE_RANK")
		r.need(fieldWorldSize, &r.e.WorldSize, "PET_NNODES")
		if n := r.lookup.Get("PET_NPROC_PER_NODE"); n != "" && n != "1" {
			r.fault("PET_NPROC_PER_NODE is %q, so that the pod needs a launcher: run lockstep launch -- PROGRAM, "+
				"which reads the PET_ variables", n)
		}
		r.podPerRank()
		if r.e.WorldSize > 1 {
			r.address("PET_MASTER_ADDR", VarMasterAddr)
		}
		r.number(fieldMasterPort, &r.e.MasterPort, "PET_MASTER_PORT")
		if len(r.faults) == 0 {
			r.master("the operator sets PET_MASTER_ADDR")
		}
	},
}
