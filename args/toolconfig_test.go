// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// tool reads a file of testdata/tools.
func tool(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "tools", name))
	require.NoError(t, err)
	return string(text)
}

// zero2 and zero3 have the keys and values of the files that transformers' documentation and its tests use.
func TestDeepSpeedFilesOfHuggingFace(t *testing.T) {
	for name, stage := range map[string]int{"ds_config_zero2.json": 2, "ds_config_zero3.json": 3} {
		files := map[string]string{name: tool(t, name)}
		p := newProgram(nil, files).parse("--deepspeed", name, "--learning_rate", "3e-5", "--fp16", "true",
			"--warmup_steps", "7")
		require.NoError(t, p.err, name)
		require.Equal(t, stage, p.train.ZeroStage)
		require.True(t, p.train.FP16)
		require.False(t, p.train.BF16)
		require.Equal(t, args.SchedulerWarmupLR, p.train.LRSchedulerType)
		require.Empty(t, p.train.LRSchedulerKwargs)
		require.EqualValues(t, 1, p.train.MaxGradNorm, "auto")
		require.EqualValues(t, 3e-5, p.train.LearningRate)
		require.EqualValues(t, args.OffloadCPU, p.train.OffloadOptimizer)
		require.Equal(t, stage == 3, p.train.OffloadParams == args.OffloadCPU)
		require.Equal(t, "file "+name+" (zero_optimization.stage)", p.resolved.Origin("zero_stage"))
		require.Len(t, p.resolved.Notices, 1)
		require.Contains(t, p.resolved.Notices[0].Text, "; lockstep config shows them")
	}
}

// So have the older files of its tests: a section bfloat16, sizes that are 0, no batch.
func TestOlderDeepSpeedFiles(t *testing.T) {
	for text, bf16 := range map[string]bool{
		`{"bfloat16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "sub_group_size": 1e9,
			"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
			"stage3_param_persistence_threshold": "auto", "stage3_gather_fp16_weights_on_model_save": true},
			"train_batch_size": "auto"}`: true,
		`{"fp16": {"enabled": true, "loss_scale": 0}, "zero_optimization": {"stage": 3, "sub_group_size": 1e14,
			"reduce_bucket_size": 0, "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0,
			"stage3_gather_fp16_weights_on_model_save": true},
			"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5,
			"warmup_num_steps": 500}}, "steps_per_print": 2000}`: false,
	} {
		flags := []string{"--deepspeed", "ds.json"}
		if bf16 {
			flags = append(flags, "--bf16", "true")
		}
		p := newProgram(nil, map[string]string{"ds.json": text}).parse(flags...)
		require.NoError(t, p.err, text)
		require.Equal(t, args.FullShard, p.train.ShardStrategy())
		require.Equal(t, bf16, p.train.BF16)
		require.Equal(t, !bf16, p.train.FP16)
		require.Zero(t, p.train.FSDPPersistenceThreshold)
	}
}

// Values that are written out are the run's, as numbers of any form.
func TestDeepSpeedValues(t *testing.T) {
	files := map[string]string{"ds.json": `{
		"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, "gradient_clipping": 0.5,
		"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "nvme",
			"nvme_path": "/local_nvme"}, "offload_param": {"device": "none"}},
		"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.1,
			"adam_w_mode": false}},
		"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-3,
			"warmup_min_lr": 0, "total_num_steps": "auto", "warmup_type": "linear"}},
		"bf16": {"enabled": true}
	}`}
	p := newProgram(nil, files).parse("--deepspeed", "ds.json")
	require.NoError(t, p.err)
	a := p.train
	require.Equal(t, 4, a.PerDeviceTrainBatchSize)
	require.Equal(t, 8, a.GradientAccumulationSteps)
	require.EqualValues(t, 0.5, a.MaxGradNorm)
	require.Equal(t, 3, a.ZeroStage)
	require.Equal(t, args.OffloadDisk, a.OffloadOptimizer)
	require.Equal(t, args.OffloadNone, a.OffloadParams)
	require.Equal(t, "/local_nvme", a.OffloadDir)
	require.Equal(t, args.OptimAdam, a.Optim)
	require.EqualValues(t, []float64{1e-3, 0.8, 0.99, 1e-7, 0.1}, []float64{a.LearningRate, a.AdamBeta1, a.AdamBeta2,
		a.AdamEpsilon, a.WeightDecay})
	require.Equal(t, args.SchedulerWarmupDecayLR, a.LRSchedulerType)
	require.Equal(t, map[string]any{"warmup_min_lr": 0.0, "warmup_type": "linear"}, a.LRSchedulerKwargs)
	require.EqualValues(t, 10, a.WarmupSteps)
	require.True(t, a.BF16)
}

