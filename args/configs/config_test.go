// SPDX-License-Identifier: Apache-2.0

package configs_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/args/configs"
)

func document(t *testing.T, text string) (doc map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	return doc
}

// A file is read by its keys, and each key has a row.
func TestRead(t *testing.T) {
	for text, want := range map[string]string{
		`{"zero_optimization": {"stage": 2}, "gradient_clipping": 1}`: "DeepSpeed",
		`{"sharding_strategy": "FULL_SHARD", "version": 1}`:           "FSDP",
		`{"distributed_type": "FSDP", "mixed_precision": "bf16"}`:     "accelerate",
	} {
		c := configs.Read(document(t, text))
		require.Equal(t, want, c.Tool)
		rows := slices.DeleteFunc(c.Rows, func(r configs.Row) bool { return r.Use == configs.Default })
		require.Len(t, rows, 2, text)
	}
}

// What is used is a setting, what is not in the file and matters has the tool's default, and the rest says why not.
func TestUses(t *testing.T) {
	c := configs.DeepSpeed(document(t, `{"zero_optimization": {"stage": 3, "zero_quantized_weights": true, "stag": 1},
		"steps_per_print": 5}`))
	require.Equal(t, []configs.Setting{{Key: "zero_stage", Value: 3.0, From: "zero_optimization.stage"},
		{Key: "max_grad_norm", Value: 0, From: "gradient_clipping", Absent: true}}, c.Settings[:2])
	require.True(t, c.Has("zero_stage", 3.0))
	uses := map[string]configs.Use{}
	for _, r := range c.Rows {
		uses[r.Key] = r.Use
	}
	require.Equal(t, configs.Used, uses["zero_optimization.stage"])
	require.Equal(t, configs.Refused, uses["zero_optimization.zero_quantized_weights"])
	require.Equal(t, configs.Unknown, uses["zero_optimization.stag"])
	require.Equal(t, configs.NoEffect, uses["steps_per_print"])
	require.Equal(t, configs.Default, uses["gradient_clipping"])
	require.Equal(t, "file ds.json (no gradient_clipping)", c.Settings[1].Origin("ds.json"))
}

// Settings have the names of the arguments.
func TestSettingsAreThoseOfTheArguments(t *testing.T) {
	known := map[string]bool{}
	for f := range reflect.TypeFor[args.TrainingArguments]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = true
	}
	for _, text := range []string{
		`{"fp16": {"enabled": true, "initial_scale_power": 8}, "optimizer": {"type": "Adam", "params": {"lr": 1}},
			"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}, "zero_optimization": {"stage": 3,
			"offload_param": {"device": "nvme", "nvme_path": "/a"}}}`,
		`{"sharding_strategy": 1, "transformer_layer_cls_to_wrap": "A", "state_dict_type": "FULL_STATE_DICT",
			"activation_checkpointing": true, "offload_params": true, "ignored_modules": "a",
			"mixed_precision_policy": {"param_dtype": "bf16", "reduce_dtype": "bf16"}}`,
		`{"distributed_type": "DEEPSPEED", "mixed_precision": "fp16", "use_cpu": true, "parallelism_config": {
			"parallelism_config_dp_replicate_size": 2}}`,
	} {
		c := configs.Read(document(t, text))
		require.Greater(t, len(c.Settings), 4, text)
		for _, s := range c.Settings {
			require.True(t, known[s.Key], s.Key)
			require.True(t, s.When == "" || known[s.When], s.When)
		}
	}
}
