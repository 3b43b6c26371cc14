// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Reasons that several keys of DeepSpeed share.
const (
	dsPrefetch  = "the parameters of the next unit are fetched while one computes"
	dsOffloadIO = "offloaded tensors are in mapped files"
	dsLossy     = "gradients and parameters are exchanged exactly"
)

// deepSpeedVersion is the release whose keys are all among the rules (args/testdata/tools/deepspeed_keys.tsv), beside
// those that releases before it had.
const deepSpeedVersion = "0.19.8"

// deepSpeedAlike are keys of DeepSpeed's configuration that share a rule.
var deepSpeedAlike = []alike{
	{ignore("--profile decides"), "", "wall_clock_breakdown memory_breakdown timers flops_profiler comms_logger"},
	{ignore("gradients are summed in float32 and divided once, by the number of loss terms"), "", `
		prescale_gradients gradient_predivide_factor`},
	{ignore("torch_autocast is not there"), "torch_autocast.", "dtype lower_precision_safe_modules"},
	{ignore("amp is not there"), "amp.", "opt_level loss_scale"},
	{setsOptimArg, "optimizer.params.", "momentum dampening nesterov"},
	{ignore("there is one implementation"), "optimizer.params.", "torch_adam fused"},
	{setsScheduleKwarg, "scheduler.params.", `
		warmup_min_lr warmup_type total_num_steps warmup_min_ratio cos_min_ratio`},
	{ignore("parameters are gathered as the engine likes"), "zero_optimization.", `
		allgather_partitions stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential`},
	{ignore("buffers have ddp_bucket_cap_mb, or a unit's size"), "zero_optimization.", `
		reduce_bucket_size allgather_bucket_size use_multi_rank_bucket_allreduce`},
	{setsOldOffload("offload_params"), "zero_optimization.", "cpu_offload_param cpu_offload_params"},
	{ignore(dsPrefetch), "zero_optimization.", "stage3_max_live_parameters stage3_prefetch_bucket_size"},
	{ignore("saved models are whole; fsdp_state_dict_type decides for checkpoints"), "zero_optimization.", `
		stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save`},
	{only(dsLossy, false), "zero_optimization.", `
		zero_quantized_weights zero_quantized_gradients zero_quantized_nontrainable_weights`},
	{ignore(dsOffloadIO), "zero_optimization.offload_optimizer.", `
		pin_memory buffer_count buffer_size fast_init pipeline pipeline_read pipeline_write super_offload
		cpuadam_cores_perc`},
	{ignore(dsOffloadIO), "zero_optimization.offload_param.", "pin_memory buffer_count buffer_size max_in_cpu"},
	{ignore("report_to decides"), "", "tensorboard wandb comet csv_monitor monitor_config"},
	{ignore("checkpoints are safetensors"), "checkpoint.", "checkpoint_serialization writer"},
	{off("samples come in the sampler's order", false), "", "curriculum_learning data_efficiency"},
	{only("a model says how its layers are divided"), "tensor_parallel.", "partition_config injection_policy_tuple"},
	{only("kernels are Lockstep's own", false), "tensor_parallel.", "replace_with_kernel_inject kernel_inject"},
}

