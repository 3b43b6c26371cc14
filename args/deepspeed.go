// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"math"
	"strings"
)

// Reasons that several keys of DeepSpeed share.
const (
	dsBuckets   = "buffers have ddp_bucket_cap_mb, or a unit's size"
	dsPrefetch  = "the parameters of the next unit are fetched while one computes"
	dsRecompute = "gradient_checkpointing decides; recomputing never changes the bits"
	dsOffloadIO = "offloaded tensors are in mapped files"
	dsReports   = "report_to decides"
	dsProfile   = "--profile decides"
	dsLossy     = "gradients and parameters are exchanged exactly"
	dsScaling   = "the scale is halved at once when gradients overflow"
	dsOff       = "the section is not enabled"
)

// deepSpeedRules are the keys of DeepSpeed's configuration, docs/config-json of its manual.
var deepSpeedRules = map[string]configRule{
	"train_micro_batch_size_per_gpu": sets("per_device_train_batch_size", nil),
	"gradient_accumulation_steps":    sets("gradient_accumulation_steps", nil),
	"train_batch_size":               sets("global_train_batch_size", nil),
	"gradient_clipping":              sets("max_grad_norm", nil),
	"dataloader_drop_last":           sets("dataloader_drop_last", nil),
	"steps_per_print":                ignore("logging_steps decides"),
	"wall_clock_breakdown":           ignore(dsProfile),
	"memory_breakdown":               ignore(dsProfile),
	"dump_state":                     ignore("lockstep config shows the keys"),
	"seed":                           sets("seed", nil),

	"prescale_gradients":                   only("gradients are divided by the number of loss terms", false),
	"gradient_predivide_factor":            only("gradients are divided by the number of loss terms", 1),
	"sparse_gradients":                     only("gradients are dense", false),
	"fp32_allreduce":                       ignore("sums are in float32"),
	"communication_data_type":              setsReduceDType,
	"seq_parallel_communication_data_type": only("sums are in float32", "fp32"),
	"data_types.grad_accum_dtype":          only("sums are in float32", "fp32"),
	"disable_allgather":                    ignore("parameters are gathered as the engine likes"),
	"zero_allow_untested_optimizer": ignore(
		"every optimizer that is built in steps on shards"),
	"zero_force_ds_cpu_optimizer": ignore("every optimizer that is built in runs where its state is"),

	"bf16.enabled":                       sets("bf16", nil),
	"bfloat16.enabled":                   sets("bf16", nil),
	"bf16.immediate_grad_update":         ignore("gradients are float32"),
	"fp16.enabled":                       sets("fp16", nil),
	"fp16.auto_cast":                     ignore("operands are cast where an op is called"),
	"fp16.loss_scale":                    only("loss scaling adapts", 0),
	"fp16.initial_scale_power":           sets("fp16_initial_scale", powerOfTwo),
	"fp16.loss_scale_window":             sets("fp16_growth_interval", nil),
	"fp16.hysteresis":                    ignore(dsScaling),
	"fp16.consecutive_hysteresis":        ignore(dsScaling),
	"fp16.min_loss_scale":                sets("fp16_min_scale", nil),
	"fp16.fp16_master_weights_and_grads": only("parameters and gradients are float32, or dtype bfloat16", false),
	"amp.enabled":                        only("want fp16 or bf16 instead", false),
	"amp.opt_level":                      ignore("amp is not there"),
	"amp.loss_scale":                     ignore("amp is not there"),

	"optimizer.type":                   setsOptimizer,
	"optimizer.params.lr":              sets("learning_rate", nil),
	"optimizer.params.betas":           setsBetas,
	"optimizer.params.eps":             sets("adam_epsilon", nil),
	"optimizer.params.weight_decay":    sets("weight_decay", nil),
	"optimizer.params.momentum":        setsMomentum,
	"optimizer.params.torch_adam":      ignore("there is one implementation"),
	"optimizer.params.adam_w_mode":     ignore("optimizer.type counts with it"),
	"optimizer.params.bias_correction": only("both moments are corrected", true),
	"optimizer.params.amsgrad":         only("amsgrad is not built", false),
	"optimizer.params.fused":           ignore("there is one implementation"),
	"optimizer.legacy_fusion":          ignore("there is one implementation"),

	"scheduler.type":                    setsScheduler,
	"scheduler.params.warmup_min_lr":    only("the warm-up begins at 0", 0),
	"scheduler.params.warmup_max_lr":    sets("learning_rate", nil),
	"scheduler.params.warmup_num_steps": sets("warmup_steps", nil),
	"scheduler.params.warmup_type":      ignore("scheduler.type counts with it"),
	"scheduler.params.total_num_steps": only("the schedule ends with the training (max_steps, num_train_epochs)",
		autoValue),
	"scheduler.params.last_batch_iteration": only("a resume goes on where the checkpoint is", -1),

	"zero_optimization.stage":                           sets("zero_stage", nil),
	"zero_optimization.overlap_comm":                    ignore("exchanges always overlap with the backward pass"),
	"zero_optimization.contiguous_gradients":            ignore("gradients always lie side by side"),
	"zero_optimization.allgather_partitions":            ignore("parameters are gathered as the engine likes"),
	"zero_optimization.reduce_scatter":                  ignore("each shard's sum goes to its owner alone"),
	"zero_optimization.reduce_bucket_size":              ignore(dsBuckets),
	"zero_optimization.allgather_bucket_size":           ignore(dsBuckets),
	"zero_optimization.sub_group_size":                  ignore("the optimizer's state is updated piece by piece"),
	"zero_optimization.round_robin_gradients":           ignore("shards are equal"),
	"zero_optimization.use_multi_rank_bucket_allreduce": ignore(dsBuckets),
	"zero_optimization.elastic_checkpoint":              ignore("any number of ranks can resume"),
	"zero_optimization.load_from_fp32_weights":          ignore("checkpoints have the parameters as they are"),
	"zero_optimization.ignore_unused_parameters":        ignore("ddp_find_unused_parameters decides"),
	"zero_optimization.legacy_stage1":                   ignore("there is one stage 1"),
	"zero_optimization.cpu_offload":                     ignore("on a CPU it changes nothing"),
	"zero_optimization.cpu_offload_params":              ignore("on a CPU it changes nothing"),
	"zero_optimization.cpu_offload_use_pin_memory":      ignore("nothing is copied to a GPU"),
	"zero_optimization.override_module_apply":           ignore("modules are whole where they compute"),
	"zero_optimization.memory_efficient_linear":         ignore("linear layers save only what backward needs"),
	"zero_optimization.module_granularity_threshold": ignore(
		"units are the model's blocks, or fsdp_min_num_params'"),
	"zero_optimization.log_trace_cache_warnings":           ignore("there is no such cache"),
	"zero_optimization.pipeline_loading_checkpoint":        ignore("each rank reads what it owns"),
	"zero_optimization.leaf_module":                        ignore("units are the model's blocks"),
	"zero_optimization.stage3_max_live_parameters":         ignore(dsPrefetch),
	"zero_optimization.stage3_max_reuse_distance":          ignore("parameters go when their unit's pass ends"),
	"zero_optimization.stage3_prefetch_bucket_size":        ignore(dsPrefetch),
	"zero_optimization.stage3_param_persistence_threshold": sets("fsdp_persistence_threshold", nil),
	"zero_optimization.stage3_model_persistence_threshold": ignore(
		"small parameters come and go with the others of their unit"),
	"zero_optimization.stage3_module_granularity_threshold": ignore(
		"units are the model's blocks, or fsdp_min_num_params'"),
	"zero_optimization.stage3_use_all_reduce_for_fetch_params": ignore("parameters are gathered as the engine likes"),
	"zero_optimization.stage3_gather_16bit_weights_on_model_save": ignore(
		"saved models are whole; fsdp_state_dict_type decides for checkpoints"),
	"zero_optimization.stage3_gather_fp16_weights_on_model_save": ignore(
		"saved models are whole; fsdp_state_dict_type decides for checkpoints"),
	"zero_optimization.zero_hpz_partition_size": ignore(
		"it changes who sends what, and no result; want dp_replicate_size"),
	"zero_optimization.mics_shard_size":                     only("want dp_replicate_size instead", -1),
	"zero_optimization.mics_hierarchical_params_gather":     ignore("want dp_replicate_size instead"),
	"zero_optimization.zero_quantized_weights":              only(dsLossy, false),
	"zero_optimization.zero_quantized_gradients":            only(dsLossy, false),
	"zero_optimization.zero_quantized_nontrainable_weights": only(dsLossy, false),

	"zero_optimization.offload_optimizer.device":         sets("offload_optimizer", offloadDevice),
	"zero_optimization.offload_optimizer.nvme_path":      setsNVMe,
	"zero_optimization.offload_optimizer.pin_memory":     ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.buffer_count":   ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.buffer_size":    ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.fast_init":      ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.pipeline":       ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.pipeline_read":  ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.pipeline_write": ignore(dsOffloadIO),
	"zero_optimization.offload_optimizer.ratio":          only("the whole state is offloaded", 1),
	"zero_optimization.offload_param.device":             sets("offload_params", offloadDevice),
	"zero_optimization.offload_param.nvme_path":          setsNVMe,
	"zero_optimization.offload_param.pin_memory":         ignore(dsOffloadIO),
	"zero_optimization.offload_param.buffer_count":       ignore(dsOffloadIO),
	"zero_optimization.offload_param.buffer_size":        ignore(dsOffloadIO),
	"zero_optimization.offload_param.max_in_cpu":         ignore(dsOffloadIO),

	"activation_checkpointing":          ignore(dsRecompute),
	"aio":                               ignore(dsOffloadIO),
	"flops_profiler":                    ignore(dsProfile),
	"comms_logger":                      ignore(dsProfile),
	"tensorboard":                       ignore(dsReports),
	"wandb":                             ignore(dsReports),
	"comet":                             ignore(dsReports),
	"csv_monitor":                       ignore(dsReports),
	"monitor_config":                    ignore(dsReports),
	"nebula.enabled":                    only("checkpoints are written by the ranks", false),
	"checkpoint.tag_validation":         ignore("all ranks save the same step"),
	"checkpoint.load_universal":         ignore("any number of ranks can resume"),
	"checkpoint.parallel_write":         ignore("fsdp_state_dict_type sharded_state_dict writes in parallel"),
	"checkpoint.use_node_local_storage": only("output_dir is a folder that all hosts share", false),
	"elasticity.enabled":                only("the number of ranks is the launcher's", false),
	"autotuning.enabled":                only("sizes are the arguments'", false),
	"progressive_layer_drop.enabled":    only("every layer computes in every step", false),
	"curriculum_learning.enabled":       only("samples come in the sampler's order", false),
	"data_efficiency.enabled":           only("samples come in the sampler's order", false),
	"compression_training":              only("quantisation and pruning are not built", map[string]any{}),
	"sparse_attention":                  only("attention is dense", map[string]any{}),
	"quantize_training.enabled":         only("quantisation is not built", false),
	"hybrid_engine.enabled":             only("generation needs no engine of its own", false),
	"eigenvalue.enabled":                only("eigenvalues are not built", false),
	"compile":                           ignore("there is nothing to compile"),
	"tensor_parallel.autotp_size":       only("tensors are not split", 0, 1),
	"pipeline":                          only("layers are not split over stages", map[string]any{}),
}

