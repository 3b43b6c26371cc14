// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// writtenMesh is a line of mesh.jsonl: sizes, and what accelerate or transformers writes for them.
type writtenMesh struct {
	Form    string
	Sizes   map[string]any
	Written json.RawMessage
}

// meshSizes are the sizes of the arguments that are not 0 or 1, by key.
func meshSizes(a *args.TrainingArguments) map[string]any {
	sizes := map[string]any{"pp_size": a.PPSize, "dp_replicate_size": a.DPReplicateSize, "dp_shard_size": a.DPShardSize,
		"cp_size": a.CPSize, "sp_size": a.SPSize, "tp_size": a.TPSize}
	maps.DeleteFunc(sizes, func(_ string, n any) bool { return n.(int) <= 1 })
	return sizes
}

func environ(variables map[string]string) (list []string) {
	for name, value := range variables {
		list = append(list, name+"="+value)
	}
	return list
}

// What accelerate and transformers write of a mesh is read as it is.
func TestMeshesOfLibraries(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(tool(t, "mesh.jsonl")), "\n")
	forms := map[string]int{}
	for _, line := range lines[1:] {
		var w writtenMesh
		require.NoError(t, json.Unmarshal([]byte(line), &w))
		forms[w.Form]++
		program, argv := newProgram(nil, nil), []string(nil)
		switch w.Form {
		case "yaml": // through lockstep launch
			var text string
			require.NoError(t, json.Unmarshal(w.Written, &text))
			path := filepath.Join(t.TempDir(), "a.yaml")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			c, err := args.ReadToolConfig(path)
			require.NoError(t, err)
			require.NoError(t, args.CheckToolConfig(c, path), line)
			variables, err := args.ToolSettings(c)
			require.NoError(t, err)
			program = newProgram(environ(variables), nil)
		case "environment":
			variables := map[string]string{}
			require.NoError(t, json.Unmarshal(w.Written, &variables))
			program = newProgram(environ(variables), nil)
		case "object":
			argv = []string{"--parallelism_config", string(w.Written)}
		case "file":
			program = newProgram(nil, map[string]string{"a.json": `{"distributed_config": ` + string(w.Written) + `}`})
			argv = []string{"--config", "a.json"}
		}
		p := program.parse(argv...)
		require.NoError(t, p.err, line)
		want := maps.Clone(w.Sizes)
		maps.DeleteFunc(want, func(_ string, v any) bool { _, size := v.(float64); return !size })
		if n, ok := want["fsdp_size"]; ok {
			delete(want, "fsdp_size")
			want["dp_shard_size"] = n
		}
		for key, n := range want {
			want[key] = int(n.(float64))
		}
		require.Equal(t, want, meshSizes(p.train), line)
		require.Equal(t, p.train.DPShardSize > 1 || w.Form == "yaml", p.train.ShardStrategy() == args.FullShard, line)
		require.Equal(t, w.Sizes["fsdp_cpu_offload"] == true, p.train.OffloadParams == args.OffloadCPU)
		require.Equal(t, w.Sizes["fsdp_mixed_precision"] == true || w.Form == "yaml", p.train.BF16)
	}
	require.Len(t, forms, 4)
	require.Greater(t, len(lines), 25)
}

