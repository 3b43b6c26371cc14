// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"maps"

	"github.com/lockstep-ml/lockstep/tensor"
)

// trainWeight is the name of the state that has a parameter's weights of training while those of evaluation are in its
// place.
const trainWeight = "train_weight"

// ema is the name of the state of SetAverage: the average of the weights before the last step.
const ema = "ema"

// SetAverage makes evaluation, saved weights and saved states take an exponential moving average of the weights (Polyak
// & Juditsky 1992; the "EMA" of image models): average ← decay·average + (1−decay)·weights after each step that changes
// a parameter, from its initial value on. It is float32 for parameters of a half type. See Eval. It panics if the
// optimizer averages weights already, or has its state.
func (o *Optimizer) SetAverage(decay float64) {
	for _, s := range o.slots {
		if s.Tensors != nil {
			panic(&tensor.Error{Op: "optim.SetAverage",
				Msg: "the optimizer has its state already: want the call before its first step"})
		}
	}
	if o.average != nil || !(decay > 0 && decay < 1) {
		panic(&tensor.Error{Op: "optim.SetAverage",
			Msg: fmt.Sprintf("decay %g for %s: want a number in (0, 1) and an optimizer that does not average weights",
				decay, o.name)})
	}
	o.decay = decay
	o.average = func(c *tensor.Ctx, p tensor.Named, s *Slot) {
		mean := s.Tensors[ema]
		sum := tensor.Add(c, tensor.Affine(c, mean, decay, 0), tensor.Affine(c, wide(c, p, mean), 1-decay, 0))
		tensor.CopyInto(c, p.Tensor, tensor.Cast(c, sum, p.DType()))
	}
}

// wide is a parameter in the dtype of its average.
func wide(c *tensor.Ctx, p tensor.Named, mean *tensor.Tensor) *tensor.Tensor {
	return tensor.Cast(c, p.Tensor, mean.DType())
}

// follow enters a parameter, before the step changes it, into its average.
func (o *Optimizer) follow(c *tensor.Ctx, w *work) {
	if o.decay == 0 {
		return
	}
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		mean := w.s.Tensors[ema]
		if w.s.Step == 1 {
			tensor.CopyInto(c, mean, wide(c, w.p, mean))
		} else {
			tensor.AxpbyInto(c, mean, o.decay, mean, 1-o.decay, wide(c, w.p, mean))
		}
		return nil
	})
}

// Averages reports whether evaluation takes other weights than training, see Eval.
func (o *Optimizer) Averages() bool { return o.average != nil }

// Evaluating reports whether the weights of Eval are in place.
func (o *Optimizer) Evaluating() bool { return o.evaluating }

// Eval puts the weights for evaluation, saved weights and saved states in place: for an optimizer that averages them,
// such as ScheduleFreeAdamW or any after SetAverage, the average. The state then holds the weights of training too, and
// a state is loaded after Eval. For other optimizers it does nothing, and so does a second call.
func (o *Optimizer) Eval(c *tensor.Ctx) {
	if o.average == nil || o.evaluating {
		return
	}
	c = c.NoGrad()
	o.evaluating = true
	o.fill(maps.Values(o.slots))
	for _, p := range o.Params() {
		s := o.slots[p.Name]
		kept := s.Tensors[trainWeight]
		if kept == nil {
			kept = o.zeroState(s, StateTensor{Name: trainWeight, Shape: p.Shape(), DType: p.DType()})
			s.Tensors[trainWeight] = kept
		}
		o.keep.Sync()
		tensor.CopyInto(c, kept, p.Tensor)
		if s.Step > 0 {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				o.average(c, p, s)
				return nil
			})
		}
	}
}

// Train puts the weights of training back, with their bits; it undoes Eval.
func (o *Optimizer) Train(c *tensor.Ctx) {
	if !o.evaluating {
		return
	}
	for _, p := range o.Params() {
		s := o.slots[p.Name]
		tensor.CopyInto(c.NoGrad(), p.Tensor, s.Tensors[trainWeight])
	}
	c.Sync()
	for _, s := range o.slots {
		s.Tensors[trainWeight].Free()
		delete(s.Tensors, trainWeight)
	}
	o.evaluating = false
}
