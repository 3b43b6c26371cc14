// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"maps"

	"github.com/lockstep-ml/lockstep/tensor"
)

// trainWeight is the name of the state that has a parameter's weights of training while those of evaluation are in its
// place.
const trainWeight = "train_weight"

// Averages reports whether evaluation takes other weights than training, see Eval.
func (o *Optimizer) Averages() bool { return o.average != nil }

// Eval puts the weights in place that evaluation, saved weights and saved states take: for an optimizer that averages
// them, such as ScheduleFreeAdamW, the average. The state then holds the weights of training too, and a state is loaded
// after Eval. For other optimizers it does nothing, and so does a second call.
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
