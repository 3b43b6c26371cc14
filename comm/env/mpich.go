// SPDX-License-Identifier: Apache-2.0

package env

// mpichLauncher is Hydra, the mpiexec of MPICH and of Intel MPI, and other process managers
// that speak PMI. Some of those tell no place on the host; a world of one has one.
var mpichLauncher = launcher{
	kind: MPICH,
	sign: func(l Lookup) (string, string) {
		if has(l, "SLURM_STEP_ID", "SLURM_STEPID") != "" && has(l, "MPI_LOCALRANKID", "PMI_LOCAL_RANK") == "" {
			return "", "" // srun --mpi=pmi2 sets the same, and Slurm tells more
		}
		return has(l, "PMI_RANK", "PMI_SIZE"), ""
	},
	read: func(r *reader) {
		r.need(fieldRank, &r.e.Rank, "PMI_RANK")
		r.need(fieldWorldSize, &r.e.WorldSize, "PMI_SIZE")
		if r.e.WorldSize == 1 && has(r.lookup, "MPI_LOCALRANKID", "PMI_LOCAL_RANK") == "" {
			r.alone("a world of one")
		} else {
			r.need(fieldLocalRank, &r.e.LocalRank, "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
			r.need(fieldLocalWorldSize, &r.e.LocalWorldSize, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
		}
		r.hosts()
		r.text(fieldJobID, &r.e.JobID, "PMI_JOBID")
		r.master("pass it to all ranks (mpiexec -genv MASTER_ADDR host)")
	},
}
