// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"strings"
)

// Reasons that several keys share.
const (
	fsdpOnTPU  = "it is a mode of TPUs"
	fsdpAlways = "it is always so"
)

// fsdpKeys are FSDP's keys without the prefix fsdp_, which files may put in front of them.
var fsdpKeys = map[string]configRule{
	"version":                       ignore("both versions of PyTorch's FSDP do what is done here"),
	"sharding_strategy":             setsStrategy,
	"reshard_after_forward":         setsReshard,
	"auto_wrap_policy":              setsWrapPolicy,
	"transformer_layer_cls_to_wrap": setsClasses,
	"min_num_params":                setsSize,
	"state_dict_type":               setsStateDict,
	"activation_checkpointing":      setsCheckpointing,
	"activation_checkpointing_offload": ignore(
		"recomputing never changes the bits"),
	"offload_params":            setsCPUOffload,
	"cpu_offload":               setsCPUOffload,
	"backward_prefetch":         ignore(dsPrefetch),
	"backward_prefetch_policy":  ignore(dsPrefetch),
	"forward_prefetch":          ignore(dsPrefetch),
	"limit_all_gathers":         ignore("two units are gathered at most"),
	"use_orig_params":           ignore("the model's parameters are always its own"),
	"sync_module_states":        ignore("rank 0's parameters and buffers are always copied"),
	"cpu_ram_efficient_loading": ignore("loading changes no result"),
	"mixed_precision_policy":    setsParamDType,
	"ignored_modules":           setsIgnored,
	"ignored_parameters":        only("want ignored_modules: modules are ignored, by a pattern for their paths"),

	"mixed_precision_policy.param_dtype":         setsParamDType,
	"mixed_precision_policy.reduce_dtype":        setsReduceDType,
	"mixed_precision_policy.buffer_dtype":        ignore("buffers stay in float32"),
	"mixed_precision_policy.output_dtype":        ignore("an op's class decides what it gives"),
	"mixed_precision_policy.cast_forward_inputs": ignore("operands are cast where an op is called"),
	"mixed_precision_policy.cast_root_forward_inputs": ignore(
		"operands are cast where an op is called"),
	"mixed_precision_policy.keep_low_precision_grads": ignore("gradients are float32"),

	"xla":                 only(fsdpOnTPU, false),
	"xla_fsdp_v2":         only(fsdpOnTPU, false),
	"xla_fsdp_grad_ckpt":  only(fsdpOnTPU, false),
	"xla_fsdp_settings":   ignore(fsdpOnTPU),
	"enable_cpu_affinity": ignore("the system places threads"),
}

// fsdpRules are the keys of HuggingFace's fsdp_config.
var fsdpRules = withFSDP(map[string]configRule{}, "")

// withFSDP adds FSDP's keys behind a prefix, in both spellings.
func withFSDP(rules map[string]configRule, prefix string) map[string]configRule {
	for key, rule := range fsdpKeys {
		rules[prefix+key], rules[prefix+"fsdp_"+key] = rule, rule
	}
	return rules
}

// fsdpConfig reads HuggingFace's fsdp_config.
func fsdpConfig(doc map[string]any) *ToolConfig {
	t := &ToolConfig{Tool: "FSDP"}
	t.wrapPolicy(doc, "")
	t.walk(fsdpRules, "", doc)
	return t
}

// wrapPolicy: the least size counts where units are chosen by size.
func (t *ToolConfig) wrapPolicy(section map[string]any, prefix string) {
	for _, name := range []string{"auto_wrap_policy", "fsdp_auto_wrap_policy"} {
		if policy, ok := section[name].(string); ok && !strings.EqualFold(policy, "SIZE_BASED_WRAP") {
			t.without(prefix+"min_num_params", "auto_wrap_policy is "+policy)
			t.without(prefix+"fsdp_min_num_params", "auto_wrap_policy is "+policy)
		}
	}
}

// fsdpStrategies are PyTorch's, by name and by number.
var fsdpStrategies = map[string]string{
	"full_shard": "full_shard", "shard_grad_op": "shard_grad_op", "no_shard": "no_shard",
	"hybrid_shard":       "hybrid_shard",
	"hybrid_shard_zero2": "hybrid_shard_zero2", "_hybrid_shard_zero2": "hybrid_shard_zero2",
	"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard", "5": "hybrid_shard_zero2",
}

func setsStrategy(t *ToolConfig, key string, v any) (ConfigUse, string) {
	s := fsdpStrategies[strings.ToLower(fmt.Sprint(v))]
	if s == "" {
		return ConfigRefused, "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or 1 to 5"
	}
	if use, text := t.set("fsdp", []string{s}, key); use != ConfigUsed {
		return use, text
	}
	return ConfigUsed, "fsdp " + s
}

