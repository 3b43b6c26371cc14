// SPDX-License-Identifier: Apache-2.0

package env

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

type vars = map[string]string

// with returns base and more; a value of "" removes.
func with(base, more vars) vars {
	m := maps.Clone(base)
	maps.Copy(m, more)
	return m
}

var (
	torchrunWorker = vars{
		"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
		"GROUP_WORLD_SIZE": "2",
		"MASTER_ADDR":      "node-0", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "job",
		"TORCHELASTIC_RESTART_COUNT": "1",
		"TORCHELASTIC_MAX_RESTARTS":  "3", "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8",
	}
	lockstepWorker = with(torchrunWorker, vars{"LOCKSTEP_LAUNCH_ID": "abc"})
	openMPIRank    = vars{
		"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
		"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "9", "MASTER_ADDR": "a",
	}
	hydraRank = vars{"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
	slurmTask = vars{
		"SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "2",
		"SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2",
		"SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4711",
		"SLURM_STEP_ID":            "2",
		"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
	}
	pytorchJobPod = vars{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": "1", "WORLD_SIZE": "3",
		"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
	trainJobPod = vars{
		"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2", "PET_NODE_RANK": "2", "PET_NNODES": "4",
		"PET_NPROC_PER_NODE": "1",
		"PET_MASTER_ADDR":    "job-node-0-0.job", "PET_MASTER_PORT": "29400",
	}
	indexedPod = vars{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3",
		"MASTER_ADDR": "train-0.svc", "HOSTNAME": "train-2"}
)

// place is what a row of the table says.
type place struct {
	Kind                                        Kind
	Rank, World, Local, LocalWorld, Node, Nodes int
	Addr                                        string
	Port                                        int
}

func placeOf(e *Environment) place {
	return place{e.Kind, e.Rank, e.WorldSize, e.LocalRank, e.LocalWorldSize, e.NodeRank, e.Nodes, e.MasterAddr,
		e.MasterPort}
}

func TestDetect(t *testing.T) {
	rankFile := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(rankFile, []byte("login\nc1\nc1\nc2\nc2\n"), 0o600))
	for _, row := range []struct {
		name string
		vars vars
		want place
	}{
		{"nothing", vars{"HOME": "/"}, place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"set to nothing", vars{"RANK": " ", "WORLD_SIZE": ""}, place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"a world of one by hand", vars{"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"lockstep", lockstepWorker, place{Lockstep, 5, 8, 1, 4, 1, 2, "node-0", 29511}},
		{"torchrun", torchrunWorker, place{Torchrun, 5, 8, 1, 4, 1, 2, "node-0", 29511}},
		{"by hand", vars{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"},
			place{Torchrun, 1, 2, 0, 1, Unknown, Unknown, "h", 7}},
		{"by hand on one host", vars{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
			"MASTER_ADDR": "h", "MASTER_PORT": "7"},
			place{Torchrun, 1, 2, 1, 2, 0, 1, "h", 7}},
		{"DeepSpeed", vars{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "MASTER_ADDR": "h",
			"MASTER_PORT": "7"},
			place{Torchrun, 1, 2, 1, 2, 0, 1, "h", 7}},
		{"by hand, one rank", vars{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
			place{Torchrun, 0, 1, 0, 1, 0, 1, "", 0}},
		{"Open MPI on two hosts", openMPIRank, place{OpenMPI, 3, 4, 1, 2, Unknown, Unknown, "a", DefaultMasterPort}},
		{"Open MPI on one host", with(openMPIRank,
			vars{"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "MASTER_ADDR": "",
				"MASTER_PORT": "8"}),
			place{OpenMPI, 3, 4, 3, 4, 0, 1, "127.0.0.1", 8}},
		{"Open MPI inside Slurm counts daemons there", with(slurmTask, openMPIRank),
			place{OpenMPI, 3, 4, 1, 2, Unknown, Unknown, "a", DefaultMasterPort}},
		{"MPICH", hydraRank, place{MPICH, 1, 2, 1, 2, 0, 1, "127.0.0.1", DefaultMasterPort}},
		{"one rank under PMI", vars{"PMI_RANK": "0", "PMI_SIZE": "1"}, place{MPICH, 0, 1, 0, 1, 0, 1, "", 0}},
		{"MVAPICH", vars{"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1",
			"MV2_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": "9"},
			place{MVAPICH, 1, 2, 1, 2, 0, 1, "127.0.0.1", 9}},
		{"Horovod", vars{"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2",
			"HOROVOD_CROSS_RANK": "1",
			"HOROVOD_CROSS_SIZE": "2", "MASTER_ADDR": "h"}, place{Horovod, 2, 4, 0, 2, 1, 2, "h", DefaultMasterPort}},
		{"jsrun", vars{"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "0",
			"JSM_NAMESPACE_LOCAL_SIZE": "2",
			"LSB_DJOB_RANKFILE":        rankFile, "MASTER_PORT": "9"},
			place{Jsrun, 2, 4, 0, 2, Unknown, Unknown, "c1", 9}},
		{"Slurm", slurmTask, place{Slurm, 6, 7, 2, 3, 1, 2, "gpu07", jobPort("4711.2")}},
		{"Slurm with --mpi=pmi2", with(slurmTask, vars{"PMI_RANK": "6", "PMI_SIZE": "7"}),
			place{Slurm, 6, 7, 2, 3, 1, 2, "gpu07", jobPort("4711.2")}},
		{"Slurm, the user's master", with(slurmTask, vars{"MASTER_ADDR": "x", "MASTER_PORT": "5"}),
			place{Slurm, 6, 7, 2, 3, 1, 2, "x", 5}},
		{"Slurm with the job's variables alone",
			vars{"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEPID": "0",
				"SLURM_NTASKS_PER_NODE": "1",
				"SLURM_NODEID":          "1", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "a,b"},
			place{Slurm, 1, 2, 0, 1, 1, 2, "a", DefaultMasterPort}},
		{"Slurm on one node", vars{"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEPID": "0",
			"SLURM_NNODES": "1", "MASTER_PORT": "4"},
			place{Slurm, 1, 2, 1, 2, 0, 1, "127.0.0.1", 4}},
		{"a batch script is no task", with(slurmTask, vars{"SLURM_STEP_ID": "", "SLURM_STEP_NUM_TASKS": ""}),
			place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"a shell is no task", with(slurmTask, vars{"SLURM_PTY_PORT": "1234"}), place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"torchrun inside Slurm", with(slurmTask, torchrunWorker), place{Torchrun, 5, 8, 1, 4, 1, 2, "node-0", 29511}},
		{"lockstep inside a TrainJob", with(trainJobPod, lockstepWorker),
			place{Lockstep, 5, 8, 1, 4, 1, 2, "node-0", 29511}},
		{"lockstep inside Open MPI", with(openMPIRank, lockstepWorker),
			place{Lockstep, 5, 8, 1, 4, 1, 2, "node-0", 29511}},
		{"PyTorchJob", pytorchJobPod, place{PyTorchJob, 1, 3, 0, 1, 1, 3, "job-master-0", 23456}},
		{"torchrun inside Kubernetes", with(pytorchJobPod, torchrunWorker),
			place{Torchrun, 5, 8, 1, 4, 1, 2, "node-0", 29511}},
		{"TrainJob", trainJobPod, place{TrainJob, 2, 4, 0, 1, 2, 4, "job-node-0-0.job", 29400}},
		{"a launcher's default alone", vars{"PET_NPROC_PER_NODE": "4", "PET_NNODES": "1:1"},
			place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"Indexed Job", indexedPod, place{IndexedJob, 2, 3, 0, 1, 2, 3, "train-0.svc", DefaultMasterPort}},
		{"an index alone", vars{"JOB_COMPLETION_INDEX": "2"}, place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"an index in a world of one", vars{"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "1"},
			place{None, 0, 1, 0, 1, 0, 1, "", 0}},
		{"RANK by hand that agrees with Slurm",
			with(slurmTask, vars{"RANK": "6", "WORLD_SIZE": "7", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3",
				"MASTER_ADDR": "m", "MASTER_PORT": "3"}),
			place{Torchrun, 6, 7, 2, 3, Unknown, Unknown, "m", 3}},
		{"WORLD_SIZE that agrees with MPI", with(hydraRank, vars{"WORLD_SIZE": "2"}),
			place{MPICH, 1, 2, 1, 2, 0, 1, "127.0.0.1", DefaultMasterPort}},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := Detect(Map(row.vars))
			require.NoError(t, err)
			require.Equal(t, row.want, placeOf(e))
			require.Equal(t, row.want.World > 1, e.Distributed())
			requireExplained(t, e, row.vars)
		})
	}
}

// requireExplained checks that every value has one finding, and that the findings' values
// are the environment's.
func requireExplained(t *testing.T, e *Environment, v vars) {
	t.Helper()
	count := map[string]int{}
	for _, f := range e.Findings {
		count[f.Field]++
		require.NotEmpty(t, f.Source)
		if text, ok := v[f.Source]; ok && f.Source != "SLURM_STEP_TASKS_PER_NODE" {
			require.Equal(t, text, f.Value, "%s from %s", f.Field, f.Source)
		}
	}
	for _, field := range []string{fieldKind, fieldRank, fieldWorldSize, fieldLocalRank, fieldLocalWorldSize} {
		require.Equal(t, 1, count[field], "findings for %s", field)
	}
	require.Equal(t, e.WorldSize > 1, count[fieldMasterAddr] == 1 && count[fieldMasterPort] == 1, "master: %v",
		e.Findings)
}

// torchrun's agent keeps MASTER_PORT for itself if it says so; nobody else does.
func TestAgentStore(t *testing.T) {
	const agent = "TORCHELASTIC_USE_AGENT_STORE"
	for _, row := range []struct {
		name string
		vars vars
		want bool
	}{
		{"torchrun", with(torchrunWorker, vars{agent: "True"}), true},
		{"torchrun that shares no store", with(torchrunWorker, vars{agent: "False"}), false},
		{"torchrun before it said so", torchrunWorker, false},
		{"by hand in a worker's shell", with(torchrunWorker, vars{agent: "True", "TORCHELASTIC_RUN_ID": ""}), false},
		{"lockstep inside torchrun", with(lockstepWorker, vars{agent: "True"}), false},
		{"one rank",
			with(torchrunWorker, vars{agent: "True", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
				"LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := Detect(Map(row.vars))
			require.NoError(t, err)
			require.Equal(t, row.want, e.AgentStore)
			requireExplained(t, e, row.vars)
			if row.want {
				require.Equal(t, "torchrun: rank 5 of 8, local rank 1 of 4, torchrun's store at node-0 port 29511",
					e.String())
			}
		})
	}
}

func TestNotes(t *testing.T) {
	for _, row := range []struct {
		name string
		vars vars
		want []string
	}{
		{"none", torchrunWorker, nil},
		{"passed over", with(slurmTask, torchrunWorker),
			[]string{"Slurm is there too (SLURM_PROCID is set) and was not used: torchrun runs inside it"}},
		{"agrees",
			with(slurmTask, vars{"PMI_RANK": "6", "PMI_SIZE": "7", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3",
				"MASTER_ADDR": "m"}),
			[]string{"Slurm (SLURM_PROCID is set) says the same"}},
		{"batch script", vars{"SLURM_PROCID": "0"},
			[]string{"SLURM_PROCID is set, but no step's variables (SLURM_STEP_ID): this is the batch script itself, " +
				"not a task. Start ranks with srun"}},
		{"index", vars{"JOB_COMPLETION_INDEX": "2"},
			[]string{"JOB_COMPLETION_INDEX is set, but WORLD_SIZE is not: this pod runs alone. To train together, " +
				"set WORLD_SIZE to the Job's completions and MASTER_ADDR to <job>-0.<service>"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := Detect(Map(row.vars))
			require.NoError(t, err)
			require.Equal(t, row.want, e.Notes)
		})
	}
}

func TestDetectRefuses(t *testing.T) {
	for _, row := range []struct {
		name string
		vars vars
		want string
	}{
		{"rank alone", vars{"RANK": "0"}, "environment of torchrun: RANK is set, but the world size is not: want " +
			"WORLD_SIZE"},
		{"world alone", vars{"WORLD_SIZE": "4"},
			"environment of none: WORLD_SIZE is 4, but no RANK is set: set both, or neither"},
		{"local rank alone", vars{"LOCAL_RANK": "1"},
			`environment of none: LOCAL_RANK is "1", but no RANK is set: set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or none of them`},
		{"no master", with(torchrunWorker, vars{"MASTER_ADDR": "", "MASTER_PORT": ""}),
			"environment of torchrun: 2 faults:\n  - RANK is set, but the master address is not: want MASTER_ADDR\n  " +
				"- RANK is set, but the master port is not: want MASTER_PORT"},
		{"local world missing", with(torchrunWorker, vars{"LOCAL_WORLD_SIZE": ""}),
			"environment of torchrun: RANK is set, but the local world size is not: want LOCAL_WORLD_SIZE"},
		{"local rank missing", with(torchrunWorker, vars{"LOCAL_RANK": ""}),
			"environment of torchrun: RANK is set, but the local rank is not: want LOCAL_RANK"},
		{"no number", with(torchrunWorker, vars{"RANK": "one"}),
			`environment of torchrun: RANK is "one": want a number from 0`},
		{"negative", with(torchrunWorker, vars{"RANK": "-1"}),
			`environment of torchrun: RANK is "-1": want a number from 0`},
		{"outside", with(torchrunWorker, vars{"RANK": "8"}),
			"environment of torchrun: rank 8 (RANK) is outside of 0..7: world size 8 (WORLD_SIZE)"},
		{"outside of the host", with(torchrunWorker, vars{"LOCAL_RANK": "4"}),
			"environment of torchrun: local rank 4 (LOCAL_RANK) is outside of 0..3: local world size 4 " +
				"(LOCAL_WORLD_SIZE)"},
		{"outside of the hosts", with(torchrunWorker, vars{"GROUP_RANK": "2"}),
			"environment of torchrun: node rank 2 (GROUP_RANK) is outside of 0..1: nodes 2 (GROUP_WORLD_SIZE)"},
		{"more here than in all", with(torchrunWorker, vars{"LOCAL_WORLD_SIZE": "9"}),
			"environment of torchrun: local world size 9 (LOCAL_WORLD_SIZE): more ranks on this host than in the " +
				"job: world size 8 (WORLD_SIZE)"},
		{"port", with(torchrunWorker, vars{"MASTER_PORT": "70000"}),
			"environment of torchrun: MASTER_PORT is 70000: want 1..65535"},
		{"MPI's port", with(hydraRank, vars{"MASTER_PORT": "70000"}),
			"environment of MPICH: MASTER_PORT is 70000: want at most 65535"},
		{"lockstep by half", with(lockstepWorker, vars{"GROUP_RANK": ""}),
			"environment of lockstep launch: LOCKSTEP_LAUNCH_ID is set, but the node rank is not: want GROUP_RANK"},
		{"Open MPI by half", vars{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
			"environment of Open MPI: 2 faults:\n  - OMPI_COMM_WORLD_RANK is set, but the local rank is not: want " +
				"OMPI_COMM_WORLD_LOCAL_RANK\n" +
				"  - OMPI_COMM_WORLD_RANK is set, but the local world size is not: want OMPI_COMM_WORLD_LOCAL_SIZE"},
		{"Open MPI's master", with(openMPIRank, vars{"MASTER_ADDR": ""}),
			"environment of Open MPI: MASTER_ADDR is not set, and Open MPI does not give the address of rank 0: " +
				"pass it to " +
				"all ranks (mpirun -x MASTER_ADDR=host)"},
		{"Slurm without nodes", with(slurmTask, vars{"SLURM_STEP_NODELIST": ""}),
			"environment of Slurm: MASTER_ADDR is not set, and Slurm does not give the address of rank 0: want " +
				"SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, or set it to the host of rank 0"},
		{"Slurm's nodes garbled", with(slurmTask, vars{"SLURM_STEP_NODELIST": "n[1-"}),
			`environment of Slurm: 2 faults:` + "\n" +
				`  - SLURM_STEP_NODELIST: host list "n[1-": a [ without its ]: want pairs of them` + "\n" +
				"  - MASTER_ADDR is not set, and Slurm does not give the address of rank 0: " +
				"want SLURM_STEP_NODELIST or " +
				"SLURM_JOB_NODELIST, or set it to the host of rank 0"},
		{"Slurm's counts garbled", with(slurmTask, vars{"SLURM_STEP_TASKS_PER_NODE": "4(x"}),
			`environment of Slurm: SLURM_STEP_TASKS_PER_NODE is "4(x": "4(x" is not a count: want a form such as 4(x2),3`},
		{"Slurm's counts too few", with(slurmTask, vars{"SLURM_STEP_TASKS_PER_NODE": "7"}),
			`environment of Slurm: SLURM_STEP_TASKS_PER_NODE is "7": it has 1 nodes, and this is node 1 (SLURM_NODEID)`},
		{"Slurm's local size unknown", with(slurmTask, vars{"SLURM_STEP_TASKS_PER_NODE": ""}),
			"environment of Slurm: SLURM_PROCID is set, but the local world size is not: want " +
				"SLURM_STEP_TASKS_PER_NODE (with SLURM_NODEID) or SLURM_NTASKS_PER_NODE"},
		{"TrainJob needs a launcher", with(trainJobPod, vars{"PET_NPROC_PER_NODE": "4"}),
			`environment of Kubeflow TrainJob: PET_NPROC_PER_NODE is "4", so that the pod needs a launcher: ` +
				"run lockstep launch -- PROGRAM, which reads the PET_ variables"},
		{"TrainJob by half", with(trainJobPod, vars{"PET_NODE_RANK": ""}),
			"environment of Kubeflow TrainJob: PET_NNODES is set, but the rank is not: want PET_NODE_RANK"},
		{"TrainJob without master", with(trainJobPod, vars{"PET_MASTER_ADDR": ""}),
			"environment of Kubeflow TrainJob: PET_NNODES is set, but the master address is not: want PET_MASTER_ADDR"},
		{"PyTorchJob without size", with(pytorchJobPod, vars{"WORLD_SIZE": ""}),
			"environment of Kubeflow PyTorchJob: RANK is set, but the world size is not: want WORLD_SIZE"},
		{"Indexed Job without size", with(indexedPod, vars{"WORLD_SIZE": ""}),
			"environment of Kubernetes Indexed Job: JOB_COMPLETION_INDEX is set, but the world size is not: want " +
				"WORLD_SIZE"},
		{"Indexed Job without master", with(indexedPod, vars{"MASTER_ADDR": ""}),
			"environment of Kubernetes Indexed Job: MASTER_ADDR is not set, and Kubernetes Indexed Job does not give " +
				"the address of rank 0: set it to the pod of index 0 in the headless service, train-0.<service>"},
		{"RANK by hand against Slurm", with(slurmTask,
			vars{"RANK": "0", "WORLD_SIZE": "7", "MASTER_ADDR": "m", "MASTER_PORT": "3"}),
			"environment of torchrun: torchrun says rank 0 of 7 (RANK, WORLD_SIZE), Slurm says rank 6 of 7 " +
				"(SLURM_PROCID, SLURM_STEP_NUM_TASKS): unset the one that is stale"},
		{"two MPIs", with(openMPIRank, hydraRank),
			"environment of Open MPI: Open MPI says rank 3 of 4 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), MPICH " +
				"says rank 1 of 2 (PMI_RANK, PMI_SIZE): unset the one that is stale"},
		{"WORLD_SIZE against MPI", with(hydraRank, vars{"WORLD_SIZE": "3"}),
			"environment of MPICH: WORLD_SIZE is 3, but world size 2 (PMI_SIZE): unset the one that is stale"},
		{"rank file", vars{"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "0",
			"JSM_NAMESPACE_LOCAL_SIZE": "2", "LSB_DJOB_RANKFILE": "does-not-exist"},
			"environment of LSF jsrun: 2 faults:\n  - LSB_DJOB_RANKFILE: open does-not-exist: "},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Detect(Map(row.vars))
			var typed *Error
			require.ErrorAs(t, err, &typed)
			if row.name == "rank file" { // the rest is the system's wording
				require.ErrorContains(t, err, row.want)
				return
			}
			require.EqualError(t, err, row.want)
		})
	}
}

// A job that Slurm has put back into its queue is the same job, started again.
func TestSlurmRequeue(t *testing.T) {
	first, err := Detect(Map(slurmTask))
	require.NoError(t, err)
	require.Zero(t, first.RestartCount)
	variables := with(slurmTask, vars{"SLURM_RESTART_COUNT": "2"})
	again, err := Detect(Map(variables))
	require.NoError(t, err)
	require.Equal(t, 2, again.RestartCount)
	require.Equal(t, first.JobID, again.JobID)
	requireExplained(t, again, variables)
}

func TestString(t *testing.T) {
	e, err := Detect(Map(slurmTask))
	require.NoError(t, err)
	require.Regexp(t, `^Slurm: rank 6 of 7, local rank 2 of 3, rank 0 at gpu07 port \d{5}$`, e.String())
}

func TestJobPort(t *testing.T) {
	seen := map[int]bool{}
	for _, id := range []string{"1.0", "1.1", "2.0", "job", "another"} {
		p := jobPort(id)
		require.True(t, p >= 15000 && p < 25000, p)
		require.Equal(t, p, jobPort(id))
		seen[p] = true
	}
	require.Len(t, seen, 5)
}