// deepSpeedRules are the keys of DeepSpeed's configuration.
var deepSpeedRules = withAliases(withAlike(deepSpeedAlike, map[string]rule{
	"train_micro_batch_size_per_gpu": sets("per_device_train_batch_size", nil),
	"gradient_accumulation_steps":    sets("gradient_accumulation_steps", nil),
	"train_batch_size":               sets("global_train_batch_size", nil),
	"gradient_clipping":              sets("max_grad_norm", nil),
	"dataloader_drop_last":           sets("dataloader_drop_last", nil),
	"steps_per_print":                ignore("logging_steps decides"),
	"dump_state":                     ignore("lockstep config shows the keys"),
	"seed":                           sets("seed", nil),

	"disable_python_gc":                    ignore("there is no Python"),
	"log_level":                            ignore("log_level decides"),
	"vocabulary_size":                      ignore("the model has it"),
	"graph_harvesting":                     ignore("it computes the same"),
	"datastates_ckpt":                      ignore("checkpoints are written by the ranks"),
	"use_data_before_expert_parallelism":   ignore("there are no experts"),
	"managed_gradient_accumulation":        only("a step ends with its window of micro-batches", true),
	"gradient_allreduce_op":                only("the loss is a mean over the terms of all ranks", "mean"),
	"sparse_gradients":                     only("gradients are dense", false),
	"fp32_allreduce":                       ignore("sums are in float32"),
	"communication_data_type":              setsReduceDType,
	"seq_parallel_communication_data_type": only("sums are in float32", "fp32"),
	"data_types.grad_accum_dtype":          only("sums are in float32", "fp32"),
	"data_types.param_dtype":               only("parameters have the model's dtype", "fp32"),
	"data_types.buffer_dtype":              only("buffers have the model's dtype", "fp32"),
	"data_types.keep_in_fp32_modules":      ignore("buffers and parameters have the model's dtype"),
	"disable_allgather":                    ignore("parameters are gathered as the engine likes"),
	"zero_allow_untested_optimizer": ignore(
		"every optimizer that is built in steps on shards"),
	"zero_force_ds_cpu_optimizer": ignore("every optimizer that is built in runs where its state is"),

	"bf16.enabled":               sets("bf16", nil),
	"bf16.immediate_grad_update": ignore("gradients are float32"),
	"bf16.check_grad_overflow": ignore(
		"no step that is not finite reaches the weights; nonfinite_loss decides"),
	"bf16.bf16_master_weights_and_grads": only("parameters and gradients are float32, or dtype bfloat16", false),
	"bf16.bf16_optimizer_states":         only("the optimizer's state is float32", false),
	"fp16.enabled":                       sets("fp16", nil),
	"fp16.auto_cast":                     ignore("operands are cast where an op is called"),
	"fp16.loss_scale":                    only("loss scaling adapts", 0),
	"fp16.initial_scale_power":           sets("fp16_initial_scale", powerOfTwo),
	"fp16.loss_scale_window":             sets("fp16_growth_interval", nil),
	"fp16.hysteresis":                    sets("fp16_hysteresis", nil),
	"fp16.consecutive_hysteresis":        sets("fp16_consecutive_hysteresis", nil),
	"fp16.min_loss_scale":                sets("fp16_min_scale", nil),
	"fp16.fp16_master_weights_and_grads": only("parameters and gradients are float32, or dtype bfloat16", false),
	"torch_autocast.enabled":             only("want fp16 or bf16 instead", false),
	"amp.enabled":                        only("want fp16 or bf16 instead", false),

	"optimizer.type":                 setsOptimizer,
	"optimizer.params.lr":            sets("learning_rate", nil),
	"optimizer.params.betas":         setsBetas,
	"optimizer.params.eps":           sets("adam_epsilon", nil),
	"optimizer.params.weight_decay":  sets("weight_decay", nil),
	"optimizer.params.set_grad_none": ignore("a gradient holds memory in backward only"),
	"optimizer.params.fp32_optimizer_states": ignore(
		"the optimizer's state is float32"),
	"optimizer.params.adam_w_mode":     ignore("optimizer.type counts with it"),
	"optimizer.params.bias_correction": only("both moments are corrected", true),
	"optimizer.params.amsgrad":         only("amsgrad is not built", false),
	"optimizer.legacy_fusion":          ignore("there is one implementation"),

	"scheduler.type":                        setsScheduler,
	"scheduler.params.warmup_max_lr":        sets("learning_rate", nil),
	"scheduler.params.warmup_num_steps":     sets("warmup_steps", nil),
	"scheduler.params.last_batch_iteration": only("a resume goes on where the checkpoint is", -1),

	"zero_optimization.stage":                       sets("zero_stage", nil),
	"zero_optimization.overlap_comm":                ignore("exchanges always overlap with the backward pass"),
	"zero_optimization.contiguous_gradients":        ignore("gradients always lie side by side"),
	"zero_optimization.reduce_scatter":              ignore("each shard's sum goes to its owner alone"),
	"zero_optimization.sub_group_size":              ignore("the optimizer's state is updated piece by piece"),
	"zero_optimization.round_robin_gradients":       ignore("shards are equal"),
	"zero_optimization.elastic_checkpoint":          ignore("any number of ranks can resume"),
	"zero_optimization.load_from_fp32_weights":      ignore("checkpoints have the parameters as they are"),
	"zero_optimization.ignore_unused_parameters":    ignore("ddp_find_unused_parameters decides"),
	"zero_optimization.legacy_stage1":               ignore("there is one stage 1"),
	"zero_optimization.cpu_offload":                 setsOldOffload("offload_optimizer"),
	"zero_optimization.cpu_offload_use_pin_memory":  ignore("nothing is copied to a GPU"),
	"zero_optimization.override_module_apply":       ignore("modules are whole where they compute"),
	"zero_optimization.memory_efficient_linear":     ignore("linear layers save only what backward needs"),
	"zero_optimization.log_trace_cache_warnings":    ignore("there is no such cache"),
	"zero_optimization.pipeline_loading_checkpoint": ignore("each rank reads what it owns"),
	"zero_optimization.leaf_module":                 ignore("units are the model's blocks"),
	"zero_optimization.compute_grad_norm":           ignore("the norm is always measured"),
	"zero_optimization.enable_sanity_checks":        ignore("collective calls are always checked"),
	"zero_optimization.parameter_alignment":         ignore("it changes where parameters lie"),
	"zero_optimization.save_muon_momentum_buffer_in_memory": ignore(
		"offload_optimizer decides"),
	"zero_optimization.zenflow":                            off("every gradient counts in its own step", false),
	"zero_optimization.stage3_max_reuse_distance":          ignore("parameters go when their unit's pass ends"),
	"zero_optimization.stage3_param_persistence_threshold": sets("fsdp_persistence_threshold", nil),
	"zero_optimization.stage3_model_persistence_threshold": ignore(
		"small parameters come and go with the others of their unit"),
	"zero_optimization.stage3_module_granularity_threshold": ignore(
		"units are the model's blocks, or fsdp_min_num_params'"),
	"zero_optimization.zero_hpz_partition_size": ignore(
		"it changes who sends what, and no result: want dp_replicate_size"),
	"zero_optimization.mics_shard_size":                 only("want dp_replicate_size instead", -1),
	"zero_optimization.mics_hierarchical_params_gather": ignore("want dp_replicate_size instead"),
	"zero_optimization.zeropp_loco_param":               only(dsLossy, map[string]any{}),

	"zero_optimization.offload_optimizer.device":    sets("offload_optimizer", offloadDevice),
	"zero_optimization.offload_optimizer.nvme_path": setsNVMe,
	"zero_optimization.offload_optimizer.ratio":     only("the whole state is offloaded", 1),
	"zero_optimization.offload_param.device":        sets("offload_params", offloadDevice),
	"zero_optimization.offload_param.nvme_path":     setsNVMe,

	"activation_checkpointing":            ignore("gradient_checkpointing decides; recomputing never changes the bits"),
	"aio":                                 ignore(dsOffloadIO),
	"nebula":                              off("checkpoints are written by the ranks", false),
	"checkpoint.tag_validation":           ignore("all ranks save the same step"),
	"checkpoint.load_universal":           ignore("any number of ranks can resume"),
	"checkpoint.parallel_write":           ignore("fsdp_state_dict_type sharded_state_dict writes in parallel"),
	"checkpoint.use_node_local_storage":   only("output_dir is a folder that all hosts share", false),
	"elasticity":                          off("the number of ranks is the launcher's", false),
	"autotuning":                          off("sizes are the arguments'", false),
	"progressive_layer_drop":              off("every layer computes in every step", false),
	"compression_training":                only("quantisation and pruning are not built", map[string]any{}),
	"sparse_attention":                    only("attention is dense", map[string]any{}),
	"quantize_training":                   off("quantisation is not built", false),
	"weight_quantization":                 off("quantisation is not built", true),
	"hybrid_engine":                       off("generation needs no engine of its own", false),
	"eigenvalue":                          off("eigenvalues are not built", false),
	"expert_parallel":                     off("experts are not spread over ranks", true),
	"compile":                             ignore("there is nothing to compile"),
	"tensor_parallel.autotp_size":         setsAutoTP(0),
	"tensor_parallel.dtype":               ignore("bf16 and fp16 decide"),
	"tensor_parallel.tp_overlap_comm":     ignore("exchanges always overlap with the backward pass"),
	"tensor_parallel.tp.tp_size":          setsAutoTP(1),
	"tensor_parallel.tp.tp_grain_size":    ignore("DeepSpeed does not read it in training"),
	"tensor_parallel.preset_model":        ignore("a model says how its layers are divided"),
	"tensor_parallel.keep_module_on_host": ignore("loading changes no result"),
	"pipeline":                            ignore("it is for DeepSpeed's PipelineModule; here pp_size makes stages"),
}))

