// SPDX-License-Identifier: Apache-2.0

package lora

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Adapter is one adapter of a model.
type Adapter struct {
	Config Config // complete: AllLinear are the paths of layers

	model    models.Configured
	layers   []target
	arrays   []models.SavedArray
	whole    []*nn.Parameter // of the model, that the adapter trains
	kept     [][]byte        // what those have not now: the adapter's values, or the model's while it is active
	active   bool
	merged   bool
	digested string // of the base, once it is known

	precision string // of the base, see models.AdaptedBase
}

// target is an adapted layer.
type target struct {
	*layer
	rank  int
	scale float64
}

// Layer is an adapted layer, as a saved model has it.
type Layer struct {
	Path    string
	In, Out int // features
	Rank    int
	Scale   float64 // of B·A
}

// Layers are the layers that the adapter changes, in the model's order: PEFT's targeted_module_names.
func (a *Adapter) Layers() (list []Layer) {
	for _, l := range a.layers {
		list = append(list, Layer{l.path, l.in(), l.layer.out(), l.rank, l.scale})
	}
	return list
}

// Unmatched are the names of the configuration's TargetModules that are of no layer: of another family's modules, or
// misspelt. PEFT passes over them, and so does New.
func (a *Adapter) Unmatched() (names []string) {
	for _, name := range a.Config.TargetModules.Names {
		if !slices.ContainsFunc(a.layers, func(l target) bool { return named(l.path, name) }) {
			names = append(names, name)
		}
	}
	return names
}

// New adds an adapter with new matrices to a model and makes it the active one: the model's parameters are frozen, and
// those of the adapter are trained. Matrices are float32 if the model's weights are of a half type.
func New(m models.Configured, cfg Config) (*Adapter, error) {
	if err := cfg.Init.fresh(); err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	a, err := plan(m, cfg)
	if err == nil {
		err = a.alone()
	}
	if err == nil {
		err = tensor.Try(a.insert)
	}
	if err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	return a, a.Activate()
}

