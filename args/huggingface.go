package args

import "slices"

// HuggingFace lists the names of the arguments of HuggingFace's TrainingArguments (transformers 4.1 to 5.23) that
// TrainingArguments has no field for, and what becomes of each. The parser and the table in docs/arguments.md are made
// from it. Whoever builds one of them adds the field and deletes the row.
func HuggingFace() []Known { return slices.Concat(current(), older()) }

// Reasons that several names share.
const (
	noMixedPrecision = "mixed precision; want float32, by leaving it out"
	noHub            = "uploads to the Hub; want the flag left out, and output_dir uploaded by another tool"
	hubReads         = "only an upload to the Hub reads it, which is not built"
	trackioReads     = "only the reporter trackio reads it, which is not built"
	compiled         = "programs and kernels are compiled before the run"
	noSharding       = "sharded models; want ranks that each hold the model (num_replicas, or a launcher)"
	fsdpReads        = "only fsdp reads it, which is not built"
	fp16Reads        = "only mixed precision on a GPU reads it, which is not built"
	goroutines       = "workers are goroutines, which are there as long as they are needed"
)

// current lists the arguments of transformers 5.23, in its order.
func current() []Known {
	return []Known{
		{Name: "optim_target_modules", Type: TypeAny, Status: StatusPlanned, Reason: "optimizers that treat some modules differently (GaLore, APOLLO)"},
		{Name: "average_tokens_across_devices", Type: TypeBool, Default: "true", Status: StatusRefused,
			Reason: "true: the loss is the mean over the terms of all ranks, never a mean of the ranks' means"},
		{Name: "label_smoothing_factor", Type: TypeFloat, Default: "0", Status: StatusPlanned, Reason: "label smoothing; want 0"},
		{Name: "bf16", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: noMixedPrecision},
		{Name: "fp16", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: noMixedPrecision},
		{Name: "bf16_full_eval", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: noMixedPrecision},
		{Name: "fp16_full_eval", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: noMixedPrecision},
		{Name: "tf32", Type: TypeBool, Status: StatusNoEffect, Reason: "it is a mode of NVIDIA's GPUs, and the run is on the CPU"},
		{Name: "activation_checkpointing", Type: TypeBool, Same: []string{"false"}, Status: StatusRenamed, Target: "gradient_checkpointing"},
		{Name: "activation_checkpointing_kwargs", Type: TypeAny, Status: StatusNoEffect, Reason: "recomputed activations have the same bits in every mode"},
		{Name: "gradient_checkpointing_kwargs", Type: TypeAny, Status: StatusNoEffect, Reason: "recomputed activations have the same bits in every mode"},
		{Name: "torch_compile", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: compiled},
		{Name: "torch_compile_backend", Type: TypeString, Status: StatusNoEffect, Reason: compiled},
		{Name: "torch_compile_mode", Type: TypeString, Status: StatusNoEffect, Reason: compiled},
		{Name: "use_liger_kernel", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "Liger's are kernels for GPUs with the same results"},
		{Name: "liger_kernel_config", Type: TypeAny, Status: StatusNoEffect, Reason: "Liger's are kernels for GPUs with the same results"},
		{Name: "use_cache", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "training and evaluation have no use for a cache of keys and values"},
		{Name: "neftune_noise_alpha", Type: TypeFloat, Status: StatusPlanned, Reason: "NEFTune's noise on embeddings"},
		{Name: "torch_empty_cache_steps", Type: TypeInt, Status: StatusNoEffect, Reason: "memory of a step is freed as soon as it is not needed"},
		{Name: "auto_find_batch_size", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: "the search for a batch size that fits; want per_device_train_batch_size (lockstep estimate-memory helps to choose it)"},
		{Name: "logging_nan_inf_filter", Type: TypeBool, Default: "true", Status: StatusNoEffect, Reason: "a loss that is not finite is always shown; nonfinite_loss says what it does"},
		{Name: "project", Type: TypeString, Default: "huggingface", Status: StatusNoEffect, Reason: trackioReads},
		{Name: "trackio_space_id", Type: TypeString, Same: []string{"trackio"}, Status: StatusNoEffect, Reason: trackioReads},
		{Name: "trackio_bucket_id", Type: TypeString, Status: StatusNoEffect, Reason: trackioReads},
		{Name: "trackio_static_space_id", Type: TypeAny, Status: StatusNoEffect, Reason: trackioReads},
		{Name: "eval_do_concat_batches", Type: TypeBool, Default: "true", Status: StatusNoEffect, Reason: "metrics see batch by batch (trainer.Metric)"},
		{Name: "eval_use_gather_object", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "metrics of ranks are joined, not their predictions (trainer.Metric)"},
		{Name: "eval_accumulation_steps", Type: TypeInt, Status: StatusNoEffect, Reason: "metrics see batch by batch, and predictions are never gathered on a device"},
		{Name: "include_for_metrics", Type: TypeList, Status: StatusNoEffect, Reason: "metrics always see the inputs and the loss (trainer.Metric)"},
		{Name: "batch_eval_metrics", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "metrics always see batch by batch (trainer.Metric)"},
		{Name: "save_on_each_node", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: "checkpoints on every host; want an output_dir that all hosts share"},
		{Name: "enable_jit_checkpoint", Type: TypeBool, Default: "false", Status: StatusRenamed, Target: "save_on_interrupt", Values: map[string]string{"true": "true"}},
		{Name: "push_to_hub", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: noHub},
		{Name: "hub_token", Type: TypeString, Status: StatusNoEffect, Reason: hubReads},
		{Name: "hub_private_repo", Type: TypeBool, Status: StatusNoEffect, Reason: hubReads},
		{Name: "hub_model_id", Type: TypeString, Status: StatusNoEffect, Reason: hubReads},
		{Name: "hub_strategy", Type: TypeString, Default: "every_save", Status: StatusNoEffect, Reason: hubReads},
		{Name: "hub_always_push", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: hubReads},
		{Name: "hub_revision", Type: TypeString, Status: StatusNoEffect, Reason: hubReads},
		{Name: "ignore_data_skip", Type: TypeBool, Default: "false", Status: StatusRefused,
			Reason: "false: a resumed run goes on in its data where it stopped, which costs no time here"},
		{Name: "restore_callback_states_from_checkpoint", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "a resume always restores the callbacks' states"},
		{Name: "full_determinism", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "every run is deterministic"},
		{Name: "use_cpu", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "every run is on the CPU"},
		{Name: "accelerator_config", Type: TypeAny, Status: StatusRefused,
			Same:   []string{`{"split_batches": false, "even_batches": true, "use_seedable_sampler": true, "non_blocking": false}`},
			Reason: "it left out: ranks read their own batches of per_device_train_batch_size samples, and no sample is repeated to even them out"},
		{Name: "parallelism_config", Type: TypeAny, Status: StatusPlanned, Reason: "parallelism other than data parallelism; want it left out"},
		{Name: "dataloader_pin_memory", Type: TypeBool, Default: "true", Status: StatusNoEffect, Reason: "nothing is copied to a GPU"},
		{Name: "dataloader_persistent_workers", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: goroutines},
		{Name: "dataloader_multiprocessing_context", Type: TypeString, Status: StatusNoEffect, Reason: goroutines},
		{Name: "dataloader_in_order", Type: TypeBool, Default: "true", Status: StatusNoEffect, Reason: "batches always come in order"},
		{Name: "remove_unused_columns", Type: TypeBool, Default: "true", Status: StatusNoEffect, Reason: "a model reads the tensors of a batch by name and leaves the others alone"},
		{Name: "label_names", Type: TypeList, Status: StatusNoEffect, Reason: "a model reads the tensors of a batch by name"},
		{Name: "fsdp", Type: TypeAny, Status: StatusPlanned, Reason: noSharding},
		{Name: "fsdp_config", Type: TypeAny, Same: []string{`{"min_num_params": 0, "xla": false, "xla_fsdp_v2": false, "xla_fsdp_grad_ckpt": false}`},
			Status: StatusNoEffect, Reason: fsdpReads},
		{Name: "deepspeed", Type: TypeAny, Status: StatusPlanned, Reason: noSharding},
		{Name: "debug", Type: TypeAny, Status: StatusPlanned, Reason: "a search for overflows; nonfinite_loss says what a loss that is not finite does"},
		{Name: "local_rank", Type: TypeInt, Default: "-1", Status: StatusNoEffect, Reason: "the launcher's variables tell the rank (LOCAL_RANK)"},
	}
}