// withAliases adds the other names of keys: DeepSpeed's fields of stage 3 have a name and an alias with stage3_ before
// it, and the section bf16 was called bfloat16.
func withAliases(rules map[string]rule) map[string]rule {
	for key, rule := range maps.Clone(rules) {
		if name, ok := strings.CutPrefix(key, "zero_optimization.stage3_"); ok {
			rules["zero_optimization."+name] = rule
		}
		if name, ok := strings.CutPrefix(key, "bf16."); ok {
			rules["bfloat16."+name] = rule
		}
	}
	return rules
}

// DeepSpeed reads DeepSpeed's configuration.
func DeepSpeed(doc map[string]any) *Config {
	c := &Config{Tool: "DeepSpeed"}
	for _, name := range []string{"fp16", "bf16", "bfloat16", "amp", "torch_autocast"} {
		if inside(doc, name)["enabled"] == false {
			c.disable(name + ".")
		}
	}
	if deepSpeedStage(doc) < 3 {
		c.without("zero_optimization.offload_param.", "parameters are offloaded in stage 3")
	}
	// DeepSpeed's schedulers set the rate whatever the optimizer has.
	if peak := inside(doc, "scheduler", "params")["warmup_max_lr"]; peak != nil && peak != autoValue {
		c.without("optimizer.params.lr", "scheduler.params.warmup_max_lr is the learning rate")
	}
	if deepSpeedStage(doc) == 0 {
		const why = "without ZeRO each overflow halves the scale, in DeepSpeed too"
		c.without("fp16.hysteresis", why)
		c.without("fp16.consecutive_hysteresis", why)
	}
	if deepSpeedOptimizers[strings.ToLower(fmt.Sprint(inside(doc, "optimizer")["type"]))] == "" {
		c.anyKeys("optimizer.params.", "optimizer.type is not built")
	}
	if !slices.Contains(deepSpeedSchedules, fmt.Sprint(inside(doc, "scheduler")["type"])) {
		c.anyKeys("scheduler.params.", "scheduler.type is not built")
	}
	c.walk(deepSpeedRules, "", doc)
	c.deepSpeedOptimizer(doc)
	c.deepSpeedSchedule(doc)
	c.deepSpeedDefaults(doc)
	return c
}