// A section that is off says nothing, and of two keys for one thing DeepSpeed's own rule chooses.
func TestDeepSpeedKeysWithoutEffect(t *testing.T) {
	files := map[string]string{"ds.json": `{
		"fp16": {"enabled": false, "loss_scale": 128, "initial_scale_power": 8}, "amp": {"enabled": false},
		"bf16": {"enabled": true}, "bfloat16": {"enabled": true},
		"zero_optimization": {"stage": 2, "offload_param": {"device": "nvme", "nvme_path": "/fast"},
			"offload_optimizer": {"device": "none", "nvme_path": "none"}},
		"optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": "auto"}},
		"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4}}
	}`}
	p := newProgram(nil, files).parse("--deepspeed", "ds.json")
	require.NoError(t, p.err)
	a := p.train
	require.Equal(t, 2, a.ZeroStage)
	require.Equal(t, args.OffloadNone, a.OffloadParams)
	require.Empty(t, a.OffloadDir)
	require.EqualValues(t, 65536, a.FP16InitialScale)
	require.EqualValues(t, 1e-4, a.LearningRate)
	require.Equal(t, "file ds.json (scheduler.params.warmup_max_lr)", p.resolved.Origin("learning_rate"))
	require.Equal(t, args.OptimSGD, a.Optim)
	require.Empty(t, a.OptimArgs)

	b := args.Default("out")
	b.DeepSpeed = files["ds.json"]
	require.NoError(t, b.ReadConfigs())
	require.EqualValues(t, 1e-4, b.LearningRate)
}

// The scale of the loss begins and grows as the file says.
func TestDeepSpeedLossScale(t *testing.T) {
	p := newProgram(nil, map[string]string{"ds.json": `{"fp16": {"enabled": true, "initial_scale_power": 12,
		"loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1}}`}).parse("--deepspeed", "ds.json")
	require.NoError(t, p.err)
	require.EqualValues(t, 4096, p.train.FP16InitialScale)
	require.Equal(t, 500, p.train.FP16GrowthInterval)
}

// What a file and another source say must agree, and a key that would change the result is refused; all at once.
func TestFaultsOfToolConfigs(t *testing.T) {
	for text, want := range map[string][]string{
		`{"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}`: {
			`max_grad_norm is 1 (flag --max_grad_norm): want 0.5, which ds.json has as gradient_clipping; or "auto" there`},
		`{"zero_optimization": {"stag": 2}, "fp61": {"enabled": true}}`: {
			"unknown key zero_optimization.stag in ds.json; did you mean zero_optimization.stage?",
			"unknown key fp61 in ds.json; did you mean fp16"},
		`{"zero_optimization": {"stage": 3, "zero_quantized_weights": true}, "optimizer": {"type": "OneBitAdam"}}`: {
			"zero_optimization.zero_quantized_weights is true (ds.json): want false: gradients and parameters are " +
				"exchanged",
			`optimizer.type is "OneBitAdam" (ds.json): want AdamW, Adam or SGD`},
		`{"zero_optimization": 3}`: {
			"zero_optimization is 3 (ds.json): want a JSON object"},
		`{"zero_optimization": {"stage": 7}}`: {
			"zero_stage is 7 (file ds.json (zero_optimization.stage)): want at most 3"},
		`{"zero_optimization": {"stage": 1}`: {
			`deepspeed is "ds.json" (flag --deepspeed): want a readable JSON`},
		`{"a": 1, "a": 2}`: {"duplicate key a"},
		`{"scheduler": {"type": "OneCycle"}}`: {
			`scheduler.type is "OneCycle" (ds.json): want WarmupLR, WarmupDecayLR, WarmupCosineLR; or no`},
		`{"bf16": {"enabled": true}, "bfloat16": {"enabled": false, "x": 1}}`: {"unknown key bfloat16.x"},
		`{"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/a"}, "stage": 3,
			"offload_param": {"device": "nvme", "nvme_path": "/b"}}}`: {
			`zero_optimization.offload_param.nvme_path is "/b" (ds.json): want /a, as ` +
				"zero_optimization.offload_optimizer.nvme_path has it"},
		`{"fp16": {"enabled": true, "initial_scale_power": 1.5}}`: {"want a whole number from 0 to 126"},
		`{"train_micro_batch_size_per_gpu": 2.5}`:                 {"per_device_train_batch_size is 2.5"},
		`{"fp16": {"enabled": true}, "bf16": {"enabled": true}}`:  {"want one of bf16 and fp16"},
	} {
		p := newProgram(nil, map[string]string{"ds.json": text}).parse("--deepspeed", "ds.json", "--max_grad_norm", "1")
		require.Error(t, p.err, text)
		for _, w := range want {
			require.Contains(t, p.err.Error(), w, text)
		}
	}
	p := newProgram(nil, nil).parse("--deepspeed", "none.json")
	require.ErrorContains(t, p.err, "none.json")
}

