// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func smallGPT2(t *testing.T, seed uint64, change func(*gpt2.Config)) *gpt2.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 11, 8, 8, 2, 2
	if change != nil {
		change(&cfg)
	}
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), seed), cfg)
	require.NoError(t, err)
	return m
}

// save writes a model folder as transformers would find it.
func save(t *testing.T, m models.Configured) string {
	dir := t.TempDir()
	config, err := models.ConfigJSON(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), config, 0o600))
	require.NoError(t, models.SaveWeights(m, dir))
	return dir
}

func weights(m nn.Module) map[string][]byte {
	out := map[string][]byte{}
	for _, p := range nn.Walk(m).State() {
		out[p.Name] = tensor.ReadBytes(tensor.NewCtx(p.Device()), p.Tensor)
	}
	return out
}

func TestWeightsRoundTrip(t *testing.T) {
	line, err := mlp.New(nn.NewInit(tensor.CPU(), 3),
		mlp.Config{Sizes: []int{2, 5, 1}, Activation: "tanh", Loss: "mse"})
	require.NoError(t, err)
	cfg := resnet.ResNet18("cat", "dog")
	cfg.HiddenSizes, cfg.Depths = []int{4, 8}, []int{1, 1}
	residual, err := resnet.New(nn.NewInit(tensor.CPU(), 3), cfg)
	require.NoError(t, err)
	for i, b := range nn.Walk(residual).Buffers() {
		tensor.FillInto(tensor.NewCtx(tensor.CPU()), b.Tensor, float64(i))
	}
	for _, m := range []models.Configured{
		smallGPT2(t, 3, nil), smallGPT2(t, 4, func(c *gpt2.Config) { c.TieWordEmbeddings = false }), line, residual,
	} {
		dir := save(t, m)
		got, err := models.LoadPretrained(tensor.CPU(), dir)
		require.NoError(t, err)
		require.IsType(t, m, got)
		require.Equal(t, m.ModelType(), got.ModelType())
		require.Equal(t, m.Config(), got.Config())
		require.Equal(t, weights(m), weights(got))
		again := save(t, got)
		for _, name := range []string{models.ConfigFile, models.WeightsFile} {
			a, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(again, name))
			require.NoError(t, err)
			require.Equal(t, a, b, "%s is written the same again", name)
		}
	}
}

// A model loads onto the device that it is asked for and trains there.
func TestLoadPretrainedDevice(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	m := smallGPT2(t, 3, nil)
	got, err := models.LoadPretrained(dev, save(t, m))
	require.NoError(t, err)
	require.Equal(t, weights(m), weights(got))
	nn.NewCtx(tensor.NewCtx(dev), nil, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
		ids := tensor.FromSlice(c.Ctx, []int64{1, 2, 3}, 1, 3)
		out := got.Forward(c, &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: ids, data.Labels: ids}})
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil)
		return nil
	})
	for _, p := range nn.NamedParameters(got) {
		require.NotNil(t, p.Grad(), p.Name)
	}
}

// array is x as an array of a safetensors file.
func array(name string, dt tensor.DType, x *tensor.Tensor) safetensors.Tensor {
	c := tensor.NewCtx(x.Device()).NoGrad()
	raw := tensor.ReadBytes(c, tensor.Cast(c, x, dt))
	return safetensors.FromBytes(name, dt, x.Shape(), raw)
}

// load reads a set of arrays into m.
func load(t *testing.T, m models.Model, arrays ...safetensors.Tensor) error {
	dir := t.TempDir()
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, arrays, nil))
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.WeightsFile), b.Bytes(), 0o600))
	set, err := safetensors.OpenSet(vfs.OS, dir, models.WeightsBase)
	require.NoError(t, err)
	defer func() { require.NoError(t, set.Close()) }()
	return models.ReadWeights(set, m)
}

// Checkpoints of GPT2Model lack the prefix, and old ones carry constant masks and the tied
// head.
func TestReadWeightsOldNames(t *testing.T) {
	want := smallGPT2(t, 5, nil)
	mask := tensor.Ones(tensor.NewCtx(tensor.CPU()), tensor.Float32, 1, 1, 8, 8)
	var old []safetensors.Tensor
	for _, p := range nn.NamedParameters(want) {
		old = append(old, array(strings.TrimPrefix(p.Name, "transformer."), tensor.Float32, p.Tensor))
	}
	old = append(old, array("h.0.attn.bias", tensor.Float32, mask), array("h.1.attn.masked_bias", tensor.Float32, mask),
		array("lm_head.weight", tensor.Float32, want.LMHead.Weight.Tensor))
	got := smallGPT2(t, 6, nil)
	require.NoError(t, load(t, got, old...))
	require.Equal(t, weights(want), weights(got))
	require.Same(t, got.Transformer.WTE.Weight, got.LMHead.Weight, "still tied")
}

