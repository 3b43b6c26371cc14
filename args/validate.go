// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
)

// Validate returns nil or an *Error with every fault that can be told without
// the model, the data and the number of ranks.
func (a *TrainingArguments) Validate() error { return a.checked().Err() }

// checked has the faults that Validate reports.
func (a *TrainingArguments) checked() *Checker {
	c, structs := &Checker{}, []any{a}
	c.check(newSchema(structs...), structs)
	return c
}

// Check records the faults of the values and of their combinations; those of
// the enumerations are recorded before it by Validate and Loader.
func (a *TrainingArguments) Check(c *Checker) {
	a.checkLength(c)
	a.checkOptimizer(c)
	a.checkSchedule(c)
	a.checkIntervals(c)
	a.checkBest(c)
	a.checkGeneration(c)
	a.checkSaving(c)
	a.checkRanks(c)
	a.checkSharding(c)
	a.checkReporting(c)
	a.checkData(c)
}

// The largest values. What is larger is a typing error, and would exhaust memory or overflow somewhere in a run.
const (
	maxBatch        = 1 << 24 // samples
	maxAccumulation = 1 << 20 // micro-batches
	maxGlobalBatch  = 1 << 30 // samples
	maxEpochs       = 1 << 30
	maxSteps        = 1<<31 - 1
	maxTimeout      = 1 << 30 // seconds
	maxBucket       = 1 << 20 // MiB
	maxProfiled     = 1 << 20 // steps
	maxWorkers      = 1 << 10
	maxPrefetch     = 1 << 10 // batches of a worker
)

func (a *TrainingArguments) checkLength(c *Checker) {
	c.Require(a.OutputDir != "", "output_dir", a.OutputDir, "a folder")
	between(c, "per_device_train_batch_size", a.PerDeviceTrainBatchSize, 1, maxBatch)
	between(c, "per_device_eval_batch_size", a.PerDeviceEvalBatchSize, 1, maxBatch)
	between(c, "gradient_accumulation_steps", a.GradientAccumulationSteps, 1, maxAccumulation)
	c.Require(a.NumTrainEpochs > 0 && a.NumTrainEpochs <= maxEpochs, "num_train_epochs", a.NumTrainEpochs,
		fmt.Sprintf("a number > 0, at most %d", maxEpochs))
	c.Require(a.MaxSteps == -1 || a.MaxSteps >= 1 && a.MaxSteps <= maxSteps, "max_steps", a.MaxSteps,
		fmt.Sprintf("a number of steps from 1 to %d, or -1 to use num_train_epochs", maxSteps))
	nonNegative(c, "max_train_seconds", a.MaxTrainSeconds)
	a.checkGlobalBatch(c)
}

func (a *TrainingArguments) checkGlobalBatch(c *Checker) {
	if !between(c, "global_train_batch_size", a.GlobalTrainBatchSize, 0, maxGlobalBatch) ||
		a.GlobalTrainBatchSize == 0 ||
		!c.OK("per_device_train_batch_size", "gradient_accumulation_steps") {
		return
	}
	batch := a.PerDeviceTrainBatchSize
	c.Require(a.GlobalTrainBatchSize/batch <= maxAccumulation, "global_train_batch_size", a.GlobalTrainBatchSize,
		fmt.Sprintf("at most %d micro-batches of per_device_train_batch_size (%d)", maxAccumulation, batch))
	c.Require(a.GlobalTrainBatchSize%batch == 0, "global_train_batch_size", a.GlobalTrainBatchSize,
		fmt.Sprintf("a multiple of per_device_train_batch_size (%d)", batch))
	if gas := a.GradientAccumulationSteps; gas != 1 {
		c.Require(a.GlobalTrainBatchSize/batch%gas == 0, "global_train_batch_size", a.GlobalTrainBatchSize,
			fmt.Sprintf("a multiple of per_device_train_batch_size × gradient_accumulation_steps (%d × %d); or leave "+
				"the latter at 1, and it is derived", batch, gas))
	}
}

