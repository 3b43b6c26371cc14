// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/flatten"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// flat is a buffer with parameters of one dtype, side by side.
type flat struct {
	name   string
	comes  bool // and goes with the passes of its unit
	unit   *unit
	dtype  tensor.DType
	pack   flatten.Layout
	params []tensor.Named
	number []int // of each parameter in Sharder.params; nil: they are frozen and have no gradients

	whole   form           // all of it. The parameters are views of it
	low     form           // what products read in place of it; it is there where they do
	own     *tensor.Tensor // this rank's shard: part of whole, or its own memory where whole comes and goes
	memory  *comm.Memory   // of whole, or nil
	lmemory *comm.Memory   // of low, or nil

	grads   *tensor.Tensor      // gradients of a micro-batch, or of the window; nil: no pass has come here
	gmemory *comm.Memory        // of grads, or nil
	views   []*tensor.Tensor    // of grads, parameter by parameter
	filled  []bool              // the parameter's gradient of this pass is in its view, or is known to be absent
	left    int                 // parameters that are not filled
	sum     *accumulation.Shard // of this rank's shard, over the micro-batches so far; nil where ranks add up their own
	total   *tensor.Tensor      // this rank's shard of the window's gradient, between Finish and Reset
}

// newFlat makes the buffer of parameters and moves them there.
func newFlat(s *Sharder, u *unit, name string, params []tensor.Named, trained bool) (*flat, error) {
	f := &flat{name: name, unit: u, dtype: params[0].DType(), params: params,
		comes: s.parameters && !s.stays(params[0])}
	sizes := make([]int, len(params))
	for i, p := range params {
		sizes[i] = p.Numel()
	}
	f.pack = flatten.New(sizes, s.group.Size(), strategy.Cell)
	f.filled = make([]bool, len(params))
	if trained {
		f.number = make([]int, len(params))
	}
	if err := f.allocate(s); err != nil {
		return nil, err
	}
	if f.comes && s.options.Zeros != nil {
		var err error
		if f.own, err = s.options.Zeros(s.c, f.dtype, f.pack.Shard); err != nil {
			return nil, fmt.Errorf("shard: %w", err)
		}
	}
	return f, tensor.Try(func() {
		var old []*tensor.Tensor
		for i, p := range params {
			old = append(old, tensor.Detach(p.Tensor))
			if v := f.view(s.c, f.whole.Tensor, i); s.shared && s.group.Rank() > 0 {
				p.Become(s.c, v) // rank 0 fills it
			} else {
				p.Rehome(s.c, v)
			}
		}
		s.old = append(s.old, old...)
		part := f.shard(s, f.whole.Tensor)
		switch {
		case !f.comes:
			f.own = part
			return
		case f.own == nil:
			f.own = tensor.Clone(s.c, part)
		default:
			tensor.CopyInto(s.c, f.own, part)
		}
		f.whole.OnMissing(func() { s.late(u, f, &f.whole) })
	})
}

// allocate makes whole: where it stays, in memory that the group's calls fill in place.
func (f *flat) allocate(s *Sharder) error {
	n := f.pack.Numel()
	if f.comes {
		return tensor.Try(func() { f.whole.Tensor = tensor.Zeros(s.c, f.dtype, n) })
	}
	var err error
	if s.shared {
		f.memory, err = s.group.AllocShared(n * f.dtype.Size())
		if err != nil {
			return fmt.Errorf("shard: %w", err)
		}
		return tensor.Try(func() { f.whole.Tensor, _ = tensor.FromHost(s.c, f.memory.Bytes, f.dtype, n) })
	}
	f.memory, f.whole.Tensor, err = alloc(s, f.dtype, n)
	return err
}

// alloc makes a vector of zeros, in the group's memory if the device computes there.
func alloc(s *Sharder, dt tensor.DType, n int) (m *comm.Memory, t *tensor.Tensor, err error) {
	var memory []byte
	if s.host {
		if m, err = s.group.Alloc(n * dt.Size()); err != nil {
			return nil, nil, fmt.Errorf("shard: %w", err)
		}
		memory = m.Bytes
	}
	return m, t, tensor.Try(func() { t, _ = flatten.Vector(s.c, memory, dt, n) })
}

// view is parameter i's place in a buffer.
func (f *flat) view(c *tensor.Ctx, buffer *tensor.Tensor, i int) *tensor.Tensor {
	return f.pack.View(c, buffer, i, f.params[i].Shape()...)
}

// shard is this rank's shard of a buffer.
func (f *flat) shard(s *Sharder, buffer *tensor.Tensor) *tensor.Tensor {
	return f.pack.Own(s.c, buffer, s.group.Rank())
}

// placement is what this rank owns of parameter i.
func (f *flat) placement(s *Sharder, i int) tensor.Placement {
	own := f.pack.Within(i, s.group.Rank())
	return s.job.Place(f.params[i]).Slice(own.Start, own.Stop)
}

// local is what this rank owns of parameter i, as part of a buffer of a shard's size; nil if that is nothing.
func (f *flat) local(s *Sharder, shard *tensor.Tensor, i int) *tensor.Tensor {
	return f.pack.Local(s.c, shard, i, s.group.Rank())
}

// open makes the buffer of gradients, so that a backward pass writes there.
func (f *flat) open(s *Sharder) {
	if f.grads != nil || f.number == nil {
		return
	}
	f.grads = tensor.Zeros(s.c, f.params[0].GradDType(), f.pack.Numel())
	f.point(s)
}

// point makes the buffer the place of the parameters' gradients, except for those that a backward pass has begun to add
// up elsewhere, such as that of a tied weight: fill copies them.
func (f *flat) point(s *Sharder) {
	f.views = f.views[:0]
	for i, p := range f.params {
		v := f.view(s.c, f.grads, i)
		f.views = append(f.views, v)
		if !p.HasGradBuffer() && !f.filled[i] {
			p.SwapGrad(v, false)
		}
	}
}

// fill puts the gradient of parameter i into the buffer. absent: this pass has none.
func (f *flat) fill(s *Sharder, i int, absent bool) {
	if f.filled[i] {
		return
	}
	f.open(s)
	f.filled[i] = true
	f.left--
	p, v := f.params[i], f.views[i]
	g := p.Grad()
	if absent {
		g = nil
	}
	flatten.Fill(s.c, v, g)
	if old := p.SwapGrad(nil, false); old != nil && old != v {
		old.Free()
	}
}

// begin readies the next pass.
func (f *flat) begin() {
	clear(f.filled)
	f.left = len(f.params)
}

// fail panics with an error of the group, which tensor.Try gives back.
func fail(what string, err error) {
	panic(&tensor.Error{Op: "shard.Flat", Msg: fmt.Sprintf("%s: %v", what, err), Cause: err})
}
