// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the goldens in testdata")

// The list of keys, types, defaults and choices is a promise: adding to it is a
// decision, and so is changing a default.
func TestKeysAndDefaultsAreFrozen(t *testing.T) {
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	loader := args.Bind(fs, args.Default(""))
	loader.Environ = func() []string { return nil }
	resolved, err := loader.Parse(nil)
	require.NoError(t, err)
	var b strings.Builder
	typ := reflect.TypeFor[args.TrainingArguments]()
	for i, row := range resolved.Table() {
		choices := args.Choices(typ, i)
		fmt.Fprintf(&b, "%s\t%s\t%q\t%s\n", row[0], fs.Lookup(row[0]).Value.Type(), row[1], cmp.Or(choices, "any"))
	}
	golden(t, "defaults.tsv", b.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), got)
}

func TestDefaultsAreValid(t *testing.T) {
	require.NoError(t, args.Default("").Validate())
	require.Equal(t, "trainer_output", args.Default("").OutputDir)
}

// Every key is the snake case of the Go name, so that one can be told from the
// other.
func TestKeysFollowGoNames(t *testing.T) {
	for f := range reflect.TypeFor[args.TrainingArguments]().Fields() {
		key := f.Tag.Get("json")
		require.Equal(t, strings.ToLower(f.Name), strings.ReplaceAll(key, "_", ""), f.Name)
	}
}

type arguments = args.TrainingArguments