// deepSpeedOptimizer sets what several keys of the section optimizer decide.
func (c *Config) deepSpeedOptimizer(doc map[string]any) {
	if strings.EqualFold(fmt.Sprint(inside(doc, "optimizer")["type"]), "adam") { // which is AdamW unless told otherwise
		optim := "adamw_torch_fused"
		if inside(doc, "optimizer", "params")["adam_w_mode"] == false {
			optim = "adam"
		}
		c.set("optim", optim, "optimizer.type")
	}
	var words []string
	for _, name := range []string{"momentum", "dampening", "nesterov"} {
		if v := inside(doc, "optimizer", "params")[name]; v != nil && v != autoValue {
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	if len(words) > 0 {
		c.set("optim_args", strings.Join(words, ","), "optimizer.params")
	}
}

// deepSpeedSchedule gathers the scheduler's own settings in lr_scheduler_kwargs.
func (c *Config) deepSpeedSchedule(doc map[string]any) {
	kwargs, params := map[string]any{}, inside(doc, "scheduler", "params")
	for _, name := range deepSpeedScheduleKwargs {
		if v := params[name]; v != nil && v != autoValue {
			kwargs[name] = v
		}
	}
	if len(kwargs) > 0 && slices.Contains(deepSpeedSchedules, fmt.Sprint(inside(doc, "scheduler")["type"])) {
		c.set("lr_scheduler_kwargs", kwargs, "scheduler.params")
	}
}

// deepSpeedDefaults sets what a key means that is not in the file, where DeepSpeed's default is not ours.
func (c *Config) deepSpeedDefaults(doc map[string]any) {
	if _, has := doc["gradient_clipping"]; !has {
		c.absent("max_grad_norm", 0, "gradient_clipping")
		c.Notes = append(c.Notes, "has no gradient_clipping: gradients are not clipped, as in DeepSpeed before 0.19.3 "+
			`(later releases clip at 1); "auto" there is max_grad_norm`)
	}
	defaults := func(section string, values map[string]any, settings map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, has := inside(doc, strings.Split(section, ".")...)[key]; !has {
				c.absent(settings[key], values[key], section+"."+key)
			}
		}
	}
	if inside(doc, "fp16")["enabled"] != false {
		n, values := len(c.Settings), map[string]any{"loss_scale_window": 1000}
		if deepSpeedStage(doc) > 0 {
			values["hysteresis"] = 2
		}
		defaults("fp16", values,
			map[string]string{"loss_scale_window": "fp16_growth_interval", "hysteresis": "fp16_hysteresis"})
		for i := range c.Settings[n:] {
			c.Settings[n+i].When = "fp16"
		}
		c.implies("fp16_loss_scaler", "deepspeed", "fp16", "fp16")
	}
	schedule := fmt.Sprint(inside(doc, "scheduler")["type"])
	if slices.Contains(deepSpeedSchedules, schedule) {
		values := map[string]any{"warmup_num_steps": 1000}
		if schedule == "WarmupDecayLR" {
			values["warmup_max_lr"] = 1e-3
		}
		defaults("scheduler.params", values, map[string]string{"warmup_num_steps": "warmup_steps",
			"warmup_max_lr": "learning_rate"})
	}
	values := map[string]any{"lr": 1e-3, "weight_decay": 0}
	switch deepSpeedOptimizers[strings.ToLower(fmt.Sprint(inside(doc, "optimizer")["type"]))] {
	case "":
		return
	case "adamw_torch_fused":
		values["eps"] = 1e-8
		if _, has := inside(doc, "optimizer", "params")["betas"]; !has {
			c.absent("adam_beta1", 0.9, "optimizer.params.betas")
			c.absent("adam_beta2", 0.999, "optimizer.params.betas")
		}
	}
	if slices.ContainsFunc(c.Settings, func(s Setting) bool { return s.Key == "learning_rate" }) {
		delete(values, "lr") // the scheduler's
	}
	defaults("optimizer.params", values, map[string]string{"lr": "learning_rate", "weight_decay": "weight_decay",
		"eps": "adam_epsilon"})
}

// deepSpeedStage is the stage of ZeRO, 0 without it.
func deepSpeedStage(doc map[string]any) int {
	stage, _ := number(inside(doc, "zero_optimization")["stage"])
	return int(stage)
}

// disable leaves the keys of a section out of account, except for the one that says so.
func (c *Config) disable(prefix string) {
	c.without(prefix, "the section is not enabled")
	c.without(prefix+"enabled", "")
}

// inside is the section under names, or an empty one.
func inside(doc map[string]any, names ...string) map[string]any {
	for _, n := range names {
		doc, _ = doc[n].(map[string]any)
	}
	return doc
}

// offloadDevice is where DeepSpeed offloads to.
func offloadDevice(v any) (any, string) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "none":
		return "none", ""
	case "cpu":
		return "cpu", ""
	case "nvme":
		return "disk", ""
	}
	return nil, "none, cpu or nvme"
}