func (a *TrainingArguments) checkOptimizer(c *Checker) {
	nonNegative(c, "learning_rate", a.LearningRate)
	nonNegative(c, "weight_decay", a.WeightDecay)
	c.Require(a.AdamBeta1 >= 0 && a.AdamBeta1 < 1, "adam_beta1", a.AdamBeta1, "a number in [0, 1)")
	c.Require(a.AdamBeta2 >= 0 && a.AdamBeta2 < 1, "adam_beta2", a.AdamBeta2, "a number in [0, 1)")
	nonNegative(c, "adam_epsilon", a.AdamEpsilon)
	nonNegative(c, "max_grad_norm", a.MaxGradNorm)
	if alpha := a.NeftuneNoiseAlpha; alpha != nil {
		nonNegative(c, "neftune_noise_alpha", *alpha)
	}
	c.Require(a.LabelSmoothingFactor >= 0 && a.LabelSmoothingFactor < 1, "label_smoothing_factor",
		a.LabelSmoothingFactor, "a number in [0, 1)")
	c.Require(a.EMADecay >= 0 && a.EMADecay < 1, "ema_decay", a.EMADecay, "a number in [0, 1)")
	c.Require(a.EMADecay == 0 || !strings.HasPrefix(string(a.Optim), "schedule_free_"), "ema_decay", a.EMADecay,
		"0, or an optim that does not average weights itself")
	c.Require(!a.BF16 || !a.FP16, "fp16", a.FP16, "one of bf16 and fp16")
	c.Require(!a.BF16FullEval || !a.FP16FullEval, "fp16_full_eval", a.FP16FullEval,
		"one of bf16_full_eval and fp16_full_eval")
	c.Require(powerOf2(a.FP16InitialScale) && a.FP16InitialScale >= 1 && a.FP16InitialScale <= 1<<64,
		"fp16_initial_scale", a.FP16InitialScale,
		"a power of two from 1 to 2^64")
	c.Require(a.FP16MinScale > 0 && a.FP16MinScale <= a.FP16InitialScale, "fp16_min_scale", a.FP16MinScale,
		"a number above 0 and at most fp16_initial_scale")
	c.Require(a.FP16LossScaler != LossScalerDeepSpeed || powerOf2(a.FP16MinScale), "fp16_min_scale", a.FP16MinScale,
		"a power of two with fp16_loss_scaler deepspeed, which lowers the loss scale to this value")
	between(c, "fp16_growth_interval", a.FP16GrowthInterval, 1, maxSteps)
	between(c, "fp16_hysteresis", a.FP16Hysteresis, 1, maxSteps)
	c.Require(a.LayerwiseLRDecay > 0 && a.LayerwiseLRDecay <= 1, "layerwise_lr_decay", a.LayerwiseLRDecay,
		"a number in (0, 1]")
	_, wantGroups := a.paramGroups()
	c.Require(wantGroups == "", "param_groups", a.ParamGroups, wantGroups)
	if c.OK("optim") {
		_, want := a.optimSettings()
		c.Require(want == "", "optim_args", a.OptimArgs, want)
	}
	if c.OK("ddp_comm_hook") {
		want := a.commHookFault()
		c.Require(want == "", "ddp_comm_state_option", a.DDPCommStateOption, want)
	}
	for _, word := range a.debugWords() {
		c.Require(word == debugOverflow, "debug", a.Debug, debugOverflow+", or nothing")
	}
	for _, name := range a.IncludeForMetrics {
		c.Require(name == MetricInputs || name == MetricLoss, "include_for_metrics", a.IncludeForMetrics,
			"names from "+MetricInputs+", "+MetricLoss)
	}
	a.checkLocalSGD(c)
}

func (a *TrainingArguments) checkSchedule(c *Checker) {
	checkSteps(c, "warmup_steps", a.WarmupSteps)
	schedule, known := catalog.ScheduleNamed(string(a.LRSchedulerType))
	if !known {
		return
	}
	lr := a.LearningRate
	if !c.OK("learning_rate") {
		lr = math.NaN()
	}
	if c.OK("eval_strategy") {
		c.Require(!schedule.ByMetric || a.EvalStrategy != StrategyNo, "lr_scheduler_type", a.LRSchedulerType,
			"a schedule that follows the steps, or an eval_strategy other than no: this schedule follows an "+
				"evaluation metric")
	}
	for _, want := range schedule.Wants(a.LRSchedulerKwargs, lr) {
		c.Require(false, "lr_scheduler_kwargs", a.LRSchedulerKwargs, want)
	}
}