func TestValidate(t *testing.T) {
	kwargs := func(kv ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return m
	}
	schedule := func(s args.SchedulerType, kv ...any) func(a *arguments) {
		return func(a *arguments) { a.LRSchedulerType, a.LRSchedulerKwargs = s, kwargs(kv...) }
	}
	best := func(save, eval args.Strategy, saveSteps, evalSteps float64) func(a *arguments) {
		return func(a *arguments) {
			a.LoadBestModelAtEnd, a.SaveStrategy, a.EvalStrategy = true, save, eval
			a.SaveSteps, a.EvalSteps = saveSteps, new(evalSteps)
		}
	}
	sgd := func(text string) func(a *arguments) {
		return func(a *arguments) { a.Optim, a.OptimArgs = args.OptimSGD, text }
	}
	for _, c := range []struct {
		name  string
		set   func(a *arguments)
		fault string // the keys at fault, and a part of what was wanted
	}{
		{"empty folder", func(a *arguments) { a.OutputDir = "" }, "output_dir: a folder"},
		{"train batch", func(a *arguments) { a.PerDeviceTrainBatchSize = 0 }, "per_device_train_batch_size: ≥ 1"},
		{"eval batch", func(a *arguments) { a.PerDeviceEvalBatchSize = -1 }, "per_device_eval_batch_size: ≥ 1"},
		{"accumulation", func(a *arguments) { a.GradientAccumulationSteps = 0 }, "gradient_accumulation_steps: ≥ 1"},
		{"epochs 0", func(a *arguments) { a.NumTrainEpochs = 0 }, "num_train_epochs: > 0"},
		{"epochs NaN", func(a *arguments) { a.NumTrainEpochs = math.NaN() }, "num_train_epochs: > 0"},
		{"half an epoch", func(a *arguments) { a.NumTrainEpochs = 0.5 }, ""},
		{"steps 0", func(a *arguments) { a.MaxSteps = 0 }, "max_steps: -1"},
		{"steps -2", func(a *arguments) { a.MaxSteps = -2 }, "max_steps: -1"},
		{"steps", func(a *arguments) { a.MaxSteps = 1 }, ""},
		{"seconds", func(a *arguments) { a.MaxTrainSeconds = -1 }, "max_train_seconds: ≥ 0"},
		{"global batch -1", func(a *arguments) { a.GlobalTrainBatchSize = -1 }, "global_train_batch_size: ≥ 0"},
		{"global batch 12", func(a *arguments) {
			a.GlobalTrainBatchSize = 12
		}, "global_train_batch_size: multiple of per_device_train_batch_size (8)"},
		{"global batch 32", func(a *arguments) { a.GlobalTrainBatchSize = 32 }, ""},
		{"global batch and accumulation", func(a *arguments) {
			a.GlobalTrainBatchSize, a.GradientAccumulationSteps = 32, 3
		}, "global_train_batch_size: (8 × 3)"},
		{"rate", func(a *arguments) { a.LearningRate = -1e-3 }, "learning_rate: ≥ 0"},
		{"rate inf", func(a *arguments) { a.LearningRate = math.Inf(1) }, "learning_rate: finite"},
		{"rate 0", func(a *arguments) { a.LearningRate = 0 }, ""},
		{"decay", func(a *arguments) { a.WeightDecay = -1 }, "weight_decay: ≥ 0"},
		{"beta1", func(a *arguments) { a.AdamBeta1 = 1 }, "adam_beta1: [0, 1)"},
		{"beta2", func(a *arguments) { a.AdamBeta2 = math.NaN() }, "adam_beta2: [0, 1)"},
		{"epsilon", func(a *arguments) { a.AdamEpsilon = -1 }, "adam_epsilon: ≥ 0"},
		{"norm", func(a *arguments) { a.MaxGradNorm = -1 }, "max_grad_norm: ≥ 0"},
		{"no clipping", func(a *arguments) { a.MaxGradNorm = 0 }, ""},

		{"optimizer", func(a *arguments) { a.Optim = "adamw" },
			"optim: one of adamw_torch, adamw_torch_fused, adamw_torch_xla, adamw_torch_npu_fused, "},
		{"adam", func(a *arguments) { a.Optim = args.OptimAdam }, ""},
		{"adamw has no settings", func(a *arguments) {
			a.OptimArgs = "momentum=0.9"
		}, "optim_args: none, since adamw_torch_fused has no settings"},
		{"sgd", sgd("momentum=0.9, nesterov=true,dampening=0"), ""},
		{"sgd unknown", sgd("momentums=0.9"), "optim_args: momentum, dampening, nesterov"},
		{"sgd no value", sgd("momentum"), "optim_args: key=value"},
		{"sgd bad value", sgd("momentum=-1"), "optim_args: momentum to be a number ≥ 0"},
		{"sgd bad switch", sgd("nesterov=maybe"), "optim_args: true or false"},
		{"sgd dampening", sgd("dampening=1.5"), "optim_args: [0, 1]"},
		{"sgd twice", sgd("momentum=1,momentum=2"), "optim_args: momentum once"},
		{"nesterov without momentum", sgd("nesterov=true"), "optim_args: momentum > 0 and dampening 0"},
		{"nesterov with dampening", sgd("nesterov=true,momentum=0.9,dampening=0.1"),
			"optim_args: momentum > 0 and dampening 0"},

		{"schedule", func(a *arguments) { a.LRSchedulerType = "cosine_with_restart" },
			"lr_scheduler_type: did you mean cosine_with_restarts?"},
		{"constant has no settings", schedule(args.SchedulerConstant, "power", 1.0),
			"lr_scheduler_kwargs: constant has no settings"},
		{"cosine", schedule(args.SchedulerCosine, "num_cycles", 0.5), ""},
		{"cosine unknown", schedule(args.SchedulerCosine, "cycles", 0.5),
			"lr_scheduler_kwargs: num_cycles for cosine, not cycles"},
		{"cosine text", schedule(args.SchedulerCosine, "num_cycles", "half"),
			"lr_scheduler_kwargs: num_cycles to be a number"},
		{"plateau", schedule(args.SchedulerReduceLROnPlateau, "patience", 2),
			"lr_scheduler_type: an eval_strategy other than no"},
		{"greedy", func(a *arguments) {
			a.LRSchedulerType, a.EvalStrategy = args.SchedulerGreedy, args.StrategyEpoch
			a.LRSchedulerKwargs = map[string]any{"max_lr": []any{0.1, 0.2}, "smooth": true}
		}, ""},
		{"greedy limits", func(a *arguments) {
			a.LRSchedulerType, a.EvalStrategy = args.SchedulerGreedy, args.StrategyEpoch
			a.LRSchedulerKwargs = map[string]any{"factor": []any{0.5}, "max_lr": []any{}}
		}, "lr_scheduler_kwargs: factor to be a number between 0 and 1",
		},
		{"restarts", schedule(args.SchedulerCosineWithRestarts, "num_cycles", 2), ""},
		{"restarts fraction", schedule(args.SchedulerCosineWithRestarts, "num_cycles", 1.5), ""},
		{"restarts below 0", schedule(args.SchedulerCosineWithRestarts, "num_cycles", -1.0),
			"lr_scheduler_kwargs: a number ≥ 0"},
		{"polynomial", schedule(args.SchedulerPolynomial, "power", 2.0), ""},
		{"polynomial end", schedule(args.SchedulerPolynomial, "lr_end", 5e-5),
			"lr_scheduler_kwargs: below learning_rate"},
		{"polynomial end by default", func(a *arguments) {
			a.LRSchedulerType, a.LearningRate = args.SchedulerPolynomial, 1e-7
		}, "lr_scheduler_kwargs: below learning_rate"},
		{"inverse sqrt", schedule(args.SchedulerInverseSqrt, "timescale", 0), "lr_scheduler_kwargs: > 0"},
		{"min lr missing", schedule(args.SchedulerCosineWithMinLR),
			"lr_scheduler_kwargs: either min_lr or min_lr_rate"},
		{"min lr both", schedule(args.SchedulerCosineWithMinLR, "min_lr", 1e-6, "min_lr_rate", 0.1),
			"lr_scheduler_kwargs: either min_lr or min_lr_rate"},
		{"min lr", schedule(args.SchedulerCosineWithMinLR, "min_lr", 1e-6), ""},
		{"min lr above the rate", schedule(args.SchedulerCosineWithMinLR, "min_lr", 1.0), ""},
		{"min lr rate", schedule(args.SchedulerCosineWarmupWithMinLR, "min_lr_rate", 0.1, "warmup_lr_rate", 0.2), ""},
		{"min lr rate above 1", schedule(args.SchedulerCosineWarmupWithMinLR, "min_lr_rate", 1.1), ""},
		{"wsd", schedule(args.SchedulerWarmupStableDecay, "num_decay_steps", 10, "decay_type", "1-sqrt"), ""},
		{"wsd no decay", schedule(args.SchedulerWarmupStableDecay), "lr_scheduler_kwargs: num_decay_steps"},
		{"wsd type", schedule(args.SchedulerWarmupStableDecay, "num_decay_steps", 10, "warmup_type", "sqrt"),
			"lr_scheduler_kwargs: linear, cosine, 1-sqrt"},
		{"warmup", func(a *arguments) { a.WarmupSteps = -1 }, "warmup_steps: ratio"},
		{"warmup 1.5", func(a *arguments) { a.WarmupSteps = 1.5 }, "warmup_steps: ratio"},
		{"warmup ratio", func(a *arguments) { a.WarmupSteps = 0.06 }, ""},

		{"nonfinite", func(a *arguments) { a.NonfiniteLoss = "ignore" }, "nonfinite_loss: one of skip, stop, raise"},
		{"logging strategy", func(a *arguments) {
			a.LoggingStrategy = args.StrategyBest
		}, "logging_strategy: one of no, steps, epoch"},
		{"logging 0", func(a *arguments) { a.LoggingSteps = 0 }, "logging_steps: with strategy steps"},
		{"logging 0 by epoch", func(a *arguments) { a.LoggingSteps, a.LoggingStrategy = 0, args.StrategyEpoch }, ""},
		{"logging 2.5", func(a *arguments) { a.LoggingSteps = 2.5 }, "logging_steps: whole number"},
		{"logging huge", func(a *arguments) { a.LoggingSteps = 1e300 }, "logging_steps: whole number"},
		{"short for lion", func(a *arguments) { a.Optim = "lion" }, "optim: did you mean lion_32bit?"},
		{"refused", func(a *arguments) { a.Optim = "grokadamw" }, "optim: grokadamw is refused: it is adamw_torch"},
		{"log level", func(a *arguments) { a.LogLevel = "warnin" }, "log_level: did you mean warning?"},
		{"tokens", func(a *arguments) { a.IncludeNumInputTokensSeen = "padding" },
			"include_num_input_tokens_seen: one of no, all, non_padding"},
		{"keep best", func(a *arguments) { a.SaveKeepBest = 2 }, "save_keep_best: eval_strategy other than no"},
		{"keep best of none", func(a *arguments) { a.SaveKeepBest = -1 }, "save_keep_best: ≥ 0"},
		{"keep every", func(a *arguments) { a.SaveKeepEvery = -1 }, "save_keep_every: ≥ 0"},
		{"ema", func(a *arguments) { a.EMADecay = 1 }, "ema_decay: [0, 1)"},
		{"ema, schedule-free", func(a *arguments) { a.EMADecay, a.Optim = 0.9, "schedule_free_adamw" },
			"ema_decay: an optim that does not average"},
		{"reporters", func(a *arguments) { a.ReportTo = []string{"jsonl", "none"} }, "report_to: none alone"},
		{"reporters twice", func(a *arguments) { a.ReportTo = []string{"jsonl", "jsonl"} }, "report_to: each once"},

		{"eval 0", func(a *arguments) { a.EvalStrategy, a.EvalSteps = args.StrategySteps, new(0.0) },
			"eval_steps: with strategy steps"},
		{"eval by logging 0", func(a *arguments) {
			a.EvalStrategy, a.LoggingStrategy, a.LoggingSteps = args.StrategySteps, args.StrategyNo, 0
		}, "eval_steps: since logging_steps is 0 too"},
		{"eval delay", func(a *arguments) { a.EvalDelay = -1 }, "eval_delay: ≥ 0"},
		{"save 0", func(a *arguments) { a.SaveSteps = 0 }, "save_steps: with strategy steps"},
		{"shard size", func(a *arguments) { a.MaxShardSize = "5 gb" }, ""},
		{"shard size 0", func(a *arguments) { a.MaxShardSize = "0" }, "max_shard_size: a size ≥ 1"},
		{"shard size in GiB", func(a *arguments) { a.MaxShardSize = "5GiB" }, "max_shard_size: a size ≥ 1"},
		{"save limit", func(a *arguments) { a.SaveTotalLimit = new(0) }, "save_total_limit: ≥ 1"},
		{"best without eval", func(a *arguments) {
			a.LoadBestModelAtEnd = true
		}, "load_best_model_at_end: eval_strategy other than no"},
		{"best, other strategy", best(args.StrategySteps, args.StrategyEpoch, 500, 500),
			"load_best_model_at_end: save_strategy (steps) equal to eval_strategy (epoch)"},
		{"best by epoch", best(args.StrategyEpoch, args.StrategyEpoch, 500, 300), ""},
		{"best, save best", best(args.StrategyBest, args.StrategySteps, 500, 300), ""},
		{"best aligned", best(args.StrategySteps, args.StrategySteps, 600, 300), ""},
		{"best not aligned", best(args.StrategySteps, args.StrategySteps, 500, 300),
			"save_steps: multiple of eval_steps (300)"},
		{"best ratios", best(args.StrategySteps, args.StrategySteps, 0.3, 0.1), ""},
		{"best ratios not aligned", best(args.StrategySteps, args.StrategySteps, 0.25, 0.1),
			"save_steps: multiple of eval_steps (0.1)"},
		{"best mixed", best(args.StrategySteps, args.StrategySteps, 500, 0.1), "save_steps: has to compare them"},
		{"save best without metric", func(a *arguments) {
			a.SaveStrategy, a.EvalStrategy = args.StrategyBest, args.StrategyEpoch
		}, "metric_for_best_model: a metric"},
		{"save best without eval", func(a *arguments) {
			a.SaveStrategy, a.MetricForBestModel = args.StrategyBest, "loss"
		}, "save_strategy: eval_strategy other than no"},

		{"ranks", func(a *arguments) { a.DeterministicRanks = 6 }, "deterministic_ranks: power of two"},
		{"ranks 0", func(a *arguments) { a.DeterministicRanks = 0 }, "deterministic_ranks: power of two"},
		{"workers", func(a *arguments) { a.DataloaderNumWorkers = -1 }, "dataloader_num_workers: ≥ 0"},
		{"prefetch without workers", func(a *arguments) {
			a.DataloaderPrefetchFactor = new(2)
		}, "dataloader_prefetch_factor: dataloader_num_workers ≥ 1"},
		{"prefetch 0", func(a *arguments) { a.DataloaderNumWorkers, a.DataloaderPrefetchFactor = 1, new(0) },
			"dataloader_prefetch_factor: ≥ 1"},
		{"sampling", func(a *arguments) { a.TrainSamplingStrategy = "by_length" },
			"train_sampling_strategy: one of random, sequential, group_by_length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := args.Default("out")
			c.set(a)
			err := a.Validate()
			if c.fault == "" {
				require.NoError(t, err)
				return
			}
			var e *args.Error
			require.ErrorAs(t, err, &e)
			require.Len(t, e.Faults, 1, "one fault must be reported once: %v", err)
			key, want, _ := strings.Cut(c.fault, ": ")
			require.Equal(t, key, e.Faults[0].Key)
			require.Contains(t, e.Faults[0].Want, want)
		})
	}
}