// powerOfTwo is 2 to the power of v.
func powerOfTwo(v any) (any, string) {
	n, ok := number(v)
	if !ok || n != math.Trunc(n) || n < 0 || n > 126 {
		return nil, "a whole number from 0 to 126"
	}
	return math.Ldexp(1, int(n)), ""
}

// setsNVMe: both sections have a path, and there is one folder. accelerate writes "none" where there is no path.
func setsNVMe(c *Config, key string, v any) (Use, string) {
	if v == nil || sameValue(v, "none") || v == "" {
		return NoEffect, "no path"
	}
	for _, s := range c.Settings {
		if s.Key == "offload_dir" && s.Value != v {
			return Refused, fmt.Sprintf("%v, as %s has it: there is one folder", s.Value, s.From)
		}
	}
	return c.set("offload_dir", v, key)
}

// deepSpeedOptimizers are those of DeepSpeed's that are built, by their names in small letters.
var deepSpeedOptimizers = map[string]string{"adamw": "adamw_torch_fused", "adam": "adamw_torch_fused", "sgd": "sgd"}

func setsOptimizer(c *Config, key string, v any) (Use, string) {
	name := strings.ToLower(fmt.Sprint(v))
	switch optim := deepSpeedOptimizers[name]; {
	case optim == "":
		return Refused, "AdamW, Adam or SGD"
	case name == "adam":
		return Used, "optim adamw_torch_fused, or adam with adam_w_mode false"
	default:
		return c.set("optim", optim, key)
	}
}

