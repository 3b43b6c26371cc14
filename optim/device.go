// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

// StepsAlone reports whether StepBy works: all transforms are OnDevice (see Traits), and the device is able to.
func (o *Optimizer) StepsAlone() bool {
	for _, t := range o.chain {
		if !t.Traits().OnDevice {
			return false
		}
	}
	return o.keep.Device().StepsAlone()
}

// deviceStep are the numbers of a StepBy.
type deviceStep struct {
	clip   *tensor.Tensor
	scale  *tensor.Tensor // its element ClipScale
	scales bool
}

func (d *deviceStep) element(c *tensor.Ctx, i int) *tensor.Tensor {
	return tensor.Slice(c, d.clip, 0, i, i+1)
}

// StepBy is Step that takes its factor, in place of ScaleGrads's, from what MeasureGrads wrote on the device, and waits
// for nothing. If norm or losses are not finite, parameters and state stay as they were; the caller finds out when it
// reads them, and calls TakeBack then. scales says whether the factor can be other than 1. The bits are those of Step.
// See StepsAlone.
func (o *Optimizer) StepBy(c *tensor.Ctx, clip *tensor.Tensor, scales bool) {
	c = c.NoGrad()
	o.ScaleGrads(1)
	o.begin()
	defer o.end()
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		o.by = &deviceStep{clip: clip, scales: scales}
		o.by.scale = o.by.element(c, tensor.ClipScale)
		if o.fused != nil && o.fused.Numbers != nil {
			o.tell(c)
		}
		o.updateAll(c.If(o.by.element(c, tensor.ClipFinite)))
		return nil
	})
}

// TakeBack undoes the count of the last step, which the device left out.
func (o *Optimizer) TakeBack() {
	for _, s := range o.taken {
		s.Step--
	}
	o.taken = o.taken[:0]
}

// tell writes the numbers of the fused pass to the device, in one copy: a row for each combination of group and step
// count.
func (o *Optimizer) tell(c *tensor.Ctx) {
	type key struct {
		g    *Group
		step int64
	}
	var keys []key
	var numbers []float64
	rows := make([]int, len(o.work))
	for i := range o.work {
		w := &o.work[i]
		k, row := key{w.g, w.s.Step}, len(keys)-1
		for row >= 0 && keys[row] != k {
			row--
		}
		if row < 0 {
			row = len(keys)
			keys = append(keys, k)
			numbers = append(numbers, o.fused.Numbers(w.g, w.s.Step)...)
		}
		rows[i] = row
	}
	if len(keys) == 0 {
		return
	}
	block := tensor.FromSlice(c, numbers, len(numbers))
	views, each := make([]*tensor.Tensor, len(keys)), len(numbers)/len(keys)
	for i := range views {
		views[i] = tensor.Slice(c, block, 0, each*i, each*(i+1))
	}
	for i, row := range rows {
		o.work[i].row = views[row]
	}
}
