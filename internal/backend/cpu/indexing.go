// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// embeddingKernel copies rows, whatever the dtype.
func embeddingKernel(d *Device, c *backend.Call) {
	vocab, cols := c.In[0].Rows()
	n := c.In[1].Numel()
	d.wantRows(c, &c.In[0], "input", 0)
	d.wantVector(c, &c.Out[0], c.In[0].DType, n*cols, "output")
	d.wantIndices(c, &c.In[1], n, vocab, false, 0)
	t := d.begin(c)
	t.n[0] = cols * c.In[0].DType.Size()
	t.do(n, max(1, 4*elementGrain/max(1, t.n[0])), embeddingRows)
	t.end()
}

func embeddingRows(t *task, _ *workspace, lo, hi int) {
	ids, bytes := indicesOf(&t.c.In[1]), t.n[0]
	table, out := at(&t.c.In[0], t.c.In[0].Offset), at(&t.c.Out[0], t.c.Out[0].Offset)
	for i := lo; i < hi; i++ {
		copy(unsafe.Slice((*byte)(unsafe.Add(out, i*bytes)), bytes),
			unsafe.Slice((*byte)(unsafe.Add(table, ids.at(i)*bytes)), bytes))
	}
}

// embeddingGradKernel sorts the positions by id, keeping their order, so that each row of the table is one sum, to
// which what is there is added at the end.
func embeddingGradKernel(d *Device, c *backend.Call) {
	vocab, cols := c.Out[0].Rows()
	n, limit := c.In[0].Numel(), vocab+c.Ints[1]
	d.wantIndices(c, &c.In[0], n, limit, false, 0)
	d.wantVector(c, &c.In[1], c.Out[0].DType, n*cols, "dy")
	d.wantVector(c, &c.Out[0], c.Out[0].DType, vocab*cols, "dtable")
	t := d.begin(c)
	defer t.end()
	t.n[0], t.n[1] = cols, limit
	t.parts = d.scratch(8 * (limit + 1 + n))
	ends := unsafe.Slice((*int)(t.parts.ptr), limit+1+n)
	ends, order := ends[:limit+1], ends[limit+1:]
	clear(ends)
	ids := indicesOf(&c.In[0])
	for i := range n {
		ends[ids.at(i)+1]++
	}
	for v := range limit {
		ends[v+1] += ends[v]
	}
	for i := range n { // ends[v] starts as the first place of v and ends as that of v+1
		v := ids.at(i)
		order[ends[v]] = i
		ends[v]++
	}
	grain := max(1, elementGrain/max(1, cols))
	switch c.Out[0].DType {
	case dtype.Float32:
		t.do(vocab, grain, embeddingGradRows[float32])
	case dtype.Float64:
		t.do(vocab, grain, embeddingGradRows[float64])
	default:
		d.fault(c, "no kernel for %s", c.Out[0].DType)
	}
}

func embeddingGradRows[T float](t *task, ws *workspace, lo, hi int) {
	cols, limit, add := t.n[0], t.n[1], t.c.Ints[0] == 1
	list := unsafe.Slice((*int)(t.parts.ptr), t.parts.n/8)
	ends, order := list[:limit+1], list[limit+1:]
	ws.reserve(8 * cols)
	sum := carve[float64](ws, cols)
	for v := lo; v < hi; v++ {
		first := 0
		if v > 0 {
			first = ends[v-1]
		}
		out := row[T](&t.c.Out[0], v, cols)
		switch places := order[first:ends[v]]; {
		case len(places) == 0 && add:
		case len(places) == 0:
			clear(out)
		case len(places) == 1 && add:
			addTo(out, row[T](&t.c.In[1], places[0], cols))
		case len(places) == 1:
			copy(out, row[T](&t.c.In[1], places[0], cols))
		default:
			clear(sum)
			for _, i := range places {
				addRow(sum, row[T](&t.c.In[1], i, cols))
			}
			for j := range out {
				if x := T(sum[j]); add {
					out[j] += x
				} else {
					out[j] = x
				}
			}
		}
	}
}