// deepSpeedConfig reads DeepSpeed's configuration.
func deepSpeedConfig(doc map[string]any) *ToolConfig {
	t := &ToolConfig{Tool: "DeepSpeed"}
	for _, name := range []string{"fp16", "bf16", "bfloat16", "amp"} {
		if inside(doc, name)["enabled"] == false {
			t.disable(name + ".")
		}
	}
	if stage, ok := configNumber(inside(doc, "zero_optimization")["stage"]); ok && stage < 3 {
		t.without("zero_optimization.offload_param.", "parameters are offloaded in stage 3")
	}
	// DeepSpeed's schedulers set the rate whatever the optimizer has.
	if peak := inside(doc, "scheduler", "params")["warmup_max_lr"]; peak != nil && peak != autoValue {
		t.without("optimizer.params.lr", "scheduler.params.warmup_max_lr is the learning rate")
	}
	t.walk(deepSpeedRules, "", doc)
	if strings.EqualFold(fmt.Sprint(inside(doc, "optimizer")["type"]), "adam") { // which is AdamW unless told otherwise
		optim := OptimAdamWFused
		if inside(doc, "optimizer", "params")["adam_w_mode"] == false {
			optim = OptimAdam
		}
		t.set("optim", string(optim), "optimizer.type")
	}
	if scheduler := inside(doc, "scheduler"); scheduler["type"] == "WarmupLR" || scheduler["type"] == "WarmupDecayLR" {
		kind := inside(doc, "scheduler", "params")["warmup_type"]
		if kind == nil || kind == autoValue || sameValue(kind, "log") {
			t.set("lr_scheduler_kwargs", map[string]any{"warmup_type": "log"}, "scheduler.params.warmup_type")
		}
	}
	return t
}

