// SPDX-License-Identifier: Apache-2.0

package args

import "cmp"

// TrainingArguments holds all settings of a training run. Steps are always
// optimizer steps, never micro-batches. Default returns the defaults; Validate
// reports what is wrong. The zero value is not usable. Fields that may be unset are
// pointers: a.EvalSteps = new(50.0).
type TrainingArguments struct {
	// OutputDir is the folder of checkpoints, results and the final model. It is
	// created when first written to.
	OutputDir string `json:"output_dir" path:"true" usage:"folder for checkpoints, results and the final model"`
	// OverwriteOutputDir lets a new run start in a folder that holds checkpoints of another run. Those are renamed to
	// checkpoint-<step>.replaced-<n>, which the log says, and count in SaveTotalLimit as the oldest.
	OverwriteOutputDir bool `json:"overwrite_output_dir" usage:"start a new run in an output_dir that has checkpoints of another run"`
	// DoTrain asks a program to train. The trainer itself does not read it.
	DoTrain bool `json:"do_train" usage:"train (read by programs, not by the trainer)"`
	// DoEval asks a program to evaluate. See EvaluationWanted.
	DoEval bool `json:"do_eval" usage:"evaluate (read by programs, not by the trainer)"`
	// DoPredict asks a program to predict. A Loader refuses it unless the program does (Loader.Predicts); the trainer
	// itself does not read it.
	DoPredict bool `json:"do_predict" usage:"predict (read by programs, not by the trainer)"`

	// PerDeviceTrainBatchSize is the number of samples in one micro-batch of one rank.
	PerDeviceTrainBatchSize int `json:"per_device_train_batch_size" resume:"fixed" usage:"training samples per micro-batch and rank"`
	// AutoFindBatchSize halves PerDeviceTrainBatchSize each time that the passes of a step run out of memory, on any
	// rank, and tries the step again. GradientAccumulationSteps grows as much, so that a step has the same samples as
	// before. Later steps and checkpoints keep the size that was found.
	AutoFindBatchSize bool `json:"auto_find_batch_size" usage:"halve the batch size when memory runs out"`
	// PerDeviceEvalBatchSize is the number of samples in one batch of one rank in
	// evaluation and prediction.
	PerDeviceEvalBatchSize int `json:"per_device_eval_batch_size" usage:"samples per batch and rank in evaluation and prediction"`
	// GradientAccumulationSteps is the number of micro-batches of one rank in one
	// optimizer step.
	GradientAccumulationSteps int `json:"gradient_accumulation_steps" resume:"fixed" usage:"micro-batches per optimizer step and rank"`
	// GlobalTrainBatchSize is the number of samples of one optimizer step over all
	// ranks. 0 derives it: batch size × accumulation × ranks. Otherwise it stays the
	// same on any number of ranks, and the accumulation is derived; the division
	// must be exact.
	GlobalTrainBatchSize int `json:"global_train_batch_size" resume:"fixed" usage:"samples per optimizer step over all ranks, from which gradient accumulation is derived; 0: derived from the batch size"`
	// NumTrainEpochs is the number of passes over the training data; with a
	// fraction training ends within a pass. MaxSteps overrides it.
	NumTrainEpochs float64 `json:"num_train_epochs" resume:"fixed" usage:"passes over the training data; fractions allowed"`
	// MaxSteps is the number of optimizer steps; the data are repeated as often as
	// needed. -1 leaves the length to NumTrainEpochs.
	MaxSteps int `json:"max_steps" resume:"fixed" usage:"number of optimizer steps, overriding num_train_epochs; -1: not set"`
	// MaxTrainSeconds stops training after this many seconds of its steps, those before a resume included. A run that
	// is resumed after it has used them up gets as many again. 0 means no limit.
	MaxTrainSeconds float64 `json:"max_train_seconds" usage:"stop after this many seconds of training; 0: no limit"`
	// LRScheduleByTime lets the schedule end with MaxTrainSeconds if these are used up before the last step. After the
	// warm-up the learning rate is that of the steps taken or that of the time used, whichever is further along.
	LRScheduleByTime bool `json:"lr_schedule_by_time" resume:"fixed" usage:"end the schedule with max_train_seconds"`

	// LearningRate is the highest learning rate of the schedule.
	LearningRate float64 `json:"learning_rate" resume:"fixed" usage:"highest learning rate of the schedule"`
	// WeightDecay is the decay of the parameters that nn.DecayNames lists.
	WeightDecay float64 `json:"weight_decay" resume:"fixed" usage:"weight decay of parameters other than biases and norms"`
	// AdamBeta1 is the decay rate of Adam's first moment, in [0, 1).
	AdamBeta1 float64 `json:"adam_beta1" resume:"fixed" usage:"decay rate of Adam's first moment"`
	// AdamBeta2 is the decay rate of Adam's second moment, in [0, 1).
	AdamBeta2 float64 `json:"adam_beta2" resume:"fixed" usage:"decay rate of Adam's second moment"`
	// AdamEpsilon is added to the root of Adam's second moment.
	AdamEpsilon float64 `json:"adam_epsilon" resume:"fixed" usage:"term that keeps Adam's division stable"`
	// LabelSmoothingFactor, in [0, 1), is the share of a label's probability that is spread evenly over all classes, in
	// training and in evaluation.
	LabelSmoothingFactor float64 `json:"label_smoothing_factor" resume:"fixed" usage:"label smoothing, in [0, 1)"`
	// NeftuneNoiseAlpha scales NEFTune's noise on the embeddings of tokens, in training: uniform up to
	// NeftuneNoiseAlpha/√(tokens·width) of a sample. nil: none.
	NeftuneNoiseAlpha *float64 `json:"neftune_noise_alpha" resume:"fixed" usage:"noise on embeddings; none: off"`
	// EMADecay lets evaluation, checkpoints and the saved model have an exponential moving average of the weights in
	// place of the last ones, average ← EMADecay·average + (1 − EMADecay)·weights after each step, from the initial
	// weights on. Training continues with the weights themselves, which checkpoints have among the optimizer's state.
	// 0: none.
	EMADecay float64 `json:"ema_decay" resume:"fixed" usage:"decay of an average of the weights"`
	// MaxGradNorm is the global L2 norm to which gradients are clipped. 0 clips
	// nothing; the norm is measured and logged anyway.
	MaxGradNorm float64 `json:"max_grad_norm" resume:"fixed" usage:"largest global L2 norm of the gradients, which are scaled down to it; 0: no clipping"`
	// Optim is the optimizer. The default, adamw_torch_fused, is HuggingFace's name
	// for AdamW.
	Optim Optim `json:"optim" resume:"fixed" usage:"optimizer"`
	// OptimArgs holds the optimizer's own settings as k=v,k=v. See OptimSettings.
	OptimArgs string `json:"optim_args" resume:"fixed" usage:"the optimizer's own settings, k=v,k=v"`
	// LRSchedulerType is the learning-rate schedule.
	LRSchedulerType SchedulerType `json:"lr_scheduler_type" resume:"fixed" usage:"learning-rate schedule"`
	// LRSchedulerKwargs holds the schedule's own settings: numbers and texts.
	LRSchedulerKwargs map[string]any `json:"lr_scheduler_kwargs" resume:"fixed" usage:"the schedule's own settings, a JSON object"`
	// ParamGroups has settings of parameters by regular expressions for their names: texts of lr=…, lr_factor=…,
	// weight_decay=… and frozen_steps=…. Each expression must match a parameter, and no two may give a parameter the
	// same setting.
	ParamGroups map[string]any `json:"param_groups" resume:"fixed" usage:"JSON: settings for parameters, by regular expressions of their names, such as {\"ln_\": \"lr_factor=2\"}"`
	// LayerwiseLRDecay lowers the learning rate from layer to layer: of n layers, the last has it as a factor once, the
	// first n times, parameters before the layers n+1 times, and those after them never.
	LayerwiseLRDecay float64 `json:"layerwise_lr_decay" resume:"fixed" usage:"factor between the learning rates of a layer and the next one"`
	// WarmupSteps is the length of the warm-up: a whole number of steps, or a ratio
	// of all steps in (0, 1). See NumWarmupSteps.
	WarmupSteps float64 `json:"warmup_steps" resume:"fixed" usage:"warm-up steps, or a ratio of all steps below 1"`
	// GradientCheckpointing recomputes activations in the backward pass instead of
	// keeping them: less memory, more time, the same bits.
	GradientCheckpointing bool `json:"gradient_checkpointing" usage:"recompute activations in the backward pass instead of keeping them"`
	// BF16 computes matrix products, convolutions and attention in bfloat16 (autocast). Parameters, gradients and
	// optimizer state stay float32.
	BF16 bool `json:"bf16" resume:"fixed" usage:"compute in bfloat16 where that is safe; parameters and gradients stay float32"`
	// FP16 is BF16 with float16, in which many gradients underflow: the loss is scaled.
	FP16 bool `json:"fp16" resume:"fixed" usage:"compute in float16 where that is safe, with loss scaling; parameters and gradients stay float32"`
	// TF32 lets matrix products of float32 round their inputs to 10 bits of fraction, which the matrix units of GPUs
	// multiply many times faster. Other devices have no such mode: the log says so.
	TF32 bool `json:"tf32" resume:"fixed" usage:"on GPUs, round the inputs of float32 matrix products to 10 bits of fraction"`
	// BF16FullEval computes evaluation and prediction in bfloat16 as BF16 does, whatever training computes in.
	BF16FullEval bool `json:"bf16_full_eval" usage:"evaluate and predict in bfloat16 where that is safe"`
	// FP16FullEval is BF16FullEval with float16.
	FP16FullEval bool `json:"fp16_full_eval" usage:"evaluate and predict in float16 where that is safe"`
	// FP16InitialScale is the factor of the loss at first. It is halved when a gradient overflows, and the step is
	// skipped.
	FP16InitialScale float64 `json:"fp16_initial_scale" resume:"fixed" usage:"initial loss scale of fp16"`
	// FP16MinScale is the smallest factor: it is an error if gradients overflow at a factor that cannot be halved
	// any more, since every step would be skipped.
	FP16MinScale float64 `json:"fp16_min_scale" resume:"fixed" usage:"smallest loss scale of fp16"`
	// FP16GrowthInterval is the number of steps without overflow after which the factor is doubled.
	FP16GrowthInterval int `json:"fp16_growth_interval" resume:"fixed" usage:"steps without overflow after which fp16 doubles the loss scale"`
	// FP16Hysteresis is the number of overflows in a row of scales at which the factor is halved: with 2 the first one
	// only skips its step. The count restarts when the factor grows (DeepSpeed's hysteresis).
	FP16Hysteresis int `json:"fp16_hysteresis" resume:"fixed" usage:"number of overflows after which fp16 halves the loss scale"`
	// FP16ConsecutiveHysteresis restarts the count of FP16Hysteresis after each step without overflow (DeepSpeed's
	// consecutive_hysteresis).
	FP16ConsecutiveHysteresis bool `json:"fp16_consecutive_hysteresis" resume:"fixed" usage:"fp16_hysteresis restarts its count after each step without overflow (true), or only when the loss scale grows (false)"`
	// FP16LossScaler is the rule for the loss scale. A DeepSpeed file with fp16 makes it deepspeed.
	FP16LossScaler LossScaler `json:"fp16_loss_scaler" resume:"fixed" choices:"torch,deepspeed" usage:"rule for the loss scale of fp16: torch (GradScaler) or deepspeed (DynamicLossScaler)"`
	// HalfUpdate is how parameters of bfloat16 or float16 take updates that are smaller than their precision. It has no
	// effect on others.
	HalfUpdate HalfUpdate `json:"half_update" resume:"fixed" choices:"plain,kahan,stochastic" usage:"how half-precision parameters handle small updates: plain (they are lost), kahan (kept in a compensation), or stochastic (rounded at random)"`
	// Debug has underflow_overflow, or nothing: then a run ends with a trainer.OverflowError at the first weight, input
	// or output of a module that is NaN or infinite. Looking at them takes far more time than training.
	Debug []string `json:"debug" split:"," usage:"underflow_overflow: end with an error that names the first module whose values are not finite; slow"`
	// NonfiniteLoss is the policy for a loss or gradient norm that is NaN or infinite.
	NonfiniteLoss NonfiniteLoss `json:"nonfinite_loss" choices:"skip,stop,raise" usage:"what to do if the loss or the gradient norm is NaN or infinite; the weights never change"`

	// LossAverage is what a logged loss and train_loss are means over: loss terms, or optimizer steps, each with the
	// mean over its terms, as in HuggingFace. It changes no step.
	LossAverage LossAverage `json:"loss_average" choices:"terms,steps" usage:"logged losses are means over loss terms (terms) or over optimizer steps (steps)"`

	// LoggingStrategy says when training figures are logged.
	LoggingStrategy Strategy `json:"logging_strategy" choices:"no,steps,epoch" usage:"when to log training figures"`
	// LoggingSteps is the interval of strategy steps: a whole number of steps, or a
	// ratio of all steps in (0, 1).
	LoggingSteps float64 `json:"logging_steps" usage:"steps between logs, or a ratio of all steps below 1"`
	// LoggingFirstStep also logs step 1.
	LoggingFirstStep bool `json:"logging_first_step" usage:"also log step 1"`
	// IncludeNumInputTokensSeen counts the tokens of the model's main input, all or those that the attention mask has.
	IncludeNumInputTokensSeen TokensSeen `json:"include_num_input_tokens_seen" usage:"count and log input tokens"`
	// LogLevel is the level of log messages.
	LogLevel LogLevel `json:"log_level" choices:"passive,debug,info,warning,error,critical" usage:"level of log messages; passive leaves the logger alone"`
	// LogLevelReplica is the level of the messages of the other ranks.
	LogLevelReplica LogLevel `json:"log_level_replica" choices:"passive,debug,info,warning,error,critical" usage:"level of log messages of the other ranks; passive leaves the logger alone"`
	// LogOnEachNode makes the first rank of each host log at LogLevel, not only rank 0.
	LogOnEachNode bool `json:"log_on_each_node" usage:"the first rank of each host logs at log_level, not only rank 0"`
	// DisableTQDM replaces the progress bar by plain lines. nil decides by LogLevel,
	// see ProgressDisabled.
	DisableTQDM *bool `json:"disable_tqdm" usage:"plain lines instead of a progress bar; none: depends on log_level"`
	// ReportTo names the reporters of training figures; none and all must be the only entry.
	ReportTo []string `json:"report_to" split:"," usage:"where to send training figures: names of reporters, none or all"`
	// Project is the project of the run in the reporters wandb and trackio. WANDB_PROJECT replaces it for wandb.
	Project string `json:"project" usage:"project of the run in the reporters wandb and trackio"`
	// RunName is the run's name in reporters. Empty: each reporter chooses one.
	RunName string `json:"run_name" usage:"name of the run in reporters"`
	// SkipMemoryMetrics leaves the memory of the run and its estimate out of the last record.
	SkipMemoryMetrics bool `json:"skip_memory_metrics" usage:"do not add the run's memory and its estimate to the last record"`
	// Profile is the folder for the profile of some steps: a trace, a table of kernels and a CPU profile
	// per rank. Empty: none.
	Profile string `json:"profile" path:"true" usage:"folder for a profile of some steps: a Chrome trace, a table of kernels and a CPU profile for each rank"`
	// ProfileSkipFirst is the number of steps before the profiled ones.
	ProfileSkipFirst int `json:"profile_skip_first" usage:"steps to skip before the recorded ones"`
	// ProfileSteps is the number of steps that Profile records.
	ProfileSteps int `json:"profile_steps" usage:"number of steps to record"`

	// EvalStrategy says when to evaluate during training.
	EvalStrategy Strategy `json:"eval_strategy" choices:"no,steps,epoch" usage:"when to evaluate during training"`
	// EvalSteps is the interval of strategy steps: a whole number of steps, or a
	// ratio of all steps in (0, 1). nil is LoggingSteps.
	EvalSteps *float64 `json:"eval_steps" usage:"steps between evaluations, or a ratio of all steps below 1; none: logging_steps"`
	// EvalDelay is the number of steps or epochs, by EvalStrategy, before the first
	// evaluation.
	EvalDelay float64 `json:"eval_delay" usage:"steps or epochs (by eval_strategy) before the first evaluation"`
	// EvalOnStart also evaluates before the first step.
	EvalOnStart bool `json:"eval_on_start" usage:"also evaluate before the first step"`
	// PredictionLossOnly keeps only the loss in evaluation and prediction.
	PredictionLossOnly bool `json:"prediction_loss_only" usage:"keep only the loss in evaluation and prediction"`
	// IncludeForMetrics names what functions of metrics and Predict get besides logits and labels: inputs (input_ids,
	// pixel_values or inputs of each sample), loss (the mean of the sample's batch).
	IncludeForMetrics []string `json:"include_for_metrics" split:"," usage:"what metrics get besides predictions: inputs, loss"`
	// PredictWithGenerate lets evaluation and prediction continue each sample's prompt, the tokens before its first
	// label: metrics and Predict get these tokens in place of logits. It needs trainer.WithGeneration.
	PredictWithGenerate bool `json:"predict_with_generate" usage:"predict by generating text; predictions are the new tokens"`
	// GenerationMaxLength is the most tokens of a prompt and its continuation. nil leaves it to trainer.WithGeneration.
	GenerationMaxLength *int `json:"generation_max_length" usage:"largest number of tokens of prompt and continuation"`
	// LoadBestModelAtEnd loads the best checkpoint's weights when training ends.
	LoadBestModelAtEnd bool `json:"load_best_model_at_end" usage:"load the best checkpoint when training ends"`
	// MetricForBestModel is the metric that selects the best checkpoint, with or
	// without the prefix eval_, and that reduce_lr_on_plateau and greedy follow. Empty is none, or loss with
	// LoadBestModelAtEnd or these schedules.
	MetricForBestModel string `json:"metric_for_best_model" usage:"metric that selects the best checkpoint; with load_best_model_at_end the default is loss"`
	// GreaterIsBetter is the metric's direction. nil: less is better for names
	// that end in loss, otherwise greater.
	GreaterIsBetter *bool `json:"greater_is_better" usage:"whether a greater metric_for_best_model is better; none: depends on its name"`

	// SaveStrategy says when to write checkpoints.
	SaveStrategy Strategy `json:"save_strategy" choices:"no,steps,epoch,best" usage:"when to write checkpoints"`
	// SaveSteps is the interval of strategy steps: a whole number of steps, or a
	// ratio of all steps in (0, 1).
	SaveSteps float64 `json:"save_steps" usage:"steps between checkpoints, or a ratio of all steps below 1"`
	// SaveTotalLimit is the number of checkpoints to keep, including the newest and
	// the best. nil keeps all.
	SaveTotalLimit *int `json:"save_total_limit" usage:"number of checkpoints to keep, including the newest and the best; none: all"`
	// SaveKeepBest is the number of checkpoints with the best metric_for_best_model to keep. SaveKeepEvery also keeps
	// those at multiples of this number of steps. Both are in addition to SaveTotalLimit; if that is nil, only the
	// newest is. 0 keeps none of them.
	SaveKeepBest  int `json:"save_keep_best" usage:"number of checkpoints with the best metric_for_best_model to keep"`
	SaveKeepEvery int `json:"save_keep_every" usage:"also keep checkpoints at multiples of this number of steps"`
	// AsyncSave writes checkpoints while training continues. A save waits for the previous one and copies the state
	// into host memory until it is written. An error of the disk ends the run at the next step. The folder of a
	// checkpoint appears when it is complete; the event save is fired earlier and names the previous one.
	AsyncSave bool `json:"async_save" usage:"write checkpoints while training continues"`
	// SaveOnEachNode is for hosts that share no folder: rank 0 sends checkpoints and the final model to the first rank
	// of each other host, which writes them into an output_dir of the same path, so that a run can resume.
	SaveOnEachNode bool `json:"save_on_each_node" usage:"save on each host, where output_dir is a different folder"`
	// SaveOnlyModel leaves out what only a resume needs.
	SaveOnlyModel bool `json:"save_only_model" usage:"save only the model, not the state that a resume needs"`
	// MaxShardSize is the most bytes that one file of saved weights may hold, as "5GB" or a number: a model with more
	// is saved as several files with an index. It is an argument of transformers' save_pretrained.
	MaxShardSize string `json:"max_shard_size" number:"true" usage:"largest size of a file of saved weights, such as 5GB or a number of bytes; larger weights are divided among several files"`
	// SaveOnInterrupt writes a checkpoint when Ctrl-C or SIGTERM ends the training.
	SaveOnInterrupt bool `json:"save_on_interrupt" usage:"write a checkpoint when interrupted"`
	// ResumeFromCheckpoint says where to resume from: "last" or "true" (the newest
	// checkpoint of OutputDir) or a checkpoint's folder. Empty or "false" starts a new run.
	ResumeFromCheckpoint string `json:"resume_from_checkpoint" path:"true" usage:"resume from a checkpoint: last, or a checkpoint's folder"`
	// ResumeOnOtherData lets a run resume from a checkpoint that was saved with other training data or another
	// tokenizer. Without it that is an error.
	ResumeOnOtherData bool `json:"resume_on_other_data" resume:"fixed" usage:"resume although the training data or the tokenizer changed since the checkpoint"`

	// IgnoreDataSkip lets a resumed run restart its epoch instead of continuing at its place in the data. A stream that
	// can only be read from its beginning then takes no time to resume, but the run sees other samples than an
	// uninterrupted one.
	IgnoreDataSkip bool `json:"ignore_data_skip" resume:"fixed" usage:"resume at the beginning of the epoch, not at the checkpoint's position in the data; the result then differs from that of an uninterrupted run"`

	// Device is where the run computes: auto (an accelerator if the machine and the program have one, else the CPU),
	// cpu, one device, such as cuda:1, or a kind of device, of which each rank takes the one with its number on the
	// host.
	Device string `json:"device" usage:"where to compute: auto (an accelerator if there is one), cpu, a kind of device (each rank of a host takes its own), or one device, such as cuda:1"`
	// NumReplicas is the number of ranks that run as goroutines of this process.
	NumReplicas int `json:"num_replicas" usage:"number of ranks that run as goroutines of this process"`
	// FSDP is how the model is spread over the ranks, by HuggingFace's words: full_shard, shard_grad_op, hybrid_shard,
	// hybrid_shard_zero2 or no_shard, and auto_wrap, which changes nothing, since the units are the model's blocks. The
	// one word true is full_shard, or what FSDPConfig says; false is none. See ShardStrategy.
	FSDP []string `json:"fsdp" split:"," toggle:"true" usage:"divide parameters, gradients and optimizer state among the ranks: full_shard, shard_grad_op, hybrid_shard (among the ranks of each host), hybrid_shard_zero2, true or false; the bits stay the same"`
	// FSDPConfig is HuggingFace's fsdp_config, and DeepSpeed the configuration of DeepSpeed: a JSON or YAML file, or a
	// JSON object. They fill other arguments, see ReadToolConfig; what both say must agree.
	FSDPConfig string `json:"fsdp_config" usage:"JSON or YAML file (or JSON object) with HuggingFace's settings of fsdp; lockstep config FILE shows what its keys do"`
	DeepSpeed  string `json:"deepspeed" usage:"DeepSpeed's configuration, a JSON file (or JSON object); lockstep config FILE shows what its keys do"`
	// FSDPTransformerLayerClsToWrap are the types of the modules whose parameters are gathered and freed together, and
	// FSDPMinNumParams the least number of parameters of these modules; without them they are the model's blocks. Types
	// have their Go names or those of transformers, as GPT2Block.
	FSDPTransformerLayerClsToWrap []string `json:"fsdp_transformer_layer_cls_to_wrap" split:"," usage:"types of the modules whose parameters are gathered together, such as GPT2Block; empty: the model's blocks"`
	FSDPMinNumParams              int      `json:"fsdp_min_num_params" usage:"smallest number of parameters that are gathered together, instead of the model's blocks"`
	// FSDPShareParameters keeps whole parameters in memory that the ranks of one host share, instead of gathering them,
	// if fsdp or zero_stage 3 shards them.
	FSDPShareParameters bool `json:"fsdp_share_parameters" usage:"ranks of one host keep sharded parameters once, in shared memory, instead of gathering them"`
	// FSDPIgnoredModules is a regular expression for the whole paths of modules whose parameters stay whole on every
	// rank. FSDPPersistenceThreshold is the number of elements from which a parameter is sharded: smaller ones stay
	// whole (DeepSpeed's stage3_param_persistence_threshold).
	FSDPIgnoredModules       string `json:"fsdp_ignored_modules" usage:"regular expression for the paths of modules whose parameters stay whole on every rank"`
	FSDPPersistenceThreshold int    `json:"fsdp_persistence_threshold" usage:"parameters with fewer elements stay whole on every rank"`
	// FSDPReduceDType is the dtype in which the gradients of a model that is spread over ranks travel. They are added
	// in float32; bfloat16 rounds each micro-batch's first, which changes the result, though not with the number of
	// ranks.
	FSDPReduceDType ReduceDType `json:"fsdp_reduce_dtype" resume:"fixed" choices:"float32,bfloat16" usage:"dtype in which ranks exchange sharded gradients: float32, or bfloat16, which halves the bytes and rounds gradients"`
	// OffloadOptimizer is where the optimizer's state is, and OffloadParams where a rank's shards of parameters are, or
	// on one rank the parameters. On disk they are in files of OffloadDir, which have no names, or of output_dir's
	// offload. Neither changes a bit of a result.
	OffloadOptimizer Offload `json:"offload_optimizer" choices:"none,cpu,disk" usage:"where the optimizer's state is: none (the device's memory), cpu (the host's), or disk (mapped files in offload_dir, for states that are larger than memory)"`
	OffloadParams    Offload `json:"offload_params" choices:"none,cpu,disk" usage:"where a single rank's parameters, or a rank's shards under full_shard, are between passes: none, cpu or disk"`
	OffloadDir       string  `json:"offload_dir" path:"true" usage:"folder for offloading to disk; empty: output_dir/offload"`
	// ZeroStage is the stage of ZeRO: 1 spreads the optimizer's state over the ranks, 2 the gradients too, 3 the
	// parameters too, as fsdp full_shard does.
	ZeroStage int `json:"zero_stage" usage:"stage of ZeRO: 1 divides the optimizer's state among the ranks, 2 the gradients too, 3 the parameters too; 0: none"`
	// PPSize, DPReplicateSize, DPShardSize, CPSize or SPSize, and TPSize are the sizes of the mesh that the ranks form.
	// Their product is the number of ranks; see accelerate.MeshOf for what 0 leaves open along
	// dp_replicate and dp_shard.
	PPSize int `json:"pp_size" usage:"ranks that divide the layers (pipeline parallelism)"`
	// PPSchedule is the order of a pipeline's passes, see docs/three-dimensions.md. The micro-batches of a step are
	// those of GradientAccumulationSteps. PPSplit is the number of parts of the model (models.Pipelined) that each
	// stage has; by default it follows from what the parts cost.
	PPSchedule string   `json:"pp_schedule" usage:"order of a pipeline's passes; see lockstep simulate"`
	PPSplit    []string `json:"pp_split" split:"," usage:"parts in each stage, such as 3,2,2; empty: by FLOPs"`
	// DPReplicateSize is how many times the ranks have the model, each spread over DPShardSize ranks: as by
	// FullShard, unless FSDP or ZeroStage says otherwise. With hybrid_shard, and neither size, each host has it once.
	DPReplicateSize int `json:"dp_replicate_size" usage:"replicas of the model; 0: all ranks divided by the other sizes"`
	DPShardSize     int `json:"dp_shard_size" usage:"ranks that divide a replica among them, as fsdp says or else as full_shard"`
	CPSize          int `json:"cp_size" usage:"ranks that divide the tokens of sequences (context parallelism)"`
	SPSize          int `json:"sp_size" usage:"accelerate's name for cp_size with cp_strategy ulysses"`
	// CPStrategy is how attention gets the keys and values of other ranks along cp, see docs/three-dimensions.md.
	// CPChunks is how many chunks the tokens of a sequence are cut into, a power of two, on one rank too; 0: two for
	// each rank along cp. Runs with the same number have the same bits on any number of them, except by ring. A
	// checkpoint keeps it.
	CPStrategy CPStrategy `json:"cp_strategy" choices:"gather,ulysses,ring" usage:"how ranks exchange keys"`
	CPChunks   int        `json:"cp_chunks" resume:"fixed" usage:"chunks of a sequence; 0: 2 for each rank of cp_size"`
	TPSize     int        `json:"tp_size" usage:"ranks that divide the matrices of each layer (tensor parallelism)"`
	// TPPlan is how the layers are divided among the ranks along tp: styles by the paths of modules, in which *
	// stands for one element, as in transformers' base_model_tp_plan; see docs/three-dimensions.md. They take the place
	// of those that the model's own plan (models.TensorParallel) has for the same path. nil, or the text auto, changes
	// none.
	TPPlan map[string]any `json:"tp_plan" resume:"fixed" unset:"auto" usage:"how each module is divided: a JSON object or file"`
	// TPParts is how many parts each sum has that the ranks along tp share. Runs with the same number have the same
	// bits on any TPSize that divides it; one rank then forms the parts by itself. 0 with a TPSize above 1 is
	// DeterministicRanks, or fewer where the model's heads or features do not divide into as many; on one rank it
	// leaves the sums whole. A resume keeps those of the checkpoint unless another number is given.
	TPParts int `json:"tp_parts" resume:"fixed" usage:"parts of each sum over the tensor-parallel ranks; 0: from tp_size and the model"`
	// ParallelismConfig is accelerate's object of that name, and DistributedConfig that of transformers: a JSON or YAML
	// file, or a JSON object. They set sizes as FSDPConfig fills other arguments.
	ParallelismConfig string `json:"parallelism_config" usage:"accelerate's ParallelismConfig: a file or a JSON object"`
	DistributedConfig string `json:"distributed_config" usage:"transformers' DistributedConfig: a file or a JSON object"`
	// FSDPStateDictType is the form of the checkpoints of a model that is spread over ranks, under the name that
	// HuggingFace's fsdp_config has as state_dict_type. Without fsdp and zero_stage it changes nothing.
	FSDPStateDictType StateDictType `json:"fsdp_state_dict_type" choices:"full_state_dict,sharded_state_dict" usage:"checkpoints of a sharded model: full_state_dict (the files of an unsharded model), or sharded_state_dict (each rank writes its part; any number of ranks can resume, and lockstep merge-weights makes one file)"`
	// DDPBackend is the engine that connects ranks in different processes.
	DDPBackend Backend `json:"ddp_backend" choices:"auto,gloo,shm,tcp,nccl,mpi" usage:"engine that connects ranks in different processes; auto and gloo use shared memory on one host, otherwise tcp; mpi needs a program that imports comm/mpi and is built with -tags mpi, nccl one that imports comm/nccl and is built with -tags cuda"`
	// DDPTimeout is the deadline of each collective call, in seconds.
	DDPTimeout int `json:"ddp_timeout" usage:"seconds that a rank waits for the others in a collective call"`
	// DDPBucketCapMB is the size of a gradient bucket in MiB. 0 is 25.
	DDPBucketCapMB int `json:"ddp_bucket_cap_mb" usage:"size of a gradient bucket in MiB; 0: 25"`
	// DDPCommHook is what happens to gradients on their way between ranks. All except "no" are lossy, and the bits then
	// depend on the number of ranks.
	DDPCommHook CommHook `json:"ddp_comm_hook" resume:"fixed" usage:"compression of gradients between ranks: no, or fp16, bf16 (half the bytes), int8 (a quarter), power_sgd (low rank), top_k (the largest); lossy"`
	// DDPCommStateOption holds the communication hook's own settings, named as in accelerate's comm_state_option.
	DDPCommStateOption map[string]any `json:"ddp_comm_state_option" resume:"fixed" usage:"the communication hook's own settings, a JSON object (power_sgd: matrix_approximation_rank, start_powerSGD_iter, min_compression_rate, use_error_feedback, warm_start, random_seed; int8: block_size; top_k: density, use_error_feedback)"`
	// LocalSGDSteps makes ranks step on their own and average their parameters after every so many steps (local SGD).
	// 0 exchanges the gradients of every step. The bits then depend on the number of ranks.
	LocalSGDSteps int `json:"local_sgd_steps" resume:"fixed" usage:"ranks step independently and average their parameters after each of this number of steps (local SGD); lossy; 0: they exchange gradients in every step"`
	// StartLocalSGDIter is the number of steps at first whose gradients are exchanged (post-local SGD).
	StartLocalSGDIter int `json:"start_local_sgd_iter" resume:"fixed" usage:"with local_sgd_steps, the number of steps before it begins, in which ranks exchange gradients (post-local SGD)"`
	// DDPBroadcastBuffers keeps buffers, such as batch norm's running statistics, the same on
	// all ranks: they follow the micro-batches of all ranks, in order. Without it those of each
	// rank follow its own, and rank 0's are saved. All start with rank 0's in both cases.
	DDPBroadcastBuffers bool `json:"ddp_broadcast_buffers" resume:"fixed" usage:"batch norm's running statistics include the micro-batches of all ranks; off: each rank's include only its own"`
	// DDPReductionOrder is the order in which ranks' gradients are added. With "fast"
	// the bits depend on the number of ranks.
	DDPReductionOrder ReductionOrder `json:"ddp_reduction_order" resume:"fixed" choices:"tree,fast" usage:"order in which the ranks' gradients are added: tree (same bits on any number of ranks) or fast"`
	// DDPFindUnusedParameters allows steps that do not use a parameter. It costs nothing.
	// Without it such a step is an error that names the parameter.
	DDPFindUnusedParameters bool `json:"ddp_find_unused_parameters" usage:"allow parameters that a step does not use; off: an error"`
	// DDPStaticGraph promises that every step uses the same parameters as the first,
	// and saves the ranks a small exchange. It is an error if the promise does not hold.
	DDPStaticGraph bool `json:"ddp_static_graph" usage:"promise that all steps use the same parameters as the first; saves an exchange"`
	// DDPRequireEqualInit makes it an error if the ranks' parameters differ at the
	// start. Otherwise they take rank 0's values, and a log line counts them.
	DDPRequireEqualInit bool `json:"ddp_require_equal_init" usage:"fail if the initial parameters of the ranks differ, instead of using rank 0's"`

	// RecordHashes records hashes of every step, for lockstep diff: of data, losses, gradients, weights and the
	// optimizer's state, or also of the results of every module. RecordUntil ends the run after a step; only that step
	// then has the results of modules.
	RecordHashes RecordHashes `json:"record_hashes" choices:"no,step,op" usage:"record hashes for lockstep diff"`
	RecordUntil  int          `json:"record_until" usage:"end the run after this step; 0: none"`

	// Seed is the seed of all random streams.
	Seed uint64 `json:"seed" resume:"fixed" usage:"seed of all random streams"`
	// DataSeed is the seed of the order of samples. nil is Seed.
	DataSeed *uint64 `json:"data_seed" resume:"fixed" usage:"seed of the order of samples; none: seed"`
	// DeterministicRanks is a power of two: on 1, 2, 4, … up to this many ranks results have the same bits. Another
	// value groups sums differently and gives other bits.
	DeterministicRanks int `json:"deterministic_ranks" resume:"fixed" usage:"results have the same bits on 1, 2, 4, … up to this many ranks; a power of two"`
	// DataloaderDropLast drops the last training batch of an epoch if it is incomplete.
	// Evaluation always sees every sample.
	DataloaderDropLast bool `json:"dataloader_drop_last" resume:"fixed" usage:"drop the last training batch of an epoch if it is incomplete"`
	// DataloaderNumWorkers is the number of goroutines that read ahead. 0 reads in
	// the training goroutine. The order of batches does not depend on it.
	DataloaderNumWorkers int `json:"dataloader_num_workers" usage:"goroutines that read batches ahead; 0 reads in the training loop"`
	// DataloaderPrefetchFactor is the number of batches that each worker reads
	// ahead. nil is 2; it needs workers.
	DataloaderPrefetchFactor *int `json:"dataloader_prefetch_factor" usage:"batches that each worker reads ahead; none: 2"`
	// TrainSamplingStrategy is the order of training samples.
	TrainSamplingStrategy Sampling `json:"train_sampling_strategy" resume:"fixed" choices:"random,sequential,group_by_length" usage:"order of training samples"`
	// DataSharding is how the ranks share the training samples. Under ShardingHuggingFace what a rank sees, and so the
	// bits of the result, depends on the number of ranks.
	DataSharding Sharding `json:"data_sharding" resume:"fixed" choices:"lockstep,huggingface,torch" usage:"how ranks share the training samples: lockstep (same bits on any number of ranks, no repeated samples), huggingface (accelerate's rules) or torch (DistributedSampler's indices)"`
	// AcceleratorConfig holds accelerate's settings of DataSharding huggingface: split_batches and even_batches. See
	// BatchSharding.
	AcceleratorConfig map[string]any `json:"accelerator_config" resume:"fixed" plain:"{\"split_batches\": false, \"dispatch_batches\": false, \"even_batches\": true, \"use_seedable_sampler\": true, \"non_blocking\": false, \"use_configured_state\": false}" usage:"accelerate's settings of data_sharding huggingface, a JSON object: split_batches (false), even_batches (true)"`
	// LengthColumnName is where group_by_length finds the lengths of samples (data.Lengths);
	// without such a column they are the numbers of input tokens.
	LengthColumnName string `json:"length_column_name" resume:"fixed" usage:"column of sample lengths, for group_by_length; without it, lengths are counted"`
}

