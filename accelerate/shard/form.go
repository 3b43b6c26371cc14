// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// form is the parameters of a flat buffer, whole: as they are, or rounded to what products compute with. It may come
// and go.
type form struct {
	*tensor.Tensor                // unloaded while it is away; nil: there is no such form
	gather         *comm.Handle   // that fills coming; nil: none is under way
	coming         *tensor.Tensor // what becomes its memory
}

// away reports whether the elements are neither here nor on their way.
func (w *form) away() bool { return w.Unloaded() && w.gather == nil }

// is reports whether there is such a form.
func (w *form) is() bool { return w.Tensor != nil }

// form is what the pass of a unit needs that computes in the dtype lower, or as parameters are.
func (f *flat) form(lower tensor.DType) *form {
	if f.low.is() && f.low.DType() == lower {
		return &f.low
	}
	return &f.whole
}

// isRounded reports whether products read rounded copies of a unit's parameter.
func (s *Sharder) isRounded(p tensor.Named) bool {
	return s.options.Lower.IsHalf() && s.options.Projected[p.Name] && p.DType() == tensor.Float32 &&
		(s.parameters && !s.stays(p) || s.shared)
}

// makeLow makes the form in which products read the parameters: each rank rounds its shard, and half as much is
// gathered.
func (f *flat) makeLow(s *Sharder, u *unit) (err error) {
	n := f.pack.Numel()
	lower := s.options.Lower
	if s.shared {
		if f.lmemory, err = s.group.AllocShared(n * lower.Size()); err != nil {
			return fmt.Errorf("shard: %w", err)
		}
	}
	return tensor.Try(func() {
		if s.shared {
			f.low.Tensor, _ = tensor.FromHost(s.c, f.lmemory.Bytes, lower, n)
		} else {
			f.low.Tensor = tensor.Empty(s.c, lower, n)
		}
		f.lend(s)
		if s.parameters {
			f.low.OnMissing(func() { s.late(u, f, &f.low) })
			f.low.Unload()
		}
	})
}

// lend makes the rounded form what products compute with.
func (f *flat) lend(s *Sharder) {
	for i, p := range f.params {
		p.LendLowered(f.view(s.c, f.low.Tensor, i))
	}
}

// round rounds this rank's part of the rounded form again, in place.
func (f *flat) round(s *Sharder) {
	if f.low.is() && s.shared {
		tensor.CopyInto(s.c, f.shard(s, f.low.Tensor), f.own)
	}
}

// written says that the ranks changed their shards.
func (f *flat) written(s *Sharder) {
	f.whole.Written()
	if f.low.is() {
		f.round(s)
		f.low.Written()
	}
}

// fetch begins to gather a form, unless it is here or on its way.
func (f *flat) fetch(s *Sharder, w *form) {
	if !w.away() {
		return
	}
	w.coming = tensor.Empty(s.c, w.DType(), f.pack.Numel())
	own := f.own
	if w == &f.low {
		own = f.shard(s, w.coming)
		tensor.CopyInto(s.c, own, f.own)
	}
	w.gather = s.group.AllGather(comm.OfTensor(s.c, w.coming), comm.OfTensor(s.c, own), comm.Label("gather "+f.name))
}

// arrive waits until a form is here.
func (f *flat) arrive(s *Sharder, w *form) {
	f.fetch(s, w)
	if w.gather == nil {
		return
	}
	err := w.gather.Wait(context.Background())
	w.gather = nil
	if err != nil {
		w.coming.Free()
		w.coming = nil
		fail("gather "+f.name, err)
	}
	w.Reload(w.coming)
	w.coming = nil
}

// leave gives the memory of the parameters up.
func (f *flat) leave(s *Sharder) {
	if !f.comes {
		return
	}
	for _, w := range []*form{&f.whole, &f.low} {
		if w.is() && w.gather != nil { // nobody needed what was fetched ahead
			f.arrive(s, w)
		}
	}
	if f.low.is() && !f.low.Unloaded() {
		f.low.Unload()
	}
	if !f.whole.Unloaded() {
		if s.write {
			tensor.CopyInto(s.c, f.own, f.shard(s, f.whole.Tensor))
		}
		for _, p := range f.params {
			p.DropLowered()
		}
		f.whole.Unload()
	}
}