// Of the tied pair any name will do: save_model of safetensors.torch keeps lm_head.weight alone.
func TestReadWeightsOfEitherTiedName(t *testing.T) {
	want := smallGPT2(t, 5, nil)
	var saved []safetensors.Tensor
	for _, p := range nn.NamedParameters(want) {
		saved = append(saved, array(strings.Replace(p.Name, "transformer.wte", "lm_head", 1), tensor.Float32, p.Tensor))
	}
	got := smallGPT2(t, 6, nil)
	require.NoError(t, load(t, got, saved...))
	require.Equal(t, weights(want), weights(got))

	dir := save(t, want)
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, saved, nil))
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.WeightsFile), b.Bytes(), 0o600))
	for _, options := range [][]models.LoadOption{nil, {models.Deferred()}} {
		loaded, err := models.LoadPretrained(tensor.CPU(), dir, options...)
		require.NoError(t, err)
		require.Equal(t, weights(want), weights(loaded))
	}

	untied := smallGPT2(t, 6, func(c *gpt2.Config) { c.TieWordEmbeddings = false })
	require.ErrorContains(t, load(t, untied, saved...), "transformer.wte.weight is missing")
}

// Saved arrays of another floating dtype are converted.
func TestReadWeightsConverts(t *testing.T) {
	want := smallGPT2(t, 5, nil)
	for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float64} {
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		var arrays []safetensors.Tensor
		for _, p := range nn.NamedParameters(want) {
			arrays = append(arrays, array(p.Name, dt, p.Tensor))
		}
		got := smallGPT2(t, 6, nil)
		require.NoError(t, load(t, got, arrays...))
		for i, p := range nn.NamedParameters(got) {
			require.Equal(t, tensor.Float32, p.DType())
			rounded := tensor.Cast(c, tensor.Cast(c, nn.NamedParameters(want)[i].Tensor, dt), tensor.Float32)
			require.Equal(t, tensor.ReadBytes(c, rounded), tensor.ReadBytes(c, p.Tensor), p.Name)
		}
	}
}

// All that does not fit is listed at once, and then nothing was changed.
func TestReadWeightsErrors(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	m := smallGPT2(t, 5, nil)
	var arrays []safetensors.Tensor
	for _, p := range nn.NamedParameters(smallGPT2(t, 6, nil)) {
		switch p.Name {
		case "transformer.h.0.ln_1.weight": // missing
		case "transformer.wpe.weight":
			arrays = append(arrays, array(p.Name, tensor.Float32, tensor.Zeros(c, tensor.Float32, 9, 8)))
		case "transformer.ln_f.bias":
			arrays = append(arrays, array(p.Name, tensor.Int32, p.Tensor))
		default:
			arrays = append(arrays, array(p.Name, tensor.Float32, p.Tensor))
		}
	}
	arrays = append(arrays, array("score.weight", tensor.Float32, tensor.Zeros(c, tensor.Float32, 2)),
		array("ln_f.weight", tensor.Float32, tensor.Zeros(c, tensor.Float32, 8)))
	before := weights(m)
	require.EqualError(t, load(t, m, arrays...),
		"models: the saved weights do not fit *gpt2.Model: score.weight is not expected; "+
			"ln_f.weight and transformer.ln_f.weight are both transformer.ln_f.weight; "+
			"transformer.wpe.weight is float32[9 8]: want float32[8 8]; transformer.h.0.ln_1.weight is missing; "+
			"transformer.ln_f.bias is int32[8]: want float32[8]")
	require.Equal(t, before, weights(m))

	require.ErrorContains(t, load(t, m), "transformer.wte.weight is missing; ")
	require.ErrorContains(t, load(t, m), "; and 16 more")
}

