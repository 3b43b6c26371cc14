// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Group is a set of parameters with common hyper-parameters.
type Group struct {
	// Params are leaf tensors with names that are unique in the model.
	Params []tensor.Named
	// LR is the learning rate of the next step. Its value when the optimizer is made is the group's base rate, which
	// schedules multiply: see Optimizer.ScaleLR.
	LR float64
	// WeightDecay is the decay coefficient, coupled or decoupled as the optimizer says.
	WeightDecay float64
	// Embeddings are the names of the parameters, of any group, that are tables of embeddings. Some optimizers treat
	// them differently from other matrices.
	Embeddings []string
}

// NeedsWhole reports whether a transform of the chain may not be given parts of parameters.
func (o *Optimizer) NeedsWhole() bool {
	return slices.ContainsFunc(o.chain, func(t Transform) bool {
		return !t.Traits().Elementwise && t.Traits().Blocks == 0
	})
}

// Blocks is a number of which parts of parameters must begin at a multiple: 1 if all transforms are elementwise.
func (o *Optimizer) Blocks() int {
	n := 1
	for _, t := range o.chain {
		if b := t.Traits().Blocks; b > 0 {
			n = n / gcd(n, b) * b
		}
	}
	return n
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// DescribeParts sets the number of elements of whole parameters of which the optimizer has only a part: some transforms
// treat large ones differently. Call it before the first step.
func (o *Optimizer) DescribeParts(numel map[string]int) {
	for _, t := range o.chain {
		if f := t.Traits().parts; f != nil {
			f(numel)
		}
	}
}

// Slot is what an optimizer remembers of one parameter.
type Slot struct {
	// Step counts the steps that changed the parameter, this one included.
	Step int64
	// Tensors are the state by name.
	Tensors map[string]*tensor.Tensor // nil until they are needed

	param tensor.Named
	chain []*tensor.Tensor // those of Tensors that transforms keep, in the order of Describe
}

// Optimizer is a chain of transforms over groups of parameters.
type Optimizer struct {
	name   string
	groups []*Group
	chain  []Transform
	moves  bool   // the chain makes the step too
	fused  *Fused // in place of the chain; nil: none
	// average is Traits.Average of the chain; evaluating: between Eval and Train.
	average    func(c *tensor.Ctx, p tensor.Named, s *Slot)
	evaluating bool
	decay      float64 // of SetAverage; 0: none
	slots      map[string]*Slot
	keep       *tensor.Ctx // of the state, which lives in no scope
	zeros      Zeros       // makes it; nil: in the device's memory
	base       []float64   // learning rates of the groups before a schedule
	factor     float64     // of the next step's gradients
	by         *deviceStep // of the step under way; nil: its numbers are the host's
	work       []work      // of the step under way
	taken      []*Slot     // that the last step counted up
	passed     []FusedUpdate
	half       HalfUpdate
	seed       uint64 // of stochastic rounding
}

// New makes an optimizer of a user's own chain. name identifies it in checkpoints. It
// panics if two parameters share a name, or if a tensor is given twice and would be
// updated twice in a step.
func New(c *tensor.Ctx, name string, groups []*Group, chain ...Transform) *Optimizer {
	o := &Optimizer{
		name: name, groups: groups, chain: chain, fused: fusedPass(chain), slots: map[string]*Slot{},
		keep: tensor.NewCtx(c.Device()).NoGrad(), factor: 1, half: HalfKahan,
	}
	for i, t := range chain {
		if average := t.Traits().Average; average != nil {
			o.average = average
		}
		if o.moves = t.Traits().Moves; o.moves && i != len(chain)-1 {
			panic(&tensor.Error{Op: "optim.New",
				Msg: fmt.Sprintf("transform %T moves parameters: want it at the end of the chain", t)})
		}
	}
	names := map[*tensor.Tensor]string{}
	for _, g := range groups {
		o.base = append(o.base, g.LR)
		for _, p := range g.Params {
			if o.slots[p.Name] != nil {
				panic(&tensor.Error{Op: "optim.New", Msg: fmt.Sprintf("parameter %q is named twice", p.Name)})
			}
			if first, twice := names[p.Tensor]; twice {
				panic(&tensor.Error{Op: "optim.New",
					Msg: fmt.Sprintf("parameters %q and %q are one tensor: want tied parameters once", first, p.Name)})
			}
			names[p.Tensor] = p.Name
			o.slots[p.Name] = &Slot{param: p}
		}
	}
	return o
}

// Zeros makes a tensor of zeros that outlives every Scope.
type Zeros func(c *tensor.Ctx, dt tensor.DType, shape ...int) (*tensor.Tensor, error)

// KeepState makes the optimizer's state by zeros, in memory of the caller's choice such as files, instead of the
// device's, and makes it now. There must be none yet: call it before the first step.
func (o *Optimizer) KeepState(zeros Zeros) error {
	for name, s := range o.slots {
		if s.Tensors != nil {
			return fmt.Errorf("optim: KeepState of an optimizer that has state for %s: want it before the first step",
				name)
		}
	}
	o.zeros = zeros
	return tensor.Try(func() { o.State() })
}

// Describe lists the tensors that the optimizer keeps for a parameter, or for a part of one.
func (o *Optimizer) Describe(p tensor.Named) (list []StateTensor) {
	for _, t := range o.chain {
		list = append(list, t.State(p)...)
	}
	if o.compensates(p) {
		list = append(list, StateTensor{Name: compensation, Shape: p.Shape(), DType: p.DType()})
	}
	if o.decay > 0 {
		list = append(list, Like(p, ema)...)
	}
	if o.evaluating {
		list = append(list, StateTensor{Name: trainWeight, Shape: p.Shape(), DType: p.DType()})
	}
	return list
}

// fill makes the tensors of slots that have none yet.
func (o *Optimizer) fill(slots iter.Seq[*Slot]) {
	made := false
	for s := range slots {
		if s.Tensors == nil {
			o.fillOne(s)
			made = true
		}
	}
	if made {
		o.keep.Sync() // steps have their own stream
	}
}

func (o *Optimizer) fillOne(s *Slot) {
	s.Tensors = map[string]*tensor.Tensor{}
	for _, t := range o.Describe(s.param) {
		zeros := o.zeroState(s, t)
		s.Tensors[t.Name] = zeros
		if t.Name != compensation && t.Name != trainWeight && t.Name != ema {
			s.chain = append(s.chain, zeros)
		}
	}
}

func (o *Optimizer) zeroState(s *Slot, t StateTensor) *tensor.Tensor {
	if o.zeros == nil {
		return tensor.Zeros(o.keep, t.DType, t.Shape...)
	}
	zeros, err := o.zeros(o.keep, t.DType, t.Shape...)
	if err != nil {
		panic(&tensor.Error{Op: "optim.Step", Msg: fmt.Sprintf("state %s of %s: %v", t.Name, s.param.Name, err),
			Cause: err})
	}
	return zeros
}

// Name is the optimizer's name, as "adamw".
func (o *Optimizer) Name() string { return o.name }

// Chain lists the transforms, in order.
func (o *Optimizer) Chain() []Transform { return slices.Clone(o.chain) }

// Groups are the parameter groups; their learning rates may be set between steps.
func (o *Optimizer) Groups() []*Group { return o.groups }

// ScaleLR sets each group's learning rate to its base rate times factor, as a schedule gives it.
func (o *Optimizer) ScaleLR(factor float64) {
	for i, g := range o.groups {
		g.LR = o.base[i] * factor
	}
}

// SetRates sets the learning rates of the groups, in their order, as a MetricSchedule has them. It does not change the
// base rates.
func (o *Optimizer) SetRates(rates []float64) {
	if len(rates) != len(o.groups) {
		panic(&tensor.Error{Op: "optim.SetRates",
			Msg: fmt.Sprintf("%d rates: want one for each of %d groups", len(rates), len(o.groups))})
	}
	for i, g := range o.groups {
		g.LR = rates[i]
	}
}

// BaseLRs are the base learning rates of the groups, in their order.
func (o *Optimizer) BaseLRs() []float64 { return slices.Clone(o.base) }

// Params lists all parameters, group by group.
func (o *Optimizer) Params() []tensor.Named {
	var ps []tensor.Named
	for _, g := range o.groups {
		ps = append(ps, g.Params...)
	}
	return ps
}

// ScaleGrads makes the next Step multiply all gradients by factor as it reads them. The bits are those of scaling them
// first, without a separate pass over them. The gradients themselves stay unchanged. ZeroGrad and the end of Step
// forget the factor.
func (o *Optimizer) ScaleGrads(factor float64) { o.factor = factor }

// Step updates every parameter that has a gradient: the chain turns the gradient into an update u, and p ← p − lr·u.
// Gradients stay unchanged.
func (o *Optimizer) Step(c *tensor.Ctx) {
	c = c.NoGrad()
	defer o.ScaleGrads(1)
	o.begin()
	defer o.end()
	o.updateAll(c)
}

// work is the update of one parameter in the step under way.
type work struct {
	p    tensor.Named
	g    *Group
	s    *Slot
	grad *tensor.Tensor
	row  *tensor.Tensor // the step's numbers on the device, of a StepBy
}

// begin lists the parameters that have a gradient, and counts their step.
func (o *Optimizer) begin() {
	if o.evaluating {
		panic(&tensor.Error{Op: "optim.Step",
			Msg: "the weights of evaluation are in place: want a call of Train before"})
	}
	o.taken = o.taken[:0]
	for _, g := range o.groups {
		for _, p := range g.Params {
			if grad := p.Grad(); grad != nil {
				s := o.slots[p.Name]
				s.Step++
				o.taken = append(o.taken, s)
				o.work = append(o.work, work{p: p, g: g, s: s, grad: grad})
			}
		}
	}
	o.fill(slices.Values(o.taken))
}

// end forgets the tensors of the step.
func (o *Optimizer) end() {
	clear(o.work)
	clear(o.passed)
	o.work, o.passed, o.by = o.work[:0], o.passed[:0], nil
}

// updateAll changes the parameters, those that the fused pass can take at the end, together.
func (o *Optimizer) updateAll(c *tensor.Ctx) {
	for i := range o.work {
		w := &o.work[i]
		o.follow(c, w)
		if u, ok := o.fusible(c, w, w.p.Tensor); ok {
			o.passed = append(o.passed, u)
			continue
		}
		o.update(c, w)
	}
	if len(o.passed) > 0 {
		o.fused.Run(c, o.passed)
	}
}

func (o *Optimizer) update(c *tensor.Ctx, w *work) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		if w.p.DType().IsHalf() {
			o.updateHalf(c, w)
		} else {
			o.apply(c, w, w.p)
		}
		return nil
	})
}