// wantLines looks at the operands of gather and scatter-add: data, an index, and values of the index's shape.
func (d *Device) wantLines(c *backend.Call, data, index, values *backend.View) (dim int) {
	dim, err := c.WantLines(data, index, values)
	if err != nil {
		d.fault(c, "%v", err)
	}
	d.wantIndices(c, index, index.Numel(), data.Shape[dim], false, 0)
	return dim
}

func gatherKernel(d *Device, c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	t.n[0] = d.wantLines(c, &c.In[0], &c.In[1], &c.Out[0])
	n := c.Out[0].Numel()
	switch c.Out[0].DType.Size() {
	case 1:
		t.do(n, elementGrain/4, gatherElements[uint8])
	case 2:
		t.do(n, elementGrain/4, gatherElements[uint16])
	case 4:
		t.do(n, elementGrain/4, gatherElements[uint32])
	default:
		t.do(n, elementGrain/4, gatherElements[uint64])
	}
}

func gatherElements[T uint8 | uint16 | uint32 | uint64](t *task, _ *workspace, lo, hi int) {
	x, out, dim := &t.c.In[0], &t.c.Out[0], t.n[0]
	ids := indicesOf(&t.c.In[1])
	from, to := at(x, x.Offset), at(out, out.Offset)
	size := int(unsafe.Sizeof(*new(T)))
	for i := lo; i < hi; i++ {
		src, dst, rest := 0, 0, i
		for k := out.NDim - 1; k >= 0; k-- {
			at := rest % out.Shape[k]
			rest /= out.Shape[k]
			dst += at * out.Stride[k]
			if k == dim {
				at = ids.at(i)
			}
			src += at * x.Stride[k]
		}
		*(*T)(unsafe.Add(to, dst*size)) = *(*T)(unsafe.Add(from, src*size))
	}
}

func scatterAddKernel(d *Device, c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	dim := d.wantLines(c, &c.Out[0], &c.In[1], &c.In[0])
	if !c.Out[0].Contiguous() {
		d.fault(c, "the output is not contiguous")
	}
	index := &c.In[1]
	t.n[0] = dim
	lines := 1
	for k := range index.NDim {
		if k != dim {
			lines *= index.Shape[k]
		}
	}
	if index.Shape[dim] == 0 {
		return
	}
	grain := max(1, elementGrain/4/index.Shape[dim])
	switch c.Out[0].DType {
	case dtype.Float32:
		t.do(lines, grain, scatterAddLines[float32])
	case dtype.Float64:
		t.do(lines, grain, scatterAddLines[float64])
	case dtype.Int32:
		t.do(lines, grain, scatterAddLines[int32])
	case dtype.Int64:
		t.do(lines, grain, scatterAddLines[int64])
	default:
		d.fault(c, "no kernel for %s", c.Out[0].DType)
	}
}

// scatterAddLines does lines along the dim, whose targets do not overlap, each in index order.
func scatterAddLines[T number](t *task, _ *workspace, lo, hi int) {
	src, index, out, dim := &t.c.In[0], &t.c.In[1], &t.c.Out[0], t.n[0]
	ids := indicesOf(index)
	from, to := at(src, src.Offset), at(out, out.Offset)
	size := int(unsafe.Sizeof(*new(T)))
	step := 1 // of the contiguous index along dim
	for k := dim + 1; k < index.NDim; k++ {
		step *= index.Shape[k]
	}
	for line := lo; line < hi; line++ {
		s, o, rest := 0, 0, line
		for k := index.NDim - 1; k >= 0; k-- {
			if k == dim {
				continue
			}
			at := rest % index.Shape[k]
			rest /= index.Shape[k]
			s += at * src.Stride[k]
			o += at * out.Stride[k]
		}
		first := line/step*step*index.Shape[dim] + line%step
		for j := range index.Shape[dim] {
			p := (*T)(unsafe.Add(to, (o+ids.at(first+j*step)*out.Stride[dim])*size))
			*p += *(*T)(unsafe.Add(from, (s+j*src.Stride[dim])*size))
		}
	}
}
