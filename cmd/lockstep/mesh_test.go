// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mesh that the ranks cannot form is refused before one starts, wherever the launcher can see it.
func TestLaunchRefusesMeshesThatDoNotFit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
distributed_type: FSDP
num_processes: 4
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config: {parallelism_config_dp_replicate_size: 1, parallelism_config_dp_shard_size: 3}
`), 0o600))
	const misfit = "dp_shard=3 does not fit 4 ranks: want "
	for _, c := range []struct {
		variables map[string]string
		argv      []string
		want      string
	}{
		{map[string]string{"LOCKSTEP_DP_SHARD_SIZE": "3"}, []string{"--nproc_per_node=4", "none"},
			misfit + "a multiple of 3 ranks"},
		{map[string]string{"LOCKSTEP_DP_SHARD_SIZE": "3", "LOCKSTEP_JOB_TOKEN": "a long text that nobody guesses"},
			[]string{"--nproc_per_node=2", "--nnodes=2", "--master_addr=a", "none"}, misfit + "a multiple of 3 ranks"},
		{map[string]string{"PARALLELISM_CONFIG_DP_SHARD_SIZE": "3"}, []string{"--nproc_per_node=4", "none"}, misfit},
		{nil, []string{"--config_file", file, "none"}, misfit + "3 ranks, or sizes whose product is 4"},
		{map[string]string{"LOCKSTEP_TP_SIZE": "2"}, []string{"--nproc_per_node=4", "none"}, "none"},
		{map[string]string{"LOCKSTEP_PP_SIZE": "2"}, []string{"--nproc_per_node=4", "none"}, "none"},
		{map[string]string{"LOCKSTEP_DISTRIBUTED_CONFIG": `{"fsdp_size": 3}`}, []string{"--nproc_per_node=4", "none"},
			misfit},
		// the program's to judge: it may have a flag of this name for something else
		{nil, []string{"--nproc_per_node=4", "none", "--tp_size=2"}, "none"},
		{map[string]string{"LOCKSTEP_DP_SHARD_SIZE": "3"}, []string{"--nproc_per_node=4", "none", "--dp-shard-size=4"},
			"none"},
		{map[string]string{"LOCKSTEP_DP_REPLICATE_SIZE": "4"}, []string{"--nproc_per_node=4", "none"}, "none"},
		{map[string]string{"LOCKSTEP_DP_REPLICATE_SIZE": "4", "LOCKSTEP_ZERO_STAGE": "3"},
			[]string{"--nproc_per_node=4", "none"}, "dp_replicate=4 has no ranks to spread the model over: want "},
		{map[string]string{"LOCKSTEP_DP_REPLICATE_SIZE": "4", "LOCKSTEP_ZERO_STAGE": "3"},
			[]string{"--nproc_per_node=4", "none", "--zero_stage", "0"}, "none"},
		{map[string]string{"LOCKSTEP_DP_SHARD_SIZE": "4"}, []string{"--config_file", file, "none"}, "none"},
	} {
		code, _, stderr := output(c.variables, append([]string{"launch"}, c.argv...)...)
		require.NotZero(t, code)
		require.Contains(t, stderr, c.want, c.argv)
		require.Equal(t, c.want == "none", code != exitUsage, "%v: %s", c.argv, stderr)
	}
	_, _, stderr := output(map[string]string{"LOCKSTEP_TP_SIZE": "2"}, "launch", "--nproc_per_node=2", "none")
	require.NotContains(t, stderr, "no ranks to spread", "nothing shards this model")
}

// lockstep env draws the mesh of a job's variables, and says where the rank is in it.
func TestEnvDrawsTheMesh(t *testing.T) {
	job := map[string]string{"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "3000"}
	code, stdout, stderr := output(job, "env")
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^mesh +dp_replicate=4 \[0 1 2 3\] +this rank: dp_replicate 2$`, stdout)
	job["LOCKSTEP_DP_SHARD_SIZE"] = "2"
	_, stdout, _ = output(job, "env")
	require.Regexp(t, `(?m)^mesh +dp_replicate=2,dp_shard=2 \[\[0 1\] \[2 3\]\] +this rank: dp_replicate 1, dp_shard 0$`,
		stdout)
	_, stdout, _ = output(job, "env", "--json")
	var r report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, "dp_replicate=2,dp_shard=2 [[0 1] [2 3]]", r.Mesh)
	job["PARALLELISM_CONFIG_TP_SIZE"] = "2"
	_, stdout, _ = output(job, "env")
	require.Regexp(t, `(?m)^mesh +dp_shard=2,tp=2 \[\[0 1\] \[2 3\]\] +this rank: dp_shard 1, tp 0$`, stdout)
	job["PARALLELISM_CONFIG_TP_SIZE"] = "4"
	code, stdout, stderr = output(job, "env")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "lockstep: env: accelerate: mesh dp_shard=2,tp=4 does not fit 4 ranks: want ")
	require.NotContains(t, stdout, "mesh")
	_, stdout, _ = output(nil, "env")
	require.NotContains(t, stdout, "mesh")
	// without a launcher
	code, stdout, stderr = output(map[string]string{"LOCKSTEP_PP_SIZE": "2", "LOCKSTEP_NUM_REPLICAS": "4"}, "env")
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^mesh +pp=2,dp_replicate=2 \[\[0 1\] \[2 3\]\] +of the ranks of one process`, stdout)
	for name, want := range map[string]string{"LOCKSTEP_PP_SIZE": "mesh pp=2 does not fit 1 rank: want a multiple of 2",
		"PARALLELISM_CONFIG_PP_SIZE": "unknown variable PARALLELISM_CONFIG_PP_SIZE: want LOCKSTEP_PP_SIZE"} {
		code, _, stderr = output(map[string]string{name: "2"}, "env")
		require.Equal(t, exitError, code)
		require.Contains(t, stderr, want)
	}
}