// apply changes p, the parameter of w or a copy of it.
func (o *Optimizer) apply(c *tensor.Ctx, w *work, p tensor.Named) {
	if u, ok := o.fusible(c, w, p.Tensor); ok {
		o.fused.Run(c, []FusedUpdate{u})
		return
	}
	u := o.scaled(c, w.grad)
	if u == w.grad {
		u = tensor.Clone(c, u)
	}
	for _, t := range o.chain {
		t.Apply(c, p, w.g, w.s, u)
	}
	if !o.moves {
		tensor.AxpbyInto(c, p.Tensor, 1, p.Tensor, -w.g.LR, u)
	}
}

// scales reports whether the step's gradients may have to be multiplied by a factor.
func (o *Optimizer) scales() bool { return o.factor != 1 || o.by != nil && o.by.scales }

// scaled is a gradient times the factor of the step: grad itself if there is none.
func (o *Optimizer) scaled(c *tensor.Ctx, grad *tensor.Tensor) *tensor.Tensor {
	if !o.scales() {
		return grad
	}
	u := tensor.Clone(c, grad)
	if o.by != nil {
		tensor.ScaleByInto(c.If(o.by.element(c, tensor.ClipScales)), u, o.by.scale)
	} else {
		tensor.ScaleInto(c, u, o.factor)
	}
	return u
}