// setsReshard: in version 2 whether parameters go after the forward pass; files for version 1 have a strategy there.
func setsReshard(t *ToolConfig, key string, v any) (ConfigUse, string) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "true":
		v = "full_shard"
	case "false":
		v = "shard_grad_op"
	}
	return setsStrategy(t, key, v)
}

func setsWrapPolicy(_ *ToolConfig, _ string, v any) (ConfigUse, string) {
	switch strings.ToUpper(fmt.Sprint(v)) {
	case "TRANSFORMER_BASED_WRAP":
		return ConfigUsed, "units are the model's blocks, or fsdp_transformer_layer_cls_to_wrap"
	case "SIZE_BASED_WRAP":
		return ConfigUsed, "units have fsdp_min_num_params"
	case "NO_WRAP", "<NIL>":
		return ConfigNoEffect, "units are the model's blocks; no result depends on them"
	}
	return ConfigRefused, "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"
}

func setsClasses(t *ToolConfig, key string, v any) (ConfigUse, string) {
	var names []string
	switch v := v.(type) {
	case nil:
	case string:
		for _, n := range strings.Split(v, ",") {
			if n = strings.TrimSpace(n); n != "" {
				names = append(names, n)
			}
		}
	case []any:
		for _, n := range v {
			names = append(names, fmt.Sprint(n))
		}
	default:
		return ConfigRefused, "names of classes"
	}
	if len(names) == 0 {
		return ConfigNoEffect, "units are the model's blocks"
	}
	t.set("fsdp_transformer_layer_cls_to_wrap", names, key)
	return ConfigUsed, "fsdp_transformer_layer_cls_to_wrap " + strings.Join(names, ",")
}

func setsSize(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if n, ok := configNumber(v); ok && n == 0 || v == nil {
		return ConfigNoEffect, "units are the model's blocks"
	}
	return t.set("fsdp_min_num_params", v, key)
}

// dtypeName is the name of a dtype that files spell in several ways.
func dtypeName(v any) string {
	s := strings.TrimPrefix(strings.ToLower(fmt.Sprint(v)), "torch.")
	switch s {
	case "bf16":
		return "bfloat16"
	case "fp16", "half":
		return "float16"
	case "fp32", "float", "no":
		return "float32"
	}
	return s
}

// setsParamDType takes a dtype, or what accelerate makes a whole policy of.
func setsParamDType(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if v == nil {
		return ConfigNoEffect, "bf16 and fp16 decide"
	}
	switch dtypeName(v) {
	case "bfloat16":
		return t.set("bf16", true, key)
	case "float16":
		return t.set("fp16", true, key)
	case "float32":
		return ConfigNoEffect, "bf16 and fp16 decide"
	}
	return ConfigRefused, "bfloat16, float16 or float32"
}

// setsReduceDType: gradients are float32 unless a file says otherwise.
func setsReduceDType(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if v == nil || v == autoValue {
		return ConfigNoEffect, "gradients are float32"
	}
	switch s := dtypeName(v); s {
	case "float32", "bfloat16":
		return t.set("fsdp_reduce_dtype", s, key)
	}
	return ConfigRefused, "float32 or bfloat16"
}

// setsIgnored takes a regular expression, as accelerate's files have it.
func setsIgnored(t *ToolConfig, key string, v any) (ConfigUse, string) {
	switch s := v.(type) {
	case nil:
		return ConfigNoEffect, "every module is sharded"
	case string:
		return t.set("fsdp_ignored_modules", s, key)
	}
	return ConfigRefused, "a regular expression for paths of modules"
}

func setsStateDict(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if v == nil {
		return ConfigNoEffect, "fsdp_state_dict_type decides"
	}
	switch s := strings.ToLower(fmt.Sprint(v)); StateDictType(s) {
	case FullStateDict, ShardedStateDict:
		return t.set("fsdp_state_dict_type", s, key)
	}
	return ConfigRefused, "FULL_STATE_DICT or SHARDED_STATE_DICT"
}

func setsCheckpointing(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if sameValue(v, "true") || v == true {
		return t.set("gradient_checkpointing", true, key)
	}
	return ConfigNoEffect, "gradient_checkpointing decides"
}

func setsCPUOffload(t *ToolConfig, key string, v any) (ConfigUse, string) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "true":
		return t.set("offload_params", string(OffloadCPU), key)
	case "false", "<nil>":
		return ConfigNoEffect, "nothing is offloaded"
	}
	return ConfigRefused, "true or false"
}
