// SPDX-License-Identifier: Apache-2.0

package args

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// HuggingFace lists the arguments of HuggingFace's TrainingArguments (transformers 4.1 to 5.24) for which the
// TrainingArguments here have no field, and says what happens to each. The parser and the tables in docs/arguments.md
// use it. To build one of them, add the field and delete the row.
func HuggingFace() []Known { return slices.Concat(current(), older()) }

// Reasons that several names share.
const (
	noHub      = "uploads to the Hub; leave it out: lockstep upload ORG/NAME OUTPUT_DIR sends what was saved"
	hubReads   = "transformers too reads it only with push_to_hub"
	ownServer  = "trackio gets runs at TRACKIO_SERVER_URL"
	compiled   = "programs and kernels are compiled before the run"
	fp16Reads  = "it chose apex or torch.amp; fp16 and bf16 are built in"
	goroutines = "workers are goroutines"
)

// current lists the arguments of transformers 5.24, in its order.
func current() []Known {
	return []Known{
		planned("optim_target_modules", TypeAny, "",
			"optimizers for some of the modules (GaLore, APOLLO)"),
		refused("average_tokens_across_devices", TypeBool, "true",
			"true: the loss is the mean over the terms of all ranks, never a mean of the ranks' means"),
		renamed("activation_checkpointing", TypeBool, "", "gradient_checkpointing").same("false"),
		noEffect("activation_checkpointing_kwargs", TypeAny, "", "recomputing never changes the bits"),
		noEffect("gradient_checkpointing_kwargs", TypeAny, "", "recomputing never changes the bits"),
		noEffect("torch_compile", TypeBool, "false", compiled),
		noEffect("torch_compile_backend", TypeString, "", compiled),
		noEffect("torch_compile_mode", TypeString, "", compiled),
		noEffect("use_liger_kernel", TypeBool, "false", "Liger's kernels are for GPUs and compute the same"),
		noEffect("liger_kernel_config", TypeAny, "", "Liger's kernels are for GPUs and compute the same"),
		noEffect("use_cache", TypeBool, "false",
			"training and evaluation have no use for a cache of keys and values"),
		noEffect("torch_empty_cache_steps", TypeInt, "", "memory of a step is freed as soon as it is not needed"),
		noEffect("logging_nan_inf_filter", TypeBool, "true",
			"losses are not filtered; nonfinite_loss decides"),
		noEffect("trackio_space_id", TypeString, "", ownServer).same("trackio"),
		noEffect("trackio_bucket_id", TypeString, "", ownServer),
		noEffect("trackio_static_space_id", TypeAny, "", ownServer),
		noEffect("eval_do_concat_batches", TypeBool, "true", "metrics are updated batch by batch (trainer.Metric)"),
		noEffect("eval_use_gather_object", TypeBool, "false",
			"each rank updates its own metrics (trainer.Metric)"),
		noEffect("eval_accumulation_steps", TypeInt, "",
			"metrics are updated batch by batch (trainer.Metric)").checked(wantPositive),
		noEffect("batch_eval_metrics", TypeBool, "false", "metrics are updated batch by batch (trainer.Metric)"),
		renamed("enable_jit_checkpoint", TypeBool, "false", "save_on_interrupt").values("true", ""),
		planned("push_to_hub", TypeBool, "false", noHub),
		noEffect("hub_token", TypeString, "", hubReads),
		noEffect("hub_private_repo", TypeBool, "", hubReads),
		noEffect("hub_model_id", TypeString, "", hubReads),
		noEffect("hub_strategy", TypeString, "every_save", hubReads),
		noEffect("hub_always_push", TypeBool, "false", hubReads),
		noEffect("hub_revision", TypeString, "", hubReads),
		noEffect("restore_callback_states_from_checkpoint", TypeBool, "false",
			"callbacks are always restored"),
		noEffect("full_determinism", TypeBool, "false", "every run is deterministic"),
		renamed("use_cpu", TypeBool, "false", "device").values("cpu", ""),
		noEffect("dataloader_pin_memory", TypeBool, "true", "batches go to a GPU through pinned memory in any case"),
		noEffect("dataloader_persistent_workers", TypeBool, "false", goroutines),
		noEffect("dataloader_multiprocessing_context", TypeString, "", goroutines),
		noEffect("dataloader_in_order", TypeBool, "true", "batches always come in order"),
		noEffect("remove_unused_columns", TypeBool, "true",
			"a model takes the tensors that it needs from a batch"),
		noEffect("label_names", TypeList, "", "a model takes the tensors that it needs from a batch"),
		noEffect("local_rank", TypeInt, "-1", "the rank comes from the launcher's variables (LOCAL_RANK)"),
	}
}