func (a *TrainingArguments) checkIntervals(c *Checker) {
	checkSteps(c, "logging_steps", a.LoggingSteps)
	checkSteps(c, "save_steps", a.SaveSteps)
	nonNegative(c, "eval_delay", a.EvalDelay)
	const positive = "a whole number of steps ≥ 1, or a ratio of all steps in (0, 1), with strategy steps"
	c.Require(a.LoggingStrategy != StrategySteps || a.LoggingSteps != 0, "logging_steps", a.LoggingSteps, positive)
	c.Require(a.SaveStrategy != StrategySteps || a.SaveSteps != 0, "save_steps", a.SaveSteps, positive)
	if a.EvalSteps != nil {
		checkSteps(c, "eval_steps", *a.EvalSteps)
		c.Require(a.EvalStrategy != StrategySteps || *a.EvalSteps != 0, "eval_steps", *a.EvalSteps, positive)
	} else if c.OK("logging_steps") {
		c.Require(a.EvalStrategy != StrategySteps || a.LoggingSteps != 0, "eval_steps", nil,
			positive+", since logging_steps is 0 too")
	}
}

func (a *TrainingArguments) checkGeneration(c *Checker) {
	if n := a.GenerationMaxLength; n != nil {
		c.Require(*n >= 1, "generation_max_length", *n, "a number of tokens, at least 1")
	}
}

// checkBest holds HuggingFace's rules: the best checkpoint must have been written
// when it was evaluated.
func (a *TrainingArguments) checkBest(c *Checker) {
	if !c.OK("eval_strategy", "save_strategy") {
		return
	}
	if a.SaveStrategy == StrategyBest {
		c.Require(a.EvalStrategy != StrategyNo, "save_strategy", a.SaveStrategy,
			"another strategy, or an eval_strategy other than no")
		c.Require(a.BestMetric() != "", "metric_for_best_model", a.MetricForBestModel,
			"a metric for save_strategy best, such as loss")
	}
	if !a.LoadBestModelAtEnd || a.SaveStrategy == StrategyBest {
		return
	}
	const key = "load_best_model_at_end"
	c.Require(a.EvalStrategy != StrategyNo, key, true, "false, or an eval_strategy other than no")
	c.Require(a.EvalStrategy == a.SaveStrategy, key, true,
		fmt.Sprintf("false, or save_strategy (%s) equal to eval_strategy (%s), or save_strategy best", a.SaveStrategy,
			a.EvalStrategy))
	if a.EvalStrategy == StrategySteps && c.OK(key, "eval_steps", "save_steps", "logging_steps") {
		a.checkAligned(c)
	}
}

// checkAligned compares ratios after ×10⁶, as HuggingFace does, so that 0.3 is a
// multiple of 0.1.
func (a *TrainingArguments) checkAligned(c *Checker) {
	save, eval := a.SaveSteps, a.evalStepsOrLogging()
	if (save < 1) != (eval < 1) {
		c.Require(false, "save_steps", save,
			fmt.Sprintf("a whole number or a ratio, like eval_steps (%g): load_best_model_at_end has to compare them",
				eval))
		return
	}
	if save < 1 {
		save, eval = math.Round(save*1e6), math.Round(eval*1e6)
	}
	c.Require(eval > 0 && math.Mod(save, eval) == 0, "save_steps", a.SaveSteps,
		fmt.Sprintf("a multiple of eval_steps (%g) with load_best_model_at_end", a.evalStepsOrLogging()))
}

func (a *TrainingArguments) checkSaving(c *Checker) {
	_, err := safetensors.ParseSize(a.MaxShardSize)
	c.Require(err == nil, "max_shard_size", a.MaxShardSize, "a size ≥ 1 like 5GB, 200MB or 5000000000")
	if a.SaveTotalLimit != nil {
		c.Require(*a.SaveTotalLimit >= 1, "save_total_limit", *a.SaveTotalLimit,
			"a number ≥ 1, or none to keep all checkpoints")
	}
	between(c, "save_keep_best", a.SaveKeepBest, 0, maxSteps)
	between(c, "save_keep_every", a.SaveKeepEvery, 0, maxSteps)
	if a.SaveKeepBest > 0 && c.OK("save_keep_best", "eval_strategy") {
		c.Require(a.EvalStrategy != StrategyNo && a.BestMetric() != "", "save_keep_best", a.SaveKeepBest,
			"0, or an eval_strategy other than no and a metric_for_best_model")
	}
}

