// SPDX-License-Identifier: Apache-2.0

package lora_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func tiny(t testing.TB) *transformer.Model {
	cfg, err := transformer.DefaultConfig("llama")
	require.NoError(t, err)
	cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 40, 16, 24, 2
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim, cfg.MaxPositions = 4, 2, 4, 64
	m, err := transformer.New(nn.NewInit(tensor.CPU(), 7), cfg)
	require.NoError(t, err)
	return m
}

// A fresh adapter changes nothing, is alone trained, and begins as PEFT's: A in ±1/√in, or from N(0, 1/r²), and B at 0.
func TestFreshAdapters(t *testing.T) {
	for _, how := range []lora.Init{lora.InitDefault, lora.InitGaussian, lora.InitRandom} {
		m := tiny(t)
		before := logits(t, m, nil)
		names := nn.NamedParameters(m)
		a, err := lora.New(m, lora.Config{R: 64, TargetModules: lora.AllLinear, Init: how})
		require.NoError(t, err)
		require.Len(t, a.Arrays(), 2*14)
		if how == lora.InitRandom {
			require.NotEqual(t, before, logits(t, m, nil))
		} else {
			require.Equal(t, before, logits(t, m, nil))
		}
		i := 0
		for _, p := range nn.NamedParameters(m) {
			if i < len(names) && p.Name == names[i].Name { // the model's keep names and order
				require.False(t, p.RequiresGrad(), p.Name)
				i++
				continue
			}
			require.True(t, p.RequiresGrad(), p.Name)
			sum, largest := 0.0, 0.0
			values := tensor.ToSlice[float32](tensor.NewCtx(tensor.CPU()).NoGrad(), p.Tensor)
			for _, v := range values {
				sum, largest = sum+float64(v)*float64(v), max(largest, math.Abs(float64(v)))
			}
			deviation, bound := math.Sqrt(sum/float64(len(values))), 1/math.Sqrt(float64(p.Size(1)))
			switch isA := strings.Contains(p.Name, ".lora_A.default."); {
			case how == lora.InitRandom, isA && how == lora.InitDefault:
				require.InDelta(t, bound, largest, 0.05*bound, p.Name)
				require.InDelta(t, bound/math.Sqrt(3), deviation, 0.1*bound, p.Name)
			case isA:
				require.InDelta(t, 1.0/64, deviation, 0.1/64, p.Name)
			default:
				require.Zero(t, largest, p.Name)
			}
		}
		require.Equal(t, len(names), i)
	}
}

// A model has several adapters, one of which it computes with at a time.
func TestSeveralAdapters(t *testing.T) {
	m := tiny(t)
	plain := logits(t, m, nil)
	one, err := lora.New(m, lora.Config{R: 2, Init: lora.InitRandom, Name: "one", Seed: 1})
	require.NoError(t, err)
	withOne := logits(t, m, nil)
	cfg := lora.Config{R: 3, Init: lora.InitRandom, Name: "two", Seed: 2, TargetModules: lora.AllLinear,
		ModulesToSave: []string{"norm", "lm_head"}}
	_, err = lora.New(m, cfg)
	require.ErrorContains(t, err, "adapter one is active: want Deactivate first")
	one.Deactivate()
	require.Equal(t, plain, logits(t, m, nil))
	two, err := lora.New(m, cfg)
	require.NoError(t, err)
	withTwo := logits(t, m, nil)
	require.NotEqual(t, withOne, withTwo)
	require.Equal(t, withOne, logits(t, m, func(c *nn.Ctx) *nn.Ctx { return c.WithAdapters("one") }))
	require.Equal(t, plain, logits(t, m, without))

	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	tensor.CopyInto(c, m.LMHead.Weight.Tensor, tensor.Zeros(c, tensor.Float32, 40, 16)) // as if it were trained
	require.NotEqual(t, withTwo, logits(t, m, nil))
	two.Deactivate()
	require.Equal(t, plain, logits(t, m, nil))
	require.NoError(t, one.Activate())
	require.Equal(t, withOne, logits(t, m, nil))
	require.NoError(t, one.Merge())
	require.ErrorContains(t, two.Activate(), "adapter one is merged into the weights: want Unmerge first")
	require.ErrorContains(t, tensor.Try(func() { logits(t, m, without) }), "has adapter one merged into it")
	one.Remove()
	require.InDeltaSlice(t, withOne, logits(t, m, nil), 1e-6)
	require.NoError(t, two.Activate())
	require.Zero(t, logits(t, m, nil)[0])
	two.Remove()
	require.Equal(t, nn.NamedParameters(tiny(t))[5].Name, nn.NamedParameters(m)[5].Name)
	require.True(t, nn.NamedParameters(m)[0].RequiresGrad())
}