// Sizes that two sources give differently are a fault that names both, and so is each key that is not built.
func TestFaultsOfMeshes(t *testing.T) {
	for text, want := range map[string][]string{
		`--tp_size 2 --parallelism_config {"tp_size":4}`: {
			"tp_size is 2 (flag --tp_size): want 4, which parallelism_config has as tp_size"},
		`--deepspeed {"tensor_parallel":{"autotp_size":4},"gradient_clipping":1} --tp_size 2`: {
			"tp_size is 2 (flag --tp_size): want 4, which deepspeed has as tensor_parallel.autotp_size"},
		`--deepspeed {"tensor_parallel":{"autotp_size":4},"gradient_clipping":1} --distributed_config {"tp_size":2}`: {
			"tp_size is 4 (file deepspeed (tensor_parallel.autotp_size)): want 2, which distributed_config has as " +
				"tp_size"},
		`--parallelism_config {"dp_shard_size":2} --distributed_config {"fsdp_size":4,"pp_size":1}`: {
			"dp_shard_size is 2 (file parallelism_config (dp_shard_size)): want 4, which distributed_config " +
				"has as fsdp_size"},
		`--parallelism_config_tp_size 2 --tp_size 4`: {
			"parallelism_config_tp_size is 2 (flag --parallelism_config_tp_size): want tp_size alone, which has its " +
				"place and is 4 here"},
		`--parallelism_config {"dp_shard":2}`: {
			"unknown key dp_shard in parallelism_config; did you mean dp_shard_size?"},
		`--distributed_config {"ep_size":2,"ep_plan":{"a":"b"}}`: {
			"ep_size is 2 (distributed_config): want 1: experts", "ep_plan is"},
		`--parallelism_config {"pp_size":2}`: {
			"pp_size is 2 (parallelism_config): want 1: accelerate has no pipelines: set pp_size beside it"},
		`--distributed_config {"tp_plan":"auto"}`: {`want "auto", with tp_size beside it`},
		`--cp_size 2 --sp_size 2`:                 {"sp_size is 2 (flag --sp_size): want 1, or cp_size 1"},
		`--pp_size 0 --cp_size 0 --tp_size 0`:     {"pp_size is 0 (flag --pp_size)", "cp_size is 0", "tp_size is 0"},
		`--pp_size -1 --dp_shard_size 5000`:       {"pp_size is -1", "dp_shard_size is 5000"},
		`--fsdp no_shard --dp_shard_size 2`:       {"dp_shard_size is 2 (flag --dp_shard_size): want 0, or fsdp "},
	} {
		p := newProgram(nil, nil).parse(strings.Fields(text)...)
		require.Error(t, p.err, text)
		require.Len(t, faultLines(t, p.err), len(want), text)
		for _, w := range want {
			require.ErrorContains(t, p.err, w, text)
		}
	}
	p := newProgram([]string{"PARALLELISM_CONFIG_TP=2"}, nil).parse()
	require.ErrorContains(t, p.err, "unknown variable PARALLELISM_CONFIG_TP")
	p = newProgram([]string{"PARALLELISM_CONFIG_PP_SIZE=2"}, nil).parse()
	require.ErrorContains(t, p.err, "unknown variable PARALLELISM_CONFIG_PP_SIZE: want LOCKSTEP_PP_SIZE: accelerate's "+
		"ParallelismConfig has no pp_size")
	p = newProgram([]string{"PARALLELISM_CONFIG_TP_SIZE=2"}, nil).parse("--parallelism_config", `{"tp_size": 4}`)
	require.ErrorContains(t, p.err, "tp_size is 2 (env PARALLELISM_CONFIG_TP_SIZE): want 4, which parallelism_config")
	p = newProgram([]string{"PARALLELISM_CONFIG_TP_SIZE=two"}, nil).parse()
	require.ErrorContains(t, p.err, `tp_size is "two" (env PARALLELISM_CONFIG_TP_SIZE)`)
}

// modelOf are settings that describe a model of so many parts.
type modelOf struct {
	NLayer int `json:"n_layer" usage:"blocks"`
}

func (m *modelOf) Check(c *args.Checker) {
	c.Parts(m.NLayer + 2)
	c.Model(func() any { return m.NLayer })
}