// plan finds what an adapter has of a model, which it does not change.
func plan(m models.Configured, cfg Config) (*Adapter, error) {
	cfg = cfg.withDefaults()
	if cfg.TaskType == "SEQ_CLS" { // PEFT trains the head of a classifier
		for _, name := range heads {
			if !slices.Contains(cfg.ModulesToSave, name) {
				cfg.ModulesToSave = append(slices.Clip(cfg.ModulesToSave), name)
			}
		}
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s, err := look(m)
	if err != nil {
		return nil, err
	}
	chosen, err := s.choose(m, &cfg)
	if err != nil {
		return nil, err
	}
	a := &Adapter{model: m}
	match := newMatcher(&cfg)
	for _, l := range chosen {
		if l.members[0].lora.A[cfg.Name] != nil {
			return nil, fmt.Errorf("the model has an adapter %q already: want another name", cfg.Name)
		}
		t := target{layer: l, rank: match.rank(l.path), scale: match.alpha(l.path)}
		if t.scale /= float64(t.rank); cfg.RSLoRA {
			t.scale *= math.Sqrt(float64(t.rank))
		}
		cfg.FanInFanOut = l.inOut
		a.layers = append(a.layers, t)
	}
	a.Config, a.precision = cfg, precision(a.layers)
	if match.err != nil {
		return nil, match.err
	}
	return a, a.arrange(s)
}

// precision is the dtype of weights, or q8_0 where some are in blocks.
func precision(layers []target) string {
	for _, l := range layers {
		if slices.ContainsFunc(l.members, func(m member) bool { return m.p.Quantized() }) {
			return "q8_0"
		}
	}
	return layers[0].members[0].p.DType().String()
}

// prefix begins the names of PEFT's arrays.
const prefix = "base_model.model."

// arrange lists the arrays of the adapter's file.
func (a *Adapter) arrange(s *survey) error {
	adapted := map[string]bool{}
	for _, l := range a.layers {
		down := models.SavedArray{Name: prefix + l.path + ".lora_A.weight",
			Params: []string{factor(l.members[0], "A", a.Config.Name)}}
		up := models.SavedArray{Name: prefix + l.path + ".lora_B.weight"}
		for _, m := range l.members {
			up.Params = append(up.Params, factor(m, "B", a.Config.Name))
		}
		a.arrays = append(a.arrays, down, up)
		adapted[l.path] = true
	}
	found := map[string]bool{}
	for _, array := range s.layout.Arrays {
		layer, isBias := strings.CutSuffix(array.Name, ".bias")
		name := ""
		switch {
		case a.trainsWhole(array.Name, found):
			name = prefix + array.Name
		case !isBias || a.Config.Bias == BiasNone:
			continue
		case adapted[layer]:
			name = prefix + layer + ".base_layer.bias"
		case a.Config.Bias == BiasAll:
			name = prefix + array.Name
		default:
			continue
		}
		for _, p := range array.Params {
			if s.params[p] == nil {
				return fmt.Errorf("modules_to_save has %s, which is a buffer: want modules of parameters", p)
			}
			a.whole = append(a.whole, s.params[p])
		}
		array.Name = name
		a.arrays = append(a.arrays, array)
	}
	return a.checkWhole(s, found)
}

// factor is the name of a matrix.
func factor(m member, which, adapter string) string {
	return m.path + ".lora_" + which + "." + adapter + ".weight"
}

// trainsWhole reports whether an array is of a module of modules_to_save, and notes of which. As in PEFT a name is the
// end of a path, not an element of it: norm is input_layernorm too.
func (a *Adapter) trainsWhole(array string, found map[string]bool) (yes bool) {
	elements := strings.Split(array, ".")
	for _, name := range a.Config.ModulesToSave {
		for i := 1; i < len(elements); i++ {
			if strings.HasSuffix(strings.Join(elements[:i], "."), name) {
				found[name], yes = true, true
			}
		}
	}
	return yes
}

// checkWhole refuses names of modules_to_save that are no modules, or are tied to others.
func (a *Adapter) checkWhole(s *survey, found map[string]bool) error {
	aliases := nn.Walk(a.model).Aliases()
	for _, name := range a.Config.ModulesToSave {
		for alias, of := range aliases {
			if tied := alias[:strings.LastIndexByte(alias, '.')]; strings.HasSuffix(tied, name) ||
				strings.HasSuffix(of[:strings.LastIndexByte(of, '.')], name) {
				return fmt.Errorf("modules_to_save has %s, and %s is tied to %s: PEFT would train a copy of one, "+
					"which is not built: want a model without tie_word_embeddings, or other modules", name, tied, of)
			}
		}
		if !found[name] && !slices.Contains(heads, name) {
			return fmt.Errorf("modules_to_save has %s, which is not a module of the model", name)
		}
	}
	return nil
}

// insert makes the matrices.
func (a *Adapter) insert() {
	cfg := &a.Config
	first := a.layers[0].members[0].p
	in := nn.NewInit(first.Device(), cfg.Seed)
	for _, l := range a.layers {
		dt := l.members[0].p.DType()
		if dt.IsHalf() {
			dt = tensor.Float32
		}
		var down *nn.Parameter
		for i, m := range l.members {
			of := in.As(dt).Sub(m.path)
			if i == 0 {
				down = initialA(of.Sub("lora_A").Sub(cfg.Name), cfg.Init, l.rank, l.in())
			}
			up := of.Sub("lora_B").Sub(cfg.Name)
			b := &nn.Linear{}
			if cfg.Init == InitRandom {
				b.Weight = up.KaimingUniform("weight", m.out, l.rank)
			} else {
				b.Weight = up.Full("weight", 0, m.out, l.rank)
			}
			put(&m.lora.A, cfg.Name, &nn.Linear{Weight: down})
			put(&m.lora.B, cfg.Name, b)
			put(&m.lora.Scale, cfg.Name, l.scale)
			if cfg.Dropout > 0 {
				put(&m.lora.Dropout, cfg.Name, &nn.Dropout{P: cfg.Dropout})
			}
		}
	}
	c := tensor.NewCtx(first.Device()).NoGrad()
	for _, p := range a.whole {
		a.kept = append(a.kept, tensor.ReadBytes(c, p.Tensor))
	}
}

func initialA(in *nn.Init, how Init, rank, width int) *nn.Parameter {
	if how == InitGaussian {
		return in.Normal("weight", 1/float64(rank), rank, width)
	}
	return in.KaimingUniform("weight", rank, width)
}

func put[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = v
}

// Activate makes the model compute with the adapter, and its parameters those that are trained. Another one that is
// active or merged is an error: want Deactivate or Unmerge of it first.
func (a *Adapter) Activate() error {
	if a.active {
		return nil
	}
	if err := a.alone(); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	mine := map[string]bool{}
	for _, array := range a.arrays {
		for _, p := range array.Params {
			mine[p] = true
		}
	}
	nn.Walk(a.model).EachParameter(func(name string, p *nn.Parameter) { p.SetRequiresGrad(mine[name]) })
	a.each(func(l *nn.LoRA) { l.Active = []string{a.Config.Name} })
	a.active = true
	a.swap()
	return nil
}

// alone is an error if the model computes with an adapter.
func (a *Adapter) alone() (err error) {
	nn.Walk(a.model).Modules(func(_ string, m nn.Module) {
		own, ok := m.(interface{ Adapters() *nn.LoRA })
		switch {
		case !ok:
		case len(own.Adapters().Merged) > 0:
			err = fmt.Errorf("adapter %s is merged into the weights: want Unmerge first", own.Adapters().Merged[0])
		case len(own.Adapters().Active) > 0:
			err = fmt.Errorf("adapter %s is active: want Deactivate first", own.Adapters().Active[0])
		}
	})
	return err
}

// Deactivate leaves the model as it was without the adapter, and freezes all of it.
func (a *Adapter) Deactivate() {
	if !a.active {
		return
	}
	nn.Walk(a.model).EachParameter(func(_ string, p *nn.Parameter) { p.SetRequiresGrad(false) })
	a.each(func(l *nn.LoRA) {
		l.Active = slices.DeleteFunc(l.Active, func(n string) bool { return n == a.Config.Name })
	})
	a.active = false
	a.swap()
}

// each calls f for the layers that the adapter has.
func (a *Adapter) each(f func(l *nn.LoRA)) {
	for _, l := range a.layers {
		for _, m := range l.members {
			f(m.lora)
		}
	}
}

// swap exchanges the model's values of whole parameters for the adapter's.
func (a *Adapter) swap() {
	for i, p := range a.whole {
		c := tensor.NewCtx(p.Device()).NoGrad()
		other := a.kept[i]
		a.kept[i] = tensor.ReadBytes(c, p.Tensor)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			tensor.CopyInto(c, p.Tensor, tensor.FromBytes(c, other, p.DType(), p.Shape()...))
			return nil
		})
		c.Sync()
	}
}

