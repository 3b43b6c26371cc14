// SPDX-License-Identifier: Apache-2.0

package lora_test

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// golden is what testdata/golden.py wrote.
type golden struct {
	Choices map[string]struct {
		Task         string
		Config       json.RawMessage
		All, Default []string
	}
	Cases map[string]goldenCase
}

type goldenCase struct {
	Config        json.RawMessage
	Names         map[string][]int
	AdapterConfig json.RawMessage `json:"adapter_config"`
	Arrays        map[string][]int
	Logits, Plain []float64
}

func readGolden(t *testing.T) (g golden) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	require.Len(t, g.Cases, 15)
	require.Len(t, g.Choices, 12)
	return g
}

// rule is that of testdata/golden.py: n numbers in [−1, 1) from a name.
func rule(name string, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		x := uint32(i+1)*0x9E3779B9 + crc32.ChecksumIEEE([]byte(name))
		x = (x ^ x>>16) * 0x85EBCA6B
		x = (x ^ x>>13) * 0xC2B2AE35
		out[i] = float64(x^x>>16)/(1<<31) - 1
	}
	return out
}

// weight are the values of an array.
func weight(name string, shape []int) []float32 {
	n := 1
	for _, s := range shape {
		n *= s
	}
	out := make([]float32, n)
	offset := 0.0
	for _, norm := range []string{"norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight"} {
		if strings.HasSuffix(name, norm) {
			offset = 1
		}
	}
	for i, v := range rule(name, n) {
		out[i] = float32(v*0.2 + offset)
	}
	return out
}

// write writes arrays of values by the rule.
func write(t testing.TB, path string, shapes map[string][]int) {
	var list []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		list = append(list, safetensors.Tensor{Name: name, DType: tensor.Float32, Shape: shapes[name],
			Write: func(w io.Writer) error {
				return binary.Write(w, binary.LittleEndian, weight(name, shapes[name]))
			}})
	}
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(f, list, safetensors.PyTorchMetadata()))
	require.NoError(t, f.Close())
}

// folders are those of a case's model and adapter.
func (c goldenCase) folders(t *testing.T) (model, adapter string) {
	model, adapter = t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(model, models.ConfigFile), c.Config, 0o600))
	write(t, filepath.Join(model, models.WeightsFile), c.Names)
	require.NoError(t, os.WriteFile(filepath.Join(adapter, models.AdapterConfigFile), c.AdapterConfig, 0o600))
	write(t, filepath.Join(adapter, models.AdapterFile), c.Arrays)
	return model, adapter
}

func load(t *testing.T, dir string, opts ...models.LoadOption) models.Configured {
	m, err := models.LoadPretrained(tensor.CPU(), dir, opts...)
	require.NoError(t, err)
	return m
}

// logits are those of the last tokens of two texts, or of the texts.
func logits(t *testing.T, m models.Model, context func(c *nn.Ctx) *nn.Ctx) (list []float64) {
	const rows, length, vocabulary = 2, 6, 24
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	ids := make([]int64, rows*length)
	for i, u := range rule("ids", len(ids)) {
		ids[i] = int64((u+1)/2*(vocabulary-3)) + 3
	}
	net := nn.NewCtx(c, nil, false)
	if context != nil {
		net = context(net)
	}
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: tensor.FromSlice(c, ids, rows, length)},
			Size: rows}
		y := m.Forward(net.With(c), b).Logits
		if y.Dim() == 3 {
			y = tensor.Select(c, y, 1, -1)
		}
		list = append(list, tensor.ToSlice[float64](c, tensor.Cast(c, y, tensor.Float64))...)
		return nil
	})
	return list
}

func without(c *nn.Ctx) *nn.Ctx { return c.WithAdapters() }