// fsdp_config has two spellings and two versions; fsdp names the strategy, or the file does.
func TestFSDPConfigs(t *testing.T) {
	for _, c := range []struct {
		fsdp, config string
		strategy     args.ShardStrategy
		hybrid       bool
		classes      []string
	}{
		{"full_shard auto_wrap",
			`{"transformer_layer_cls_to_wrap": ["GPT2Block"], "backward_prefetch": "backward_pre"}`,
			args.FullShard, false, []string{"GPT2Block"}},
		{"full_shard auto_wrap offload", `{"fsdp_transformer_layer_cls_to_wrap": "GPT2Block,GPT2MLP",
			"fsdp_state_dict_type": "SHARDED_STATE_DICT"}`, args.FullShard, false, []string{"GPT2Block", "GPT2MLP"}},
		{"true", `{"version": 2, "reshard_after_forward": false}`, args.ShardGradOp, false, nil},
		{"true", `{"fsdp_version": 2, "fsdp_reshard_after_forward": true}`, args.FullShard, false, nil},
		{"shard_grad_op", `{"fsdp_sharding_strategy": 2}`, args.ShardGradOp, false, nil},
		{"auto_wrap true", `{"sharding_strategy": "HYBRID_SHARD"}`, args.FullShard, true, nil},
	} {
		for name, p := range map[string]*program{
			"flag": newProgram(nil, nil).parse("--fsdp", c.fsdp, "--fsdp_config", c.config),
			"file": newProgram(nil, map[string]string{"f.json": c.config}).parse("--fsdp", c.fsdp, "--fsdp_config",
				"f.json"),
			"object": newProgram(nil, map[string]string{"x.json": `{"fsdp": "` + c.fsdp + `", "fsdp_config": ` +
				c.config + `}`}).
				parse("--config", "x.json"),
		} {
			require.NoError(t, p.err, "%s: %s", name, c.config)
			require.Equal(t, c.strategy, p.train.ShardStrategy(), c.config)
			require.Equal(t, c.hybrid, p.train.Hybrid(), c.config)
			require.Equal(t, c.classes, p.train.FSDPTransformerLayerClsToWrap, c.config)
		}
	}
	p := newProgram(nil, nil).parse("--fsdp", "full_shard", "--fsdp_config", `{"sharding_strategy": "SHARD_GRAD_OP"}`)
	require.ErrorContains(t, p.err, "which fsdp_config has as sharding_strategy")
	p = newProgram(nil, nil).parse("--fsdp", "full_shard", "--fsdp_config",
		`{"ignored_parameters": "lm_head", "xla": true, "mixed_precision_policy": "fp8"}`)
	require.ErrorContains(t, p.err, "ignored_parameters is")
	require.ErrorContains(t, p.err,
		`mixed_precision_policy is "fp8" (fsdp_config): want bfloat16, float16 or float32`)
	require.ErrorContains(t, p.err, "xla is true (fsdp_config): want false: it is a mode of TPUs")
}

