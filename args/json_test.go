// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// unusual has another value than the default in every field.
func unusual() *args.TrainingArguments {
	a := &args.TrainingArguments{
		OutputDir: "out/<&>", DoTrain: true, DoEval: true, DoPredict: true,
		PerDeviceTrainBatchSize: 3, PerDeviceEvalBatchSize: 5, GradientAccumulationSteps: 2, GlobalTrainBatchSize: 12,
		NumTrainEpochs: 1.5, MaxSteps: 7, MaxTrainSeconds: 9.5,
		LearningRate: 1.25e-3, WeightDecay: 0.1, AdamBeta1: 0.8, AdamBeta2: 0.95, AdamEpsilon: 1e-6, MaxGradNorm: 0.5,
		Optim: args.OptimSGD, OptimArgs: "momentum=0.9",
		LRSchedulerType:   args.SchedulerCosineWithMinLR,
		LRSchedulerKwargs: map[string]any{"min_lr": 1e-5, "num_cycles": 1.0},
		WarmupSteps:       0.25, GradientCheckpointing: true, BF16: true, BF16FullEval: true, TF32: true,
		FP16InitialScale:   1024,
		FP16MinScale:       0.5,
		FP16GrowthInterval: 7, FP16Hysteresis: 3, FP16ConsecutiveHysteresis: true,
		FP16LossScaler: args.LossScalerDeepSpeed, HalfUpdate: args.HalfUpdatePlain, NonfiniteLoss: args.NonfiniteRaise,
		LossAverage: args.LossAverageSteps, LabelSmoothingFactor: 0.25, NeftuneNoiseAlpha: new(5.0),
		LayerwiseLRDecay: 0.75, EMADecay: 0.9, PredictWithGenerate: true, IncludeForMetrics: []string{"loss"},
		GenerationMaxLength: new(32),
		SaveKeepBest:        2, SaveKeepEvery: 5, AsyncSave: true, SaveOnEachNode: true, AutoFindBatchSize: true,
		Debug:           []string{"underflow_overflow"},
		ParamGroups:     map[string]any{"wte$": "lr=0.5"},
		LoggingStrategy: args.StrategyEpoch, LoggingSteps: 0.125, LoggingFirstStep: true,
		IncludeNumInputTokensSeen: args.TokensSeenAll, LogLevel: args.LogLevelError, LogLevelReplica: args.LogLevelInfo,
		DisableTQDM: new(false),
		ReportTo:    []string{"jsonl", "tensorboard"}, RunName: "täst \"x\"",
		Profile: "prof", ProfileSkipFirst: 4, ProfileSteps: 5,
		EvalStrategy: args.StrategySteps, EvalSteps: new(10.0), EvalDelay: 3, EvalOnStart: true,
		PredictionLossOnly: true,
		LoadBestModelAtEnd: true, MetricForBestModel: "accuracy", GreaterIsBetter: new(true),
		SaveStrategy: args.StrategySteps, SaveSteps: 20, SaveTotalLimit: new(2), SaveOnlyModel: true,
		MaxShardSize:         "1.5GB",
		ResumeFromCheckpoint: "last", OverwriteOutputDir: true, ResumeOnOtherData: true,
		OffloadOptimizer: args.OffloadDisk, OffloadParams: args.OffloadCPU, OffloadDir: "files",
		FSDP: []string{"no_shard"}, FSDPStateDictType: args.ShardedStateDict, DPReplicateSize: 1,
		DPShardSize: 1, PPSize: 2, PPSchedule: "zbv", PPSplit: []string{"2", "3"}, CPSize: 4, SPSize: 0, TPSize: 4,
		CPStrategy: args.CPRing, CPChunks: 16, TPPlan: map[string]any{"a.*": "colwise"}, TPParts: 8,
		ParallelismConfig: `{"tp_size":4}`, DistributedConfig: `{"pp_size":2}`,
		FSDPConfig: `{"version":2}`, DeepSpeed: `{"gradient_clipping":"auto"}`,
		FSDPTransformerLayerClsToWrap: []string{"Block"},
		FSDPIgnoredModules:            "head", FSDPPersistenceThreshold: 9, FSDPReduceDType: args.ReduceFloat32,
		Device: "cuda:1", NumReplicas: 2, DDPBackend: args.BackendTCP, DDPTimeout: 60,
		DDPBucketCapMB: 5,
		DDPCommHook:    args.CommHookTopK, DDPCommStateOption: map[string]any{"density": 0.1},
		DDPRequireEqualInit: true, DDPStaticGraph: true, DDPReductionOrder: args.OrderFast,
		RecordHashes: args.RecordOp, RecordUntil: 4,
		Seed: math.MaxUint64, DataSeed: new(uint64(1<<63 + 1)), DeterministicRanks: 4,
		DataloaderDropLast: true, DataloaderNumWorkers: 2, DataloaderPrefetchFactor: new(3),
		TrainSamplingStrategy: args.SamplingGroupByLength, LengthColumnName: "rows",
		DataSharding: args.ShardingHuggingFace, AcceleratorConfig: map[string]any{"even_batches": false},
		IgnoreDataSkip: true,
	}
	return a
}

