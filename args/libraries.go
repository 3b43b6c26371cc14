// SPDX-License-Identifier: Apache-2.0

package args

import "strings"

// Libraries lists names that scripts have from libraries around transformers: trl, peft, accelerate launch, and the
// fine-tuning tools built on them. A Loader of TrainingArguments knows them as it knows HuggingFace's own. Settings of
// a program under these names come first.
func Libraries() []Known {
	rows := []Known{
		// accelerate launch, whose flags go before a program
		refused("num_processes", TypeInt, "", "lockstep launch --nproc_per_node N before the program, or num_replicas"),
		refused("num_machines", TypeInt, "1", "lockstep launch --nnodes N before the program, on each host"),
		refused("machine_rank", TypeInt, "0", "lockstep launch --node_rank N before the program"),
		refused("main_process_ip", TypeString, "", "lockstep launch --master_addr HOST before the program"),
		refused("main_process_port", TypeInt, "", "lockstep launch --master_port N before the program"),
		refused("config_file", TypeString, "",
			"lockstep launch --config_file FILE before the program, or config for a file of the program's settings"),
		refused("mixed_precision", TypeString, "no", "bf16 true or fp16 true"),
		refused("use_fsdp", TypeBool, "false", "fsdp true"),
		refused("use_deepspeed", TypeBool, "false", "deepspeed FILE, or zero_stage"),
		renamed("deepspeed_config_file", TypeString, "", "deepspeed"),
		renamed("gradient_clipping", TypeFloat, "", "max_grad_norm"),
		offloaded("offload_optimizer_device", "offload_optimizer"),
		offloaded("offload_param_device", "offload_params"),
		renamed("fsdp_activation_checkpointing", TypeBool, "false", "gradient_checkpointing"),
		refused("fsdp_sharding_strategy", TypeString, "", "fsdp full_shard, shard_grad_op, hybrid_shard or no_shard"),
		refused("fsdp_reshard_after_forward", TypeString, "", "fsdp full_shard or shard_grad_op"),
		refused("fsdp_offload_params", TypeBool, "false", "offload_params cpu"),
		renamed("cpu", TypeBool, "false", "use_cpu"),
		refused("max_restarts", TypeInt, "0", "lockstep launch --max_restarts N before the program"),
		refused("log_dir", TypeString, "", "lockstep launch --log_dir FOLDER before the program"),
		planned("use_megatron_lm", TypeBool, "false", "models split over devices; leave it out"),
		noEffect("multi_gpu", TypeBool, "false", "device and the number of ranks decide"),
		noEffect("gpu_ids", TypeString, "", "device decides"),
		refused("tpu", TypeBool, "false", "device cpu or cuda"),
		renamed("parallelism_config_dp_replicate_size", TypeInt, "1", "dp_replicate_size"),
		renamed("parallelism_config_dp_shard_size", TypeInt, "1", "dp_shard_size"),
		renamed("parallelism_config_tp_size", TypeInt, "1", "tp_size"),
		renamed("parallelism_config_cp_size", TypeInt, "1", "cp_size"),
		renamed("parallelism_config_sp_size", TypeInt, "1", "sp_size"),
		refused("parallelism_config_cp_comm_strategy", TypeString, "allgather", "cp_strategy gather or ring"),
		noEffect("parallelism_config_cp_backend", TypeString, "torch", ownTokens),
		noEffect("parallelism_config_sp_backend", TypeString, "deepspeed", ownTokens),
		noEffect("parallelism_config_sp_attn_implementation", TypeString, "sdpa", "there is one attention"),
		noEffect("parallelism_config_sp_seq_length", TypeInt, "", "sequences may have any length"),
		noEffect("parallelism_config_sp_seq_length_is_variable", TypeBool, "true", "sequences may have any length"),

		// transformers' Seq2SeqTrainingArguments, beside predict_with_generate and generation_max_length
		refused("generation_num_beams", TypeInt, "", "1: search with beams is not built").same("1"),
		refused("generation_config", TypeString, "", "trainer.WithGeneration with generation.Options in the program"),
		refused("sortish_sampler", TypeBool, "false", "train_sampling_strategy group_by_length"),

		// trl's and peft's names of adapters and quantized weights
		planned("task_type", TypeString, "", otherAdapters).same("CAUSAL_LM"),
		planned("lora_r", TypeInt, "", adapters).same("16"),
		planned("lora_alpha", TypeFloat, "", adapters).same("32"),
		planned("lora_dropout", TypeFloat, "", adapters).same("0.05", "0", "0.1"),
		planned("lora_task_type", TypeString, "", adapters).same("CAUSAL_LM"),
		planned("load_in_8bit", TypeBool, "false", quantized),
		planned("load_in_4bit", TypeBool, "false", quantized),
		noEffect("bnb_4bit_quant_type", TypeString, "nf4", "only load_in_4bit reads it, which is not built"),
		noEffect("bnb_4bit_quant_storage", TypeString, "", "only load_in_4bit reads it, which is not built"),
		noEffect("bnb_4bit_compute_dtype", TypeString, "", "only load_in_4bit reads it, which is not built"),
		noEffect("use_bnb_nested_quant", TypeBool, "false", "only load_in_4bit reads it, which is not built"),
		planned("bits", TypeInt, "16", quantized),
		planned("quantization_bit", TypeInt, "", quantized),
		planned("finetuning_type", TypeString, "full", otherAdapters),
		planned("adapter_name_or_path", TypeString, "", otherAdapters),

		// trl's settings of supervised fine-tuning
		planned("model_init_kwargs", TypeAny, "", "other settings of a loaded model; leave it out"),
		noEffect("router_aux_loss_coef", TypeFloat, "", "no model that is built has experts").same("0.001"),
		planned("chat_template_path", TypeString, "", chats),
		planned("dataset_text_field", TypeString, "text", "a choice of the column by this name: want text_column"),
		planned("dataset_kwargs", TypeAny, "", "other settings of the data; leave it out"),
		planned("eos_token", TypeString, "", "another end of text; the tokenizer has it"),
		planned("pad_token", TypeString, "", "another token for padding; the tokenizer's configuration has it"),
		planned("truncation_mode", TypeString, "keep_start", "cutting texts at their beginning; leave it out"),
		planned("shuffle_dataset", TypeBool, "false", "shuffling of texts; train_sampling_strategy shuffles samples"),
		planned("packing", TypeBool, "false", "packing of short texts; clm joins texts to blocks in any case"),
		noEffect("packing_strategy", TypeString, "bfd", "only packing reads it"),
		noEffect("eval_packing", TypeBool, "", "only packing reads it"),
		noEffect("padding_free", TypeBool, "false", "padding changes no result"),
		noEffect("pad_to_multiple_of", TypeInt, "", "padding changes no result"),
		planned("completion_only_loss", TypeBool, "", chats).same("false"),
		planned("assistant_only_loss", TypeBool, "false", chats),
		planned("loss_type", TypeAny, "nll", "other losses by name; a model computes its own").same("chunked_nll"),
		noEffect("activation_offloading", TypeBool, "false", "gradient_checkpointing saves the same memory"),
		noEffect("dataset_num_proc", TypeInt, "", "text is prepared on all cores"),
		planned("dataset_config", TypeString, "", hubData),
		planned("datasets", TypeAny, "", hubData),
		planned("streaming", TypeBool, "false", streamed),
		planned("test_split_size", TypeFloat, "", "a held-out share by this name: want validation_split_percentage"),
		noEffect("dataset_train_split", TypeString, "train", "files are what they are: train_file and validation_file"),
		noEffect("dataset_test_split", TypeString, "test", "files are what they are: train_file and validation_file"),
		planned("dataset_streaming", TypeBool, "false", streamed),
		noEffect("ignore_bias_buffers", TypeBool, "false", "buffers are exchanged as ddp_broadcast_buffers has it"),

		// names of fine-tuning tools
		renamed("data_path", TypeString, "", "train_file"),
		renamed("eval_data_path", TypeString, "", "validation_file"),
		renamed("base_model", TypeString, "", "model_name_or_path"),
		renamed("micro_batch_size", TypeInt, "", "per_device_train_batch_size"),
		renamed("num_epochs", TypeFloat, "", "num_train_epochs"),
		planned("dataset", TypeString, "", hubData),
		noEffect("dataset_dir", TypeString, "data", "only dataset reads it, which is not built"),
		planned("template", TypeString, "", chats),
		planned("stage", TypeString, "sft", "other trainings by this name: want examples/dpo or examples/reward"),
		planned("max_samples", TypeInt, "", "a limit on samples: want max_steps, or less data"),
		planned("val_size", TypeFloat, "0", "a held-out share by this name: want validation_split_percentage"),
		noEffect("plot_loss", TypeBool, "false", "report_to tensorboard draws curves"),
		noEffect("wandb_project", TypeString, "", "the reporter wandb reads WANDB_PROJECT"),
		noEffect("use_unsloth", TypeBool, "false", "kernels are Lockstep's own"),
		noEffect("enable_liger_kernel", TypeBool, "false", "kernels are Lockstep's own"),
		noEffect("flash_attn", TypeString, "auto", "attention is exact in every implementation"),
		noEffect("attn_implementation", TypeString, "", "attention is exact in every implementation"),
		noEffect("use_flash_attn", TypeBool, "false", "attention is exact in every implementation"),
		planned("image_max_pixels", TypeInt, "", "models of images and text").same("262144"),
		planned("video_max_pixels", TypeInt, "", "models of images and text").same("16384"),
	}
	for _, name := range []string{"use_peft", "use_rslora"} {
		rows = append(rows, planned(name, TypeBool, "false", adapters))
	}
	for _, name := range []string{"use_dora", "q_lora", "lora_enable", "use_lora"} {
		rows = append(rows, planned(name, TypeBool, "false", otherAdapters))
	}
	for _, name := range []string{"lora_target_modules", "lora_modules_to_save"} {
		rows = append(rows, planned(name, TypeAny, "", adapters))
	}
	for _, name := range []string{"lora_target_parameters", "lora_target"} {
		rows = append(rows, planned(name, TypeAny, "", otherAdapters))
	}
	rows = append(rows, planned("lora_rank", TypeInt, "", otherAdapters).same("8"))
	for _, name := range []string{"block_size", "max_seq_length", "max_length", "model_max_length", "cutoff_len"} {
		rows = append(rows, planned(name, TypeInt, "", "a length of texts by this name; --help lists the program's"))
	}
	rows = append(rows, methodRows()...)
	for _, f := range unreadFlags {
		for name := range strings.FieldsSeq(f.names) {
			rows = append(rows, noEffect(name, TypeAny, "", "only "+f.reader+" reads it, which is not built"))
		}
	}
	for _, name := range launcherFlags {
		rows = append(rows, noEffect(name, TypeAny, "", "a flag of accelerate launch; lockstep launch has others"))
	}
	return rows
}

