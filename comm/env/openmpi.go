// SPDX-License-Identifier: Apache-2.0

package env

// openMPILauncher is Open MPI's mpirun and what derives from it (Spectrum MPI).
var openMPILauncher = launcher{
	kind: OpenMPI,
	sign: func(l Lookup) (string, string) { return has(l, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "" },
	read: func(r *reader) {
		r.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
			"OMPI_COMM_WORLD_LOCAL_SIZE")
		r.hosts() // OMPI_COMM_WORLD_NODE_RANK counts over all jobs on the host
		r.text(fieldJobID, &r.e.JobID, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
		r.master("pass it to all ranks (mpirun -x MASTER_ADDR=host)")
	},
}