// ZeroGrad forgets all gradients and frees their memory, see tensor.Tensor.ZeroGrad.
func (o *Optimizer) ZeroGrad() {
	o.ScaleGrads(1)
	for _, g := range o.groups {
		for _, p := range g.Params {
			p.ZeroGrad()
		}
	}
}

// StateDict is an optimizer's memory in the form in which it is saved.
type StateDict struct {
	Name    string                    // of the optimizer
	Steps   map[string]int64          // by parameter
	Tensors map[string]*tensor.Tensor // by "parameter.state", as "h.0.weight.exp_avg"
}

// State returns the state for a checkpoint. The tensors are the optimizer's own.
func (o *Optimizer) State() StateDict {
	st := StateDict{Name: o.name, Steps: map[string]int64{}, Tensors: map[string]*tensor.Tensor{}}
	o.fill(maps.Values(o.slots))
	for name, s := range o.slots {
		st.Steps[name] = s.Step
		for k, t := range s.Tensors {
			st.Tensors[name+"."+k] = t
		}
	}
	return st
}

// LoadState copies a saved state. The error lists everything that does not fit, is not finite, or is negative where it
// cannot be; then nothing was changed.
func (o *Optimizer) LoadState(c *tensor.Ctx, st StateDict) error {
	saved := map[string]Saved{}
	for k, t := range st.Tensors {
		saved[k] = Saved{DType: t.DType(), Shape: t.Shape()}
	}
	described := o.described()
	bad := o.mismatches(described, st.Name, st.Steps, saved)
	if len(bad) == 0 {
		for _, k := range sortedKeys(st.Tensors) {
			var n tensor.Census
			n.NonFinite, n.Negative = dtype.Census(st.Tensors[k].DType(), tensor.ReadBytes(c.NoGrad(), st.Tensors[k]))
			bad = append(bad, judge(k, described[k], n)...)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("optim: the saved state does not fit: %s", strings.Join(bad, "; "))
	}
	for k, t := range o.State().Tensors {
		tensor.CopyInto(c.NoGrad(), t, st.Tensors[k])
	}
	o.setSteps(st.Steps)
	return nil
}

// Saved is a tensor of a saved state, which ReadState copies into the optimizer's state.
type Saved struct {
	DType tensor.DType
	Shape []int
	Read  func(into *tensor.Tensor) (tensor.Census, error) // as tensor.WriteFrom
}

// ReadState is LoadState for a state that is not in memory: each tensor is read into the optimizer's own, so that there
// is no second copy. After an error about a state that does not fit nothing was changed; after an error of reading, or
// about numbers that are not finite, the state is partly the saved one. It is for package trainer.
func (o *Optimizer) ReadState(name string, steps map[string]int64, tensors map[string]Saved) error {
	described := o.described()
	bad := o.mismatches(described, name, steps, tensors)
	if len(bad) == 0 {
		mine := o.State().Tensors
		for _, k := range sortedKeys(mine) {
			n, err := tensors[k].Read(mine[k])
			if err != nil {
				return fmt.Errorf("optim: %s: %w", k, err)
			}
			bad = append(bad, judge(k, described[k], n)...)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("optim: the saved state does not fit: %s", strings.Join(bad, "; "))
	}
	o.setSteps(steps)
	return nil
}

func (o *Optimizer) setSteps(steps map[string]int64) {
	for name, s := range o.slots {
		s.Step = steps[name]
	}
}

// described are the tensors of the state, by their names in State.
func (o *Optimizer) described() map[string]StateTensor {
	list := map[string]StateTensor{}
	for name, s := range o.slots {
		for _, t := range o.Describe(s.param) {
			list[name+"."+t.Name] = t
		}
	}
	return list
}

// mismatches says what of a saved state is not that of this optimizer, whose own is mine.
func (o *Optimizer) mismatches(mine map[string]StateTensor, name string, steps map[string]int64,
	tensors map[string]Saved) (bad []string) {
	if name != o.name {
		bad = append(bad, fmt.Sprintf("it was saved by optimizer %q, not %q", name, o.name))
	}
	for _, k := range sortedKeys(mine) {
		t := mine[k]
		if s, ok := tensors[k]; !ok {
			bad = append(bad, fmt.Sprintf("%s is missing", k))
		} else if s.DType != t.DType || !slices.Equal(s.Shape, t.Shape) {
			bad = append(bad, fmt.Sprintf("%s is %v%v: want %v%v", k, s.DType, s.Shape, t.DType, t.Shape))
		}
	}
	for _, k := range sortedKeys(tensors) {
		if _, ok := mine[k]; !ok {
			bad = append(bad, fmt.Sprintf("%s is not known", k))
		}
	}
	return append(bad, o.badSteps(steps)...)
}

// maxSteps is more than any run has, and far from where a count overflows.
const maxSteps = 1 << 53

// badSteps says which step counts are not those of the optimizer's parameters.
func (o *Optimizer) badSteps(steps map[string]int64) (bad []string) {
	for _, k := range sortedKeys(o.slots) {
		if n, ok := steps[k]; !ok {
			bad = append(bad, fmt.Sprintf("the step count of %s is missing", k))
		} else if n < 0 {
			bad = append(bad, fmt.Sprintf("the step count of %s is %d: want 0 or more", k, n))
		} else if n > maxSteps {
			bad = append(bad, fmt.Sprintf("the step count of %s is %d: want at most %d", k, n, int64(maxSteps)))
		}
	}
	for _, k := range sortedKeys(steps) {
		if o.slots[k] == nil {
			bad = append(bad, fmt.Sprintf("the step count of %s is not known", k))
		}
	}
	return bad
}

// judge describes what is wrong with a tensor of a saved state: a step would make weights of it that are not finite.
func judge(name string, t StateTensor, c tensor.Census) (bad []string) {
	switch {
	case c.NonFinite > 0:
		bad = append(bad, fmt.Sprintf("%s has %d elements that are NaN or infinite", name, c.NonFinite))
	case c.Negative > 0 && t.NonNegative:
		bad = append(bad, fmt.Sprintf("%s has %d elements below zero: want squares", name, c.Negative))
	}
	return bad
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