// All that is wrong with a pipeline comes in one list: a setting that is wrong by itself hides no fault of others.
func TestFaultsOfPipelines(t *testing.T) {
	for text, want := range map[string][]string{
		`--pp_size 2 --pp_schedule wavy --pp_split 1,x --gradient_accumulation_steps 0`: {
			"gradient_accumulation_steps is 0", `pp_split is ["1","x"]`,
			`pp_schedule is "wavy" (flag --pp_schedule); unknown: this; that`},
		`--pp_size 2 --pp_schedule wavy --cp_size 2 --sp_size 2`: {
			`sp_size is 2 (flag --sp_size): want 1, or cp_size 1`, `pp_schedule is "wavy"`},
		`--pp_size 2 --optim schedule_free_adamw --ddp_comm_hook fp16 --local_sgd_steps 2 --offload_params disk ` +
			`--offload_optimizer disk`: {
			`optim is "schedule_free_adamw" (flag --optim): want another one, or pp_size 1`,
			"ddp_comm_hook is \"fp16\" (flag --ddp_comm_hook): want no", "local_sgd_steps is 2", "offload_params is",
			"offload_optimizer is"},
		`--pp_size 8`: {"pp_size is 8 (flag --pp_size): want at most 4 stages, as many as the model has parts; 1f1b " +
			"with pp_size 8 has 8"},
		`--pp_size 2 --pp_split 1,1`: {`pp_split is ["1","1"] (flag --pp_split): want 4 parts in all, those of the ` +
			`model; these are 2`},
		`--pp_size 8 --pp_split 1,1`: {"pp_size is 8", `pp_split is ["1","1"] (flag --pp_split): want 8 numbers, one ` +
			`for each stage of 1f1b with pp_size 8`},
		`--pp_size 2 --n_layer 9 --pp_split 4,7`: nil,
		`--pp_size 4`:                            nil,
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		loader := args.Bind(flags, args.Default("out"), &modelOf{NLayer: 2})
		loader.Environ = func() []string { return nil }
		loader.ForProgram(args.Program{Engines: []string{}, Stages: func(name string, ranks, _ int) (int, error) {
			if name == "wavy" {
				return 0, errors.New("unknown:\n  this\n  that")
			}
			return ranks, nil
		}})
		_, err := loader.Parse(strings.Fields(text))
		requireFaults(t, want, err, text)
	}
}

// requireFaults requires one fault for each text, which contains it, and no error for nil.
func requireFaults(t *testing.T, want []string, err error, given string) {
	t.Helper()
	if want == nil {
		require.NoError(t, err, given)
		return
	}
	require.Error(t, err, given)
	require.Len(t, faultLines(t, err), len(want), given)
	for _, w := range want {
		require.ErrorContains(t, err, w, given)
	}
}

