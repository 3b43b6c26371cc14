// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/optim/optimtest"
	"github.com/lockstep-ml/lockstep/tensor"
)

// squash is a user's own transform without state: it bounds each element of the update.
type squash struct{}

func (squash) Traits() optim.Traits { return optim.Traits{} }

func (squash) State(tensor.Named) []optim.StateTensor { return nil }

func (squash) Apply(c *tensor.Ctx, _ tensor.Named, _ *optim.Group, _ *optim.Slot, u *tensor.Tensor) {
	tensor.CopyInto(c, u, tensor.Tanh(c, u))
}

// optimizers are cases beyond the defaults of the registered optimizers.
var optimizers = []optimtest.Case{
	{Name: "adamw", LR: 0.2, Allocs: 8, New: optim.DefaultAdamW().New},
	{Name: "sgd_fast", LR: 0.3, Allocs: 8, New: optim.SGD{}.New},
	{Name: "sgd_momentum", LR: 0.1, Allocs: 8, New: optim.SGD{Momentum: 0.9, Dampening: 0.1}.New},
	{Name: "sgd_nesterov", LR: 0.1, Allocs: 8, New: optim.SGD{Momentum: 0.9, Nesterov: true}.New},
	{Name: "squashed", LR: 0.1, Allocs: 13, New: func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
		return optim.New(c, "squashed", g, optim.DecoupledDecay{}, optim.Momentum{Momentum: 0.5}, squash{})
	}},
}

func TestOptimizers(t *testing.T) {
	// Where 0.1 is not enough, and where means are of more than 300 steps.
	rates := map[string]float64{"adagrad": 2, "schedule_free_adamw": 1, "schedule_free_radam": 5,
		"schedule_free_sgd": 0.3}
	faster := map[string]map[string]any{"ademamix": {"beta3": 0.9}, "ademamix_8bit": {"beta3": 0.9}}
	silent := map[string]int{"schedule_free_radam": 5}
	cases, seen := optimizers, map[string]bool{}
	for _, name := range catalog.OptimizerNames() {
		row, _ := catalog.OptimizerNamed(name)
		cfg, err := optim.ByName(name, nil, faster[row.Name])
		require.NoError(t, err)
		require.Equal(t, row.Name, cfg.New(tensor.NewCtx(tensor.CPU()), nil).Name(), "the name in checkpoints")
		if seen[row.Name] {
			continue // another name of it
		}
		seen[row.Name] = true
		lr, ok := rates[row.Name]
		if !ok {
			lr = 0.1
		}
		cases = append(cases, optimtest.Case{Name: name, LR: lr, Silent: silent[row.Name], Allocs: 60,
			New: cfg.New})
	}
	for _, k := range cases {
		t.Run(k.Name, func(t *testing.T) { optimtest.Run(t, k) })
	}
}

func TestByName(t *testing.T) {
	shared := map[string]any{"adam_beta1": 0.5, "adam_beta2": 0.75, "adam_epsilon": 1e-3}
	for name, want := range map[string]optim.Config{
		"adamw_torch": optim.AdamW{Beta1: 0.5, Beta2: 0.75, Eps: 1e-3},
		"adam":        optim.Adam{Beta1: 0.5, Beta2: 0.75, Eps: 1e-3}, "sgd": optim.SGD{},
	} {
		cfg, err := optim.ByName(name, shared, nil)
		require.NoError(t, err)
		require.Equal(t, want, cfg)
	}
	cfg, err := optim.ByName("sgd", shared, map[string]any{"momentum": 0.9, "nesterov": true})
	require.NoError(t, err)
	require.Equal(t, optim.SGD{Momentum: 0.9, Nesterov: true}, cfg)
	cfg, err = optim.ByName("adamw_torch_fused", nil, map[string]any{"adam_beta1": 0.5})
	require.NoError(t, err)
	require.Equal(t, optim.AdamW{Beta1: 0.5, Beta2: 0.999, Eps: 1e-8}, cfg)
	_, err = optim.ByName("sgd", nil, map[string]any{"speed": 1})
	require.EqualError(t, err, "optim: settings of sgd are map[speed:1]: want keys from momentum, dampening, "+
		"nesterov for sgd, not speed")
	_, err = optim.ByName("sdg", nil, nil)
	require.EqualError(t, err, `optim: optimizer is "sdg": want one of `+strings.Join(optim.Names(), ", "))
	_, err = optim.ByName("ademamix", map[string]any{"adam_beta1": 0.0}, map[string]any{"t_beta3": 10})
	require.ErrorContains(t, err, "want adam_beta1 and beta3 > 0 with t_beta3")
}

type goldenCase struct {
	Name        string    `json:"name"`
	WeightDecay float64   `json:"weight_decay"`
	Rates       []float64 `json:"rates"`
	options     map[string]any
}

// UnmarshalJSON keeps the options of PyTorch's optimizer too.
func (k *goldenCase) UnmarshalJSON(text []byte) error {
	type plain goldenCase
	return errors.Join(json.Unmarshal(text, (*plain)(k)), json.Unmarshal(text, &k.options))
}