func setsBetas(c *Config, key string, v any) (Use, string) {
	if v == autoValue {
		return Used, "adam_beta1 and adam_beta2 as the arguments have them"
	}
	list, ok := v.([]any)
	if !ok || len(list) != 2 {
		return Refused, "two numbers, or " + autoValue
	}
	for i, setting := range []string{"adam_beta1", "adam_beta2"} {
		if use, text := c.set(setting, list[i], key); use != Used {
			return use, text
		}
	}
	return Used, fmt.Sprintf("adam_beta1 %v, adam_beta2 %v", list[0], list[1])
}

// setsOptimArg is the rule of what becomes a part of optim_args.
func setsOptimArg(_ *Config, key string, v any) (Use, string) {
	name := key[strings.LastIndexByte(key, '.')+1:]
	if v == autoValue {
		return Used, name + " as the arguments have it"
	}
	return Used, fmt.Sprintf("optim_args %s=%v", name, v)
}

// deepSpeedSchedules are those of DeepSpeed's that are built, and deepSpeedScheduleKwargs their settings.
var (
	deepSpeedSchedules = []string{"WarmupLR", "WarmupDecayLR",
		"WarmupCosineLR"}
	deepSpeedScheduleKwargs = []string{"warmup_min_lr", "warmup_type", "total_num_steps", "warmup_min_ratio",
		"cos_min_ratio"}
)

func setsScheduler(c *Config, key string, v any) (Use, string) {
	if name, ok := v.(string); ok && slices.Contains(deepSpeedSchedules, name) {
		return c.set("lr_scheduler_type", name, key)
	}
	return Refused, strings.Join(deepSpeedSchedules, ", ") + "; or no scheduler, and lr_scheduler_type"
}

func setsScheduleKwarg(_ *Config, key string, v any) (Use, string) {
	name := key[strings.LastIndexByte(key, '.')+1:]
	if v == autoValue || v == nil {
		return Used, name + " as the run has it"
	}
	return Used, fmt.Sprintf("lr_scheduler_kwargs %s %v", name, v)
}

// setsOldOffload is the rule of the switches before DeepSpeed had sections for what is offloaded.
func setsOldOffload(setting string) rule {
	return func(c *Config, key string, v any) (Use, string) {
		switch v {
		case nil, false, autoValue:
			return NoEffect, "nothing is offloaded"
		case true:
			return c.set(setting, "cpu", key)
		}
		return Refused, "true or false"
	}
}

// off is the rule of a section that is not built, which its key enabled switches on; by default it is enabled or not.
func off(why string, enabled bool) rule {
	return func(_ *Config, _ string, v any) (Use, string) {
		section, isSection := v.(map[string]any)
		switch {
		case v == nil || v == false || v == autoValue, isSection && len(section) == 0:
			return NoEffect, why
		case isSection && (section["enabled"] == false || section["enabled"] == nil && !enabled):
			return NoEffect, why
		}
		return Refused, "enabled false: " + why
	}
}

// setsAutoTP is the rule of a size that is off by default.
func setsAutoTP(off float64) rule {
	return func(c *Config, key string, v any) (Use, string) {
		if n, ok := number(v); ok && n == off {
			return NoEffect, "tp_size decides"
		}
		return sets("tp_size", nil)(c, key, v)
	}
}