// defaultOutputDir is the folder that HuggingFace uses if none is given.
const defaultOutputDir = "trainer_output"

// Default returns HuggingFace's defaults (transformers 5) for a run that writes
// to outputDir; an empty one is trainer_output, and a leading ~ is the home
// folder. Settings that HuggingFace does not have are neutral, except nonfinite_loss:
// stop.
func Default(outputDir string) *TrainingArguments {
	return &TrainingArguments{
		OutputDir:                 expandHome(cmp.Or(outputDir, defaultOutputDir)),
		PerDeviceTrainBatchSize:   8,
		PerDeviceEvalBatchSize:    8,
		GradientAccumulationSteps: 1,
		NumTrainEpochs:            3,
		MaxSteps:                  -1,
		LRScheduleByTime:          true,
		MaxShardSize:              "50GB",
		FSDPStateDictType:         FullStateDict,
		LearningRate:              5e-5,
		AdamBeta1:                 0.9,
		AdamBeta2:                 0.999,
		AdamEpsilon:               1e-8,
		MaxGradNorm:               1,
		Optim:                     OptimAdamWFused,
		LRSchedulerType:           SchedulerLinear,
		LayerwiseLRDecay:          1,
		FP16InitialScale:          65536,
		FP16MinScale:              1,
		FP16GrowthInterval:        2000,
		FP16Hysteresis:            1,
		FP16LossScaler:            LossScalerTorch,
		HalfUpdate:                HalfUpdateKahan,
		RecordHashes:              RecordNo,
		NonfiniteLoss:             NonfiniteStop,
		LossAverage:               LossAverageTerms,
		LoggingStrategy:           StrategySteps,
		LoggingSteps:              500,
		IncludeNumInputTokensSeen: TokensSeenNo,
		LogLevel:                  LogLevelPassive,
		LogLevelReplica:           LogLevelWarning,
		LogOnEachNode:             true,
		ReportTo:                  []string{ReportNone},
		Project:                   "huggingface",
		SkipMemoryMetrics:         true,
		ProfileSkipFirst:          2,
		ProfileSteps:              3,
		EvalStrategy:              StrategyNo,
		SaveStrategy:              StrategySteps,
		SaveSteps:                 500,
		SaveOnInterrupt:           true,
		Device:                    DeviceAuto,
		NumReplicas:               1,
		PPSize:                    1,
		PPSchedule:                "1f1b",
		CPSize:                    1,
		SPSize:                    1,
		CPStrategy:                CPGather,
		TPSize:                    1,
		DDPBackend:                BackendAuto,
		DDPTimeout:                1800,
		DDPBroadcastBuffers:       true,
		FSDPShareParameters:       true,
		FSDPReduceDType:           ReduceFloat32,
		OffloadOptimizer:          OffloadNone,
		OffloadParams:             OffloadNone,
		DDPReductionOrder:         OrderTree,
		DDPFindUnusedParameters:   true,
		DDPCommHook:               CommHookNo,
		Seed:                      42,
		DeterministicRanks:        8,
		TrainSamplingStrategy:     SamplingRandom,
		DataSharding:              ShardingLockstep,
		LengthColumnName:          "length",
	}
}