// The model may be bfloat16 beside an adapter in float32.
func TestHalfBase(t *testing.T) {
	var g goldenCase
	for name, c := range readGolden(t).Cases {
		if name == "llama patterns" {
			g = c
		}
	}
	dir, saved := g.folders(t)
	m, err := models.LoadPretrained(tensor.CPU(), dir, models.WithDType(tensor.BFloat16))
	require.NoError(t, err)
	_, err = lora.Load(m, saved, "")
	require.NoError(t, err)
	for _, p := range nn.NamedParameters(m) {
		want := tensor.BFloat16
		if strings.Contains(p.Name, ".lora_") {
			want = tensor.Float32
		}
		require.Equal(t, want, p.DType(), p.Name)
	}
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	ids := tensor.FromSlice(c, []int64{3, 4, 5, 6}, 1, 4)
	h := m.(*transformer.Model).Decoder.Embed.Forward(nn.NewCtx(c, nn.Walk(m), false), ids)
	require.Equal(t, tensor.BFloat16, m.(*transformer.Model).Decoder.Layers[0].MLP.Gate.Forward(
		nn.NewCtx(c, nn.Walk(m), false), h).DType())
}

// What is not built, and what makes no sense, is refused by name.
func TestRefusals(t *testing.T) {
	parse := func(more string) error {
		_, err := lora.ParseConfig([]byte(`{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]` + more + `}`))
		return err
	}
	require.NoError(t, parse(`, "some_new_key": null, "other": false`))
	for more, want := range map[string]string{
		`, "use_dora": true`:               "use_dora is true, which is not built",
		`, "use_qalora": true`:             "use_qalora is true",
		`, "lora_bias": true`:              "lora_bias is true",
		`, "layer_replication": [[0, 4]]`:  "layer_replication is [[0,4]]",
		`, "trainable_token_indices": [1]`: "trainable_token_indices is [1]",
		`, "target_parameters": ["x"]`:     `target_parameters is ["x"]`,
		`, "alora_invocation_tokens": [1]`: "alora_invocation_tokens is [1]",
		`, "some_new_key": 1`:              "some_new_key is 1, which is not built",
		`, "lora_dropout": 1.5`:            "lora_dropout is 1.5: want a probability in [0, 1)",
		`, "lora_alpha": 0`:                "lora_alpha is 0, with which an adapter changes nothing",
		`, "task_type": "CHAT"`:            "task_type is CHAT: want none, or one of CAUSAL_LM, SEQ_CLS",
		`, "init_lora_weights": "pissa"`:   `init_lora_weights is "pissa", which changes the weights of the model too`,
		`, "init_lora_weights": "OLoRA"`:   `init_lora_weights is "OLoRA"`,
		`, "init_lora_weights": "loftq"`:   `init_lora_weights is "loftq"`,
		`, "init_lora_weights": "corda"`:   `init_lora_weights is "corda"`,
		`, "init_lora_weights": "lora_ga"`: "path_initial_model_for_weight_conversion=INITIAL",
		`, "lora_alpha": "x"`:              `lora_alpha is "x"`,
		`, "bias": "some"`:                 "bias is some: want none, all or lora_only",
		`, "rank_pattern": {"a": 0}`:       "rank_pattern.a is 0: want at least 1",
		`, "target_modules": 3`:            `target_modules`,
		`, "layers_pattern": "h"`:          "layers_pattern is [h]: want none, or layers_to_transform too",
		`, "r": -1`:                        "r",
	} {
		require.ErrorContains(t, parse(more), want)
	}
	for _, began := range []string{`true`, `false`, `"gaussian"`, `"eva"`, `"mica"`, `"orthogonal"`} {
		require.NoError(t, parse(`, "init_lora_weights": `+began), "the model's weights stay as they are")
	}
	_, err := lora.ParseConfig([]byte(`{"peft_type": "VERA", "r": 256}`))
	require.ErrorContains(t, err, `peft_type is "VERA", which is not built: want LORA`)

	for want, cfg := range map[string]lora.Config{
		`init_lora_weights "pissa" is not built`:               {Init: "pissa"},
		"target_modules (c_attn) chooses no module: want some": {TargetModules: lora.ParseTargets("c_attn")},
		"task_type is CHAT":                                    {TaskType: "CHAT"},
		"chooses model.embed_tokens, a nn.Embedding, which":    {TargetModules: lora.ParseTargets("embed_tokens", "v")},
		"chooses lm_head, a nn.LMHead":                         {TargetModules: lora.ParseTargets("lm_head")},
		"the regular expression \"(\"":                         {TargetModules: lora.ParseTargets("(")},
		"modules_to_save has classes, which is not a module":   {ModulesToSave: []string{"classes"}},
		"the memory of":                                        {R: 1 << 40},
	} {
		m := tiny(t)
		_, err := lora.New(m, cfg)
		require.ErrorContains(t, err, want)
		require.True(t, nn.NamedParameters(m)[0].RequiresGrad(), "the model is unchanged")
	}
	tied := tiny(t).Cfg
	tied.TieWordEmbeddings = true
	m, err := transformer.New(nn.NewInit(tensor.CPU(), 0), tied)
	require.NoError(t, err)
	_, err = lora.New(m, lora.Config{ModulesToSave: []string{"lm_head"}})
	require.ErrorContains(t, err, "lm_head is tied to model.embed_tokens.weight: PEFT would train a copy")
}

