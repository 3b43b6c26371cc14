// SPDX-License-Identifier: Apache-2.0

package configs

// Why keys of context parallelism set nothing.
const (
	ownTokens  = "the tokens of sequences are divided by accelerate/cp"
	ownLengths = "sequences may have any length"
)

// parallelismRules are the keys of accelerate's ParallelismConfig.
var parallelismRules = withParallelism(map[string]rule{}, "")

// withParallelism adds them behind a prefix, in both spellings: the object's and the file's.
func withParallelism(rules map[string]rule, prefix string) map[string]rule {
	for key, rule := range map[string]rule{
		"dp_replicate_size":           sets("dp_replicate_size", nil),
		"dp_shard_size":               sets("dp_shard_size", nil),
		"tp_size":                     sets("tp_size", nil),
		"cp_size":                     sets("cp_size", nil),
		"sp_size":                     sets("sp_size", nil),
		"pp_size":                     only("accelerate has no pipelines: set pp_size beside it", 1),
		"cp_backend":                  ignore(ownTokens),
		"cp_comm_strategy":            setsExchange,
		"sp_backend":                  ignore(ownTokens),
		"sp_seq_length":               ignore(ownLengths),
		"sp_seq_length_is_variable":   ignore(ownLengths),
		"sp_attn_implementation":      ignore("there is one attention"),
		"tp_handler":                  ignore("its only setting, enable_async_tp, changes no result"),
		"cp_handler":                  ignore("cp_size and cp_strategy decide"),
		"cp_handler.cp_comm_strategy": setsExchange,
		"sp_handler":                  ignore(ownLengths),
	} {
		rules[prefix+key], rules[prefix+"parallelism_config_"+key] = rule, rule
	}
	return rules
}

// setsExchange is the rule of cp_comm_strategy. "allgather", which accelerate writes whether it is read or not, is
// cp_strategy's default; with "alltoall" keys go round the ranks.
func setsExchange(c *Config, key string, v any) (Use, string) {
	switch {
	case v == nil || sameValue(v, "allgather"):
		return NoEffect, "cp_strategy decides, by default gather"
	case sameValue(v, "alltoall"):
		return c.set("cp_strategy", "ring", key)
	}
	return Refused, `"allgather" (cp_strategy gather) or "alltoall" (cp_strategy ring)`
}

// Parallelism reads accelerate's ParallelismConfig.
func Parallelism(doc map[string]any) *Config {
	c := &Config{Tool: "accelerate's ParallelismConfig"}
	c.walk(parallelismRules, "", doc)
	return c
}

// distributedRules are the keys of transformers' DistributedConfig.
var distributedRules = map[string]rule{
	"pp_size":                  sets("pp_size", nil),
	"dp_replicate_size":        sets("dp_replicate_size", nil),
	"fsdp_size":                sets("dp_shard_size", nil),
	"tp_size":                  sets("tp_size", nil),
	"tp_plan":                  setsPlan,
	"fsdp_plan":                only("units are the model's blocks, or fsdp_transformer_layer_cls_to_wrap"),
	"fsdp_cpu_offload":         setsCPUOffload,
	"fsdp_mixed_precision":     setsMixedPrecision,
	"enable_sequence_parallel": ignore("transformers does not read it"),
	"enable_expert_parallel":   only("experts are not spread over ranks", false),
	"ep_size":                  only("experts are not spread over ranks", 1),
	"ep_plan":                  only("experts are not spread over ranks"),
	"ep_implementation":        ignore("only ep_size above 1 reads it, which is not built"),
}

// Distributed reads transformers' DistributedConfig.
func Distributed(doc map[string]any) *Config {
	c := &Config{Tool: "transformers' DistributedConfig"}
	if doc["tp_size"] != nil && doc["tp_plan"] == autoValue {
		c.without("tp_plan", "a model says how its layers are divided")
	}
	c.walk(distributedRules, "", doc)
	return c
}

// setsPlan: without a size, a plan asks for as many ranks as the other sizes leave.
func setsPlan(c *Config, key string, v any) (Use, string) {
	switch plan, styles := v.(map[string]any); {
	case v == nil:
		return NoEffect, "a model says how its layers are divided"
	case styles && len(plan) == 0:
		return Refused, "null, or styles: without any, ranks would do the same work"
	case styles:
		return c.set("tp_plan", plan, key)
	}
	return Refused, "\"auto\", with tp_size beside it: a model says how its layers are divided"
}

func setsMixedPrecision(c *Config, key string, v any) (Use, string) {
	if v == true {
		return c.set("bf16", true, key)
	}
	return NoEffect, "bf16 and fp16 decide"
}