// make makes the optimizer of the class that the golden names, with its options.
func (k goldenCase) make(c *tensor.Ctx, g []*optim.Group) (*optim.Optimizer, error) {
	own := map[string]any{}
	for key, v := range k.options {
		switch key {
		case "name", "optimizer", "rates", "lr", "weight_decay":
		case "betas":
			own["adam_beta1"], own["adam_beta2"] = v.([]any)[0], v.([]any)[1]
		case "eps":
			own["adam_epsilon"] = v
		default:
			own[key] = v
		}
	}
	name := strings.ToLower(k.options["optimizer"].(string))
	if name == "adamw" {
		name = "adamw_torch"
	}
	cfg, err := optim.ByName(name, nil, own)
	if err != nil {
		return nil, err
	}
	return cfg.New(c, g), nil
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

// Every parameter after every step is PyTorch's, except for a few roundings of float32.
func TestOptimizersGolden(t *testing.T) {
	g := openGolden(t)
	require.GreaterOrEqual(t, len(g.Cases), 14)
	worst := 0.0
	for _, k := range g.Cases {
		group := &optim.Group{WeightDecay: k.WeightDecay}
		for name := range g.Params {
			group.Params = append(group.Params,
				tensor.Named{Name: name, Tensor: g.tensor("param/%s", name).SetRequiresGrad(true)})
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
					require.Less(t, off, 2e-6, "%s step %d %s[%d]: %v: want %v", k.Name, step, p.Name, i, got, want[i])
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
			require.InDeltaSlice(t, want, tensor.ToSlice[float32](g.c, p.Grad()), 1e-6, "max_norm %v: %s", k.MaxNorm,
				p.Name)
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
					require.True(t, want == float64(x) || math.Abs(float64(x)-want) <= 2e-6*math.Abs(want),
						"%v: want %v", x, want)
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
	require.EqualError(t, make(tensor.Named{Name: "a", Tensor: x}, tensor.Named{Name: "a", Tensor: y}),
		`optim.New: parameter "a" is named twice`)
	require.EqualError(t, make(tensor.Named{Name: "a", Tensor: x}, tensor.Named{Name: "b", Tensor: x}),
		`optim.New: parameters "a" and "b" are one tensor: want tied parameters once`)
}

func TestOptimizerLists(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	ps := withGrads(c, []float32{1}, []float32{2}, []float32{3})
	groups := []*optim.Group{{Params: ps[2:], LR: 1}, {Params: ps[:2], LR: 2}}
	o := optim.SGD{}.New(c, groups)
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

// rows is a transform whose state is smaller than the parameter and of another dtype, as Adafactor's is.
type rows struct{}

func (rows) Traits() optim.Traits { return optim.Traits{} }

func (rows) State(p tensor.Named) []optim.StateTensor {
	return []optim.StateTensor{{Name: "row_sum", Shape: p.Shape()[:1], DType: tensor.Float64}}
}

func (rows) Apply(c *tensor.Ctx, _ tensor.Named, _ *optim.Group, s *optim.Slot, u *tensor.Tensor) {
	sum := s.Tensors["row_sum"]
	tensor.AxpbyInto(c, sum, 1, sum, 1, tensor.Sum(c, tensor.Cast(c, u, tensor.Float64), []int{1}, false))
}

// State has the shape and dtype that the transform asks for, and takes memory from the first step on.
func TestStateIsMadeWhenItIsNeeded(t *testing.T) {
	dev := tensor.NewCPU(1)
	c := tensor.NewCtx(dev)
	create := func() (tensor.Named, *optim.Optimizer) {
		p := tensor.Named{Name: "w", Tensor: tensor.Ones(c.NoGrad(), tensor.Float32, 300, 400).SetRequiresGrad(true)}
		return p, optim.New(c, "rows", []*optim.Group{{Params: []tensor.Named{p}, LR: 1}}, rows{})
	}
	dev.Collect()
	before := dev.MemStats().InUse
	p, opt := create()
	require.EqualValues(t, 300*400*4, dev.MemStats().InUse-before, "the parameter alone")
	opt.Step(c) // without a gradient
	require.EqualValues(t, 300*400*4, dev.MemStats().InUse-before)
	p.SwapGrad(tensor.Ones(c.NoGrad(), tensor.Float32, 300, 400), true)
	opt.Step(c)
	saved := opt.State()
	require.Equal(t, []int{300}, saved.Tensors["w.row_sum"].Shape())
	require.EqualValues(t, 400, tensor.ToSlice[float64](c.NoGrad(), saved.Tensors["w.row_sum"])[299])

	_, other := create()
	require.NoError(t, other.LoadState(c, saved))
	require.Equal(t, tensor.ReadBytes(c, saved.Tensors["w.row_sum"]),
		tensor.ReadBytes(c, other.State().Tensors["w.row_sum"]))
	saved.Tensors["w.row_sum"] = tensor.Zeros(c.NoGrad(), tensor.Float32, 300)
	_, third := create()
	require.EqualError(t, third.LoadState(c, saved),
		"optim: the saved state does not fit: w.row_sum is float32[300]: want float64[300]")
}

// The average is that of the weights after each step, and Train puts the weights back.
func TestSetAverage(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	p := tensor.Named{Name: "w", Tensor: tensor.FromSlice(c, []float64{1, -2, 3}, 3).SetRequiresGrad(true)}
	opt := optim.DefaultAdamW().New(c, []*optim.Group{{Params: []tensor.Named{p}, LR: 0.1}})
	opt.SetAverage(0.75)
	require.True(t, opt.Averages())
	want := tensor.ToSlice[float64](c.NoGrad(), p.Tensor)
	for range 3 {
		tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, tensor.Mul(c, p.Tensor, p.Tensor), nil, false)}, nil, nil)
		opt.Step(c)
		opt.ZeroGrad()
		now := tensor.ToSlice[float64](c.NoGrad(), p.Tensor)
		for i, x := range now {
			want[i] = 0.75*want[i] + 0.25*x
		}
		opt.Eval(c)
		require.InDeltaSlice(t, want, tensor.ToSlice[float64](c.NoGrad(), p.Tensor), 1e-14)
		opt.Train(c)
		require.Equal(t, now, tensor.ToSlice[float64](c.NoGrad(), p.Tensor))
	}
	require.Panics(t, func() { opt.SetAverage(0.5) }, "it has its state")
}