func TestValidateReportsAll(t *testing.T) {
	a := args.Default("out")
	a.PerDeviceTrainBatchSize, a.LearningRate, a.EvalStrategy = -4, -1, "stepz"
	a.LoadBestModelAtEnd, a.SaveTotalLimit = true, new(-2)
	require.Equal(t, []string{
		`eval_strategy is "stepz": want one of no, steps, epoch`,
		`per_device_train_batch_size is -4: want a whole number ≥ 1`,
		`learning_rate is -1: want a finite number ≥ 0`,
		`save_total_limit is -2: want a number ≥ 1, or none to keep all checkpoints`,
	}, faultLines(t, a.Validate()))
}

func TestResolveSteps(t *testing.T) {
	for _, c := range []struct {
		value       float64
		total, want int
	}{{0, 100, 0}, {1, 100, 1}, {500, 100, 500}, {0.1, 100, 10}, {0.1, 101, 11}, {0.001, 10, 1}, {0.999, 10, 10},
		{0.5, 0, 0}} {
		require.Equal(t, c.want, args.ResolveSteps(c.value, c.total), "%v of %d", c.value, c.total)
	}
	a := args.Default("out")
	a.WarmupSteps, a.LoggingSteps, a.SaveSteps = 0.06, 0.25, 30
	require.Equal(t, []int{6, 25, 25, 30}, []int{a.NumWarmupSteps(100), a.LoggingInterval(100), a.EvalInterval(100),
		a.SaveInterval(100)})
	a.EvalSteps = new(7.0)
	require.Equal(t, 7, a.EvalInterval(100))
}