// disable leaves the keys of a section out of account, but for the one that says so.
func (t *ToolConfig) disable(prefix string) {
	t.without(prefix, dsOff)
	t.without(prefix+"enabled", "")
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
		return string(OffloadNone), ""
	case "cpu":
		return string(OffloadCPU), ""
	case "nvme":
		return string(OffloadDisk), ""
	}
	return nil, "none, cpu or nvme"
}

// powerOfTwo is 2 to the power of v.
func powerOfTwo(v any) (any, string) {
	n, ok := configNumber(v)
	if !ok || n != math.Trunc(n) || n < 0 || n > 126 {
		return nil, "a whole number from 0 to 126"
	}
	return math.Ldexp(1, int(n)), ""
}

// setsNVMe: both sections have a path, and there is one folder. accelerate writes "none" where there is no path.
func setsNVMe(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if v == nil || sameValue(v, "none") || v == "" {
		return ConfigNoEffect, "no path"
	}
	for _, s := range t.sets {
		if s.key == "offload_dir" && s.raw != v {
			return ConfigRefused, fmt.Sprintf("%v, as %s has it: there is one folder", s.raw, s.from)
		}
	}
	return t.set("offload_dir", v, key)
}

func setsOptimizer(t *ToolConfig, key string, v any) (ConfigUse, string) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "adamw":
		return t.set("optim", string(OptimAdamWFused), key)
	case "adam":
		return ConfigUsed, "optim adamw_torch_fused, or adam with adam_w_mode false"
	case "sgd":
		return t.set("optim", string(OptimSGD), key)
	}
	return ConfigRefused, "AdamW, Adam or SGD"
}