// older lists the names that transformers 5.24 has no longer, by name.
func older() []Known {
	return []Known{
		renamed("adafactor", TypeBool, "false", "optim").values("adafactor", ""),
		noEffect("dispatch_batches", TypeBool, "", "every rank reads its own batches").same("false"),
		renamed("evaluate_during_training", TypeBool, "false", "eval_strategy").values(string(StrategySteps), ""),
		renamed("evaluation_strategy", TypeString, "", "eval_strategy").same("no"),
		noEffect("fp16_backend", TypeString, "auto", fp16Reads),
		noEffect("fp16_opt_level", TypeString, "O1", fp16Reads),
		renamed("group_by_length", TypeBool, "false", "train_sampling_strategy").
			values(string(SamplingGroupByLength), string(SamplingRandom)),
		noEffect("half_precision_backend", TypeString, "auto", fp16Reads),
		renamed("include_inputs_for_metrics", TypeBool, "false", "include_for_metrics").values(MetricInputs, ""),
		noEffect("include_tokens_per_second", TypeBool, "false", "train_tokens_per_second is always measured"),
		noEffect("jit_mode_eval", TypeBool, "false", compiled),
		noEffect("logging_dir", TypeString, "",
			"TensorBoard's files are in output_dir/runs"),
		planned("model_parallel", TypeBool, "false", "models split over devices; leave it out"),
		noEffect("mp_parameters", TypeString, "", "only SageMaker's launcher reads it"),
		renamed("no_cuda", TypeBool, "false", "use_cpu"),
		refused("past_index", TypeInt, "-1", "-1: models with a memory between batches are not built"),
		renamed("per_gpu_eval_batch_size", TypeInt, "", "per_device_eval_batch_size"),
		renamed("per_gpu_train_batch_size", TypeInt, "", "per_device_train_batch_size"),
		renamed("push_to_hub_model_id", TypeString, "", "hub_model_id"),
		noEffect("push_to_hub_organization", TypeString, "", hubReads),
		renamed("push_to_hub_token", TypeString, "", "hub_token"),
		noEffect("ray_scope", TypeString, "last", "only a search for hyper-parameters reads it"),
		noEffect("save_safetensors", TypeBool, "true", "weights are always saved as safetensors"),
		renamed("sharded_ddp", TypeAny, "", "fsdp"),
		refused("split_batches", TypeBool, "",
			"accelerator_config with split_batches, and data_sharding huggingface; or global_train_batch_size").same(
			"false"),
		noEffect("torchdynamo", TypeString, "", compiled),
		noEffect("tpu_metrics_debug", TypeBool, "false", "the run is on the CPU"),
		noEffect("tpu_num_cores", TypeInt, "", "the run is on the CPU"),
		noEffect("use_ipex", TypeBool, "false", "kernels for the CPU are built in"),
		noEffect("use_legacy_prediction_loop", TypeBool, "false", "there is one evaluation loop"),
		noEffect("use_mps_device", TypeBool, "false", "the run is on the CPU"),
		warmupRatio(),
		renamed("xpu_backend", TypeString, "", "ddp_backend"),
	}
}

// planned is a row for what is not built yet.
func planned(name string, t Type, value, reason string) Known {
	return Known{Name: name, Type: t, Default: value, Status: StatusPlanned, Reason: reason}
}

// noEffect is a row for what changes no result here.
func noEffect(name string, t Type, value, reason string) Known {
	return Known{Name: name, Type: t, Default: value, Status: StatusNoEffect, Reason: reason}
}

// refused is a row for what would change the result; want completes "want …".
func refused(name string, t Type, value, want string) Known {
	return Known{Name: name, Type: t, Default: value, Status: StatusRefused, Reason: want}
}

// renamed is a row for another name of target.
func renamed(name string, t Type, value, target string) Known {
	return Known{Name: name, Type: t, Default: value, Status: StatusRenamed, Target: target}
}

// same adds values that change nothing.
func (k Known) same(texts ...string) Known {
	k.Same = texts
	return k
}

// values says what a renamed switch means to its target; an empty text is nothing.
func (k Known) values(on, off string) Known {
	k.Values = map[string]string{}
	for from, to := range map[string]string{"true": on, "false": off} {
		if to != "" {
			k.Values[from] = to
		}
	}
	return k
}

// checked says what a value must fulfil.
func (k Known) checked(want func(value any) string) Known {
	k.check = want
	return k
}

func wantPositive(v any) string {
	if v.(int64) < 1 {
		return "a number of batches ≥ 1"
	}
	return ""
}

// warmupRatio leads to warmup_steps, where 1 would be one step.
func warmupRatio() Known {
	k := renamed("warmup_ratio", TypeFloat, "0", "warmup_steps")
	k.check = func(v any) string {
		if r := v.(float64); r < 0 || r >= 1 {
			return "a ratio of all steps in [0, 1)"
		}
		return ""
	}
	return k
}

// plannedValues lists values of settings that HuggingFace's have. A fault says that those that are not built are not.
var plannedValues = map[string][]string{
	"train_sampling_strategy": {"batch_rebalance"},
	"log_level":               {"detail"},
	"log_level_replica":       {"detail"},
	"ddp_backend":             {"ccl", "cncl", "hccl", "mccl", "xccl"},
}

// choiceHint says that a value is refused or not built yet, or which one was likely meant.
func choiceHint(key, value string, choices []string) string {
	if known := reporterHint(value, choices); key == "report_to" && known != "" {
		return known
	}
	if why := catalog.WhyRefused(value); key == "optim" && why != "" {
		return "; " + value + " is refused: " + why
	}
	if slices.Contains(plannedValues[key], value) {
		return "; " + value + " is not built yet"
	}
	return hint(value, choices)
}

// noneOf says what takes the place of HuggingFace's default None where a setting has no such value.
var noneOf = map[string]string{
	"output_dir":                 "None is trainer_output there too",
	"tf32":                       "None leaves PyTorch's mode there, which is off for products",
	"gradient_checkpointing":     "None is false there too",
	"ddp_backend":                "None is the device's engine there",
	"ddp_bucket_cap_mb":          "None is PyTorch's 25 there, as 0 is here",
	"ddp_broadcast_buffers":      "None is PyTorch's true there",
	"ddp_find_unused_parameters": "None is true there, except with gradient checkpointing",
	"ddp_static_graph":           "None is PyTorch's false there",
}

// noneIsDefault reports whether null in a file leaves a setting alone.
func noneIsDefault(key string) bool { return noneOf[key] != "" }