func TestLoadPretrainedErrors(t *testing.T) {
	loadFrom := func(dir string) string {
		_, err := models.LoadPretrained(tensor.CPU(), dir)
		require.Error(t, err)
		return err.Error()
	}
	dir := t.TempDir()
	require.Contains(t, loadFrom(dir), "models: "+dir+" is not a saved model: ")
	config, types := filepath.Join(dir, models.ConfigFile), strings.Join(models.Types(), ", ")
	for _, k := range []struct{ text, want string }{
		{"{", dir + ": models: config.json: line 1, column 2: the text ends too early: want }"},
		{`{"model_type": "bort"}`,
			dir +
				`: models: config.json: model_type "bort" is not built in: want one of ` + types +
				` (import the model's package to register it)`},
		{`{}`,
			dir +
				`: models: config.json: model_type "" is not built in: want one of ` + types +
				` (import the model's package to register it)`},
		{`{"model_type": "mlp", "sizes": [1]}`, dir + ": mlp: config: sizes = [1]: want at least input and output"},
		{`{"model_type": "mlp", "sizes": "wide"}`,
			dir + ": mlp: config.json: sizes is \"wide\": want a list"},
	} {
		require.NoError(t, os.WriteFile(config, []byte(k.text), 0o600))
		require.Equal(t, k.want, loadFrom(dir))
	}
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "mlp", "sizes": [1, 1]}`), 0o600))
	require.Contains(t, loadFrom(dir), "models: ")
	require.Contains(t, loadFrom(dir), models.WeightsFile)

	whole := save(t, smallGPT2(t, 1, nil))
	text, err := os.ReadFile(filepath.Join(whole, models.WeightsFile))
	require.NoError(t, err)
	for _, n := range []int{0, 7, 100, len(text) - 1} {
		require.NoError(t, os.WriteFile(filepath.Join(whole, models.WeightsFile), text[:n], 0o600))
		require.Contains(t, loadFrom(whole), models.WeightsFile, "truncated to %d bytes", n)
	}
}

func TestRegistry(t *testing.T) {
	require.Subset(t, models.Types(), []string{"gpt2", "llama", "mlp", "resnet"})
	for name, parameters := range map[string]int{"gpt2": 124_439_808, "gpt2-medium": 354_823_168,
		"gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200} {
		require.Contains(t, models.Configs(), name)
		config, err := models.ReadConfig(name)
		require.NoError(t, err)
		m, err := models.FromConfig(nn.NewInit(tensor.NewMeta(), 0), config)
		require.NoError(t, err)
		require.Equal(t, parameters, nn.NumParameters(m), name)
	}
	require.PanicsWithValue(t, `models: model_type "mlp" registered twice`, func() { models.Register("mlp", nil) })
}

// WithDType makes parameters of a dtype, WithSavedDType those of the dtype that config.json or the weights have.
func TestLoadPretrainedInADType(t *testing.T) {
	saved := func(dt tensor.DType, config string) (dir string) {
		dir = t.TempDir()
		var arrays []safetensors.Tensor
		for _, p := range nn.NamedParameters(smallGPT2(t, 5, nil)) {
			arrays = append(arrays, array(p.Name, dt, p.Tensor))
		}
		f, err := os.Create(filepath.Join(dir, models.WeightsFile))
		require.NoError(t, err)
		require.NoError(t, safetensors.Write(f, arrays, nil))
		require.NoError(t, f.Close())
		require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), []byte(fmt.Sprintf(
			`{"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2%s}`,
			config)), 0o666))
		return dir
	}
	for _, k := range []struct {
		saved  tensor.DType
		config string
		opt    models.LoadOption
		want   tensor.DType
	}{
		{tensor.BFloat16, "", models.AllowNonFinite("x"), tensor.Float32},
		{tensor.Float32, "", models.WithDType(tensor.BFloat16), tensor.BFloat16},
		{tensor.BFloat16, "", models.WithDType(tensor.Float64), tensor.Float64},
		{tensor.BFloat16, "", models.WithSavedDType(), tensor.BFloat16},
		{tensor.Float32, `, "torch_dtype": "float16"`, models.WithSavedDType(), tensor.Float16},
		{tensor.Float32, `, "dtype": "bfloat16", "torch_dtype": "float16"`, models.WithSavedDType(), tensor.BFloat16},
	} {
		m, err := models.LoadPretrained(tensor.CPU(), saved(k.saved, k.config), k.opt)
		require.NoError(t, err)
		for _, p := range nn.NamedParameters(m) {
			require.Equal(t, k.want, p.DType(), p.Name)
		}
		text, err := models.ConfigJSON(m)
		require.NoError(t, err)
		require.Contains(t, string(text), fmt.Sprintf(`dtype": %q`, k.want), "what is saved says so")
	}
	for config, want := range map[string]string{
		`, "torch_dtype": "int8"`: `config.json: dtype "int8": want float32, float64, bfloat16 or float16`,
		`, "dtype": 3`:            `config.json: dtype is 3: want a text`,
	} {
		_, err := models.LoadPretrained(tensor.CPU(), saved(tensor.Float32, config), models.WithSavedDType())
		require.ErrorContains(t, err, want)
	}
	_, err := models.LoadPretrained(tensor.CPU(), saved(tensor.Float32, ""), models.WithDType(tensor.Int32))
	require.ErrorContains(t, err, "models: WithDType(int32): want float32, float64, bfloat16 or float16")
}
