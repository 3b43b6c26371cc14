// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
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
	require.Equal(t, plain.Gradients, read("--gradient_accumulation_steps", "4", "--ranks", "8").Gradients,
		"each rank has one of eight groups")

	for model, text := range map[string]string{"mlp": `{"model_type": "mlp", "sizes": [3, 4, 2], "loss": "cross_entropy"}`, "resnet": `{"model_type": "resnet"}`} {
		require.NoError(t, os.WriteFile(config, []byte(text), 0o644))
		code, out, text := output(nil, "estimate-memory", config)
		require.Zero(t, code, text)
		require.Contains(t, out, model+", ")
	}
	for want, argv := range map[string][]string{
		"0 words; want one MODEL":                       {},
		"no such file":                                  {filepath.Join(dir, "none")},
		`dtype is "int8"; want one of`:                  {config, "--dtype", "int8"},
		"per_device_train_batch_size is 0":              {config, "--per_device_train_batch_size", "0"},
		"unknown flag --lenght; did you mean --length?": {config, "--lenght", "1"},
		"ranks is 0 and length 0; want at least 1":      {config, "--ranks", "0"},
	} {
		code, _, text := output(nil, append([]string{"estimate-memory"}, argv...)...)
		require.NotZero(t, code)
		require.Contains(t, text, want)
	}
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "bart"}`), 0o644))
	_, _, text := output(nil, "estimate-memory", config)
	require.Contains(t, text, `model_type "bart" is not built in: want one of gpt2, mlp, resnet`)
}
