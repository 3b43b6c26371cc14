// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// set gives one element of a parameter or buffer a value.
func set(m nn.Module, name string, index int, v float64) {
	for _, p := range nn.Walk(m).State() {
		if p.Name == name {
			c := tensor.NewCtx(p.Device()).NoGrad()
			flat := tensor.Reshape(c, p.Tensor, p.Numel())
			tensor.FillInto(c, tensor.Slice(c, flat, 0, index, index+1), v)
			c.Sync()
			return
		}
	}
	panic(name)
}

// A model that training has ruined is no model to continue with, unless it is asked for.
func TestNonFiniteWeightsAreRefused(t *testing.T) {
	const first, second = "transformer.wpe.weight", "transformer.h.1.mlp.c_fc.bias"
	m := smallGPT2(t, 3, nil)
	set(m, first, 5, math.NaN())
	set(m, first, 6, math.Inf(-1))
	set(m, second, 31, math.Inf(1))
	dir := save(t, m)
	_, err := models.LoadPretrained(tensor.CPU(), dir)
	require.EqualError(t, err, dir+": models: the saved weights are not finite: "+first+" has 2 of 64; "+second+
		" has 1 of 32")
	_, err = models.LoadPretrained(tensor.CPU(), dir, models.AllowNonFinite(first))
	require.EqualError(t, err, dir+": models: the saved weights are not finite: "+second+" has 1 of 32")
	for _, allow := range []models.LoadOption{models.AllowNonFinite(), models.AllowNonFinite(first, second)} {
		got, err := models.LoadPretrained(tensor.CPU(), dir, allow)
		require.NoError(t, err)
		require.Equal(t, weights(m), weights(got))
	}
}

// Weights that are finite where they are saved and not in the model's dtype are no weights either.
func TestWeightsThatOverflowWhenNarrowedAreRefused(t *testing.T) {
	for _, c := range []struct {
		from, to  tensor.DType
		fits, not float64
	}{
		{tensor.Float32, tensor.Float16, 65519, 65520},
		{tensor.BFloat16, tensor.Float16, 65280, 65536},
		{tensor.Float64, tensor.Float32, math.MaxFloat32, 2 * math.MaxFloat32},
		{tensor.Float64, tensor.BFloat16, 3.38e38, math.MaxFloat32},
		{tensor.Float32, tensor.BFloat16, 3.38e38, math.MaxFloat32},
	} {
		for _, v := range []float64{c.fits, c.not} {
			cfg := smallGPT2(t, 1, nil).Cfg
			from, err := gpt2.New(nn.NewInit(tensor.CPU(), 1).As(c.from), cfg)
			require.NoError(t, err)
			set(from, "transformer.ln_f.bias", 2, -v)
			var arrays []safetensors.Tensor
			for _, p := range nn.NamedParameters(from) {
				arrays = append(arrays, array(p.Name, c.from, p.Tensor))
			}
			to, err := gpt2.New(nn.NewInit(tensor.CPU(), 1).As(c.to), cfg)
			require.NoError(t, err)
			err = load(t, to, arrays...)
			if v == c.fits {
				require.NoError(t, err, "%v to %v", c.from, c.to)
				continue
			}
			require.ErrorContains(t, err, fmt.Sprintf("transformer.ln_f.bias has 1 of 8 that %v cannot hold", c.to))
		}
	}
}

// A buffer may have infinities where the model makes them itself; the running statistics of a norm may not.
func TestNonFiniteBuffers(t *testing.T) {
	cfg := resnet.ResNet18("cat", "dog")
	cfg.HiddenSizes, cfg.Depths = []int{4}, []int{1}
	m, err := resnet.New(nn.NewInit(tensor.CPU(), 3), cfg)
	require.NoError(t, err)
	name := nn.Walk(m).Buffers()[1].Name
	set(m, name, 0, math.Inf(1))
	_, err = models.LoadPretrained(tensor.CPU(), save(t, m))
	require.ErrorContains(t, err, name+" has 1 of")

	masked := func(v float64) *masked {
		return &masked{Mask: nn.NewInit(tensor.CPU(), 1).Buffer(tensor.Float32, v, 3)}
	}
	saved := array("mask", tensor.Float32, masked(math.Inf(-1)).Mask.Tensor)
	require.NoError(t, load(t, masked(math.Inf(-1)), saved))
	require.ErrorContains(t, load(t, masked(0), saved), "mask has 3 of 3")
}

// masked is a model with a mask.
type masked struct {
	models.Model
	Mask *nn.Buffer `nn:"mask"`
}

