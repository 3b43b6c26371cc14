// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/optim/optimtest"
	"github.com/lockstep-ml/lockstep/tensor"
)

// squash is a user's own transform without state: it bounds each element of the update.
type squash struct{}

func (squash) State() []string { return nil }

func (squash) Apply(c *tensor.Ctx, _ tensor.Named, _ *optim.Group, _ *optim.Slot, u *tensor.Tensor) {
	tensor.CopyInto(c, u, tensor.Tanh(c, u))
}

// optimizers is the table of all optimizers.
var optimizers = []optimtest.Case{
	{Name: "adamw", LR: 0.2, Allocs: 8, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.NewAdamW(c, g, 0.9, 0.999, 1e-8)
	}},
	{Name: "adam", LR: 0.2, Allocs: 8, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.NewAdam(c, g, 0.9, 0.999, 1e-8)
	}},
	{Name: "sgd", LR: 0.3, Allocs: 8, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.NewSGD(c, g, 0, 0, false)
	}},
	{Name: "sgd_momentum", LR: 0.1, Allocs: 8, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.NewSGD(c, g, 0.9, 0.1, false)
	}},
	{Name: "sgd_nesterov", LR: 0.1, Allocs: 8, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.NewSGD(c, g, 0.9, 0, true)
	}},
	{Name: "squashed", LR: 0.1, Allocs: 13, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.New(c, "squashed", g, optim.DecoupledDecay{}, optim.Momentum{Momentum: 0.5}, squash{})
	}},
}

func TestOptimizers(t *testing.T) {
	for _, k := range optimizers {
		t.Run(k.Name, func(t *testing.T) { optimtest.Run(t, k) })
	}
}

type goldenCase struct {
	Name        string    `json:"name"`
	Optimizer   string    `json:"optimizer"`
	Betas       []float64 `json:"betas"`
	Eps         float64   `json:"eps"`
	WeightDecay float64   `json:"weight_decay"`
	Momentum    float64   `json:"momentum"`
	Dampening   float64   `json:"dampening"`
	Nesterov    bool      `json:"nesterov"`
	Rates       []float64 `json:"rates"`
}

func (k goldenCase) make(c *tensor.Ctx, g []*optim.Group) (*optim.Optimizer, error) {
	switch k.Optimizer {
	case "AdamW":
		return optim.NewAdamW(c, g, k.Betas[0], k.Betas[1], k.Eps), nil
	case "Adam":
		return optim.NewAdam(c, g, k.Betas[0], k.Betas[1], k.Eps), nil
	case "SGD":
		return optim.NewSGD(c, g, k.Momentum, k.Dampening, k.Nesterov), nil
	}
	return nil, fmt.Errorf("the golden names optimizer %q", k.Optimizer)
}

type golden struct {
	Steps  int              `json:"steps"`
	Params map[string][]int `json:"params"`
	Cases  []goldenCase     `json:"cases"`
	Clip   []struct {
		Name      string  `json:"name"`
		MaxNorm   float64 `json:"max_norm"`
		TotalNorm float64 `json:"total_norm"`
	} `json:"clip"`

	t *testing.T
	r *safetensors.Reader
	c *tensor.Ctx
}

func openGolden(t *testing.T) golden {
	g := golden{t: t, c: tensor.NewCtx(tensor.CPU()).NoGrad()}
	text, err := os.ReadFile("testdata/optimizers.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	g.r, err = safetensors.Open(vfs.OS, "testdata/optimizers.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.r.Close()) })
	return g
}

func (g golden) tensor(format string, args ...any) *tensor.Tensor {
	name := fmt.Sprintf(format, args...)
	e, ok := g.r.Lookup(name)
	require.True(g.t, ok, name)
	raw, err := g.r.ReadTensor(name)
	require.NoError(g.t, err)
	return tensor.FromBytes(g.c, raw, e.DType, e.Shape...)
}