// Words of a flag are names, an expression, or all-linear. Names that are of no layer are known.
func TestTargets(t *testing.T) {
	names := func(names ...string) lora.Targets { return lora.Targets{Names: names} }
	for words, want := range map[string]lora.Targets{
		"q_proj": names("q_proj"), "q_proj v_proj": names("q_proj", "v_proj"),
		"q_proj,v_proj": names("q_proj", "v_proj"),
		"all-linear":    lora.AllLinear, "ALL-LINEAR": {Pattern: "ALL-LINEAR"}, `.*[qv]_proj`: {Pattern: `.*[qv]_proj`},
		"q{1,2}_proj": {Pattern: "q{1,2}_proj"},
	} {
		require.Equal(t, want, lora.ParseTargets(strings.Fields(words)...), words)
	}
	targets := lora.ParseTargets("q_proj", "v_prj", "layers.0.mlp.up_proj")
	a, err := lora.New(tiny(t), lora.Config{TargetModules: targets})
	require.NoError(t, err)
	require.Equal(t, []string{"v_prj"}, a.Unmatched())
}

// A pattern matches as Python's re.match(r"(.*\.)?(PATTERN)$", path), compiled or not, and not too many are compiled.
func TestPatterns(t *testing.T) {
	rank := func(pattern string) int {
		a, err := lora.New(tiny(t), lora.Config{R: 2, RankPattern: map[string]int{pattern: 3},
			TargetModules: lora.ParseTargets("q_proj")})
		require.NoError(t, err)
		return a.Layers()[1].Rank
	}
	for pattern, matches := range map[string]bool{
		"q_proj": true, "self_attn.q_proj": true, "model.layers.1.self_attn.q_proj": true, "se.f_attn.q_proj": true,
		"......": true, "(q)_proj": true, `layers\.1.*`: true, "^model.*": true, "q_proj$": true, "_proj": false,
		"attn.q_proj": false, "(_proj)": false, "layers.0.self_attn.q_proj": false, "self_attn": false,
		"x.model.layers.1.self_attn.q_proj": false, "^layers.*": false, ".....": false, "": false,
	} {
		require.Equal(t, matches, rank(pattern) == 3, pattern)
	}
	many := func(form string) error {
		cfg := lora.Config{RankPattern: map[string]int{}}
		for i := range 5000 {
			cfg.RankPattern[fmt.Sprintf(form, i)] = 3
		}
		_, err := lora.New(tiny(t), cfg)
		return err
	}
	require.NoError(t, many("layers.%d.q_proj"))
	require.ErrorContains(t, many("layers[.]%d"), "one of more than 4096: want fewer, or names")
}

