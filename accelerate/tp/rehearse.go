// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Rehearse runs a forward pass of a model on a device without values, whole and then with what one of the ranks has by
// the plan, which Resolve accepts. The error names the first layers whose rules do not fit each other: one gives its
// features divided, and the other needs them whole, or the other way round. run computes the pass of the model that it
// gets, which is a copy. A model that cannot be copied or run there has no error.
func (p Plan) Rehearse(m nn.Module, size Size, run func(c *nn.Ctx, m nn.Module)) error {
	dev := tensor.NewMeta()
	defer dev.Close()
	twin, err := nn.CloneShapes(m, dev)
	if err != nil {
		return nil
	}
	c := tensor.NewCtx(dev).NoGrad()
	whole := &rehearsal{ranks: 1, shapes: map[call][]int{}, calls: map[string]int{}}
	tree := nn.Walk(twin)
	list, _, err := p.resolve(tree, size)
	if err != nil {
		return err
	}
	if whole.run(c, tree, list, func(c *nn.Ctx) { run(c, twin) }) != nil {
		return nil
	}
	group, _ := fake.New(0, size.Ranks, comm.Options{Log: slog.New(slog.DiscardHandler)})
	defer group.Close()
	d, err := Divide(c, twin, Config{Group: group, Plan: p, Parts: size.Parts})
	if err != nil {
		return err
	}
	divided := &rehearsal{ranks: size.Ranks, whole: whole, shapes: map[call][]int{}, calls: map[string]int{}}
	if err := divided.run(c, d.Tree(), list, func(c *nn.Ctx) { run(c, twin) }); err != nil {
		return Faults{divided.explain(err)}
	}
	return nil
}

// call is one of the calls of a layer in a pass.
type call struct {
	path string
	n    int
}

// rehearsal is a pass that notes what layers get.
type rehearsal struct {
	ranks  int
	whole  *rehearsal     // that of the whole model; nil: this is it
	shapes map[call][]int // of the inputs of layers
	calls  map[string]int // of each layer, so far
	ran    []*layer       // one for each call
}

// errMisfit is the panic value of a layer whose input does not fit its rule.
type errMisfit struct{ error }

// run runs a pass.
func (r *rehearsal) run(c *tensor.Ctx, tree *nn.Tree, list []*layer, pass func(c *nn.Ctx)) error {
	for _, l := range list {
		if l.module == nil {
			continue
		}
		tree.AddHooks(l.module, &nn.Hooks{Inputs: func(_ *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
			r.note(l, in)
			return in
		}})
	}
	return tensor.Recover(func() {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			pass(nn.NewCtx(c, tree, false).WithLossOnly())
			return nil
		})
	})
}

// note notes the call of a layer, and compares its input with that in the whole model.
func (r *rehearsal) note(l *layer, in []*tensor.Tensor) {
	if len(in) == 0 || in[0] == nil {
		return
	}
	at := call{l.path, r.calls[l.path]}
	r.calls[l.path]++
	r.shapes[at] = slices.Clone(in[0].Shape())
	if r.whole != nil {
		if err := r.misfit(l, r.shapes[at], r.whole.shapes[at]); err != nil {
			panic(errMisfit{err})
		}
	}
	r.ran = append(r.ran, l)
}

// misfit is what is wrong with the shape of a layer's input, which has another shape in the whole model.
func (r *rehearsal) misfit(l *layer, shape, whole []int) error {
	var have, all int // features, or heads
	heads := l.rule.Style == ReplicatedWithGradAllReduce
	switch dim := len(shape) - 1; {
	case len(shape) != len(whole) || dim < 0 || heads && dim < 1:
		return nil
	case heads || shape[dim] == whole[dim] && dim > 0:
		have, all = elements(shape[:dim]), elements(whole[:dim])
	default:
		have, all = shape[dim], whole[dim]
	}
	wantsPart := heads || l.rule.rowwise()
	switch path := patternOf(l.path); {
	case wantsPart && have == all:
		of := r.last(false)
		return fmt.Errorf("%s is %s, which is for an input whose features are divided, and gets all of them%s: want "+
			"%s", path, l.rule, of.gives(""), l.insteadOfWhole(of))
	case !wantsPart && have != all:
		of := r.last(true)
		return fmt.Errorf("%s %s, and gets a rank's part of its input (%v of %v)%s: want %s", path, l.isWhole(), shape,
			whole, of.gives(""), l.insteadOfPart(of))
	}
	return nil
}

// isWhole says why the layer needs its whole input.
func (l *layer) isWhole() string {
	if l.rule.Style == "" {
		return "has no rule"
	}
	return fmt.Sprintf("is %s, which is for a whole input", l.rule)
}

// insteadOfWhole is what rules would do for a layer that gets its whole input, from another.
func (l *layer) insteadOfWhole(of *layer) string {
	if !l.rule.rowwise() {
		return fmt.Sprintf("%s, or %s in front of it", Replicate, Colwise)
	}
	return fmt.Sprintf("%s or %s, or %s in front of it", Colwise, RowwiseSplitInput, Colwise)
}

// insteadOfPart is what rules would do for a layer that gets a part of its input, from another.
func (l *layer) insteadOfPart(of *layer) string {
	style := Rowwise
	if !l.hasMatrix() && l.tied == "" {
		style = ReplicatedWithGradAllReduce
	}
	if of == nil {
		return string(style)
	}
	return fmt.Sprintf("%s, or %s for %s", style, ColwiseGatherOutput, patternOf(of.path))
}

// givesPart reports whether a layer's output is divided.
func (l *layer) givesPart() bool { return l.rule.Style == Colwise || l.rule.Style == PackedColwise }

// last is the layer with a matrix that ran last and gives its features divided, or whole; nil if none did.
func (r *rehearsal) last(part bool) *layer {
	for _, l := range slices.Backward(r.ran) {
		if (l.hasMatrix() || l.tied != "") && l.givesPart() == part {
			return l
		}
	}
	return nil
}

// gives names a layer by what it gives; "" for none.
func (l *layer) gives(what string) string {
	if l == nil {
		return ""
	}
	rule := string(l.rule.Style)
	if rule == "" {
		rule = "without a rule"
	}
	return fmt.Sprintf("%s from %s (%s)", what, patternOf(l.path), rule)
}

// explain is the error of a pass of the divided model, with the layers that do not fit.
func (r *rehearsal) explain(err error) error {
	if m, ok := errors.AsType[errMisfit](err); ok {
		return m.error
	}
	part, whole := r.last(true), r.last(false)
	if part == nil {
		return fmt.Errorf("divided by the plan, the model cannot run: %w", err)
	}
	return fmt.Errorf("rules do not fit each other, where there are%s%s: %w", part.gives(" a part"),
		whole.gives(", and the whole"), err)
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