// The modules that are adapted are those that PEFT adapts, for every family.
func TestTargetsAreThoseOfPEFT(t *testing.T) {
	for name, want := range readGolden(t).Choices {
		chosen := func(cfg lora.Config) ([]string, error) {
			cfg.TaskType = want.Task
			m, err := models.FromConfig(nn.NewInit(tensor.CPU(), 0), want.Config)
			require.NoError(t, err)
			a, err := lora.New(m, cfg)
			if err != nil {
				return nil, err
			}
			var paths []string
			for _, array := range a.Arrays() {
				path, ok := strings.CutSuffix(strings.TrimPrefix(array.Name, "base_model.model."), ".lora_A.weight")
				if ok {
					paths = append(paths, path)
				}
			}
			slices.Sort(paths)
			return paths, nil
		}
		all, err := chosen(lora.Config{TargetModules: lora.AllLinear})
		require.NoError(t, err, name)
		require.Equal(t, want.All, all, name)
		usual, err := chosen(lora.Config{})
		if want.Default == nil {
			require.ErrorContains(t, err, "PEFT has no target_modules for the model type", name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, want.Default, usual, name)
	}
}

// precise compares logits with and without the adapter in float64, so that PEFT's roundings alone are left.
func precise(t *testing.T, dir, saved string, g goldenCase) {
	m := load(t, dir, models.WithDType(tensor.Float64))
	a, err := lora.Load(m, saved, "")
	require.NoError(t, err)
	exact := 1e-6 * max(1, slices.Max(g.Logits)) // float32 rounds larger logits more
	require.InDeltaSlice(t, g.Logits, logits(t, m, nil), exact)
	if _, err := a.Without(nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false)); err == nil {
		require.InDeltaSlice(t, g.Plain, logits(t, m, without), exact)
	}
	a.Deactivate()
	require.InDeltaSlice(t, g.Plain, logits(t, m, nil), exact)
}

// An adapter that PEFT saved computes here what it computes there, merged or not, and is saved again as it was. One
// that is made here has the same configuration and arrays.
func TestAdaptersAreThoseOfPEFT(t *testing.T) {
	for name, g := range readGolden(t).Cases {
		t.Run(name, func(t *testing.T) {
			dir, saved := g.folders(t)
			m := load(t, dir)
			a, err := lora.Load(m, saved, "")
			require.NoError(t, err)
			precise(t, dir, saved, g)
			rounded := 2e-6 * max(1, slices.Max(g.Logits)) // by PEFT and here
			require.InDeltaSlice(t, g.Logits, logits(t, m, nil), rounded)

			again := t.TempDir()
			require.NoError(t, a.Save(again))
			require.Equal(t, arrays(t, saved), arrays(t, again))
			require.Equal(t, document(t, saved), document(t, again))

			made := t.TempDir()
			cfg, err := lora.ReadConfig(saved)
			require.NoError(t, err)
			fresh, err := lora.New(load(t, dir), cfg)
			require.NoError(t, err)
			require.NoError(t, fresh.Save(made))
			require.Equal(t, document(t, saved), document(t, made))
			require.Equal(t, sizes(arrays(t, saved)), sizes(arrays(t, made)))

			a.Deactivate()
			require.InDeltaSlice(t, g.Plain, logits(t, m, nil), rounded)
			require.NoError(t, a.Activate())
			require.NoError(t, a.Merge())
			require.InDeltaSlice(t, g.Logits, logits(t, m, nil), 1e-5)
			require.NoError(t, a.Unmerge())
			require.InDeltaSlice(t, g.Logits, logits(t, m, nil), 1e-5)
			require.NotEqual(t, g.Plain, g.Logits)
		})
	}
}

// arrays are the bytes of a saved adapter's arrays.
func arrays(t *testing.T, dir string) map[string]string {
	set, err := safetensors.OpenSet(vfs.OS, dir, models.AdapterBase)
	require.NoError(t, err)
	list := map[string]string{}
	for _, name := range set.Names() {
		e, _ := set.Lookup(name)
		text, err := e.Read()
		require.NoError(t, err)
		list[name] = string(text)
	}
	require.NoError(t, set.Close())
	return list
}

// sizes are those of arrays, in bytes.
func sizes(arrays map[string]string) map[string]int {
	list := map[string]int{}
	for name, text := range arrays {
		list[name] = len(text)
	}
	return list
}

// document is the configuration of a saved adapter. PEFT keeps names as a set.
func document(t *testing.T, dir string) (all map[string]any) {
	text, err := os.ReadFile(filepath.Join(dir, models.AdapterConfigFile))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	if names, ok := all["target_modules"].([]any); ok {
		slices.SortFunc(names, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	}
	return all
}