func TestEffectiveValues(t *testing.T) {
	a := args.Default("out")
	require.False(t, a.EvaluationWanted())
	require.Empty(t, a.BestMetric())
	require.False(t, a.ProgressDisabled())
	require.EqualValues(t, 42, a.SamplerSeed())
	require.Zero(t, a.PrefetchBatches())
	_, set := a.SlogLevel()
	require.False(t, set)

	a.EvalStrategy, a.LoadBestModelAtEnd = args.StrategyEpoch, true
	require.True(t, a.EvaluationWanted())
	require.Equal(t, "eval_loss", a.BestMetric())
	require.False(t, a.BestIsGreater())
	a.MetricForBestModel = "eval_accuracy"
	require.Equal(t, "eval_accuracy", a.BestMetric())
	require.True(t, a.BestIsGreater())
	a.GreaterIsBetter = new(false)
	require.False(t, a.BestIsGreater())
	a = args.Default("out")
	a.LRSchedulerType = args.SchedulerReduceLROnPlateau
	require.Equal(t, "eval_loss", a.BestMetric())

	a.LogLevel = args.LogLevelError
	level, set := a.SlogLevel()
	require.True(t, set)
	require.Equal(t, slog.LevelError, level)
	require.True(t, a.ProgressDisabled())
	a.DisableTQDM = new(false)
	require.False(t, a.ProgressDisabled())

	a.DataSeed, a.DataloaderNumWorkers = new(uint64(0)), 4
	require.Zero(t, a.SamplerSeed())
	require.Equal(t, 2, a.PrefetchBatches())
	a.DataloaderPrefetchFactor = new(5)
	require.Equal(t, 5, a.PrefetchBatches())

	a.Optim, a.OptimArgs = args.OptimSGD, "momentum=0.9,nesterov=yes"
	settings, err := a.OptimSettings()
	require.NoError(t, err)
	require.Equal(t, map[string]any{"momentum": 0.9, "nesterov": true}, settings)
	a.OptimArgs = "speed=9"
	_, err = a.OptimSettings()
	require.Len(t, faultLines(t, err), 1)
}

