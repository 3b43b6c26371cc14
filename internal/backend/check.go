// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Checks of what op.go promises, which every backend makes before a kernel runs. They return what is wrong, for the
// message of a Fault.

// Inside returns an error unless the elements that the view shows lie in a buffer of so many bytes.
func (v *View) Inside(bytes int) error {
	hi := v.Offset
	for k := range v.NDim {
		n := v.Shape[k]
		if n <= 0 {
			if n < 0 {
				return fmt.Errorf("negative size in shape %v", v.Shape[:v.NDim])
			}
			return nil // empty: touches nothing
		}
		if v.Stride[k] < 0 {
			return fmt.Errorf("negative stride in %v", v.Stride[:v.NDim])
		}
		hi += (n - 1) * v.Stride[k]
	}
	if size := v.DType.Size(); size == 0 || v.Offset < 0 || (hi+1)*size > bytes {
		return fmt.Errorf("elements %d to %d of %s reach outside a buffer of %d bytes", v.Offset, hi, v.DType, bytes)
	}
	return nil
}

// Rows is the product of all dims but the last, and the last.
func (v *View) Rows() (rows, cols int) {
	rows, cols = 1, 1
	if v.NDim > 0 {
		cols = v.Shape[v.NDim-1]
		for _, s := range v.Shape[:v.NDim-1] {
			rows *= s
		}
	}
	return rows, cols
}

// SameShape reports whether two views have the same shape.
func SameShape(a, b *View) bool {
	for d := range min(a.NDim, b.NDim) {
		if a.Shape[d] != b.Shape[d] {
			return false
		}
	}
	return a.NDim == b.NDim
}

// WantRows returns an error unless the view is contiguous and of the first input's dtype.
func (c *Call) WantRows(v *View) error {
	if v.DType != c.In[0].DType {
		return fmt.Errorf("is %s, input 0 %s", v.DType, c.In[0].DType)
	}
	if !v.Contiguous() {
		return fmt.Errorf("is not contiguous: shape %v, strides %v", v.Shape[:v.NDim], v.Stride[:v.NDim])
	}
	return nil
}

// RowStride is the number of elements from a row to the next of a view whose rows are contiguous and do not overlap: of
// any contiguous view, and of a matrix whose rows lie apart. ok is false for others.
func (v *View) RowStride() (stride int, ok bool) {
	rows, cols := v.Rows()
	switch {
	case v.Contiguous():
		return cols, true
	case v.NDim == 2 && (v.Stride[1] == 1 || cols == 1) && (v.Stride[0] >= cols || rows == 1):
		return v.Stride[0], true
	}
	return 0, false
}

// WantRowsApart returns an error unless the view has a RowStride and is of the first input's dtype.
func (c *Call) WantRowsApart(v *View) error {
	if _, ok := v.RowStride(); ok && v.DType == c.In[0].DType {
		return nil
	}
	return c.WantRows(v)
}

// WantVector returns an error unless the view is contiguous, has n elements and the dtype.
func (v *View) WantVector(dt dtype.DType, n int) error {
	if v.DType != dt || v.Numel() != n || !v.Contiguous() {
		return fmt.Errorf("is %s of shape %v: want %d contiguous elements of %s", v.DType, v.Shape[:v.NDim], n, dt)
	}
	return nil
}

// WantLines checks the operands of OpGather and OpScatterAdd, data, an index, and values of the index's shape, and
// returns the dim that the index goes along.
func (c *Call) WantLines(data, index, values *View) (dim int, err error) {
	dim = c.Ints[0]
	if data.NDim != index.NDim || dim < 0 || dim >= data.NDim {
		return dim, fmt.Errorf("dim %d of data of shape %v, index of shape %v", dim, data.Shape[:data.NDim],
			index.Shape[:index.NDim])
	}
	for k := range index.NDim {
		if k != dim && index.Shape[k] > data.Shape[k] || index.Shape[k] != values.Shape[k] ||
			values.NDim != index.NDim || values.DType != data.DType {
			return dim, fmt.Errorf("dim %d of %s data of shape %v, index of shape %v, %s values of shape %v", dim,
				data.DType, data.Shape[:data.NDim], index.Shape[:index.NDim], values.DType,
				values.Shape[:values.NDim])
		}
	}
	return dim, nil
}

// WantWindow checks the operands of OpIm2Col and OpCol2Im.
func (c *Call) WantWindow(image, cols *View) error {
	switch {
	case image.DType != cols.DType || image.NDim != 4 || cols.NDim != 6 || image.Shape[0] != cols.Shape[0] ||
		image.Shape[3] != cols.Shape[5]:
		return fmt.Errorf("image of %s and shape %v, windows of %s and shape %v", image.DType,
			image.Shape[:image.NDim], cols.DType, cols.Shape[:cols.NDim])
	case !image.Contiguous() || !cols.Contiguous():
		return fmt.Errorf("image of strides %v, windows of strides %v: want them contiguous", image.Stride[:4],
			cols.Stride[:6])
	case c.Ints[0] < 1 || c.Ints[1] < 1 || c.Ints[4] < 1 || c.Ints[5] < 1:
		return fmt.Errorf("stride, padding, dilation %v", c.Ints[:6])
	}
	return nil
}

// WantMaxPool checks the operands of OpMaxPool or OpMaxPoolGrad: images x, or their gradient, and y of a window each.
func (c *Call) WantMaxPool(x, y, index *View) error {
	if err := c.WantRows(&c.In[0]); err != nil {
		return fmt.Errorf("input 0 %w", err)
	}
	if err := c.WantRows(&c.Out[0]); err != nil {
		return fmt.Errorf("output 0 %w", err)
	}
	fits := x.NDim == 4 && y.NDim == 4 && x.Shape[0] == y.Shape[0] && x.Shape[1] == y.Shape[1]
	for k := range 2 {
		stride, p, n := c.Ints[k], c.Ints[2+k], c.Ints[4+k]
		fits = fits && stride > 0 && p >= 0 && 2*p <= n && x.Shape[2+k] > 0 && x.Shape[2+k]+2*p >= n &&
			y.Shape[2+k] == (x.Shape[2+k]+2*p-n)/stride+1
	}
	if !fits {
		return fmt.Errorf("images of shape %v, maxima of shape %v, stride, padding, window %v", x.Shape[:x.NDim],
			y.Shape[:y.NDim], c.Ints[:6])
	}
	if err := index.WantVector(dtype.Int64, y.Numel()); err != nil {
		return fmt.Errorf("index %w", err)
	}
	return nil
}

// NormOperands are those of a norm or of its gradient that Ints announces, nil where there is none: Part is added to
// the rows, and More to their gradient, which Rounded gets in a half type.
type NormOperands struct {
	Ins, Outs           int // without them
	Part, More, Rounded *View
}

// NormOperands finds them.
func (c *Call) NormOperands() NormOperands {
	o := NormOperands{Ins: c.NIn, Outs: c.NOut}
	if c.Ints[0] == 1 {
		o.Ins--
		o.More = &c.In[o.Ins]
	}
	if c.Ints[1] == 1 {
		o.Ins--
		o.Part = &c.In[o.Ins]
	}
	if c.Ints[2] == 1 {
		o.Outs--
		o.Rounded = &c.Out[o.Outs]
	}
	return o
}

// HasHalf reports whether an operand is of a half type.
func (c *Call) HasHalf() bool {
	for i := range c.NIn {
		if c.In[i].DType.IsHalf() {
			return true
		}
	}
	for i := range c.NOut {
		if c.Out[i].DType.IsHalf() {
			return true
		}
	}
	return false
}