func (g golden) values(format string, args ...any) []float32 {
	return tensor.ToSlice[float32](g.c, g.tensor(format, args...))
}

// Every parameter after every step is PyTorch's, but for a few roundings of float32.
func TestOptimizersGolden(t *testing.T) {
	g := openGolden(t)
	require.GreaterOrEqual(t, len(g.Cases), 14)
	worst := 0.0
	for _, k := range g.Cases {
		group := &optim.Group{WeightDecay: k.WeightDecay}
		for name := range g.Params {
			group.Params = append(group.Params, tensor.Named{Name: name, Tensor: g.tensor("param/%s", name).SetRequiresGrad(true)})
		}
		opt, err := k.make(g.c, []*optim.Group{group})
		require.NoError(t, err)
		for step := 1; step <= g.Steps; step++ {
			group.LR = k.Rates[step-1]
			for _, p := range group.Params {
				p.SwapGrad(g.tensor("grad/%d/%s", step, p.Name), true)
			}
			opt.Step(g.c)
			for _, p := range group.Params {
				want := g.values("%s/%d/%s", k.Name, step, p.Name)
				for i, got := range tensor.ToSlice[float32](g.c, p.Tensor) {
					off := math.Abs(float64(got)-float64(want[i])) / max(1, math.Abs(float64(want[i])))
					require.Less(t, off, 2e-6, "%s step %d %s[%d]: %v, want %v", k.Name, step, p.Name, i, got, want[i])
					worst = max(worst, off)
				}
			}
		}
	}
	t.Logf("largest difference %.2g", worst)
}

func TestClipGradNormGolden(t *testing.T) {
	g := openGolden(t)
	require.NotEmpty(t, g.Clip)
	for _, k := range g.Clip {
		var params []tensor.Named
		for _, name := range []string{"weight", "bias", "scale", "empty"} {
			grad := g.tensor("clip/in/%s", name)
			p := tensor.Named{Name: name, Tensor: tensor.ZerosLike(g.c, grad).SetRequiresGrad(true)}
			p.SwapGrad(grad, true)
			params = append(params, p)
		}
		require.InEpsilon(t, k.TotalNorm, optim.ClipGradNorm(g.c, params, k.MaxNorm), 1e-6)
		for _, p := range params {
			want := g.values("clip/%s/%s", k.Name, p.Name)
			require.InDeltaSlice(t, want, tensor.ToSlice[float32](g.c, p.Grad()), 1e-6, "max_norm %v: %s", k.MaxNorm, p.Name)
		}
	}
}

// withGrads makes one parameter for each gradient.
func withGrads(c *tensor.Ctx, grads ...[]float32) []tensor.Named {
	var ps []tensor.Named
	for i, g := range grads {
		p := tensor.Named{Name: fmt.Sprint(i), Tensor: tensor.Zeros(c, tensor.Float32, len(g)).SetRequiresGrad(true)}
		if g != nil {
			p.SwapGrad(tensor.FromSlice(c, g, len(g)), true)
		}
		ps = append(ps, p)
	}
	return ps
}

