// SPDX-License-Identifier: Apache-2.0

package cpu

import "github.com/lockstep-ml/lockstep/internal/backend"

// dims is a walk over some dims of a view, in row-major order; strides count elements.
type dims struct {
	nd     int
	shape  [backend.MaxDims]int
	stride [backend.MaxDims]int
}

func (w *dims) add(size, stride int) {
	w.shape[w.nd], w.stride[w.nd] = size, stride
	w.nd++
}

func (w *dims) numel() int {
	n := 1
	for _, s := range w.shape[:w.nd] {
		n *= s
	}
	return n
}

// offset is where element i of the walk lies.
func (w *dims) offset(i int) int {
	offset := 0
	for d := w.nd - 1; d >= 0; d-- {
		offset += i % w.shape[d] * w.stride[d]
		i /= w.shape[d]
	}
	return offset
}

// each calls f for the runs that elements lo to hi of the walk consist of: n elements from element i on, stride apart
// from offset on.
func (w *dims) each(lo, hi int, f func(i, offset, n, stride int)) {
	if w.nd == 0 {
		if lo < hi {
			f(0, 0, 1, 1)
		}
		return
	}
	length, stride := w.shape[w.nd-1], w.stride[w.nd-1]
	for i := lo; i < hi; {
		n := min(length-i%length, hi-i)
		f(i, w.offset(i), n, stride)
		i += n
	}
}

// merge joins neighbours that are walked as one.
func (w *dims) merge() {
	n := 0
	for d := range w.nd {
		if n > 0 && w.stride[n-1] == w.stride[d]*w.shape[d] {
			w.shape[n-1] *= w.shape[d]
			w.stride[n-1] = w.stride[d]
			continue
		}
		w.shape[n], w.stride[n] = w.shape[d], w.stride[d]
		n++
	}
	w.nd = n
}

// reduction is the geometry of a reduction: the dims that stay, those that go, and how they are cut.
type reduction struct {
	kept, out dims // the dims that stay, with the strides of the input and of the output
	gone      dims
	outputs   int  // elements of kept
	total     int  // elements of gone
	last      bool // the last dim (of a size other than one) goes, or none stays
	part      int  // elements of gone per partial sum
}

// geometry splits the dims of the input by whether the output keeps them. Neighbours among the kept ones are merged by
// shape only if both strides allow it and they are neighbours in the input; this does not change the order of anything.
func (d *Device) geometry(c *backend.Call, r *reduction) {
	in, out := &c.In[0], &c.Out[0]
	*r = reduction{last: true}
	if in.NDim != out.NDim {
		d.fault(c, "input of shape %v, output of shape %v", in.Shape[:in.NDim], out.Shape[:out.NDim])
	}
	for k := range in.NDim {
		size := in.Shape[k]
		switch {
		case size == 1 && out.Shape[k] == 1:
		case size == out.Shape[k]:
			r.kept.add(size, in.Stride[k])
			r.out.add(size, out.Stride[k])
			r.last = false
		case out.Shape[k] == 1:
			r.gone.add(size, in.Stride[k])
			r.last = true
		default:
			d.fault(c, "input of shape %v, output of shape %v", in.Shape[:in.NDim], out.Shape[:out.NDim])
		}
	}
	r.gone.merge()
	r.outputs, r.total = r.kept.numel(), r.gone.numel()
}
