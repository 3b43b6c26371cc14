// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

// OnDevice is a Transform whose Apply changes tensors alone, by operations on the context that it is given, reads no
// number of theirs, and keeps nothing else from step to step. Then a step may be queued before anybody knows whether
// its gradients are finite: if they are not, the device leaves parameters and state as they are. With any other
// transform in the chain the host waits for the gradients' norm before each step.
type OnDevice interface {
	Transform
	// OnDevice does nothing; to have it is the promise.
	OnDevice()
}

// StepsAlone reports whether StepBy works: all transforms are OnDevice, and the device is able to.
func (o *Optimizer) StepsAlone() bool {
	for _, t := range o.chain {
		if _, ok := t.(OnDevice); !ok {
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
		if adam, ok := o.adamW(); ok {
			o.tell(c, adam)
		}
		c = c.If(o.by.element(c, tensor.ClipFinite))
		for i := range o.work {
			o.update(c, &o.work[i])
		}
		tensor.AdamWAll(c, o.fused)
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

// tell writes the numbers of the step to the device, in one copy: a row for each combination of group and step count.
func (o *Optimizer) tell(c *tensor.Ctx, adam ScaleByAdam) {
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
			s := adam.numbers(o, w)
			numbers = append(numbers, s.Correction1, s.Correction2, s.LR, s.WeightDecay)
		}
		rows[i] = row
	}
	if len(keys) == 0 {
		return
	}
	block := tensor.FromSlice(c, numbers, len(numbers))
	views := make([]*tensor.Tensor, len(keys))
	for i := range views {
		views[i] = tensor.Slice(c, block, 0, 4*i, 4*i+4)
	}
	for i, row := range rows {
		o.work[i].row = views[row]
	}
}