// MixedPrecision and similar settings select in which dtype a step computes, and in which gradients travel: float32
// unless a file has another.
func TestPrecisionOfShards(t *testing.T) {
	for config, want := range map[string]struct {
		bf16, fp16 bool
		reduce     args.ReduceDType
	}{
		`{"mixed_precision_policy": "bf16"}`: {true, false, args.ReduceFloat32},
		`{"fsdp_mixed_precision_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32",
			"output_dtype": "bfloat16"}}`: {true, false, args.ReduceFloat32},
		`{"mixed_precision_policy": {"param_dtype": "torch.bfloat16", "reduce_dtype": "bf16", "buffer_dtype": "bf16"}}`: {
			true, false, args.ReduceBFloat16},
		`{"mixed_precision_policy": {"param_dtype": "fp16"}}`: {false, true, args.ReduceFloat32},
		`{"mixed_precision_policy": null}`:                    {false, false, args.ReduceFloat32},
	} {
		p := newProgram(nil, nil).parse("--fsdp", "full_shard", "--fsdp_config", config)
		require.NoError(t, p.err, config)
		require.Equal(t, want.bf16, p.train.BF16, config)
		require.Equal(t, want.fp16, p.train.FP16, config)
		require.Equal(t, want.reduce, p.train.FSDPReduceDType, config)
	}
	p := newProgram(nil, nil).parse("--fsdp", "full_shard", "--fsdp_config",
		`{"ignored_modules": "transformer\\.h\\.0", "mixed_precision_policy": {"param_dtypes": "bf16"}}`)
	require.ErrorContains(t, p.err, "did you mean mixed_precision_policy.param_dtype?")
	p = newProgram(nil, nil).parse("--fsdp", "full_shard", "--fsdp_config", `{"ignored_modules": "transformer\\.h\\.0"}`)
	require.NoError(t, p.err)
	require.Equal(t, `transformer\.h\.0`, p.train.FSDPIgnoredModules)
	for name, want := range map[string]args.ReduceDType{"fp32": args.ReduceFloat32, "bf16": args.ReduceBFloat16} {
		p = newProgram(nil, nil).parse("--deepspeed", `{"communication_data_type": "`+name+`", "zero_optimization": {
			"stage": 3, "stage3_param_persistence_threshold": 1e4}}`)
		require.NoError(t, p.err)
		require.Equal(t, want, p.train.FSDPReduceDType)
		require.Equal(t, 10000, p.train.FSDPPersistenceThreshold)
	}
	p = newProgram(nil, nil).parse("--deepspeed", `{"communication_data_type": "fp16"}`)
	require.ErrorContains(t, p.err, `communication_data_type is "fp16" (deepspeed): want float32 or bfloat16`)
	p = newProgram(nil, nil).parse("--fsdp_reduce_dtype", "bfloat16")
	require.ErrorContains(t, p.err, "float32, or a sharded model (fsdp, zero_stage)")
	p = newProgram(nil, nil).parse("--fsdp", "full_shard", "--fsdp_ignored_modules", "h.(")
	require.ErrorContains(t, p.err, "a regular expression for paths of modules")
}

// accelerate's files set what its launcher hands to programs.
func TestAccelerateFiles(t *testing.T) {
	for name, want := range map[string]struct{ launch, settings map[string]string }{
		"fsdp.yaml": {
			map[string]string{"nproc_per_node": "4", "nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.1",
				"master_port": "29501", "rdzv_backend": "static"},
			map[string]string{"LOCKSTEP_FSDP": "full_shard", "LOCKSTEP_BF16": "true",
				"LOCKSTEP_FSDP_STATE_DICT_TYPE":               "sharded_state_dict",
				"LOCKSTEP_FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP": "GPT2Block"},
		},
		"deepspeed.yaml": {
			map[string]string{"nproc_per_node": "2", "nnodes": "1", "node_rank": "0", "rdzv_backend": "static"},
			map[string]string{"LOCKSTEP_ZERO_STAGE": "3", "LOCKSTEP_OFFLOAD_OPTIMIZER": "none",
				"LOCKSTEP_OFFLOAD_PARAMS": "none", "LOCKSTEP_GRADIENT_ACCUMULATION_STEPS": "4",
				"LOCKSTEP_MAX_GRAD_NORM": "1", "LOCKSTEP_BF16": "true"},
		},
		"cpu.yaml": {
			map[string]string{"nproc_per_node": "2", "nnodes": "1", "node_rank": "0", "rdzv_backend": "static"},
			map[string]string{"LOCKSTEP_DEVICE": "cpu"},
		},
	} {
		c, err := args.ReadToolConfig(filepath.Join("testdata", "tools", name))
		require.NoError(t, err)
		require.Equal(t, "accelerate", c.Tool)
		require.NoError(t, args.CheckToolConfig(c, name))
		require.Equal(t, want.launch, c.Launch, name)
		got, err := args.ToolSettings(c)
		require.NoError(t, err)
		require.Equal(t, want.settings, got, name)
	}
}

