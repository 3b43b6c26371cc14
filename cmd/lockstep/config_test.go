// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args/configs"
)

const tools = "../../args/testdata/tools/"

// Each key of a file has a row; what is refused or unknown makes the command fail.
func TestConfig(t *testing.T) {
	code, out, _ := output(nil, "config", tools+"ds_config_zero3.json")
	require.Zero(t, code)
	require.Contains(t, out, "ds_config_zero3.json: DeepSpeed\n")
	require.Regexp(t, `(?m)^used +zero_optimization\.stage +3 +zero_stage 3$`, out)
	require.Regexp(t, `(?m)^no effect +steps_per_print +2000 +logging_steps decides$`, out)
	require.NotRegexp(t, `(?m)^refused`, out)

	code, out, _ = output(nil, "config", "--json", tools+"fsdp.yaml")
	require.Zero(t, code)
	var c configs.Config
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.Equal(t, "accelerate", c.Tool)
	require.Equal(t, "4", c.Launch["nproc_per_node"])

	path := filepath.Join(t.TempDir(), "ds.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"zero_optimization": {"stag": 1, "zero_quantized_weights": true}}`),
		0o600))
	code, out, text := output(nil, "config", path)
	require.Equal(t, exitError, code)
	require.Regexp(t, `(?m)^refused +zero_optimization\.zero_quantized_weights`, out)
	require.Contains(t, text, "did you mean zero_optimization.stage?")
	code, _, text = output(nil, "config", "none.json")
	require.Equal(t, exitError, code)
	require.Contains(t, text, "none.json: no such file")
	code, _, _ = output(nil, "config")
	require.Equal(t, exitUsage, code)
}

// The launcher takes its flags from accelerate's file, except for those that are given, and hands the settings on.
func TestLaunchWithConfigFile(t *testing.T) {
	var f launchFlags
	fs := f.flagSet()
	require.NoError(t, fs.Parse([]string{"--node_rank", "1", "--master_port=29999"}))
	environ, err := configFile(fs, tools+"fsdp.yaml")
	require.NoError(t, err)
	require.Equal(t, []string{"LOCKSTEP_BF16=true", "LOCKSTEP_FSDP=full_shard",
		"LOCKSTEP_FSDP_STATE_DICT_TYPE=sharded_state_dict", "LOCKSTEP_FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP=GPT2Block"},
		environ)
	require.Equal(t, "4 2 10.0.0.1", f.nproc+" "+f.nodes+" "+f.masterAddr)
	require.Equal(t, 1, f.nodeRank)
	require.Equal(t, 29999, f.masterPort)

	_, err = configFile(fs, tools+"ds_config_zero2.json")
	require.ErrorContains(t, err, "is a configuration of DeepSpeed: want accelerate's")
}
