// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEstimateMemory(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "gpt2"}`), 0o644))
	code, out, _ := output(nil, "estimate-memory", dir, "--per-device-train-batch-size", "2", "--length", "512")
	require.Zero(t, code)
	require.Regexp(t,
		`^gpt2, 124439808 parameters in float32, 2 samples per micro-batch, adamw_torch_fused\n +parameters +474\.7 MiB\n +gradients +474\.7 MiB\n +optimizer state +949\.4 MiB\n +activations +\d+\.\d MiB\n +peak +2\d\d\d\.\d MiB\n$`, out)

	// 64 ranks with the sums of 8 keep 4 partial sums of a gradient, and with those of 64 add them on their way.
	for flag, want := range map[string]string{"8": "4 sums of 7.6 MiB at a time, the tree of deterministic_ranks 8\n",
		"64": ""} {
		code, out, _ := output(nil, "estimate-memory", dir, "--per-device-train-batch-size", "1", "--length", "16",
			"--ranks", "64", "--zero_stage", "2", "--deterministic_ranks", flag)
		require.Zero(t, code)
		require.Equal(t, want != "", strings.Contains(out, "\ngradients: "), out)
		require.Contains(t, out, want)
		require.Regexp(t, map[string]string{"8": ` gradients +30\.4 MiB`, "64": ` gradients +7\.6 MiB`}[flag], out)
	}

	read := func(argv ...string) (e estimate) {
		code, out,
			text := output(nil,
			append([]string{"estimate-memory", config, "--json", "--per_device_train_batch_size=2", "--length=512"},
				argv...)...)
		require.Zero(t, code, text)
		require.NoError(t, json.Unmarshal([]byte(out), &e))
		return e
	}
	plain := read()
	require.Equal(t, plain.Peak, plain.Parameters+plain.Gradients+plain.OptimizerState+plain.Activations)
	require.Less(t, read("--gradient_checkpointing").Activations, plain.Activations)
	require.Equal(t, plain.Parameters/2, read("--dtype", "bfloat16").Parameters)
	require.Zero(t, read("--optim", "sgd").OptimizerState)
	require.Equal(t, 3*plain.Gradients, read("--gradient_accumulation_steps", "4").Gradients, "a tree of four")

	require.Equal(t, 3*plain.Gradients, read("--global_train_batch_size", "8").Gradients, "any setting of a run")
	yaml := filepath.Join(dir, "run.yaml")
	require.NoError(t, os.WriteFile(yaml, []byte("gradient_accumulation_steps: 4\n"), 0o644))
	require.Equal(t, 3*plain.Gradients, read("--config", yaml).Gradients, "a file, too")

	full := read("--fsdp", "full_shard", "--num_replicas", "4")
	require.InEpsilon(t, plain.Parameters/4, full.Parameters, 0.005)
	require.InEpsilon(t, plain.Gradients/4, full.Gradients, 0.005)
	require.InEpsilon(t, plain.OptimizerState/4, full.OptimizerState, 0.005)
	const root, block = 39385344, 7087872 // embeddings and the last norm; one of the blocks
	require.InEpsilon(t, 4*(root+2*block)+4*(root+3*block), full.Gathered, 0.01)
	require.Greater(t, full.Start, plain.Parameters, "the whole model")
	require.Less(t, full.Start, plain.Parameters*3/2, "and its root in a buffer")
	require.Equal(t, full.Peak, full.Parameters+full.Gradients+full.OptimizerState+full.Activations)
	require.Len(t, full.Strategies, 6)
	for i, s := range full.Strategies[1:] {
		require.Less(t, s.Peak, full.Strategies[0].Peak, s.Strategy)
		require.InEpsilon(t, full.Parameters, s.Parameters, map[bool]float64{true: 0.01, false: 4}[i >= 2], s.Strategy)
	}
	two := read("--fsdp", "full_shard", "--num_replicas", "2").Strategies
	require.LessOrEqual(t, float64(two[4].Peak), 0.73*float64(two[0].Peak), "gathered, of DDP's")
	require.LessOrEqual(t, float64(two[5].Peak), 0.62*float64(two[0].Peak), "shared, of DDP's")
	require.Equal(t, *full.MemoryEstimate, *full.Strategies[4].MemoryEstimate)
	tensors := read("--tp_size", "2")
	require.InEpsilon(t, plain.Parameters/2, tensors.Parameters, 0.01, "all but norms, biases and positions")
	require.Equal(t, "tp=2", tensors.Mesh)
	require.Empty(t, tensors.Strategies, "no two ranks have the same parts")
	mesh := read("--tp_size=2", "--cp_size=2", "--zero_stage=1")
	require.Less(t, mesh.Peak, tensors.Peak)
	require.InEpsilon(t, tensors.OptimizerState/2, mesh.OptimizerState, 0.01, "over cp")
	require.Equal(t, *mesh.MemoryEstimate, *mesh.Strategies[1].MemoryEstimate)
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "gpt2", "n_layer": 2, "n_embd": 256, "n_head": 4,
		"vocab_size": 512, "n_positions": 64}`), 0o644))
	require.Equal(t, read("--length=0").Gradients, read("--length=0", "--gradient_accumulation_steps", "4", "--ranks",
		"8").Gradients, "each rank has one of eight groups")
	require.Equal(t, *read("--fsdp=full_shard", "--ranks=3", "--length=0").MemoryEstimate,
		*read("--zero_stage=3", "--ranks=3", "--length=0").MemoryEstimate)
	code, out, _ = output(nil, "estimate-memory", "--model_name_or_path", dir, "--zero_stage=2", "--num-replicas=4",
		"--per_device_train_batch_size", "1")
	require.Zero(t, code)
	require.Regexp(t, `\n +gradients +1\.\d MiB\n(.*\n)+ +gathered units +6\.\d MiB\n +start +\d+\.\d MiB\n`, out)
	require.Regexp(t, `\nMiB on each of 4 ranks\n +strategy +params(.*\n) +no_shard \(DDP\) +6\.6 .* 1\.00\n`, out)
	require.Regexp(t, `\n +full_shard, ZeRO-3 +1\.\d +1\.\d +3\.\d +6\.\d .* 0\.\d\d\n`, out)

	ds := filepath.Join(dir, "ds.json")
	require.NoError(t, os.WriteFile(ds, []byte(`{"train_micro_batch_size_per_gpu": "auto",
		"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt"}}}`), 0o644))
	three := read("--zero_stage=3", "--ranks=4", "--length=0")
	spilled := read("--deepspeed", ds, "--ranks=4", "--length=0")
	require.Zero(t, spilled.OptimizerState)
	require.Equal(t, three.OptimizerState, spilled.OnDisk)
	require.Equal(t, three.Peak-three.OptimizerState, spilled.Peak)
	require.Equal(t, three.Gradients, spilled.Gradients)
	fsdp := filepath.Join(dir, "fsdp.json")
	for text, same := range map[string]bool{`{"fsdp_sharding_strategy": "SHARD_GRAD_OP"}`: true,
		`{"fsdp_sharding_strategy": "SHARD_GRAD_OP", "min_num_params": 100}`: false} {
		require.NoError(t, os.WriteFile(fsdp, []byte(text), 0o644))
		want := read("--fsdp=shard_grad_op", "--ranks=4", "--length=0").Gathered
		found := read("--fsdp=true", "--fsdp_config", fsdp, "--ranks=4", "--length=0").Gathered
		require.Equal(t, same, found == want, text)
	}
	code, _, complaint := output(nil, "estimate-memory", config, "--deepspeed", filepath.Join(dir, "none.json"))
	require.NotZero(t, code)
	require.Contains(t, complaint, "deepspeed is ")

	for model, text := range map[string]string{"mlp": `{"model_type": "mlp", "sizes": [3, 4, 2], "loss": "cross_entropy"}`, "resnet": `{"model_type": "resnet"}`} {
		require.NoError(t, os.WriteFile(config, []byte(text), 0o644))
		code, out, text := output(nil, "estimate-memory", config)
		require.Zero(t, code, text)
		require.Contains(t, out, model+", ")
	}
	for want, argv := range map[string][]string{
		"0 words: want one MODEL":                       {},
		"no such file":                                  {filepath.Join(dir, "none")},
		`dtype is "int8" (flag --dtype): want one of`:   {config, "--dtype", "int8"},
		"per_device_train_batch_size is 0":              {config, "--per_device_train_batch_size", "0"},
		"unknown flag --lenght; did you mean --length?": {config, "--lenght", "1"},
		"ranks is -1 (flag --ranks): want at least 0":   {config, "--ranks", "-1"},
		"zero_stage is 4 (flag --zero_stage): want":     {config, "--zero_stage", "4", "--ranks", "2"},
		"tp_plan is auto, and *":                        {config, "--tp_size", "2"},
		"mesh tp=2 does not fit 3 ranks":                {config, "--tp_size", "2", "--ranks", "3"},
		"the model cannot be cut into stages: want one": {config, "--tp_size", "2", "--pp_size", "2"},
		"mesh pp=2 does not fit 3 ranks":                {config, "--pp_size", "2", "--num_replicas", "3"},
		"mesh dp_replicate=3 does not fit 4 ranks: want a multiple of 3 ranks, or sizes": {
			config, "--zero_stage", "3", "--ranks", "4", "--dp_replicate_size", "3"},
	} {
		code, _, text := output(nil, append([]string{"estimate-memory"}, argv...)...)
		require.NotZero(t, code)
		require.Contains(t, text, want)
	}
	// a mesh without a pipeline makes as many ranks as the product of its sizes
	_, many, _ := output(nil, "estimate-memory", config, "--ranks", "4", "--dp_shard_size", "2")
	_, out, text := output(nil, "estimate-memory", config, "--dp_shard_size", "2", "--dp_replicate_size", "2")
	require.Equal(t, many, out, text)
	require.Contains(t, out, "MiB on each of 4 ranks")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "bart"}`), 0o644))
	_, _, text = output(nil, "estimate-memory", config)
	require.Contains(t, text, `model_type "bart" is not built in: want one of gemma2, gemma3_text, gpt2, llama, `)
}