func TestClipGradNormEdges(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, k := range []struct {
		name       string
		grads      [][]float32
		max, norm  float64
		wantScaled float32
	}{
		{"clips", [][]float32{{3, 0}, {4}}, 1, 5, 1 / 5.000001},
		{"small enough", [][]float32{{3, 0}, {4}}, 5.1, 5, 1},
		{"0 only measures", [][]float32{{3, 0}, {4}}, 0, 5, 1},
		{"no gradient", [][]float32{nil, {4}}, 1, 4, 1 / 4.000001},
		{"none at all", [][]float32{nil}, 1, 0, 1},
		{"all zero", [][]float32{{0, 0}}, 1, 0, 1},
		{"NaN", [][]float32{{nan, 2}, {4}}, 1, math.NaN(), 1},
		{"Inf", [][]float32{{inf, 2}, {4}}, 1, math.Inf(1), 1},
		{"squares beyond float32", [][]float32{{3e30}, {4e30}}, 1, 5e30, 1 / 5e30},
		{"squares below float32", [][]float32{{3e-30}, {4e-30}}, 1e-30, 5e-30, 1e-30 / 1.000005e-6},
	} {
		t.Run(k.name, func(t *testing.T) {
			params := withGrads(c, k.grads...)
			got := optim.ClipGradNorm(c, params, k.max)
			switch {
			case math.IsNaN(k.norm):
				require.True(t, math.IsNaN(got))
			case k.norm == 0 || math.IsInf(k.norm, 0):
				require.Equal(t, k.norm, got)
			default:
				require.InEpsilon(t, k.norm, got, 1e-6)
			}
			for i, p := range params {
				if k.grads[i] == nil {
					require.Nil(t, p.Grad())
					continue
				}
				for j, x := range tensor.ToSlice[float32](c, p.Grad()) {
					want := float64(k.grads[i][j] * k.wantScaled)
					if math.IsNaN(want) {
						require.True(t, math.IsNaN(float64(x)))
						continue
					}
					require.True(t, want == float64(x) || math.Abs(float64(x)-want) <= 2e-6*math.Abs(want), "%v, want %v", x, want)
				}
			}
		})
	}
}

// The norm does not depend on how the device divides the work.
func TestGradNormWorkers(t *testing.T) {
	norm := func(workers int) float64 {
		dev := tensor.NewCPU(workers)
		defer dev.Close()
		c := tensor.NewCtx(dev)
		p := tensor.Named{Name: "p", Tensor: tensor.Zeros(c, tensor.Float32, 100_003).SetRequiresGrad(true)}
		p.SwapGrad(tensor.Normal(c, tensor.Float32, 7, 0, 1, 100_003), true)
		return optim.GradNorm(c, []tensor.Named{p})
	}
	for _, n := range []int{2, 3, 8} {
		require.Equal(t, norm(1), norm(n), "%d workers", n)
	}
	require.InEpsilon(t, math.Sqrt(100_003), norm(1), 0.01)
}

func TestNewRefusesDuplicates(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	x, y := tensor.Zeros(c, tensor.Float32, 1), tensor.Zeros(c, tensor.Float32, 1)
	make := func(ps ...tensor.Named) error {
		return tensor.Try(func() { optim.New(c, "none", []*optim.Group{{Params: ps[:1]}, {Params: ps[1:]}}) })
	}
	require.NoError(t, make(tensor.Named{Name: "a", Tensor: x}, tensor.Named{Name: "b", Tensor: y}))
	require.EqualError(t, make(tensor.Named{Name: "a", Tensor: x}, tensor.Named{Name: "a", Tensor: y}), `tensor.optim.New: parameter "a" is named twice`)
	require.EqualError(t, make(tensor.Named{Name: "a", Tensor: x}, tensor.Named{Name: "b", Tensor: x}),
		`tensor.optim.New: parameters "a" and "b" are one tensor: want tied parameters once`)
}

func TestOptimizerLists(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	ps := withGrads(c, []float32{1}, []float32{2}, []float32{3})
	groups := []*optim.Group{{Params: ps[2:], LR: 1}, {Params: ps[:2], LR: 2}}
	o := optim.NewSGD(c, groups, 0, 0, false)
	require.Equal(t, "sgd", o.Name())
	require.Equal(t, groups, o.Groups())
	var names []string
	for _, p := range o.Params() {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"2", "0", "1"}, names)
	o.Step(c)
	require.Equal(t, []float32{-3}, tensor.ToSlice[float32](c, ps[2].Tensor))
	require.Equal(t, []float32{-2}, tensor.ToSlice[float32](c, ps[0].Tensor), "each group has its learning rate")
	o.ZeroGrad()
	require.Nil(t, ps[0].Grad())
}
