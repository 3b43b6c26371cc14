// SPDX-License-Identifier: Apache-2.0

package args

import "strings"

// unbuiltMethods are names of what trl and peft train besides all parameters on texts: the fields of their
// configurations, by the reason why there is no setting for them.
var unbuiltMethods = []struct{ reason, names string }{
	{trlMethods, `
		max_completion_length ref_model_mixup_alpha ref_model_sync_steps sync_ref_model`},
	{preferences, `
		beta disable_dropout label_smoothing precompute_ref_batch_size precompute_ref_log_probs`},
	{otherPreferences, `
		alpha cpo_alpha desirable_weight discopop_tau f_alpha_divergence_coef f_divergence_type generate_during_eval
		is_encoder_decoder ld_alpha loss_weights padding_value simpo_gamma tpo_alpha tpo_l_gamma undesirable_weight
		use_weighting`},
	{"reward models in this program: want examples/reward, or package models/preference", `
		center_rewards_coefficient`},
	{"reinforcement learning (GRPO, RLOO)", `
		beta1 beta2 cast_lm_head_to_fp32 delta diagnostics_flat_tolerance diagnostics_warning_interval
		distillation_weight dont_reprompt_on_self_success entropy_coef entropy_coef_delta entropy_coef_max
		entropy_coef_min entropy_target environment_feedback_only_without_solution epsilon epsilon_high
		feedback_template filter_all_incorrect fork_threshold_tokens importance_sampling_level
		include_environment_feedback log_completions_hub_repo log_multimodal mask_truncated_completions
		max_reprompt_len missing_eos_penalty multi_objective_aggregation normalize_advantages num_value_samples
		off_policy_mask_threshold remove_thinking_from_demonstration reprompt_template reward_clip_range reward_funcs
		reward_model_name_or_path reward_model_path reward_weights sapo_temperature_neg sapo_temperature_pos
		scale_rewards solution_template success_reward_threshold top_entropy_quantile
		transformers_continuous_batching_config use_adaptive_entropy use_bias_correction_kl use_successful_as_teacher
		use_transformers_continuous_batching use_transformers_paged vespo_k_neg vespo_k_pos vespo_lambda_neg
		vespo_lambda_pos vllm_importance_sampling_cap vllm_importance_sampling_clip_max
		vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode`},
	{"distillation from a teacher model", `
		add_tail_bucket callbacks distillation_objective generate_from_teacher iw_opd_epsilon iw_opd_gamma lmbda
		log_completions_steps loss_add_tail loss_top_k num_loss_tokens_to_skip reverse_kl_top_1_mode seq_kd
		teacher_model_init_kwargs teacher_model_name_or_path teacher_model_revision teacher_model_server_url
		teacher_prompt_template teacher_server_urls teacher_temperature teacher_tokenizer_name_or_path teacher_top_k
		uld_crossentropy_weight uld_distillation_weight uld_hybrid_matched_weight uld_hybrid_unmatched_weight
		uld_skip_student_eos uld_skip_teacher_eos uld_student_temperature uld_teacher_temperature
		uld_token_merge_strategy uld_use_hybrid_loss use_extended_uld use_uld_loss vllm_sync_frequency
		wandb_log_unique_prompts`},
	{"texts that are generated in training, for reinforcement learning and distillation", `
		cache_implementation chat_template_kwargs distillation_add_tail distillation_alpha distillation_is_clip
		distillation_mode distillation_topk ds3_gather_for_generation generation_batch_size generation_kwargs
		heartbeat_stale_after_s log_completions log_unique_prompts max_inflight_tasks max_new_tokens max_prompt_length
		max_staleness max_tool_calling_iterations min_p num_completions_to_print num_generations num_generations_eval
		num_iterations queue_maxsize repetition_penalty request_timeout steps_per_generation teacher_model_kind
		teacher_sync_steps teacher_update_rate temperature token_budget top_k top_p use_teacher_server use_vllm
		vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length vllm_mode
		vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
		vllm_structured_outputs_regex vllm_tensor_parallel_size weight_sync_steps weight_sync_timeout`},
	{otherAdapters, `
		ab_svd_init adapter_layers adapter_len adjust_scaling_factors alora_invocation_tokens alpha_pattern apply_GS
		arrow_config asa_importance_beta asa_schedule_exponent asa_target_subspaces asa_uncertainty_beta
		auxiliary_loss_weight base_model_name_or_path bias block_size_pattern boft_block_num boft_block_size
		boft_dropout boft_n_butterfly_factor cayley_neumann_eps coft config_A_B config_C config_D_E corda_config
		corda_method covariance_file cpt_mask cpt_token_ids cpt_tokens_type_mask d_initial decompose_both
		decompose_factor decomposition_method deft_dropout delora_lambda deltaT dirichlet_prior effective_rank
		enable_softmax enable_softmax_topk encoder_dropout encoder_hidden_size encoder_num_layers
		encoder_reparameterization_type ensure_weight_tying ephemeral_gpu_offload eva_config exclude_modules
		fan_in_fan_out feedforward_modules final_warmup frod_dropout generator_seed gks_adapter_names
		global_scaling_weight gralora_dropout gralora_k hira_dropout hybrid_r inference_mode init_ia3_weights
		init_logits_std init_lora_weights init_r init_theta_d_bound init_v_bound init_vector_bank_bound init_warmup
		init_weights kasa_config kl_loss_weight label_mask_value lambda_pattern layer_replication layers_pattern
		layers_to_transform layerwise_scalings loftq_bits loftq_config loftq_iter lora_bias lora_ga_config
		mask_interval mask_type match_strict megatron_config megatron_core mini_r miss_dropout module_dropout
		modules_to_save monteclora_config n_frequency n_frequency_pattern n_skills n_splits n_tasks num_B
		num_cayley_neumann_terms num_frozen_tokens num_subspaces num_vectors oft_block_size opt_loss_decay_factor
		opt_projection_epsilon opt_projection_format_epsilon opt_weighted_loss_type orth_reg_weight peft_type
		poly_type prefix_projection proj_seed projection_prng_key projection_seed prompt_tuning_init
		prompt_tuning_init_state_dict_path prompt_tuning_init_task prompt_tuning_init_text proportional_parameters
		prune_temporary_fields psoft_alpha psoft_dropout psoft_mag_a psoft_mag_b psoft_orth psoft_svd
		psoft_svd_lowrank_niter pvera_dropout qalora_group_size r randlora_alpha randlora_dropout random_loc_seed
		rank_dropout rank_dropout_scale rank_pattern regularization_alpha revision router_temperature runtime_config
		runtime_offload_base_weight sample_at_inference sample_scaler save_indices save_only_topk_weights
		save_precomputed_indices save_projection scaling_pass_value select_top shadow_alpha shadow_dropout
		shadow_hidden_size shadow_intermediate_size shadow_model shadow_num_attention_heads shadow_num_hidden_layers
		softmax_temperature sparse_rate stable_gamma stride_A subspace_rank svd_threshold target_modules
		target_modules_bd_a target_modules_bd_b target_parameters target_r target_svd_config task_adapter_names
		tfinal theta_d_length tinit tinylora_dropout token_indices tokenizer_kwargs top_k_lora total_step
		trainable_token_indices unilora_dropout update_hidden_size use_asa use_bdlora use_cayley_neumann
		use_dynamic_rank use_effective_conv2d use_float16_for_covariance use_gks use_idwt use_label_mask use_qalora
		use_trainable_adapters vblora_dropout vector_length velora_config vera_dropout very_sparse wavelet_family
		xlora_depth xlora_dropout_p xlora_size`},
}

