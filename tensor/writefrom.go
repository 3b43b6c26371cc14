// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Census counts elements of a floating-point tensor that a saved weight or state seldom may have.
type Census struct {
	NonFinite int // NaN and infinities
	Negative  int // below zero
	// Overflowed counts those of NonFinite that were finite before they were converted.
	Overflowed int
}

// writeChunk is how many bytes WriteFrom holds at a time.
const writeChunk = 1 << 20

// WriteFrom overwrites the contiguous tensor t with what r yields, little-endian and row-major elements of dt, of which
// floating-point ones are converted to t's dtype. It holds a MiB of them at a time, and counts what it wrote. r must
// hold t's elements; it may hold more. After an error, t is partly overwritten.
func WriteFrom(c *Ctx, t *Tensor, dt DType, r io.Reader) (Census, error) {
	const op = "WriteFrom"
	t.check(c, op)
	if !t.IsContiguous() || dt != t.dtype && !(dt.IsFloat() && t.dtype.IsFloat()) {
		c.fail(op, []*Tensor{t}, "elements of %v: want a contiguous tensor of the same dtype, or floating-point dtypes",
			dt)
	}
	var all Census
	flat := t.alias().reshaped([]int{t.Numel()})
	buf := make([]byte, min(writeChunk, t.Numel()*dt.Size()))
	for at, per := 0, writeChunk/dt.Size(); at < t.Numel(); at += per {
		n := min(per, t.Numel()-at)
		part := buf[:n*dt.Size()]
		if _, err := io.ReadFull(r, part); err != nil {
			return all, fmt.Errorf("tensor: elements %d to %d of %d: %w", at, at+n, t.Numel(), err)
		}
		if dt == t.dtype {
			nonfinite, negative := dtype.Census(dt, part)
			all.NonFinite, all.Negative = all.NonFinite+nonfinite, all.Negative+negative
			c.eng.stream.Write(t.st.buf, (t.offset+at)*dt.Size(), part)
			continue
		}
		before, _ := dtype.Census(dt, part)
		var after, negative int
		c.Scope(func(c *Ctx) []*Tensor {
			to := flat.narrow(0, at, n)
			c.launch(backend.OpCopy, to, FromBytes(c, part, dt, n))
			after, negative = dtype.Census(t.dtype, ReadBytes(c, to))
			return nil
		})
		all.NonFinite, all.Negative, all.Overflowed = all.NonFinite+after, all.Negative+negative,
			all.Overflowed+after-before
	}
	t.st.ver++ // also keeps t alive until here
	return all, nil
}