// launcherFlags are the flags of accelerate launch that change no result.
var launcherFlags = []string{
	"deepspeed_exclusion_filter", "deepspeed_hostfile", "deepspeed_inclusion_filter",
	"deepspeed_moe_layer_cls_names", "deepspeed_multinode_launcher", "dynamo_backend", "dynamo_mode",
	"dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation", "downcast_bf16",
	"enable_cpu_affinity", "role", "tee", "fsdp_activation_checkpointing_offload", "fsdp_auto_wrap_policy",
	"fsdp_backward_prefetch", "fsdp_cpu_ram_efficient_loading", "fsdp_forward_prefetch", "fsdp_sync_module_states",
	"fsdp_use_orig_params", "fsdp_version", "main_training_function", "monitor_interval",
	"num_cpu_threads_per_process", "offload_optimizer_nvme_path", "offload_param_nvme_path", "rdzv_backend",
	"rdzv_conf", "same_network", "use_parallelism_config", "aws_access_key_id",
	"aws_secret_access_key", "mpirun_hostfile", "tpu_use_cluster", "tpu_use_sudo", "zero3_init_flag",
	"zero3_save_16bit_model",
}

// Reasons that several names share.
const (
	ownTokens = "the tokens of sequences are divided by accelerate/cp"
	streamed  = "data larger than memory in this program: want examples/finetune, which has dataset_streaming"
	adapters  = "adapters in this program: want examples/finetune, which has LoRA, or package models/lora"
	// otherAdapters is said in examples/finetune too.
	otherAdapters = "adapters by this name: want use_peft, lora_r, lora_alpha and so on in examples/finetune, " +
		"or package models/lora"
	quantized = "quantized weights by this name: want dtype bfloat16, or q8_0 in examples/finetune"
	chats     = "conversations and their templates: want texts"
	hubData   = "data sets by name: want train_file and validation_file"
)

// offloaded is a row for where accelerate offloads to, whose nvme is a disk here.
func offloaded(name, target string) Known {
	k := renamed(name, TypeString, "none", target)
	k.Values = map[string]string{"cpu": string(OffloadCPU), "nvme": string(OffloadDisk)}
	return k
}