func TestResumePath(t *testing.T) {
	for value, want := range map[string]struct {
		path string
		last bool
	}{"": {}, "false": {}, "last": {"", true}, "true": {"", true}, "True": {"", true},
		"out/checkpoint-5": {"out/checkpoint-5", false}, "./last": {"./last", false}} {
		a := args.Default("out")
		a.ResumeFromCheckpoint = value
		path, last := a.ResumePath()
		require.Equal(t, want.path, path, value)
		require.Equal(t, want.last, last, value)
	}
}

func TestReporters(t *testing.T) {
	a := args.Default("out")
	for _, c := range []struct {
		to, available, want []string
		fault               string
	}{
		{[]string{"none"}, []string{"jsonl"}, nil, ""},
		{nil, nil, nil, ""},
		{[]string{"all"}, []string{"jsonl", "tensorboard"}, []string{"jsonl", "tensorboard"}, ""},
		{[]string{"all"}, nil, []string{}, ""},
		{[]string{"jsonl"}, []string{"jsonl", "tensorboard"}, []string{"jsonl"}, ""},
		{[]string{"wandb"}, []string{"jsonl", "tensorboard"}, nil,
			`report_to is "wandb": want none, all, or names from jsonl, tensorboard; wandb is in integrations/wandb, ` +
				`which this program does not import`},
		{[]string{"clearml"}, []string{"jsonl"}, nil,
			`report_to is "clearml": want none, all, or names from jsonl; clearml is refused: report_to jsonl writes ` +
				`log.jsonl, whose lines Logger.report_scalar of its library takes`},
		{[]string{"comet"}, []string{"jsonl"}, nil,
			`report_to is "comet": want none, all, or names from jsonl; did you mean comet_ml? comet_ml is refused: ` +
				`report_to jsonl writes log.jsonl, whose lines Experiment.log_metrics of its library takes`},
		{[]string{"codecarbon"}, []string{"jsonl"}, nil,
			`report_to is "codecarbon": want none, all, or names from jsonl; codecarbon is refused: codecarbon ` +
				`monitor measures a run from beside it, and records have the power of GPUs`},
		{[]string{"jsonl"}, nil, nil, `report_to is "jsonl": want none: this program has no reporters ` +
			`(it imports no package of integrations)`},
	} {
		a.ReportTo = c.to
		got, err := a.Reporters(c.available...)
		if c.fault != "" {
			require.Equal(t, []string{c.fault}, faultLines(t, err))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

func TestAccumulationSteps(t *testing.T) {
	for _, c := range []struct {
		global, batch, given, ranks, want int
		fault                             string
	}{
		{0, 8, 4, 2, 4, ""},
		{64, 8, 1, 1, 8, ""},
		{64, 8, 1, 4, 2, ""},
		{64, 8, 2, 4, 2, ""},
		{64, 8, 1, 3, 0, "a multiple of per_device_train_batch_size × ranks (8 × 3)"},
		{64, 8, 4, 4, 0, "2, to match global_train_batch_size 64 (ranks: 4)"},
		{64, 8, 1, 0, 0, "ranks (8 × 0)"},
	} {
		a := args.Default("out")
		a.GlobalTrainBatchSize, a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = c.global, c.batch, c.given
		steps, err := a.AccumulationSteps(c.ranks)
		if c.fault != "" {
			require.ErrorContains(t, err, c.fault)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, steps)
		total, err := a.TotalTrainBatchSize(c.ranks)
		require.NoError(t, err)
		require.Equal(t, c.batch*c.want*c.ranks, total)
	}
}

// accelerate's settings count under data_sharding huggingface alone; what equals its defaults is not set at all.
func TestBatchSharding(t *testing.T) {
	a := args.Default("")
	_, ok := a.BatchSharding()
	require.False(t, ok)
	p := newProgram(nil, nil).parse("--data_sharding", "huggingface")
	require.NoError(t, p.err)
	s, ok := p.train.BatchSharding()
	require.Equal(t, [2]any{args.BatchSharding{Even: true}, true}, [2]any{s, ok})
	p = newProgram(nil, nil).parse("--data_sharding=huggingface",
		`--accelerator_config={"split_batches": true, "even_batches": false, "dispatch_batches": null}`)
	require.NoError(t, p.err)
	require.Equal(t, map[string]any{"split_batches": true, "even_batches": false}, p.train.AcceleratorConfig)
	s, _ = p.train.BatchSharding()
	require.Equal(t, args.BatchSharding{Split: true}, s)

	// With split_batches a batch is that of all ranks.
	p.train.PerDeviceTrainBatchSize, p.train.GlobalTrainBatchSize = 8, 32
	steps, err := p.train.AccumulationSteps(4)
	require.NoError(t, err)
	require.Equal(t, 4, steps)
	total, err := p.train.TotalTrainBatchSize(4)
	require.NoError(t, err)
	require.Equal(t, 32, total)

	p = newProgram(nil,
		nil).parse(`--accelerator_config={"even_batches": true, "split_batches": false, "use_seedable_sampler": true}`)
	require.NoError(t, p.err)
	require.Nil(t, p.train.AcceleratorConfig)
	p = newProgram(nil, nil).parse("--data_sharding=hugging_face")
	require.ErrorContains(t, p.err, "want one of lockstep, huggingface")
}
