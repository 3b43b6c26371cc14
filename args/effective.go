// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
)

// ResolveSteps turns a setting of steps into a number of steps: a ratio in (0, 1)
// is that part of total, rounded up as HuggingFace does (⌈total × ratio⌉ of the
// float64 product), other values are whole steps already.
func ResolveSteps(value float64, total int) int {
	if value > 0 && value < 1 {
		return int(math.Ceil(float64(total) * value))
	}
	return int(value)
}

// NumWarmupSteps is the length of the warm-up in a training of total steps.
func (a *TrainingArguments) NumWarmupSteps(total int) int { return ResolveSteps(a.WarmupSteps, total) }

// LoggingInterval is the number of steps between logs in a training of total
// steps; it counts with LoggingStrategy steps only.
func (a *TrainingArguments) LoggingInterval(total int) int {
	return ResolveSteps(a.LoggingSteps, total)
}

// EvalInterval is the number of steps between evaluations in a training of total
// steps; it counts with EvalStrategy steps only.
func (a *TrainingArguments) EvalInterval(total int) int {
	return ResolveSteps(a.evalStepsOrLogging(), total)
}

// SaveInterval is the number of steps between checkpoints in a training of total
// steps; it counts with SaveStrategy steps only.
func (a *TrainingArguments) SaveInterval(total int) int { return ResolveSteps(a.SaveSteps, total) }

func (a *TrainingArguments) evalStepsOrLogging() float64 { return or(a.EvalSteps, a.LoggingSteps) }

// or is what p points to, or else the other value.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// EvaluationWanted reports whether do_eval is set, or implied by an eval_strategy.
func (a *TrainingArguments) EvaluationWanted() bool {
	return a.DoEval || a.EvalStrategy != StrategyNo
}

// TrainingWanted reports whether a program trains: if do_train is set, or if neither do_eval nor do_predict asks for
// something else. A Loader sets do_train where do_eval only follows from an eval_strategy.
func (a *TrainingArguments) TrainingWanted() bool { return a.DoTrain || !a.DoEval && !a.DoPredict }

// followEvalStrategy sets do_eval where an eval_strategy implies it, as HuggingFace does.
func (a *TrainingArguments) followEvalStrategy() { a.DoEval = a.EvaluationWanted() }

// BestMetric is the log key of the metric that tells the best checkpoint, with
// eval_ before it, or "" if none is watched.
func (a *TrainingArguments) BestMetric() string {
	name := a.MetricForBestModel
	if name == "" {
		if !a.LoadBestModelAtEnd && !a.FollowsMetric() {
			return ""
		}
		name = "loss"
	}
	return "eval_" + strings.TrimPrefix(name, "eval_")
}

// FollowsMetric reports whether the schedule follows BestMetric in place of the steps.
func (a *TrainingArguments) FollowsMetric() bool {
	row, _ := catalog.ScheduleNamed(string(a.LRSchedulerType))
	return row.ByMetric
}

// BestIsGreater is the direction of BestMetric.
func (a *TrainingArguments) BestIsGreater() bool {
	return or(a.GreaterIsBetter, !strings.HasSuffix(a.BestMetric(), "loss"))
}

// levelCritical is above slog's levels, as Python's critical is above its error.
const levelCritical = slog.LevelError + 4

// SlogLevel is LogLevel for slog; set is false for passive, which leaves the
// logger alone.
func (a *TrainingArguments) SlogLevel() (level slog.Level, set bool) { return a.LogLevel.slog() }

// SlogLevelReplica is LogLevelReplica for slog; set is false for passive.
func (a *TrainingArguments) SlogLevelReplica() (level slog.Level, set bool) {
	return a.LogLevelReplica.slog()
}

// slogLevels has no level for passive.
var slogLevels = map[LogLevel]slog.Level{LogLevelDebug: slog.LevelDebug, LogLevelInfo: slog.LevelInfo,
	LogLevelWarning: slog.LevelWarn, LogLevelError: slog.LevelError, LogLevelCritical: levelCritical}

func (l LogLevel) slog() (level slog.Level, set bool) {
	level, set = slogLevels[l]
	return level, set
}