// A folder that a stranger wrote is read within bounds, and changes nothing if it does not fit.
func TestHostileFolders(t *testing.T) {
	g := readGolden(t).Cases["llama layers"]
	_, saved := g.folders(t)
	config := func(change func(all map[string]any)) {
		all := map[string]any{}
		require.NoError(t, json.Unmarshal(g.AdapterConfig, &all))
		change(all)
		text, err := json.Marshal(all)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(saved, models.AdapterConfigFile), text, 0o600))
	}
	dir, _ := g.folders(t)
	m := load(t, dir)
	plain := logits(t, m, nil)
	fails := func(want string) {
		t.Helper()
		_, err := lora.Load(m, saved, "")
		require.ErrorContains(t, err, want)
		require.Len(t, nn.NamedParameters(m), len(g.Names))
		require.Equal(t, plain, logits(t, m, nil))
	}
	config(func(all map[string]any) { all["r"] = 1 << 40 })
	fails("model.layers.1.mlp.up_proj.lora_A.weight is float32[3 16]: want floats of shape [1099511627776 16]")
	config(func(all map[string]any) { all["target_modules"], all["layers_to_transform"] = "(a+)+$", nil })
	fails("target_modules ((a+)+$) chooses no module")
	config(func(all map[string]any) {
		all["target_modules"], all["layers_to_transform"] = strings.Repeat("a", 5000)+"+", nil
	})
	fails("5001 bytes: want at most 4096")
	config(func(all map[string]any) { all["modules_to_save"] = nil })
	fails("base_model.model.lm_head.weight is not expected")
	config(func(all map[string]any) { all["target_modules"] = []string{"q_proj"} })
	fails("up_proj.lora_A.weight is not expected")
	config(func(map[string]any) {})
	require.NoError(t, os.Rename(filepath.Join(saved, models.AdapterFile), filepath.Join(saved, "adapter_model.bin")))
	fails("There is adapter_model.bin, a pickle")
	write(t, filepath.Join(saved, models.AdapterFile), g.Arrays)
	text, err := os.ReadFile(filepath.Join(saved, models.AdapterFile))
	require.NoError(t, err)
	copy(text[len(text)-4:], []byte{0, 0, 0xC0, 0x7F}) // NaN
	require.NoError(t, os.WriteFile(filepath.Join(saved, models.AdapterFile), text, 0o600))
	fails("has 1 of")
	_, err = lora.Load(m, t.TempDir(), "")
	require.ErrorContains(t, err, "is not a saved adapter")
}

func FuzzParseConfig(f *testing.F) {
	var g golden
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(f, err)
	require.NoError(f, json.Unmarshal(text, &g))
	for _, c := range g.Cases {
		f.Add([]byte(c.AdapterConfig))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg, err := lora.ParseConfig(text)
		if err != nil {
			return
		}
		again, err := cfg.MarshalJSON()
		require.NoError(t, err)
		same, err := lora.ParseConfig(again)
		require.NoError(t, err)
		twice, err := same.MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, string(again), string(twice))
	})
}

// FuzzLoad: a saved adapter is loaded, or refused and the model is as it was, in memory that the model accounts for.
func FuzzLoad(f *testing.F) {
	var g golden
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(f, err)
	require.NoError(f, json.Unmarshal(text, &g))
	for _, name := range []string{"llama layers", "llama patterns", "llama regex"} {
		c := g.Cases[name]
		path := filepath.Join(f.TempDir(), models.AdapterFile)
		write(f, path, c.Arrays)
		arrays, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add([]byte(c.AdapterConfig), arrays)
	}
	m := tiny(f)
	names, dir := nn.NamedParameters(m), f.TempDir()
	f.Fuzz(func(t *testing.T, config, arrays []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, models.AdapterConfigFile), config, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, models.AdapterFile), arrays, 0o600))
		before := tensor.CPU().MemStats().InUse
		a, err := lora.Load(m, dir, "")
		if err == nil {
			require.LessOrEqual(t, tensor.CPU().MemStats().InUse-before, int64(len(arrays)+1<<12))
			a.Remove()
		}
		require.Equal(t, names, nn.NamedParameters(m))
	})
}

// A name of modules_to_save is the end of a path, as PEFT 0.21 has it.
func TestModulesToSaveAreEndsOfPaths(t *testing.T) {
	a, err := lora.New(tiny(t), lora.Config{ModulesToSave: []string{"norm"}})
	require.NoError(t, err)
	var whole []string
	for _, array := range a.Arrays() {
		if !strings.Contains(array.Name, ".lora_") {
			whole = append(whole, strings.TrimPrefix(array.Name, "base_model.model.model."))
		}
	}
	slices.Sort(whole)
	require.Equal(t, []string{"layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight",
		"layers.1.input_layernorm.weight", "layers.1.post_attention_layernorm.weight", "norm.weight"}, whole)
}