// Merge adds the active adapter to the model's weights, in float32: the model then computes the same without it, as
// fast as before, and is saved as an ordinary model.
func (a *Adapter) Merge() error {
	if !a.active {
		return fmt.Errorf("lora: adapter %s is not active: want Activate first", a.Config.Name)
	}
	if err := tensor.Try(func() { a.add(1) }); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	a.each(func(l *nn.LoRA) { l.Active, l.Merged = nil, []string{a.Config.Name} })
	a.active, a.merged = false, true
	return nil
}

// Unmerge subtracts a merged adapter from the weights, up to rounding, and makes it the active one.
func (a *Adapter) Unmerge() error {
	if !a.merged {
		return errors.New("lora: no adapter is merged")
	}
	if err := tensor.Try(func() { a.add(-1) }); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	a.each(func(l *nn.LoRA) { l.Active, l.Merged = []string{a.Config.Name}, nil })
	a.active, a.merged = true, false
	return nil
}

// add adds sign times the adapter to the weights.
func (a *Adapter) add(sign float64) {
	for _, l := range a.layers {
		for _, m := range l.members {
			tensor.NewCtx(m.p.Device()).NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				more := a.update(c, l, m, sign)
				sum := tensor.Add(c, tensor.Cast(c, m.p.Tensor, more.DType()), more)
				tensor.CopyInto(c, m.p.Tensor, tensor.Cast(c, sum, m.p.DType()))
				return nil
			})
			m.p.Device().Sync()
		}
	}
}

// update is what merging adds to the weight of a layer, or takes from it.
func (a *Adapter) update(c *tensor.Ctx, l target, m member, sign float64) *tensor.Tensor {
	down, up := m.lora.A[a.Config.Name].Weight.Tensor, m.lora.B[a.Config.Name].Weight.Tensor
	more := tensor.Affine(c, tensor.MatMul(c, up, down), sign*m.lora.Scale[a.Config.Name], 0)
	if l.inOut {
		more = tensor.Transpose(c, more, 0, 1)
	}
	return more
}

// Update is what Merge would add to a parameter of the model, nil for one that is not adapted. With it a program merges
// parameter by parameter, of a model that is not in memory.
func (a *Adapter) Update(c *tensor.Ctx, p *tensor.Tensor) *tensor.Tensor {
	for _, l := range a.layers {
		for _, m := range l.members {
			if m.p.Tensor == p {
				return a.update(c, l, m, 1)
			}
		}
	}
	return nil
}

// Remove takes the adapter out of the model, which keeps what was merged. Without another adapter all of it is trained
// again.
func (a *Adapter) Remove() {
	a.Deactivate()
	a.takeOut()
	left := false
	tree := nn.Walk(a.model)
	tree.EachParameter(func(name string, _ *nn.Parameter) { left = left || strings.Contains(name, ".lora_A.") })
	if !left {
		tree.EachParameter(func(_ string, p *nn.Parameter) { p.SetRequiresGrad(true) })
	}
}

// takeOut takes out the matrices.
func (a *Adapter) takeOut() {
	a.each(func(l *nn.LoRA) {
		delete(l.A, a.Config.Name)
		delete(l.B, a.Config.Name)
		delete(l.Dropout, a.Config.Name)
		delete(l.Scale, a.Config.Name)
		l.Merged = slices.DeleteFunc(l.Merged, func(n string) bool { return n == a.Config.Name })
	})
}

// Without returns a context in which the model computes as it does without the adapter.
func (a *Adapter) Without(c *nn.Ctx) (*nn.Ctx, error) {
	if len(a.whole) > 0 {
		return nil, fmt.Errorf("lora: adapter %s has changed parameters of the model (modules_to_save, bias), which a "+
			"context cannot leave out: want an adapter without them, or a second model", a.Config.Name)
	}
	return c.WithAdapters(), nil
}