func setsBetas(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if v == autoValue {
		return ConfigUsed, "adam_beta1 and adam_beta2 as the arguments have them"
	}
	list, ok := v.([]any)
	if !ok || len(list) != 2 {
		return ConfigRefused, "two numbers, or " + autoValue
	}
	for i, setting := range []string{"adam_beta1", "adam_beta2"} {
		if use, text := t.set(setting, list[i], key); use != ConfigUsed {
			return use, text
		}
	}
	return ConfigUsed, fmt.Sprintf("adam_beta1 %v, adam_beta2 %v", list[0], list[1])
}

func setsMomentum(t *ToolConfig, key string, v any) (ConfigUse, string) {
	if v == autoValue {
		return ConfigUsed, "momentum as the arguments have it"
	}
	return t.set("optim_args", fmt.Sprintf("momentum=%v", v), key)
}

func setsScheduler(t *ToolConfig, key string, v any) (ConfigUse, string) {
	switch v {
	case "WarmupLR":
		return t.set("lr_scheduler_type", string(SchedulerConstantWithWarmup), key)
	case "WarmupDecayLR":
		return t.set("lr_scheduler_type", string(SchedulerLinear), key)
	}
	return ConfigRefused, "WarmupLR or WarmupDecayLR; or no scheduler, and lr_scheduler_type"
}
