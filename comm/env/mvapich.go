// SPDX-License-Identifier: Apache-2.0

package env

// mvapichLauncher is MVAPICH's mpirun_rsh.
var mvapichLauncher = launcher{
	kind: MVAPICH,
	sign: func(l Lookup) (string, string) { return has(l, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"), "" },
	read: func(r *reader) {
		r.place("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")
		r.hosts()
		r.master("pass it to all ranks (mpirun_rsh ... MASTER_ADDR=host program)")
	},
}
