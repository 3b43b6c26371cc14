// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Launch launches op on operands of dt and returns the fault if there is no kernel for them. The operands are
// those of a sample of the suite: of one that computes in dt (see [backend.Call.DType]) or, where the op's contract has
// none, of another whose operands become dt.
func Launch(b backend.Backend, stream backend.Stream, op backend.Op, dt dtype.DType) (fault *backend.Fault) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *backend.Fault:
			fault = v
		default:
			panic(v)
		}
	}()
	sampleFor(op, dt).run(failing{}, b, stream)
	return nil
}

// sampleFor is the smallest sample that computes in dt, or one that is made to: of floats if there is one, whose
// indices stay.
func sampleFor(op backend.Op, dt dtype.DType) *sample {
	samples := slices.DeleteFunc(slices.Clone(samplesOf(op)), func(s *sample) bool { return s.outs[0].numel() == 0 })
	slices.SortStableFunc(samples, func(a, b *sample) int { return a.bytes() - b.bytes() })
	of := func(is func(dtype.DType) bool) int {
		return slices.IndexFunc(samples, func(s *sample) bool { return is(s.dtype()) })
	}
	if i := of(func(found dtype.DType) bool { return found == dt }); i >= 0 {
		return samples[i]
	}
	made := *samples[max(0, of(dtype.DType.IsFloat))]
	from := made.dtype()
	for _, list := range []*[]*operand{&made.ins, &made.outs} {
		*list = slices.Clone(*list)
		for i, o := range *list {
			if o.dt == from {
				other := *o
				other.dt, other.bytes = dt, make([]byte, len(o.bytes)/from.Size()*dt.Size())
				(*list)[i] = &other
			}
		}
	}
	return &made
}

// bytes is the size of the operands.
func (s *sample) bytes() (n int) {
	for _, o := range slices.Concat(s.ins, s.outs) {
		n += len(o.bytes)
	}
	return n
}

// dtype is that of the sample's call.
func (s *sample) dtype() dtype.DType {
	c := backend.Call{NIn: len(s.ins), NOut: len(s.outs)}
	for i, o := range s.ins {
		c.In[i].DType = o.dt
	}
	for i, o := range s.outs {
		c.Out[i].DType = o.dt
	}
	return c.DType()
}
