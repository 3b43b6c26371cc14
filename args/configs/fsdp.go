// SPDX-License-Identifier: Apache-2.0

package configs

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
var fsdpKeys = map[string]rule{
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
var fsdpRules = withFSDP(map[string]rule{}, "")

// withFSDP adds FSDP's keys behind a prefix, in both spellings.
func withFSDP(rules map[string]rule, prefix string) map[string]rule {
	for key, rule := range fsdpKeys {
		rules[prefix+key], rules[prefix+"fsdp_"+key] = rule, rule
	}
	return rules
}

// FSDP reads HuggingFace's fsdp_config.
func FSDP(doc map[string]any) *Config {
	c := &Config{Tool: "FSDP"}
	c.wrapPolicy(doc, "")
	c.walk(fsdpRules, "", doc)
	return c
}

// wrapPolicy: the least size counts where units are chosen by size.
func (c *Config) wrapPolicy(section map[string]any, prefix string) {
	for _, name := range []string{"auto_wrap_policy", "fsdp_auto_wrap_policy"} {
		if policy, ok := section[name].(string); ok && !strings.EqualFold(policy, "SIZE_BASED_WRAP") {
			c.without(prefix+"min_num_params", "auto_wrap_policy is "+policy)
			c.without(prefix+"fsdp_min_num_params", "auto_wrap_policy is "+policy)
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

func setsStrategy(c *Config, key string, v any) (Use, string) {
	s := fsdpStrategies[strings.ToLower(fmt.Sprint(v))]
	if s == "" {
		return Refused, "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or 1 to 5"
	}
	if use, text := c.set("fsdp", []string{s}, key); use != Used {
		return use, text
	}
	return Used, "fsdp " + s
}

// setsReshard: in version 2 whether parameters go after the forward pass; files for version 1 have a strategy there.
func setsReshard(c *Config, key string, v any) (Use, string) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "true":
		v = "full_shard"
	case "false":
		v = "shard_grad_op"
	}
	return setsStrategy(c, key, v)
}

func setsWrapPolicy(_ *Config, _ string, v any) (Use, string) {
	switch strings.ToUpper(fmt.Sprint(v)) {
	case "TRANSFORMER_BASED_WRAP":
		return Used, "units are the model's blocks, or fsdp_transformer_layer_cls_to_wrap"
	case "SIZE_BASED_WRAP":
		return Used, "units have fsdp_min_num_params"
	case "NO_WRAP", "<NIL>":
		return NoEffect, "units are the model's blocks; no result depends on them"
	}
	return Refused, "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"
}

func setsClasses(c *Config, key string, v any) (Use, string) {
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
		return Refused, "names of classes"
	}
	if len(names) == 0 {
		return NoEffect, "units are the model's blocks"
	}
	c.set("fsdp_transformer_layer_cls_to_wrap", names, key)
	return Used, "fsdp_transformer_layer_cls_to_wrap " + strings.Join(names, ",")
}

func setsSize(c *Config, key string, v any) (Use, string) {
	if n, ok := number(v); ok && n == 0 || v == nil {
		return NoEffect, "units are the model's blocks"
	}
	return c.set("fsdp_min_num_params", v, key)
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
func setsParamDType(c *Config, key string, v any) (Use, string) {
	if v == nil {
		return NoEffect, "bf16 and fp16 decide"
	}
	switch dtypeName(v) {
	case "bfloat16":
		return c.set("bf16", true, key)
	case "float16":
		return c.set("fp16", true, key)
	case "float32":
		return NoEffect, "bf16 and fp16 decide"
	}
	return Refused, "bfloat16, float16 or float32"
}

// setsReduceDType: gradients are float32 unless a file says otherwise.
func setsReduceDType(c *Config, key string, v any) (Use, string) {
	if v == nil || v == autoValue {
		return NoEffect, "gradients are float32"
	}
	switch s := dtypeName(v); s {
	case "float32", "bfloat16":
		return c.set("fsdp_reduce_dtype", s, key)
	}
	return Refused, "float32 or bfloat16"
}

// setsIgnored takes a regular expression, as accelerate's files have it.
func setsIgnored(c *Config, key string, v any) (Use, string) {
	switch s := v.(type) {
	case nil:
		return NoEffect, "every module is sharded"
	case string:
		return c.set("fsdp_ignored_modules", s, key)
	}
	return Refused, "a regular expression for paths of modules"
}

func setsStateDict(c *Config, key string, v any) (Use, string) {
	if v == nil {
		return NoEffect, "fsdp_state_dict_type decides"
	}
	switch s := strings.ToLower(fmt.Sprint(v)); s {
	case "full_state_dict", "sharded_state_dict":
		return c.set("fsdp_state_dict_type", s, key)
	}
	return Refused, "FULL_STATE_DICT or SHARDED_STATE_DICT"
}

func setsCheckpointing(c *Config, key string, v any) (Use, string) {
	if sameValue(v, "true") || v == true {
		return c.set("gradient_checkpointing", true, key)
	}
	return NoEffect, "gradient_checkpointing decides"
}

func setsCPUOffload(c *Config, key string, v any) (Use, string) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "true":
		return c.set("offload_params", "cpu", key)
	case "false", "<nil>":
		return NoEffect, "nothing is offloaded"
	}
	return Refused, "true or false"
}