// A section counts under its own distributed_type alone; without a word about the stage, accelerate's is 2.
func TestAccelerateSections(t *testing.T) {
	for text, want := range map[string]map[string]string{
		`{"distributed_type": "MULTI_CPU", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
			"deepspeed_config": {"zero_stage": 3}}`: {},
		`{"distributed_type": "DEEPSPEED", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
			"deepspeed_config": {"offload_optimizer_nvme_path": "none"}}`: {"LOCKSTEP_ZERO_STAGE": "2",
			"LOCKSTEP_MAX_GRAD_NORM": "0"},
		`{"distributed_type": "FSDP", "fsdp_config": {"fsdp_activation_checkpointing": true}}`: {
			"LOCKSTEP_FSDP": "full_shard", "LOCKSTEP_GRADIENT_CHECKPOINTING": "true"},
	} {
		path := filepath.Join(t.TempDir(), "a.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, err := args.ReadToolConfig(path)
		require.NoError(t, err)
		require.NoError(t, args.CheckToolConfig(c, path))
		got, err := args.ToolSettings(c)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	path := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"distributed_type": "FSDP", "fsdp_config": {
		"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_reshard_after_forward": false}}`), 0o600))
	c, err := args.ReadToolConfig(path)
	require.NoError(t, err)
	require.ErrorContains(t, args.CheckToolConfig(c, path),
		"as fsdp_config.fsdp_reshard_after_forward has it: both are fsdp here")
}

// A program without a loader gets the same.
func TestReadConfigs(t *testing.T) {
	a := args.Default("out")
	a.DeepSpeed = filepath.Join("testdata", "tools", "ds_config_zero3.json")
	require.NoError(t, a.ReadConfigs())
	require.Equal(t, 3, a.ZeroStage)
	require.NoError(t, a.ReadConfigs(), "once more")
	a.ZeroStage = 2
	require.ErrorContains(t, a.ReadConfigs(),
		"zero_stage is 2: want 3, which "+a.DeepSpeed+" has as zero_optimization.stage")
	b := args.Default("out")
	b.FSDPConfig = `{"min_num_param": 3}`
	require.ErrorContains(t, b.ReadConfigs(), "did you mean min_num_params?")
}

// It settles by the same rules: names of one optimizer agree, fsdp gets a strategy beside other words, and nothing
// changes if something is wrong.
func TestReadConfigsSettlesAsALoaderDoes(t *testing.T) {
	const optimizer = `{"optimizer": {"type": "AdamW", "params": {"lr": 0.25}}, "zero_optimization": {"stage": 1}}`
	const strategy = `{"sharding_strategy": "FULL_SHARD"}`
	files := map[string]string{"ds.json": optimizer, "fsdp.json": strategy}
	for _, c := range []struct {
		flags string
		set   func(a *args.TrainingArguments)
	}{
		{"--deepspeed ds.json --optim adamw_torch_fused", func(a *args.TrainingArguments) {
			a.DeepSpeed, a.Optim = optimizer, "adamw_torch_fused"
		}},
		{"--fsdp_config fsdp.json --fsdp auto_wrap", func(a *args.TrainingArguments) {
			a.FSDPConfig, a.FSDP = strategy, []string{"auto_wrap"}
		}},
		{"--deepspeed ds.json --zero_stage 2 --weight_decay 0.5", func(a *args.TrainingArguments) {
			a.DeepSpeed, a.ZeroStage, a.WeightDecay = optimizer, 2, 0.5
		}},
	} {
		p := newProgram(nil, files).parse(strings.Fields(c.flags)...)
		a := args.Default("out")
		c.set(a)
		before := a.Clone()
		err := a.ReadConfigs()
		if p.err != nil {
			require.Len(t, faultLines(t, err), len(faultLines(t, p.err)), c.flags)
			require.Equal(t, before, a, "unchanged")
			continue
		}
		require.NoError(t, err, c.flags)
		p.train.DeepSpeed, p.train.FSDPConfig, p.train.OutputDir = a.DeepSpeed, a.FSDPConfig, a.OutputDir
		p.train.DoTrain, p.train.DoEval = a.DoTrain, a.DoEval
		require.Empty(t, a.Diff(p.train), c.flags)
	}
}

// Every key of DeepSpeed's classes, and every alias, has a rule (testdata/tools/deepspeed_keys.py).
func TestEveryKeyOfDeepSpeedHasARule(t *testing.T) {
	count := 0
	for line := range strings.Lines(tool(t, "deepspeed_keys.tsv")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		count++
		text := value
		names := strings.Split(key, ".")
		for _, name := range slices.Backward(names) {
			text = fmt.Sprintf(`{%q: %s}`, name, text)
		}
		if strings.HasPrefix(key, "optimizer.") && key != "optimizer.type" {
			text = strings.Replace(text, `{"optimizer": {`, `{"optimizer": {"type": "AdamW", `, 1)
		}
		if strings.HasPrefix(key, "scheduler.") && key != "scheduler.type" {
			text = strings.Replace(text, `{"scheduler": {`, `{"scheduler": {"type": "WarmupCosineLR", `, 1)
		}
		a := args.Default("out")
		a.DeepSpeed = text
		if err := a.ReadConfigs(); err != nil {
			require.NotContains(t, err.Error(), "unknown key", key)
			if value != "null" && key != "scheduler.params.total_num_steps" {
				require.NoError(t, err, "the default of %s changes nothing", key)
			}
		}
	}
	require.Greater(t, count, 200)
}

// So has every key of accelerate's (testdata/tools/accelerate_keys.py).
func TestEveryKeyOfAccelerateHasARule(t *testing.T) {
	count := 0
	for line := range strings.Lines(tool(t, "accelerate_keys.tsv")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		count++
		text := value
		for _, name := range slices.Backward(strings.Split(key, ".")) {
			text = fmt.Sprintf(`{%q: %s}`, name, text)
		}
		kind := map[string]string{"fsdp": "FSDP", "deep": "DEEPSPEED"}[key[:4]]
		if kind != "" {
			text = strings.Replace(text, "{", `{"distributed_type": "`+kind+`", `, 1)
		} else if key != "distributed_type" {
			text = strings.Replace(text, "{", `{"distributed_type": "MULTI_GPU", `, 1)
		}
		path := filepath.Join(t.TempDir(), "a.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, err := args.ReadToolConfig(path)
		require.NoError(t, err, text)
		require.Equal(t, "accelerate", c.Tool)
		if key != "distributed_type" && key != "num_processes" {
			require.NoError(t, args.CheckToolConfig(c, path), "the default of %s changes nothing", key)
		}
	}
	require.Greater(t, count, 90)
}

// What is not in a file means DeepSpeed's default where that changes the result.
func TestAbsentKeysOfDeepSpeed(t *testing.T) {
	text := `{"train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": true}, "optimizer": {"type": "AdamW"},
		"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 70}}}`
	files := map[string]string{"ds.json": text}
	p := newProgram(nil, files).parse("--deepspeed", "ds.json", "--lr_scheduler_type", "linear")
	require.NoError(t, p.err)
	a := p.train
	require.Zero(t, a.MaxGradNorm)
	require.Equal(t, "file ds.json (no gradient_clipping)", p.resolved.Origin("max_grad_norm"))
	require.EqualValues(t, []float64{1e-3, 0.9, 0.999, 1e-8, 0, 1000}, []float64{a.LearningRate, a.AdamBeta1,
		a.AdamBeta2, a.AdamEpsilon, a.WeightDecay, a.WarmupSteps})
	require.Equal(t, []int{1000, 1}, []int{a.FP16GrowthInterval, a.FP16Hysteresis})
	require.Equal(t, args.SchedulerWarmupDecayLR, a.LRSchedulerType)
	require.Equal(t, map[string]any{"total_num_steps": 70.0}, a.LRSchedulerKwargs)
	require.Len(t, p.resolved.Notices, 2)
	require.Contains(t, p.resolved.Notices[0].Text, "has no gradient_clipping: gradients are not clipped")

	b := args.Default("out")
	b.DeepSpeed = text
	require.NoError(t, b.ReadConfigs())
	require.Zero(t, b.MaxGradNorm)

	p = newProgram(nil, files).parse("--deepspeed", "ds.json", "--max_grad_norm", "0.5", "--weight_decay", "0.1",
		"--warmup_steps", "7")
	require.Equal(t, []string{
		`max_grad_norm is 0.5 (flag --max_grad_norm): want 0, which is the default of ` +
			`gradient_clipping in ds.json; or "auto" there`,
		`warmup_steps is 7 (flag --warmup_steps): want 1000, which is the default of ` +
			`scheduler.params.warmup_num_steps in ds.json; or "auto" there`,
		`weight_decay is 0.1 (flag --weight_decay): want 0, which is the default of ` +
			`optimizer.params.weight_decay in ds.json; or "auto" there`,
	}, faultLines(t, p.err))
}

// The factor of the loss follows DeepSpeed's rule, with its defaults, if fp16 is on by whatever way; a flag may ask for
// another. Without ZeRO its optimizer has no hysteresis.
func TestLossScalerOfDeepSpeed(t *testing.T) {
	files := map[string]string{
		"zero.json": `{"zero_optimization": {"stage": 1}, "fp16": {"enabled": "auto", "consecutive_hysteresis": true}}`,
		"said.json": `{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true, "hysteresis": 4,
			"loss_scale_window": 50, "min_loss_scale": 2}}`,
		"ddp.json":  `{"fp16": {"enabled": true, "hysteresis": 4, "consecutive_hysteresis": true}}`,
		"bf16.json": `{"zero_optimization": {"stage": 1}, "fp16": {"enabled": false}, "bf16": {"enabled": true}}`,
		"odd.json":  `{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true, "min_loss_scale": 3}}`,
	}
	type scaler struct {
		rule                 args.LossScaler
		interval, hysteresis int
		consecutive          bool
		least                float64
	}
	plain := scaler{args.LossScalerTorch, 2000, 1, false, 1}
	for line, want := range map[string]scaler{
		"--deepspeed zero.json --fp16":                            {args.LossScalerDeepSpeed, 1000, 2, true, 1},
		"--deepspeed zero.json --fp16 --fp16_loss_scaler torch":   {args.LossScalerTorch, 1000, 2, true, 1},
		"--deepspeed said.json":                                   {args.LossScalerDeepSpeed, 50, 4, false, 2},
		"--deepspeed ddp.json":                                    {args.LossScalerDeepSpeed, 1000, 1, false, 1},
		"--deepspeed bf16.json":                                   plain,
		"--fp16":                                                  plain,
		"--zero_stage 2 --fp16":                                   plain,
		"--fp16 --fp16_loss_scaler deepspeed --fp16_hysteresis 3": {args.LossScalerDeepSpeed, 2000, 3, false, 1},
	} {
		p := newProgram(nil, files).parse(strings.Fields(line)...)
		require.NoError(t, p.err, line)
		a := p.train
		require.Equal(t, want, scaler{a.FP16LossScaler, a.FP16GrowthInterval, a.FP16Hysteresis,
			a.FP16ConsecutiveHysteresis, a.FP16MinScale}, line)
		if name, ok := strings.CutPrefix(line, "--deepspeed "); ok && files[name] != "" {
			b := args.Default("out")
			b.DeepSpeed = files[name]
			require.NoError(t, b.ReadConfigs())
			require.Equal(t, a.FP16LossScaler, b.FP16LossScaler, line)
		}
	}
	require.Equal(t, []string{`fp16_min_scale is 3 (file odd.json (fp16.min_loss_scale)): want a power of two with ` +
		`fp16_loss_scaler deepspeed, which lowers the loss scale to this value`},
		faultLines(t, newProgram(nil, files).parse("--deepspeed", "odd.json").err))

	path := filepath.Join(t.TempDir(), "a.yaml")
	for precision, want := range map[string]string{"fp16": "deepspeed 1000 2", "bf16": "  "} {
		require.NoError(t, os.WriteFile(path, []byte("distributed_type: DEEPSPEED\nmixed_precision: "+precision+"\n"),
			0o600))
		c, err := args.ReadToolConfig(path)
		require.NoError(t, err)
		s, err := args.ToolSettings(c)
		require.NoError(t, err)
		require.Equal(t, want, s["LOCKSTEP_FP16_LOSS_SCALER"]+" "+s["LOCKSTEP_FP16_GROWTH_INTERVAL"]+" "+
			s["LOCKSTEP_FP16_HYSTERESIS"])
	}
}

// A file without gradient_accumulation_steps leaves the number to the arguments, as transformers' Trainer does: it ends
// a step after as many micro-batches as they say, and what accelerate writes in the key's place (1) decides nothing.
func TestGradientAccumulationOfDeepSpeed(t *testing.T) {
	for text, want := range map[string]int{`{"zero_optimization": {"stage": 1}}`: 4,
		`{"gradient_accumulation_steps": "auto"}`: 4, `{"gradient_accumulation_steps": 4}`: 4,
		`{"gradient_accumulation_steps": 2}`: 0} {
		p := newProgram(nil, map[string]string{"ds.json": text}).parse("--deepspeed", "ds.json",
			"--gradient_accumulation_steps", "4")
		if want == 0 {
			require.ErrorContains(t, p.err,
				"gradient_accumulation_steps is 4 (flag --gradient_accumulation_steps): want 2")
			continue
		}
		require.NoError(t, p.err)
		require.Equal(t, want, p.train.GradientAccumulationSteps, text)
	}
	p := newProgram(nil, map[string]string{"ds.json": "{}"}).parse("--deepspeed", "ds.json")
	require.Equal(t, 1, p.train.GradientAccumulationSteps)
}

// Files of the shape that fine-tuning tools ship, with the fields' own names beside the aliases.
func TestDeepSpeedFilesOfTools(t *testing.T) {
	const batch = `"gradient_accumulation_steps": "auto", "train_batch_size": "auto",
		"train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false`
	const half = `"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "auto_cast": false, "loss_scale": 0,
		"initial_scale_power": 32, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}`
	const three = `"stage": 3, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 0,
		"reduce_bucket_size": "auto", "max_live_parameters": 0, "max_reuse_distance": 0,
		"gather_16bit_weights_on_model_save": true`
	const own = three + `, "prefetch_bucket_size": "auto", "param_persistence_threshold": "auto",
		"model_persistence_threshold": 1e9`
	const alias = three + `, "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"`
	const cpu = `{"device": "cpu", "pin_memory": true}`
	const force = `"zero_force_ds_cpu_optimizer": false, "zero_allow_untested_optimizer": true`
	for name, text := range map[string]string{
		"zero1": `{"zero_optimization": {"stage": 1, "overlap_comm": true}, ` + half + `, "optimizer": {"type": "AdamW",
			"params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}, ` + batch + `}`,
		"zero2": `{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": true,
			"contiguous_gradients": true}, ` + half + `, "gradient_clipping": "auto", ` + batch + `}`,
		"zero2 compiled": `{"compile": {"disable": false, "backend": "inductor"}, "zero_optimization": {"stage": 2,
			"offload_optimizer": {"device": "cpu"}}, ` + half + `, "gradient_clipping": "auto", ` + batch + `}`,
		"zero3": `{"zero_optimization": {` + alias + `}, ` + half + `, "gradient_clipping": "auto", ` +
			batch + `}`,
		"zero3 in bf16": `{"zero_optimization": {` + own + `}, "bf16": {"enabled": true}, ` + batch + `}`,
		"zero3, all on the host": `{` + force + `, "zero_optimization": {` + alias + `, "offload_optimizer": ` + cpu +
			`, "offload_param": ` + cpu + `}, "bf16": {"enabled": true}, ` + batch + `}`,
		"zero3, parameters on the host": `{` + force + `, "zero_optimization": {` + own + `, "offload_param": ` + cpu +
			`}, "bf16": {"enabled": true}, ` + batch + `}`,
	} {
		p := newProgram(nil, map[string]string{"ds.json": text}).parse("--deepspeed", "ds.json", "--learning_rate",
			"3e-5", "--adam_beta2", "0.95")
		require.NoError(t, p.err, name)
		require.Equal(t, int(name[4]-'0'), p.train.ZeroStage, name)
		require.Equal(t, strings.Contains(name, "bf16") || strings.Contains(name, "host"), p.train.BF16, name)
		require.Equal(t, strings.Contains(name, "host"), p.train.OffloadParams == args.OffloadCPU, name)
	}
}

// A section that is refused is refused as a whole, and its own keys are not called unknown.
func TestRefusedSectionsOfDeepSpeed(t *testing.T) {
	for text, want := range map[string]string{
		`{"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5}}, `:    `scheduler.type`,
		`{"optimizer": {"type": "Lion", "params": {"use_triton": true}}, `:          `optimizer.type`,
		`{"curriculum_learning": {"enabled": true, "type": "seqlen"}, `:             `want enabled false: samples`,
		`{"tensor_parallel": {"partition_config": {"layer_specs": []}}, `:           `how its layers are divided`,
		`{"gradient_allreduce_op": "sum", `:                                         `want "mean": the loss is a mean`,
		`{"zero_optimization": {"zenflow": {"topk_ratio": 0.1, "enabled": true}}, `: `zero_optimization.zenflow is`,
		`{"zero_optimization": {"stage": 2, "nosuchkey_at_all": 1}, `:               `no DeepSpeed up to 0.19.8 has it`,
		`{"bf16": {"enabled": true, "bf16_optimizer_states": true}, `:               `the optimizer's state is float32`,
	} {
		a := args.Default("out")
		a.DeepSpeed = text + `"gradient_clipping": 1}`
		err := a.ReadConfigs()
		require.ErrorContains(t, err, want)
		require.Len(t, faultLines(t, err), 1, text)
	}
	a := args.Default("out")
	a.DeepSpeed = `{"prescale_gradients": true, "zero_optimization": {"stage": 2, "cpu_offload": true}, "eigenvalue": {
		"enabled": false, "tol": 1}, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9,
		"nesterov": true}}}`
	require.NoError(t, a.ReadConfigs())
	require.Equal(t, args.OffloadCPU, a.OffloadOptimizer)
	require.Equal(t, "momentum=0.9,nesterov=true", a.OptimArgs)
	require.NoError(t, a.Validate())
}