// All that does not go together with divided tokens comes in one list, with what would.
func TestFaultsOfContextParallel(t *testing.T) {
	for text, want := range map[string][]string{
		`--cp_size 2 --ddp_comm_hook power_sgd --offload_params disk`: {
			`ddp_comm_hook is "power_sgd" (flag --ddp_comm_hook): want no, fp16, bf16 or int8, or cp_size 1`,
			`offload_params is "disk" (flag --offload_params): want none or cpu, or cp_size 1`},
		`--sp_size 4 --local_sgd_steps 2 --zero_stage 0`: {
			"local_sgd_steps is 2 (flag --local_sgd_steps): want 0, or sp_size 1"},
		`--cp_chunks 4 --pp_size 2`:             nil,
		`--cp_size 2 --pp_size 2`:               nil,
		`--cp_size 2 --zero_stage 1`:            nil,
		`--cp_size 2 --fsdp full_shard`:         nil,
		`--dp_shard_size 2 --cp_size 2`:         nil,
		`--cp_size 3`:                           {"cp_size is 3 (flag --cp_size): want a power of two"},
		`--cp_size 4 --cp_chunks 4`:             {"cp_chunks is 4 (flag --cp_chunks): want a power of two from 8, two"},
		`--cp_chunks 6 --tp_size 2`:             {"cp_chunks is 6 (flag --cp_chunks): want a power of two from 1,"},
		`--sp_size 2 --cp_strategy ring`:        {`cp_strategy is "ring" (flag --cp_strategy): want ulysses`},
		`--sp_size 2 --cp_strategy gather`:      {"cp_strategy is \"gather\""},
		`--sp_size 2 --cp_strategy ulysses`:     nil,
		`--cp_size 2 --cp_chunks 16 --bf16`:     nil,
		`--cp_chunks 4 --offload_params disk`:   nil,
		`--cp_size 4 --dp_replicate_size 2`:     nil,
		`--cp_size 2 --ddp_comm_hook bf16`:      nil,
		`--cp_size 2 --optim schedule_free_sgd`: nil,
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		loader := args.Bind(flags, args.Default("out"))
		loader.Environ = func() []string { return nil }
		loader.ForProgram(args.Program{Engines: []string{}})
		_, err := loader.Parse(strings.Fields(text))
		requireFaults(t, want, err, text)
	}
	for _, given := range [][2]string{{`{"cp_size":2,"cp_handler":{"cp_comm_strategy":"alltoall"}}`, "ring"},
		{`{"cp_size":2,"cp_handler":{"cp_comm_strategy":"allgather"}}`, "gather"},
		{`{"sp_size":2,"sp_backend":"deepspeed","sp_handler":{"sp_seq_length":512}}`, "ulysses"}} {
		p := newProgram(nil, nil).parse("--parallelism_config", given[0])
		require.NoError(t, p.err, given[0])
		require.EqualValues(t, given[1], p.train.ContextStrategy())
	}
	p := newProgram([]string{"PARALLELISM_CONFIG_CP_COMM_STRATEGY=alltoall"}, nil).parse("--cp_size", "2")
	require.NoError(t, p.err)
	require.Equal(t, args.CPRing, p.train.CPStrategy)
	p = newProgram([]string{"PARALLELISM_CONFIG_CP_COMM_STRATEGY=ring"}, nil).parse()
	require.ErrorContains(t, p.err, `PARALLELISM_CONFIG_CP_COMM_STRATEGY is "ring": want allgather or alltoall`)
	a := args.Default("out")
	require.Zero(t, a.ContextChunks())
	a.SPSize = 4
	require.Equal(t, 8, a.ContextChunks())
	require.Equal(t, args.CPUlysses, a.ContextStrategy())
}

