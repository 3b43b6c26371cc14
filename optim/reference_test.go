// SPDX-License-Identifier: Apache-2.0

package optim_test

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

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// referenceParam is a parameter of a model of testdata/reference/reference.py.
type referenceParam struct {
	name  string
	shape []int
}

// referenceModels are the models there, and which elements of a parameter the golden has.
var referenceModels = map[string]struct {
	stride int
	params []referenceParam
}{
	"mlp": {1, []referenceParam{{"fc1.weight", []int{12, 20}}, {"fc1.bias", []int{12}}, {"fc2.weight", []int{3, 12}},
		{"fc2.bias", []int{3}}}},
	"conv": {1, []referenceParam{{"conv.weight", []int{4, 3, 3, 3}}, {"conv.bias", []int{4}},
		{"norm.weight", []int{4}}, {"head.weight", []int{5, 16}}, {"scale", []int{}}}},
	"wide": {29, []referenceParam{{"embed.weight", []int{80, 64}}, {"proj.weight", []int{65, 71}},
		{"proj.bias", []int{71}}}},
}

const referenceSteps = 50

// referenceNoise are numbers in [-1, 1) of 24 bits: the script's hash of key and index.
func referenceNoise(c *tensor.Ctx, key int, shape []int) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		x := uint32(i) + uint32(key*1_000_003)
		x ^= x >> 16
		x *= 0x7FEB352D
		x ^= x >> 15
		x ^= x >> 16
		x *= 0x846CA68B
		x ^= x >> 15
		values[i] = float32(x>>8)/(1<<23) - 1
	}
	return tensor.FromSlice(c, values, shape...)
}

// referenceRun trains a model; see is called after each step.
func referenceRun(c *tensor.Ctx, model string, lr float64, cfg optim.Config,
	see func(step int, params []tensor.Named)) {
	groups := []*optim.Group{{WeightDecay: 0.1}, {}}
	var params []tensor.Named
	for i, p := range referenceModels[model].params {
		named := tensor.Named{Name: p.name, Tensor: referenceNoise(c, i+1, p.shape).SetRequiresGrad(true)}
		params = append(params, named)
		group := groups[1]
		if len(p.shape) >= 2 {
			group = groups[0]
		}
		group.Params = append(group.Params, named)
	}
	groups[0].Embeddings = []string{"embed.weight"}
	opt := cfg.New(c, groups)
	for step := 1; step <= referenceSteps; step++ {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			for i, p := range params {
				grad := referenceNoise(c, 1000*step+i, p.Shape())
				tensor.AxpbyInto(c, grad, 1, grad, 0.25, p.Tensor)
				p.SwapGrad(c.Keep(grad), true)
			}
			return nil
		})
		opt.ScaleGrads(optim.ClipFactor(optim.GradNorm(c, params), 1))
		for _, g := range groups {
			g.LR = lr * min(float64(step)/5, float64(referenceSteps-step)/(referenceSteps-5))
		}
		opt.Step(c)
		opt.Eval(c)
		see(step, params)
		opt.Train(c)
	}
}

type referenceCase struct {
	Name     string                        `json:"name"`
	Settings map[string]any                `json:"settings"`
	LR       float64                       `json:"lr"`
	Sums     map[string]map[string]float64 `json:"sums"`
}

// referenceTolerance is how far parameters may be from the reference's, where 1e-5 is not enough for all: the share of
// elements that are farther, and how far they may be. They have moved by about 0.5.
var referenceTolerance = map[string]struct{ share, most float64 }{
	"muon/bfloat16":          {1, 0.003},    // products of bfloat16 against float32
	"adamw_8bit/library":     {0.08, 0.003}, // codes from a table, some of which are not the nearest
	"adamw_torch_8bit/plain": {0.01, 0.001}, // a quotient that rounding puts on the other side of a middle
}

// Fifty steps of three models, with groups that decay, clipping and a schedule, end where the reference implementation
// of the optimizer ends.
func TestReferenceGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/reference/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		i := slices.IndexFunc(catalog.Optimizers, func(o catalog.Optimizer) bool { return o.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		var manifest struct{ Cases []referenceCase }
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &manifest))
		require.NotEmpty(t, manifest.Cases)
		r, err := safetensors.Open(vfs.OS, strings.TrimSuffix(file, ".json")+".safetensors")
		require.NoError(t, err)
		for _, k := range manifest.Cases {
			for model := range referenceModels {
				what := name + "/" + k.Name + "/" + model
				t.Run(what, func(t *testing.T) {
					worst := requireReference(t, r, k, name, model)
					t.Logf("largest difference %.2g", worst)
				})
			}
		}
		require.NoError(t, r.Close())
	}
}

func requireReference(t *testing.T, r *safetensors.Reader, k referenceCase, name, model string) (worst float64) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	row := catalog.Optimizers[slices.IndexFunc(catalog.Optimizers,
		func(o catalog.Optimizer) bool { return o.Name == name })]
	shared, own := map[string]any{"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}, map[string]any{}
	for key, v := range k.Settings {
		if _, of := row.Settings.Lookup(key); of {
			own[key] = v
		} else {
			shared[key] = v
		}
	}
	if strings.HasPrefix(name, "lion") && shared["adam_beta2"] == 0.999 {
		shared["adam_beta2"] = 0.99 // lion-pytorch's
	}
	cfg, err := optim.ByName(row.AllNames()[0], shared, own)
	require.NoError(t, err)
	far, all, wider := 0, 0, referenceTolerance[name+"/"+k.Name]
	tolerance := max(1e-5, wider.most)
	stride := referenceModels[model].stride
	referenceRun(c, model, k.LR, cfg, func(step int, params []tensor.Named) {
		for _, p := range params {
			values := tensor.ToSlice[float32](c, p.Tensor)
			if _, stored := r.Lookup(fmt.Sprintf("%s/%s/%d/%s", k.Name, model, step, p.Name)); stored {
				raw, err := r.ReadTensor(fmt.Sprintf("%s/%s/%d/%s", k.Name, model, step, p.Name))
				require.NoError(t, err)
				want := tensor.ToSlice[float32](c, tensor.FromBytes(c, raw, tensor.Float32, len(raw)/4))
				for i, w := range want {
					off := math.Abs(float64(values[i*stride]) - float64(w))
					require.Less(t, off, tolerance, "step %d: %s[%d] is %v: want %v", step, p.Name, i*stride,
						values[i*stride], w)
					worst = max(worst, off)
					if all++; off > 1e-5 {
						far++
					}
				}
			}
			if step == referenceSteps {
				var sum float64
				for _, v := range values {
					sum += math.Abs(float64(v))
				}
				require.InDelta(t, k.Sums[model][p.Name], sum, tolerance*float64(max(len(values)/10, 10)), p.Name)
			}
		}
	})
	require.LessOrEqual(t, float64(far), wider.share*float64(all), "elements farther than 1e-5, of %d", all)
	return worst
}