func (a *TrainingArguments) checkRanks(c *Checker) {
	c.Require(a.NumReplicas >= 1 && a.NumReplicas <= 1024, "num_replicas", a.NumReplicas, "1 to 1024")
	between(c, "ddp_timeout", a.DDPTimeout, 1, maxTimeout)
	between(c, "ddp_bucket_cap_mb", a.DDPBucketCapMB, 0, maxBucket)
	n := a.DeterministicRanks
	c.Require(n >= 1 && n&(n-1) == 0, "deterministic_ranks", n, "a power of two: 1, 2, 4, 8, …")
}

func (a *TrainingArguments) checkReporting(c *Checker) {
	_, want := reporters(a.ReportTo, nil)
	c.Require(want == "", "report_to", a.ReportTo, want)
	between(c, "profile_skip_first", a.ProfileSkipFirst, 0, maxSteps)
	between(c, "profile_steps", a.ProfileSteps, 1, maxProfiled)
	between(c, "record_until", a.RecordUntil, 0, 1<<40)
	c.Require(a.RecordUntil == 0 || a.RecordHashes != RecordNo, "record_until", a.RecordUntil,
		"0, or record_hashes step or op")
}

func (a *TrainingArguments) checkData(c *Checker) {
	if c.OK("data_sharding") {
		want := a.acceleratorFault()
		c.Require(want == "", "accelerator_config", a.AcceleratorConfig, want)
	}
	between(c, "dataloader_num_workers", a.DataloaderNumWorkers, 0, maxWorkers)
	if p := a.DataloaderPrefetchFactor; p != nil {
		c.Require(*p >= 1, "dataloader_prefetch_factor", *p, "a number ≥ 1, or none")
		c.Require(*p <= maxPrefetch, "dataloader_prefetch_factor", *p, fmt.Sprintf("at most %d", maxPrefetch))
		if c.OK("dataloader_num_workers") {
			c.Require(a.DataloaderNumWorkers > 0, "dataloader_prefetch_factor", *p,
				"none, or dataloader_num_workers ≥ 1")
		}
	}
}

func between(c *Checker, key string, v, least, most int) bool {
	want := fmt.Sprintf("a whole number ≥ %d", least)
	if v > most {
		want = fmt.Sprintf("at most %d", most)
	}
	return c.Require(v >= least && v <= most, key, v, want)
}

func nonNegative(c *Checker, key string, v float64) bool {
	return c.Require(finite(v) && v >= 0, key, v, "a finite number ≥ 0")
}

func checkSteps(c *Checker, key string, v float64) bool {
	ok := v >= 0 && v <= maxExact && (v < 1 || v == math.Trunc(v))
	return c.Require(ok, key, v, "a whole number of steps, or a ratio of all steps in (0, 1)")
}

// reporters expands report_to over the available names (nil: any name will do).
func reporters(names, available []string) (out []string, want string) {
	if len(names) == 0 || len(names) == 1 && names[0] == ReportNone {
		return nil, ""
	}
	if len(names) == 1 && names[0] == ReportAll {
		return slices.Clone(available), ""
	}
	for i, n := range names {
		switch {
		case n == ReportNone || n == ReportAll:
			return nil, n + " alone, or names without it"
		case n == "" || slices.Contains(names[:i], n):
			return nil, "names of reporters, each once"
		case available != nil && len(available) == 0:
			return nil, "none: this program has no reporters (it imports no package of integrations)" +
				choiceHint("report_to", n, available)
		case available != nil && !slices.Contains(available, n):
			return nil, fmt.Sprintf("none, all, or names from %s%s", strings.Join(available, ", "),
				choiceHint("report_to", n, available))
		}
	}
	return slices.Clone(names), ""
}

// powerOf2 reports whether v is a power of two.
func powerOf2(v float64) bool {
	fraction, _ := math.Frexp(v)
	return fraction == 0.5
}