// The command needs little memory for a model of any size, and no row has more gathered than its peak.
func TestEstimateOfALargeModel(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "gpt2", "n_layer": 24, "n_embd": 20480, "n_head": 160,
		"n_positions": 2048}`), 0o644))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	code, out, text := output(nil, "estimate-memory", config, "--json", "--ranks", "64", "--fsdp", "full_shard",
		"--per_device_train_batch_size", "1", "--length", "2")
	require.Zero(t, code, text)
	runtime.ReadMemStats(&after)
	require.Less(t, after.HeapSys, before.HeapSys+200<<20, "bytes that the heap has grown to")
	var e estimate
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	require.Greater(t, e.Count, 120_000_000_000)
	for _, s := range e.Strategies {
		require.LessOrEqual(t, s.Gathered, s.Peak, s.Strategy)
		require.LessOrEqual(t, s.Gathered+s.Parameters+s.OptimizerState, s.Peak, s.Strategy)
	}
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "gpt2"}`), 0o644))
	code, out, text = output(nil, "estimate-memory", config, "--json", "--ranks", "64", "--fsdp", "full_shard",
		"--per_device_train_batch_size", "1", "--length", "2")
	require.Zero(t, code, text)
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	for _, s := range e.Strategies {
		require.LessOrEqual(t, s.Gathered, s.Peak, s.Strategy)
	}
}
