// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"math"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// overflowFrames is how many modules an OverflowError shows, as many as transformers' DebugUnderflowOverflow.
const overflowFrames = 21

// OverflowError is returned by a run with debug underflow_overflow in which a weight, an input or an output of a module
// is NaN or infinite. It is what transformers' DebugUnderflowOverflow prints.
type OverflowError struct {
	Module string // path in the model, as "h.1.mlp"; "" for the model itself
	Type   string // of the module, as "gpt2.MLP"
	Value  string // "weight", "input[0]", "output[1]" …
	Kind   string // NaN or infinity
	Frames []Frame
}

// Frame is what one call of a module's Forward saw.
type Frame struct {
	Module, Type string
	Values       []Extremes
}

// Extremes are the least and the largest absolute value of a tensor; NaN if it has one.
type Extremes struct {
	Name     string
	Min, Max float64
}

// Permanent says that a launcher need not start the run again: it would meet the same numbers.
func (*OverflowError) Permanent() bool { return true }

// Error names module and value in its first line; the last frames follow, the newest at the end.
func (e *OverflowError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "debug underflow_overflow: %s of %s has %s; the last %d modules, with least and "+
		"largest absolute values:", e.Value, Frame{Module: e.Module, Type: e.Type}.name(), e.Kind, len(e.Frames))
	for _, f := range e.Frames {
		fmt.Fprintf(&b, "\n  %s", f.name())
		for _, v := range f.Values {
			fmt.Fprintf(&b, "\n    %8.2e  %8.2e  %s", v.Min, v.Max, v.Name)
		}
	}
	return b.String()
}

func (f Frame) name() string {
	if f.Module == "" {
		return f.Type
	}
	return f.Module + " (" + f.Type + ")"
}

// overflowWatch looks at what modules compute.
type overflowWatch struct {
	open   []Frame // of modules that are running, the outermost first
	last   []Frame // of those that have run, the newest at the end
	remove []func()
}

// watchOverflow begins to look at the modules, if the arguments ask for it.
func (r *run) watchOverflow() {
	if !r.args.DetectsOverflow() {
		return
	}
	w := &overflowWatch{}
	tree := r.acc.Tree()
	tree.Modules(func(path string, m nn.Module) {
		params := r.weightsOf(path)
		kind := strings.TrimPrefix(fmt.Sprintf("%T", m), "*")
		w.remove = append(w.remove, tree.AddHooks(m, &nn.Hooks{
			Inputs: func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
				if path == "" {
					w.open = w.open[:0] // a pass that failed may have left some
				}
				w.open = append(w.open, Frame{Module: path, Type: kind})
				for _, p := range params {
					w.see(c, strings.TrimPrefix(strings.TrimPrefix(p.Name, path), "."), p.Tensor)
				}
				w.seeAll(c, "input", ts)
				return ts
			},
			Outputs: func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
				w.seeAll(c, "output", ts)
				w.close()
				return ts
			},
		}))
	})
	r.overflow = w
}

// weightsOf are the parameters of a module itself, where this rank has them as they are.
func (r *run) weightsOf(path string) (own []tensor.Named) {
	if r.acc.Shards() != nil || r.acc.Divided() {
		return nil
	}
	for _, p := range nn.NamedParameters(r.model) {
		if at := max(0, strings.LastIndexByte(p.Name, '.')); p.Name[:at] == path {
			own = append(own, p)
		}
	}
	return own
}

// end stops looking.
func (w *overflowWatch) end() {
	if w == nil {
		return
	}
	for _, remove := range w.remove {
		remove()
	}
}

func (w *overflowWatch) seeAll(c *nn.Ctx, what string, ts []*tensor.Tensor) {
	for i, t := range ts {
		if t != nil {
			w.see(c, fmt.Sprintf("%s[%d]", what, i), t)
		}
	}
}

// see notes a value of the innermost module that is running. It panics if that is not finite.
func (w *overflowWatch) see(c *nn.Ctx, name string, t *tensor.Tensor) {
	if len(w.open) == 0 {
		return
	}
	v := Extremes{Name: name, Min: math.Inf(1)}
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		host := c.Ctx.NoGrad()
		for _, x := range tensor.ToSlice[float32](host, tensor.Cast(host, t, tensor.Float32)) {
			a := math.Abs(float64(x))
			v.Min, v.Max = min(v.Min, a), max(v.Max, a)
		}
		return nil
	})
	top := &w.open[len(w.open)-1]
	top.Values = append(top.Values, v)
	if finite(v.Max) || t.Numel() == 0 {
		return
	}
	e := &OverflowError{Module: top.Module, Type: top.Type, Value: name, Kind: "infinities"}
	if math.IsNaN(v.Max) {
		e.Kind = "NaN"
	}
	w.close()
	e.Frames, w.last = w.last, nil // a pass that is tried before the step may meet it first
	panic(&tensor.Error{Op: "trainer.Train", Msg: e.Error(), Cause: e})
}

// close ends the frame of the innermost module.
func (w *overflowWatch) close() {
	if len(w.open) == 0 {
		return
	}
	w.last = append(w.last, w.open[len(w.open)-1])
	w.open = w.open[:len(w.open)-1]
	w.last = w.last[max(0, len(w.last)-overflowFrames):]
}