// An adapter goes onto the model that it was trained on, which may have moved. PEFT's do not say which that is.
func TestAnotherBase(t *testing.T) {
	g := readGolden(t).Cases["llama patterns"]
	base, saved := g.folders(t)
	moved, _ := g.folders(t)
	onto := func(dir string) error {
		a, err := lora.LoadOnto(load(t, dir), dir, saved, "")
		if err == nil {
			require.Equal(t, dir, a.Config.BaseModel)
		}
		return err
	}
	require.NoError(t, onto(base))
	digest, err := models.WeightsDigest(base)
	require.NoError(t, err)
	text, err := json.Marshal(models.AdaptedBase{Path: base, SHA256: digest})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(saved, models.AdapterBaseFile), text, 0o600))
	require.NoError(t, onto(base))
	require.NoError(t, onto(moved))
	another := t.TempDir()
	require.NoError(t, models.SavePretrained(another, tiny(t)))
	require.ErrorContains(t, onto(another), "the adapter was trained on the model of "+base)
	require.NoError(t, os.WriteFile(filepath.Join(saved, models.AdapterBaseFile), []byte(`{"path": 1}`), 0o600))
	require.ErrorContains(t, onto(base), models.AdapterBaseFile+": path is 1")
}

// With adapters on all linear layers a block keeps for its gradients the operands of attention and of the gate, the
// inputs of its norms and what each A gives, and nothing twice: what norms and the gate give is computed again.
func TestWhatABlockKeeps(t *testing.T) {
	const tokens, rank = 16, 2
	var cfg transformer.Config
	kept := func(layers int) int {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		var err error
		cfg, err = transformer.DefaultConfig("llama")
		require.NoError(t, err)
		cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 40, 32, 48, layers
		cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim, cfg.MaxPositions = 4, 2, 8, 64
		m, err := transformer.New(nn.NewInit(dev, 7), cfg)
		require.NoError(t, err)
		_, err = lora.New(m, lora.Config{R: rank, TargetModules: lora.AllLinear, Init: lora.InitRandom})
		require.NoError(t, err)
		c := nn.NewCtx(tensor.NewCtx(dev), nn.Walk(m), true)
		var more int64
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			ids := tensor.FromSlice(c.Ctx, make([]int64, tokens), 1, tokens)
			before := dev.MemStats().InUse
			c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
				return []*tensor.Tensor{m.Forward(c, &data.Batch{Tensors: map[string]*tensor.Tensor{
					data.InputIDs: ids}}).Logits}
			})
			more = dev.MemStats().InUse - before
			return nil
		})
		return int(more)
	}
	got := kept(3) - kept(2)
	heads, keys := cfg.NumAttentionHeads*cfg.HeadDim, cfg.NumKeyValueHeads*cfg.HeadDim
	perToken := 2*cfg.HiddenSize + 2 + // inputs of norms, and their root mean squares
		2*heads + 2*keys + cfg.NumAttentionHeads + // of attention: also its result and the sums of its rows
		2*cfg.IntermediateSize + 7*rank
	require.Equal(t, 4*tokens*perToken, got)
}

// The precision that an adapter is trained on is that of its layers' weights.
func TestPrecisionOfTheBase(t *testing.T) {
	for want, make := range map[string]func(*nn.Init) *nn.Init{
		"float32": func(init *nn.Init) *nn.Init { return init }, "q8_0": func(init *nn.Init) *nn.Init { return init },
		"bfloat16": func(init *nn.Init) *nn.Init { return init.As(tensor.BFloat16) },
	} {
		cfg := tiny(t).Cfg
		cfg.HiddenSize = 32
		m, err := transformer.New(make(nn.NewInit(tensor.CPU(), 7)), cfg)
		require.NoError(t, err)
		if want == "q8_0" {
			models.Quantize(m)
		}
		a, err := lora.New(m, lora.Config{TargetModules: lora.AllLinear})
		require.NoError(t, err)
		base, err := a.Base()
		require.NoError(t, err)
		require.Equal(t, models.AdaptedBase{Precision: want}, base)
	}
}