// Only save_strategy, fp16, fp16_full_eval, zero_stage, fsdp_min_num_params, fsdp_reduce_dtype and those of local SGD
// are as by default: load_best_model_at_end, bf16, bf16_full_eval, ddp_comm_hook, fsdp_transformer_layer_cls_to_wrap
// and no strategy want it so.
func TestUnusualDiffersEverywhere(t *testing.T) {
	require.NoError(t, unusual().Validate())
	differs := map[string]bool{}
	for _, d := range args.Default("out").Diff(unusual()) {
		differs[d.Key] = true
		require.NotEqual(t, d.Old, d.New)
	}
	typ := reflect.TypeFor[args.TrainingArguments]()
	for f := range typ.Fields() {
		require.Equal(t, f.Name != "SaveStrategy" && f.Name != "FP16" && f.Name != "FP16FullEval" &&
			f.Name != "ZeroStage" && f.Name != "FSDPMinNumParams" && f.Name != "LocalSGDSteps" &&
			f.Name != "FSDPReduceDType" &&
			f.Name != "StartLocalSGDIter",
			differs[f.Tag.Get("json")], f.Name)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	for _, a := range []*args.TrainingArguments{args.Default("out"), unusual()} {
		text, err := a.JSON()
		require.NoError(t, err)
		back, err := args.FromJSON(text)
		require.NoError(t, err)
		require.Equal(t, a, back)
		require.Empty(t, a.Diff(back))
		again, err := back.JSON()
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
	}
	text, err := unusual().JSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"seed": 18446744073709551615`)
	require.Contains(t, string(text), `"output_dir": "out/<&>"`)
	require.True(t, strings.HasPrefix(string(text), "{\n  \"output_dir\""))
}

// The same values arrive by a JSON file, a YAML file, the environment and flags.
func TestEverySourceCarriesEveryValue(t *testing.T) {
	want := unusual()
	text, err := want.JSON()
	require.NoError(t, err)
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &m))
	var yaml, environ, argv []string
	for key, raw := range m {
		yaml = append(yaml, key+": "+string(raw)) // JSON values are YAML
		value := string(raw)
		var s string
		if json.Unmarshal(raw, &s) == nil {
			value = s
		}
		environ = append(environ, "LOCKSTEP_"+strings.ToUpper(key)+"="+value)
		if !slices.Contains([]string{"report_to", "pp_split", "debug", "include_for_metrics"}, key) &&
			!strings.HasPrefix(key, "fsdp") {
			argv = append(argv, "--"+key+"="+value)
		}
	}
	argv = append(argv, "--report_to", "jsonl,tensorboard", "--pp_split", "2,3", "--debug", "underflow_overflow",
		"--include_for_metrics", "loss",
		"--fsdp", "no_shard", "--fsdp_state_dict_type", "sharded_state_dict",
		"--fsdp_transformer_layer_cls_to_wrap", "Block",
		"--fsdp_share_parameters=false",
		"--fsdp_ignored_modules", "head", "--fsdp_persistence_threshold=9",
		"--fsdp_config", `{"version":2}`)
	files := map[string]string{"x.json": string(text), "x.yaml": strings.Join(yaml, "\n") + "\n"}
	for name, p := range map[string]*program{
		"json":  newProgram(nil, files).parse("--config", "x.json"),
		"yaml":  newProgram(nil, files).parse("--config", "x.yaml"),
		"env":   newProgram(environ, nil).parse(),
		"flags": newProgram(nil, nil).parse(argv...),
	} {
		require.NoError(t, p.err, name)
		require.Equal(t, want, p.train, name)
	}
}

// HuggingFace's parser reads the file (tests/parity/check_arguments.py): None is null there, and do_eval follows.
func TestJSONForTransformers(t *testing.T) {
	a := args.Default("out")
	a.EvalStrategy = args.StrategySteps
	text, err := a.JSON()
	require.NoError(t, err)
	require.False(t, a.DoEval, "the arguments themselves are as they were")
	var m map[string]any
	require.NoError(t, json.Unmarshal(text, &m))
	for _, key := range []string{"ddp_backend", "ddp_bucket_cap_mb", "metric_for_best_model", "run_name", "eval_steps",
		"resume_from_checkpoint", "fsdp", "deepspeed"} {
		require.Contains(t, m, key)
		require.Nil(t, m[key], key)
	}
	require.Equal(t, true, m["do_eval"])
	back, err := args.FromJSON(text)
	require.NoError(t, err)
	require.True(t, back.DoEval)
	require.Equal(t, args.BackendAuto, back.DDPBackend)

	p := newProgram(nil, nil).parse("--eval_strategy", "epoch")
	require.NoError(t, p.err)
	require.True(t, p.train.DoEval)
	require.True(t, p.train.DoTrain)
}

// A program that makes no predictions does not ignore do_predict.
func TestPredictsOrRefuses(t *testing.T) {
	p := newProgram(nil, nil)
	p.loader.Predicts = false
	require.Equal(t, []string{
		"do_predict is true (flag --do_predict): want false: this program makes no predictions",
	}, faultLines(t, p.parse("--do_predict").err))
}

// What a program does follows from do_train, do_eval, do_predict and eval_strategy.
func TestTrainingWanted(t *testing.T) {
	for _, c := range []struct {
		argv string
		want bool
	}{
		{"", true}, {"--do_eval", false}, {"--do_predict", false}, {"--do_train --do_eval", true},
		{"--eval_strategy steps", true}, {"--do_eval --eval_strategy no", false},
		{"--do_eval --eval_strategy steps", false}, {"--do_predict --eval_strategy steps", false},
		{"--config written.json", true}, {"--config written.json --do_eval", false},
	} {
		for _, ours := range []args.Strategy{args.StrategyNo, args.StrategyEpoch} { // the program's default
			p := newProgram(nil, map[string]string{
				"written.json": `{"do_train": false, "do_eval": true, "eval_strategy": "steps"}`})
			p.train.EvalStrategy = ours
			p.parse(strings.Fields(c.argv)...)
			require.NoError(t, p.err, c.argv)
			require.Equal(t, c.want, p.train.TrainingWanted(), "%s, %s by default", c.argv, ours)
		}
	}
}

func TestFromJSONFaults(t *testing.T) {
	_,
		err := args.FromJSON(
		[]byte(`{"seed": 1, "seed": 2, "learning_rat": 3, "max_steps": "many", "weight_decay": [1], "do_train": 7}`))
	require.Equal(t, []string{
		`duplicate key seed: want it once`,
		`do_train is 7: want true or false`,
		`unknown key learning_rat; did you mean learning_rate?`,
		`max_steps is "many": want a whole number`,
		`weight_decay is [1]: want a finite number`,
	}, faultLines(t, err))
	for text, want := range map[string]string{
		``:                                 "it is empty: want JSON",
		"\ufeff{}":                         "byte order mark",
		`{"seed": 1`:                       "ends too early",
		`[]`:                               "it is a list: want an object",
		`null`:                             "it is null: want an object",
		`{"seed": 1} {}`:                   "more behind the end",
		`{"seed": tru}`:                    "seed: tru: want a value in JSON",
		strings.Repeat(`{"a":`, 100000):    "nested more than 100 deep",
		`{"a":` + strings.Repeat(`[`, 1e5): "nested more than 100 deep",
	} {
		_, err := args.FromJSON([]byte(text))
		require.Len(t, faultLines(t, err), 1)
		require.ErrorContains(t, err, want)
	}
	a, err := args.FromJSON([]byte(`{"seed": 9}`))
	require.NoError(t, err)
	require.EqualValues(t, 9, a.Seed)
	require.Equal(t, 5e-5, a.LearningRate, "a missing key keeps its default")
}

func TestJSONRefusesNaN(t *testing.T) {
	a := args.Default("out")
	a.LearningRate = math.NaN()
	_, err := a.JSON()
	require.ErrorContains(t, err, "args: learning_rate is NaN: json: unsupported value: NaN")
}

func TestTokensAreMasked(t *testing.T) {
	text, err := args.MarshalJSON(&dataArguments{APIToken: "secret"})
	require.NoError(t, err)
	require.JSONEq(t, `{"train_file": null, "block_size": 0, "api_token": "<API_TOKEN>"}`, string(text))
	text, err = args.MarshalJSON(&dataArguments{})
	require.NoError(t, err)
	require.Contains(t, string(text), `"api_token": null`)

	d := &dataArguments{}
	require.NoError(t, args.UnmarshalJSON([]byte(`{"train_file": ["a"], "block_size": 3}`), d))
	require.Equal(t, &dataArguments{TrainFile: []string{"a"}, BlockSize: 3}, d)

	p := newProgram(nil, map[string]string{"x.json": `{"api_token": 77}`}).parse("--config", "x.json")
	require.NotContains(t, p.err.Error(), "77")
}

func TestFileValues(t *testing.T) {
	for _, c := range []struct {
		file, text string
		check      func(a *args.TrainingArguments) any
		want       any
		fault      string
	}{
		{"x.yaml", "do_train: yes", func(a *args.TrainingArguments) any { return a.DoTrain }, true, ""},
		{"x.yaml", "save_on_interrupt: Off", func(a *args.TrainingArguments) any {
			return a.SaveOnInterrupt
		}, false, ""},
		{"x.yaml", "eval_strategy: no", func(a *args.TrainingArguments) any {
			return a.EvalStrategy
		}, args.StrategyNo, ""},
		{"x.yaml", "learning_rate: 5e-4", func(a *args.TrainingArguments) any { return a.LearningRate }, 5e-4, ""},
		{"x.yaml", "learning_rate: \"5e-4\"", func(a *args.TrainingArguments) any { return a.LearningRate }, 5e-4, ""},
		{"x.yaml", "max_shard_size: 5000000000", func(a *args.TrainingArguments) any { return a.MaxShardSize },
			"5000000000", ""},
		{"x.json", `{"max_shard_size": "5GB"}`, func(a *args.TrainingArguments) any {
			return a.MaxShardSize
		}, "5GB", ""},
		{"x.yaml", "max_steps: 1e3", func(a *args.TrainingArguments) any { return a.MaxSteps }, 1000, ""},
		{"x.yaml", "report_to: jsonl", func(a *args.TrainingArguments) any {
			return a.ReportTo
		}, []string{"jsonl"}, ""},
		{"x.yaml", "report_to: []", func(a *args.TrainingArguments) any { return len(a.ReportTo) }, 0, ""},
		{"x.yaml", "resume_from_checkpoint: true", func(a *args.TrainingArguments) any {
			return a.ResumeFromCheckpoint
		}, "true", ""},
		{"x.yaml", "eval_steps: null", func(a *args.TrainingArguments) any { return a.EvalSteps }, (*float64)(nil), ""},
		{"x.yaml", "run_name: ~", func(a *args.TrainingArguments) any { return a.RunName }, "", ""},
		{"x.yaml", "", func(a *args.TrainingArguments) any { return a.Seed }, uint64(42), ""},
		{"x.yaml", "# only words\n---\nseed: 3\n...\n", func(a *args.TrainingArguments) any {
			return a.Seed
		}, uint64(3), ""},
		{"x.json", `{"seed": 18446744073709551615}`, func(a *args.TrainingArguments) any {
			return a.Seed
		}, uint64(math.MaxUint64), ""},
		{"x.yml", `seed: 18446744073709551615`, func(a *args.TrainingArguments) any {
			return a.Seed
		}, uint64(math.MaxUint64), ""},
		{"x.json", `{"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": "{\"num_cycles\": 1}"}`,
			func(a *args.TrainingArguments) any { return a.LRSchedulerKwargs }, map[string]any{"num_cycles": 1.0}, ""},

		{"x.json", `{"seed": 18446744073709551616}`, nil, nil,
			"seed is 18446744073709551616 (file x.json): want a whole number from 0 to 18446744073709551615"},
		{"x.json", `{"seed": -1}`, nil, nil, "seed is -1 (file x.json): want a whole number from 0"},
		{"x.json", `{"max_steps": 1.5}`, nil, nil, "max_steps is 1.5 (file x.json): want a whole number"},
		{"x.json", `{"max_steps": null}`, nil, nil, "max_steps is null (file x.json): want a whole number"},
		{"x.json", `{"learning_rate": 1e999}`, nil, nil, "want a finite number"},
		{"x.yaml", "learning_rate: .nan", nil, nil, "learning_rate is NaN (file x.yaml): want a finite number"},
		{"x.yaml", "run_name: 2024-01-01", nil, nil, "want a text (in quotes"},
		{"x.yaml", "run_name: !!binary wyg=", nil, nil, "want a text in UTF-8"},
		{"x.yaml", "report_to: [!!binary wyg=]", nil, nil, "want a text in UTF-8"},
		{"x.yaml", "lr_scheduler_kwargs: {a: !!binary wyg=}", nil, nil, "want a text in UTF-8"},
		{"x.yaml", "report_to: [1]", nil, nil, "want a list of texts"},
		{"x.yaml", "eval_steps: often", nil, nil, "want a finite number, or none"},
		{"x.yaml", "lr_scheduler_kwargs: {a: [1, b]}", nil, nil, "numbers, texts, booleans and lists of numbers"},
		{"x.json", `{"lr_scheduler_kwargs": "{\"a\": 1, \"a\": 2}"}`, nil, nil, "without the same key twice (a)"},
		{"x.json", `{"seed": 1, "seed": 2, "seed": 3}`, nil, nil, "duplicate key seed in x.json: want it once"},
		{"x.yaml", "seed: 1\nseed: 2\n", nil, nil, "already defined at line 1"},
		{"x.yaml", "seed: 1\n---\nseed: 2\n", nil, nil, "want one YAML document"},
		{"x.yaml", "seed: 1\n...\nseed: 2\n", nil, nil, "want one YAML document"},
		{"x.yaml", "- seed", nil, nil, "cannot read config file x.yaml"},
		{"x.yaml", "seed: [", nil, nil, "cannot read config file x.yaml"},
		{"x.json", "{", nil, nil, "cannot read config file x.json; line 1, column 2: the text ends too early"},
		{"x.yaml", "a.b: 1", nil, nil, "unknown key a.b in x.yaml"},
		{"x.yaml", "3: 1", nil, nil, "unknown key 3 in x.yaml"},
	} {
		t.Run(c.text, func(t *testing.T) {
			p := newProgram(nil, map[string]string{c.file: c.text}).parse("--config", c.file)
			if c.fault != "" {
				require.ErrorContains(t, p.err, c.fault)
				return
			}
			require.NoError(t, p.err)
			require.Equal(t, c.want, c.check(p.train))
		})
	}
}

func TestDiff(t *testing.T) {
	a, b := args.Default("out"), args.Default("out")
	require.Empty(t, a.Diff(b))
	b.LearningRate, b.EvalSteps, b.LoggingSteps, b.LRSchedulerKwargs = 1e-3, new(5.0), 10,
		map[string]any{"num_cycles": 1}
	require.Equal(t, []args.Difference{
		{Key: "learning_rate", Old: "5e-05", New: "0.001", Fixed: true},
		{Key: "lr_scheduler_kwargs", Old: "none", New: `{"num_cycles":1}`, Fixed: true},
		{Key: "logging_steps", Old: "500", New: "10"},
		{Key: "eval_steps", Old: "none", New: "5"},
	}, a.Diff(b))
	a.LRSchedulerKwargs = map[string]any{"num_cycles": 1.0}
	require.Len(t, a.Diff(b), 3, "1 and 1.0 are the same number")

	a = args.Default("out")
	b = a.Clone()
	for name, fixed := range map[args.Optim]bool{args.OptimAdamW: false, args.OptimAdam: true} {
		b.Optim = name
		require.Equal(t, []args.Difference{{Key: "optim", Old: "adamw_torch_fused", New: string(name), Fixed: fixed}},
			a.Diff(b), "two names of one optimizer are the same run")
	}
}

func TestCloneSharesNothing(t *testing.T) {
	a := unusual()
	c := a.Clone()
	require.Equal(t, a, c)
	*c.EvalSteps, *c.DataSeed, *c.SaveTotalLimit = 99, 99, 99
	*c.DisableTQDM, *c.GreaterIsBetter = true, false
	c.ReportTo[0], c.Debug[0], c.PPSplit[0], c.IncludeForMetrics[0] = "x", "x", "x", "x"
	c.LRSchedulerKwargs["min_lr"] = 1.0
	require.Equal(t, unusual(), a)
}

// Whatever a file holds, the outcome is settings or an *Error, and settings
// survive a round trip.
func FuzzFiles(f *testing.F) {
	f.Add(true, []byte("seed: 1\nlr_scheduler_kwargs: {a: 1}\nreport_to: [a, b]\n"))
	f.Add(true, []byte("a: &a [1]\nb: *a\n<<: {seed: 2}\n? [x]\n: y\n"))
	f.Add(true, []byte("run_name: !!binary aGk=\nmax_steps: 0x10\nseed: !!float 3\n"))
	f.Add(false,
		[]byte(
			`{"seed": 18446744073709551615, "eval_steps": null, "report_to": ["x"], "lr_scheduler_kwargs": {"a": true}}`))
	f.Add(false, []byte(`{"max_steps": 1e400, "seed": -0, "do_train": "yes", "do_train": 1}`))
	f.Add(true,
		[]byte("bf16: 2024-01-01\ndeepspeed: {a: [1, .nan]}\nfsdp: [x]\nlabel_names: {}\nwarmup_ratio: "+
			"0.1\nwarmup_steps: 3\n"))
	f.Add(false,
		[]byte(
			`{"evaluation_strategy": "no", "eval_strategy": null, "accelerator_config": {"a": null}, "hub_token": 7, "no_cuda": true}`))
	f.Fuzz(func(t *testing.T, yaml bool, data []byte) {
		name := map[bool]string{true: "x.yaml", false: "x.json"}[yaml]
		p := newProgram(nil, map[string]string{name: string(data)}).parse("--config", name)
		if p.err != nil {
			require.NotEmpty(t, faultLines(t, p.err))
			return
		}
		require.NoError(t, p.train.Validate())
		text, err := p.train.JSON()
		require.NoError(t, err)
		back, err := args.FromJSON(text)
		require.NoError(t, err)
		require.Empty(t, p.train.Diff(back))
	})
}

// Whatever the command line holds, Parse returns.
func FuzzCommandLine(f *testing.F) {
	f.Add("--seed\x003\x00--report_to\x00a\x00b\x00--no_save_on_interrupt")
	f.Add("-v\x00--\x00-x\x00--=\x00---\x00-\x00--seed=")
	f.Add("--lr_scheduler_kwargs\x00{\"a\":1}\x00--do_train\x00false\x00-n=x")
	f.Add("--bf16\x00--no-dataloader-pin-memory\x00--fsdp\x00a\x00b\x00--warmup_ratio=1\x00--no_cuda\x00--hub-token")
	f.Fuzz(func(t *testing.T, line string) {
		p := newProgram(nil, nil)
		p.flags.BoolP("verbose", "v", false, "say more")
		p.flags.StringP("name", "n", "", "a name")
		p.parse(strings.Split(line, "\x00")...)
		if p.err != nil && p.err != args.ErrHelp {
			require.NotEmpty(t, faultLines(t, p.err))
		}
	})
}