// Reasons that several names share.
const (
	trlMethods       = "references that follow the model, reinforcement learning and distillation"
	preferences      = "training on preferences in this program: want examples/dpo, or package models/preference"
	otherPreferences = "KTO, ORPO and other losses of preferences than DPO's sigmoid, hinge, ipo and robust"
)

// methodRows are the rows of unbuiltMethods, whatever their values are: who sets one of them needs the method.
func methodRows() (rows []Known) {
	for _, m := range unbuiltMethods {
		for name := range strings.FieldsSeq(m.names) {
			k := planned(name, TypeAny, "", m.reason)
			k.rare = true
			rows = append(rows, k)
		}
	}
	return rows
}

// unreadFlags are flags of accelerate launch that only another one reads, which is not built.
var unreadFlags = []struct{ reader, names string }{
	{"use_megatron_lm", `
		megatron_lm_attention_backend megatron_lm_attention_dropout megatron_lm_attention_softmax_in_fp32
		megatron_lm_calculate_per_token_loss megatron_lm_context_parallel_size
		megatron_lm_decoder_last_pipeline_num_layers megatron_lm_eod_mask_loss megatron_lm_expert_model_parallel_size
		megatron_lm_expert_tensor_parallel_size megatron_lm_gradient_clipping megatron_lm_hidden_dropout
		megatron_lm_no_load_optim megatron_lm_no_save_optim megatron_lm_num_micro_batches
		megatron_lm_optimizer_cpu_offload megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_pp_degree
		megatron_lm_recompute_activations megatron_lm_recompute_granularity megatron_lm_recompute_method
		megatron_lm_recompute_num_layers megatron_lm_sequence_parallelism megatron_lm_tp_degree
		megatron_lm_use_custom_fsdp megatron_lm_use_distributed_optimizer megatron_lm_use_precision_aware_optimizer
		megatron_lm_use_rotary_position_embeddings`},
	{"mixed_precision fp8", `
		fp8_amax_compute_algo fp8_amax_history_len fp8_backend fp8_enable_fsdp_float8_all_gather fp8_format
		fp8_interval fp8_margin fp8_opt_level fp8_override_linear_precision fp8_pad_inner_dim
		fp8_use_autocast_during_eval`},
}