// tp_plan is a JSON object or auto, and all that is wrong with divided matrices comes in one list.
func TestFaultsOfDividedMatrices(t *testing.T) {
	parse := func(argv ...string) (*args.TrainingArguments, error) {
		flags, a := pflag.NewFlagSet("test", pflag.ContinueOnError), args.Default("out")
		loader := args.Bind(flags, a, &modelOf{NLayer: 2})
		loader.Environ = func() []string { return nil }
		loader.ForProgram(args.Program{Engines: []string{}, Tensors: func(_ *args.TrainingArguments, model any) error {
			require.Equal(t, 2, model, "what the settings describe")
			return errors.Join(errors.New("a has 9 heads"), errors.Join(errors.New("b has none")))
		}})
		_, err := loader.Parse(argv)
		return a, err
	}
	a, err := parse("--tp_plan", `{"h.*.up": "colwise"}`)
	require.NoError(t, err)
	plan, _ := a.TensorPlan()
	require.Equal(t, map[string]string{"h.*.up": "colwise"}, plan)
	a, err = parse("--distributed_config", `{"tp_size": 1, "tp_plan": {"h.*.up": "colwise"}}`)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"h.*.up": "colwise"}, a.TPPlan)
	file := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"h.*.up": "colwise"}`), 0o600))
	a, err = parse("--tp_plan", file)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"h.*.up": "colwise"}, a.TPPlan)
	_, err = parse("--distributed_config", `{"tp_plan": {}}`)
	require.ErrorContains(t, err, "tp_plan is {} (distributed_config): want null, or styles")
	a, err = parse("--tp_plan", "auto", "--tp_parts", "1")
	require.NoError(t, err)
	require.Nil(t, a.TPPlan)
	for text, want := range map[string][]string{
		"--tp_plan column": {`tp_plan is "column" (flag --tp_plan): want auto, a JSON object of styles by paths of ` +
			"modules, or a .json or .yaml file of one; the styles are colwise, rowwise, "},
		"--tp_plan=":      {`tp_plan is "" (flag --tp_plan): want auto, a JSON object of styles`},
		`--tp_plan {"a":`: {"too early: want a value"},
		"--tp_plan none.json": {`tp_plan is "none.json" (flag --tp_plan): want a readable JSON or YAML file: ` +
			"none.json: no such file"},
		`--tp_plan {"a":1}`:         {`tp_plan is {"a":1} (flag --tp_plan): want auto, a JSON object of styles`},
		"--tp_parts -1 --pp_size 2": {"tp_parts is -1 (flag --tp_parts): want a whole number"},
		"--tp_size 2 --pp_size 2 --fsdp full_shard --optim lamb --offload_params disk --offload_optimizer " +
			"disk --neftune_noise_alpha 5 --record_hashes op --ema_decay 0.9": {"ema_decay is 0.9",
			"a has 9 heads", "b has none",
			"optim is \"lamb\" (flag --optim): want an optimizer",
			"offload_params is", "offload_optimizer is", "neftune_noise_alpha is 5",
			"record_hashes is \"op\" (flag --record_hashes): want step, or tp_size 1"},
		"--auto_find_batch_size --zero_stage 1 --pp_size 2": {"auto_find_batch_size is true (flag " +
			"--auto_find_batch_size): want false, or a run without fsdp, zero_stage or dp_shard_size, pp_size"},
		"--tp_size 2 --ddp_comm_hook fp16 --optim schedule_free_sgd": {"a has 9 heads", "b has none",
			`ddp_comm_hook is "fp16"`, `optim is "schedule_free_sgd"`},
		"--tp_size 2 --cp_size 2 --optim lamb": {"a has 9 heads", "b has none", `optim is "lamb"`},
		"--tp_parts 2 --sp_size 2":             {"a has 9 heads", "b has none"},
		"--tp_size 2 --local_sgd_steps 2":      {"a has 9 heads", "b has none", "local_sgd_steps is 2"},
	} {
		_, err := parse(strings.Fields(text)...)
		require.Error(t, err, text)
		require.Len(t, faultLines(t, err), len(want), text)
		for _, w := range want {
			require.ErrorContains(t, err, w, text)
		}
	}
}

// fsdp_config says how a model is spread that dp_shard_size spreads.
func TestShardsOfAMesh(t *testing.T) {
	p := newProgram(nil, nil).parse("--dp_shard_size", "2", "--fsdp_config", `{"reshard_after_forward": false}`)
	require.NoError(t, p.err)
	require.Equal(t, args.ShardGradOp, p.train.ShardStrategy())
	p = newProgram(nil, map[string]string{"a.json": `{"fsdp": false, "distributed_config": {"fsdp_size": 2}}`}).
		parse("a.json")
	require.NoError(t, p.err)
	require.Equal(t, args.FullShard, p.train.ShardStrategy())
	p = newProgram(nil, nil).parse("--dp_shard_size", "2", "--zero_stage", "2")
	require.NoError(t, p.err)
	require.Equal(t, args.ShardGradients, p.train.ShardStrategy())
	a := args.Default("out")
	a.ParallelismConfig = `{"dp_replicate_size": 2, "dp_shard_size": 4}`
	require.NoError(t, a.ReadConfigs())
	require.NoError(t, a.Validate())
	require.Equal(t, []int{2, 4}, []int{a.DPReplicateSize, a.DPShardSize})
	require.Equal(t, args.FullShard, a.ShardStrategy())
}