// ProgressDisabled reports whether plain lines replace the progress bar: as
// DisableTQDM says, else if LogLevel is above warning.
func (a *TrainingArguments) ProgressDisabled() bool {
	level, set := a.SlogLevel()
	return or(a.DisableTQDM, set && level > slog.LevelWarn)
}

// Reporters is ReportTo expanded over the names of the reporters that the program
// has: nothing for none, every one for all. An unknown name is an *Error.
func (a *TrainingArguments) Reporters(available ...string) ([]string, error) {
	out, want := reporters(a.ReportTo, append([]string{}, available...))
	var c Checker
	c.Require(want == "", "report_to", a.ReportTo, want)
	return out, c.Err()
}

// ShardBytes is MaxShardSize in bytes.
func (a *TrainingArguments) ShardBytes() (int64, error) {
	n, err := safetensors.ParseSize(a.MaxShardSize)
	if err != nil {
		return 0, fmt.Errorf("args: max_shard_size: %w", err)
	}
	return n, nil
}

// DetectsOverflow reports whether debug has underflow_overflow.
func (a *TrainingArguments) DetectsOverflow() bool {
	return slices.Contains(a.debugWords(), debugOverflow)
}

// MetricInputs and MetricLoss are what include_for_metrics may have.
const (
	MetricInputs = "inputs"
	MetricLoss   = "loss"
)

// debugOverflow is what debug may have.
const debugOverflow = "underflow_overflow"

func (a *TrainingArguments) debugWords() []string { return strings.Fields(strings.Join(a.Debug, " ")) }

// ResumePath says where to continue from: last asks for the newest checkpoint of OutputDir, path is a checkpoint's
// folder; neither starts over. To resume from a folder of the name last, write ./last.
func (a *TrainingArguments) ResumePath() (path string, last bool) {
	switch a.ResumeFromCheckpoint {
	case "", "false", "False":
		return "", false
	case "last", "true", "True":
		return "", true
	}
	return a.ResumeFromCheckpoint, false
}

// SamplerSeed is the seed of the order of samples.
func (a *TrainingArguments) SamplerSeed() uint64 { return or(a.DataSeed, a.Seed) }

// PrefetchBatches is the number of batches that each worker reads ahead; 0
// without workers.
func (a *TrainingArguments) PrefetchBatches() int {
	if a.DataloaderNumWorkers == 0 {
		return 0
	}
	return or(a.DataloaderPrefetchFactor, 2)
}

// AccumulationSteps is the number of micro-batches of each of ranks ranks that
// make one optimizer step: GradientAccumulationSteps, or what
// GlobalTrainBatchSize leaves. It is an *Error if that does not divide, or
// contradicts a GradientAccumulationSteps above 1.
func (a *TrainingArguments) AccumulationSteps(ranks int) (int, error) {
	if a.GlobalTrainBatchSize == 0 {
		return a.GradientAccumulationSteps, nil
	}
	var c Checker
	share := a.PerDeviceTrainBatchSize * a.batchRanks(ranks)
	ok := c.Require(share > 0 && a.GlobalTrainBatchSize%share == 0, "global_train_batch_size", a.GlobalTrainBatchSize,
		fmt.Sprintf("a multiple of per_device_train_batch_size × ranks (%d × %d)", a.PerDeviceTrainBatchSize,
			a.batchRanks(ranks)))
	if !ok {
		return 0, c.Err()
	}
	steps := a.GlobalTrainBatchSize / share
	given := a.GradientAccumulationSteps
	c.Require(given == 1 || given == steps, "gradient_accumulation_steps", given,
		fmt.Sprintf("%d, to match global_train_batch_size %d (ranks: %d); or 1, to derive it", steps,
			a.GlobalTrainBatchSize, ranks))
	return steps, c.Err()
}

// TotalTrainBatchSize is the number of samples of one optimizer step over all of
// ranks ranks; the error is AccumulationSteps'.
func (a *TrainingArguments) TotalTrainBatchSize(ranks int) (int, error) {
	steps, err := a.AccumulationSteps(ranks)
	return a.PerDeviceTrainBatchSize * steps * a.batchRanks(ranks), err
}
