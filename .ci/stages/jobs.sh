# shellcheck shell=bash
# Jobs under faults, and under real launchers.

# Kills, stops, cut links, full disks, strangers and clocks for CHAOS_SECONDS (600): tests/chaos says how to repeat it.
# Before it, 200 kills inside sharded saves, and 200 inside those of a mesh. Installs Debian's iproute2
# where it is missing; if that fails it runs without it, and says what it leaves out.
stage_chaos() {
	[[ $(uname) != Linux ]] || command -v ip || install iproute2
	LOCKSTEP_CHECKPOINT_KILLS=200 CGO_ENABLED=0 go test -count=1 -run KilledInside ./checkpoint ./trainer/checkpointer ||
		return 1
	CGO_ENABLED=0 go build -o "$work/chaos" ./tests/chaos && "$work/chaos"
}

# The launchers of examples/clusters, real ones on this machine: Open MPI, MPICH and a Slurm of two virtual nodes, whose
# daemons only root can start. Installs Debian's openmpi-bin, mpich, slurmctld, slurmd, slurm-client, munge, libpmix-dev
# and openssl where they are missing.
stage_clusters() {
	local missing=()
	command -v mpirun.openmpi || missing+=(openmpi-bin)
	command -v mpiexec.hydra || missing+=(mpich)
	command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged ||
		missing+=(slurmctld slurmd slurm-client munge)
	# Slurm's plugin opens the library by the name without a version, which the package for developers has.
	compgen -G "/usr/lib/*/pmix2/lib/libpmix.so" || missing+=(libpmix-dev)
	command -v openssl || missing+=(openssl)
	((${#missing[@]} == 0)) || install "${missing[@]}" || return 1
	export LOCKSTEP_REQUIRE_CLUSTERS=openmpi,mpich,slurm CGO_ENABLED=0
	local library
	for library in libmpi.so.40 libmpich.so.12; do
		LOCKSTEP_MPI_LIBRARY=$library go test -count=1 -tags mpi ./comm/mpi || return 1
	done
	go test -count=1 -v ./tests/clusters
}

# Every setting of tests/internal/pipelinetest: schedules, sizes, precisions and engines. clusters and the tests run
# every pair of them. Installs Debian's openmpi-bin and mpich where they are missing.
stage_pipelines() {
	local missing=()
	command -v mpirun.openmpi || missing+=(openmpi-bin)
	command -v mpiexec.hydra || missing+=(mpich)
	((${#missing[@]} == 0)) || install "${missing[@]}" || return 1
	export LOCKSTEP_PIPELINES_WHOLE=1 LOCKSTEP_REQUIRE_CLUSTERS=openmpi,mpich CGO_ENABLED=0
	go test -count=1 -timeout 90m -v -run '^TestPipelines$' ./tests/distributed || return 1
	go test -count=1 -timeout 90m -v -run '^TestPipelinesOverMPI$' ./tests/clusters
}