// older lists the names that transformers 5.23 has no longer, by name.
func older() []Known {
	return []Known{
		{Name: "adafactor", Type: TypeBool, Default: "false", Status: StatusRenamed, Target: "optim", Values: map[string]string{"true": "adafactor"}},
		{Name: "dispatch_batches", Type: TypeBool, Same: []string{"false"}, Status: StatusNoEffect, Reason: "every rank reads its own batches"},
		{Name: "evaluate_during_training", Type: TypeBool, Default: "false", Status: StatusRenamed, Target: "eval_strategy",
			Values: map[string]string{"true": string(StrategySteps)}},
		{Name: "evaluation_strategy", Type: TypeString, Same: []string{"no"}, Status: StatusRenamed, Target: "eval_strategy"},
		{Name: "fp16_backend", Type: TypeString, Default: "auto", Status: StatusNoEffect, Reason: fp16Reads},
		{Name: "fp16_opt_level", Type: TypeString, Default: "O1", Status: StatusNoEffect, Reason: fp16Reads},
		{Name: "fsdp_min_num_params", Type: TypeInt, Default: "0", Status: StatusNoEffect, Reason: fsdpReads},
		{Name: "fsdp_transformer_layer_cls_to_wrap", Type: TypeString, Status: StatusNoEffect, Reason: fsdpReads},
		{Name: "group_by_length", Type: TypeBool, Default: "false", Status: StatusRenamed, Target: "train_sampling_strategy",
			Values: map[string]string{"true": string(SamplingGroupByLength), "false": string(SamplingRandom)}},
		{Name: "half_precision_backend", Type: TypeString, Default: "auto", Status: StatusNoEffect, Reason: fp16Reads},
		{Name: "include_inputs_for_metrics", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "metrics always see the inputs (trainer.Metric)"},
		{Name: "include_tokens_per_second", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "train_tokens_per_second is always measured"},
		{Name: "jit_mode_eval", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: compiled},
		{Name: "logging_dir", Type: TypeString, Status: StatusNoEffect, Reason: "logs are in output_dir, or where the variable TENSORBOARD_LOGGING_DIR says"},
		{Name: "model_parallel", Type: TypeBool, Default: "false", Status: StatusPlanned, Reason: "models that are cut over devices; want the flag left out"},
		{Name: "mp_parameters", Type: TypeString, Status: StatusNoEffect, Reason: "only SageMaker's launcher reads it"},
		{Name: "no_cuda", Type: TypeBool, Default: "false", Status: StatusRenamed, Target: "use_cpu"},
		{Name: "overwrite_output_dir", Type: TypeBool, Default: "false", Status: StatusNoEffect,
			Reason: "a run without resume_from_checkpoint starts anew in its output_dir, used or not"},
		{Name: "past_index", Type: TypeInt, Default: "-1", Status: StatusRefused, Reason: "-1: models that hand a memory from batch to batch are not built"},
		{Name: "per_gpu_eval_batch_size", Type: TypeInt, Status: StatusRenamed, Target: "per_device_eval_batch_size"},
		{Name: "per_gpu_train_batch_size", Type: TypeInt, Status: StatusRenamed, Target: "per_device_train_batch_size"},
		{Name: "push_to_hub_model_id", Type: TypeString, Status: StatusRenamed, Target: "hub_model_id"},
		{Name: "push_to_hub_organization", Type: TypeString, Status: StatusNoEffect, Reason: hubReads},
		{Name: "push_to_hub_token", Type: TypeString, Status: StatusRenamed, Target: "hub_token"},
		{Name: "ray_scope", Type: TypeString, Default: "last", Status: StatusNoEffect, Reason: "only a search for hyper-parameters reads it"},
		{Name: "save_safetensors", Type: TypeBool, Default: "true", Status: StatusNoEffect, Reason: "weights are always saved as safetensors"},
		{Name: "sharded_ddp", Type: TypeAny, Status: StatusPlanned, Reason: noSharding},
		{Name: "split_batches", Type: TypeBool, Same: []string{"false"}, Status: StatusRefused,
			Reason: "global_train_batch_size, which is the number of samples over all ranks"},
		{Name: "torchdynamo", Type: TypeString, Status: StatusNoEffect, Reason: compiled},
		{Name: "tpu_metrics_debug", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "the run is on the CPU"},
		{Name: "tpu_num_cores", Type: TypeInt, Status: StatusNoEffect, Reason: "the run is on the CPU"},
		{Name: "use_ipex", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "kernels for the CPU are built in"},
		{Name: "use_legacy_prediction_loop", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "there is one evaluation loop"},
		{Name: "use_mps_device", Type: TypeBool, Default: "false", Status: StatusNoEffect, Reason: "the run is on the CPU"},
		{Name: "warmup_ratio", Type: TypeFloat, Default: "0", Status: StatusRenamed, Target: "warmup_steps", check: func(v any) string {
			if r := v.(float64); r < 0 || r >= 1 {
				return "a ratio of all steps in [0, 1)"
			}
			return ""
		}},
		{Name: "xpu_backend", Type: TypeString, Status: StatusRenamed, Target: "ddp_backend"},
	}
}

// noneOf says what takes the place of HuggingFace's default None where a setting has no such value.
var noneOf = map[string]string{
	"output_dir":                 "None is trainer_output there too",
	"gradient_checkpointing":     "None is false there too",
	"ddp_backend":                "None is the device's engine there",
	"ddp_bucket_cap_mb":          "None is PyTorch's 25 there, as 0 is here",
	"ddp_broadcast_buffers":      "None is PyTorch's true there",
	"ddp_find_unused_parameters": "None is true there, but with gradient checkpointing",
	"ddp_static_graph":           "None is PyTorch's false there",
}

// noneIsDefault reports whether null in a file leaves a setting alone.
func noneIsDefault(key string) bool { return noneOf[key] != "" }