// A config.json of a few bytes takes no memory for a model that its weights are not of, nor for one that no machine
// holds. Each of these models is larger than what a test may use.
func TestConfigsMadeToExhaustMemoryAreRefused(t *testing.T) {
	small := smallGPT2(t, 3, nil)
	text, err := models.ConfigJSON(small)
	require.NoError(t, err)
	dir := save(t, small)
	gpt := func(old, new string) string {
		require.Contains(t, string(text), old)
		return strings.Replace(string(text), old, new, 1)
	}
	sizes := `{"model_type": "mlp", "sizes": [1` + strings.Repeat(",1", 400_000) + `]}`
	for name, c := range map[string]struct{ config, loaded, fresh string }{
		"layers": {gpt(`"n_layer": 2`, `"n_layer": 10000000`), "more than 156 parameters and buffers",
			"more than 200000 parameters and buffers"},
		"vocabulary": {gpt(`"vocab_size": 11`, `"vocab_size": 1000000000000`),
			"with it the model has 3.2e+13 bytes, the memory of", "with it the model has 3.2e+13 bytes, the memory of"},
		"a little larger": {gpt(`"vocab_size": 11`, `"vocab_size": 100000`),
			"transformer.wte.weight is float32[11 8]: want float32[100000 8]", ""},
		"overflow": {gpt(`"vocab_size": 11`, `"vocab_size": 4611686018427387904`),
			"with it the model has 1.476e+20 bytes", "with it the model has 1.476e+20 bytes"},
		"positions": {gpt(`"n_positions": 8`, `"n_positions": 100000000000`), "with it the model has",
			"with it the model has"},
		"widths": {sizes, "more than 156 parameters and buffers", "more than 200000 parameters and buffers"},
		"classes": {`{"model_type": "resnet", "num_labels": 1000000000000}`, "num_labels = 1000000000000",
			"num_labels = 1000000000000"},
		"depths": {`{"model_type": "resnet", "depths": [3, 1000000000, 6, 3]}`, "more than 156 parameters and buffers",
			"more than 200000 parameters and buffers"},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), []byte(c.config), 0o600))
		before := tensor.CPU().MemStats()
		_, err := models.LoadPretrained(tensor.CPU(), dir)
		require.ErrorContains(t, err, c.loaded, name)
		if c.fresh != "" {
			_, err = models.FromConfig(nn.NewInit(tensor.CPU(), 0), []byte(c.config))
			require.ErrorContains(t, err, c.fresh, name)
		}
		require.Equal(t, before.Allocs, tensor.CPU().MemStats().Allocs, "%s: no tensor was made", name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), make([]byte, 1<<20+1), 0o600))
	_, err = models.LoadPretrained(tensor.CPU(), dir)
	require.ErrorContains(t, err, "file is too large: want at most ")
	_, err = models.ReadConfig(dir)
	require.ErrorContains(t, err, "file is too large: want at most ")
}

// A header may claim as much as it likes: what the file does not hold is not made room for.
func TestWeightsThatClaimMoreThanTheirFileAreRefused(t *testing.T) {
	dir := save(t, smallGPT2(t, 3, nil))
	header := `{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}`
	raw := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.WeightsFile), raw, 0o600))
	_, err := models.LoadPretrained(tensor.CPU(), dir)
	require.ErrorContains(t, err, "file is truncated: it has 0 bytes of tensors, its header describes 4000000000000")
}

// FuzzFromConfig: a config.json is refused, or the model made of it says the same of itself when it is saved, whatever
// else the file holds.
func FuzzFromConfig(f *testing.F) {
	for _, text := range []string{
		`{"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_inner": null, "dtype": "float32", "x": [1e3]}`,
		`{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"], "num_labels": 3, "pad_token_id": 0, "n_embd": 12, "n_layer": 1}`,
		`{"model_type": "mlp", "sizes": [2, 3, 1], "activation": "tanh", "loss": "cross_entropy"}`,
		`{"model_type": "resnet", "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic", "id2label": {"0": "a", "1": "b"}}`,
	} {
		f.Add([]byte(text))
	}
	meta := tensor.NewMeta()
	f.Fuzz(func(t *testing.T, config []byte) {
		in := nn.NewInit(meta, 0).Dry(300)
		m, err := models.FromConfig(in, config)
		if err != nil {
			return
		}
		m.(interface{ KeepConfig(string) }).KeepConfig(string(config))
		text, err := models.ConfigJSON(m)
		require.NoError(t, err)
		again, err := models.FromConfig(in.Dry(0), text)
		require.NoError(t, err, "%s", text)
		require.Equal(t, m.Config(), again.Config())
	})
}

// A configuration that a program makes, of its flags say, is refused in the same way.
func TestModelsTooLargeAreErrors(t *testing.T) {
	cfg := smallGPT2(t, 1, nil).Cfg
	before := tensor.CPU().MemStats().Allocs
	cfg.NLayer = 10_000_000
	_, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.ErrorContains(t, err, "more than 200000 parameters and buffers")
	cfg.NLayer, cfg.VocabSize = 1, 1<<50
	_, err = gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.ErrorContains(t, err, "with it the model has 3.603e+16 bytes")
	_, err = resnet.New(nn.NewInit(tensor.CPU(), 1),
		resnet.Config{NumChannels: 1 << 40, EmbeddingSize: 1 << 20, HiddenSizes: []int{4}, Depths: []int{1},
			LayerType: "basic", HiddenAct: "relu", ID2Label: models.Labels("a", "b")})
	require.ErrorContains(t, err, "resnet: ")
	_, err = mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: []int{1 << 30, 1 << 30}})
	require.ErrorContains(t, err, "mlp: ")
	require.Equal(t, before, tensor.CPU().MemStats().Allocs)
}
