// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
)

// Quantize keeps t, a frozen float32 weight [N,K] outside of every Scope, as 8-bit numbers: blocks of 32 along K with
// one float16 scale each, llama.cpp's Q8_0, which take 1.06 bytes per number. t stays a float32 tensor with the values
// of the blocks; values that came from blocks of llama.cpp do not change.
//
// Linear, Embedding and LinearCrossEntropy read the blocks. Linear multiplies up to 8 rows by them in place, in
// float32, exact to the elements; for more rows, and for gradients, it dequantizes for that product only. Any other op
// dequantizes t, which keeps its elements from then on. ok is false, and t as it was, if the device has no such
// kernels, K is no multiple of 32, or a number is too large for a block.
func Quantize(c *Ctx, t *Tensor) (ok bool) {
	const name = "Quantize"
	t.check(c, name)
	if t.dtype != Float32 || t.ndim != 2 || t.RequiresGrad() || t.node != nil || t.st.owner != nil || t.Bytes() == 0 {
		c.fail(name, []*Tensor{t}, "want a frozen weight [N K] of float32, outside of every Scope")
	}
	if _, has := c.eng.dev.be.(backend.BlockProducts); !has || t.shape[1]%blockwise.Q8Block != 0 || !t.IsContiguous() {
		return false
	}
	src, ok := HostBytes(c, t)
	if !ok {
		return false
	}
	numbers := t.Numel()
	raw := make([]byte, 0, numbers/blockwise.Q8Block*blockwise.Q8Bytes)
	raw, bad := blockwise.AppendQ8(raw, float32s(src))
	if bad >= 0 {
		return false
	}
	free := *c.NoGrad()
	free.scope = nil
	blocks := FromSlice(&free, raw, t.shape[0], len(raw)/t.shape[0])
	if t.leaf == nil {
		t.leaf = &leaf{frozen: true}
	}
	t.Defer(func(c *Ctx) *Tensor {
		t.leaf.blocks = nil // what becomes of the elements is not known from here on
		return c.dequantized(blocks, t.Shape())
	})
	t.leaf.blocks = blocks
	return true
}

// kept are what is saved of a weight for the gradient of the layer's input: nothing of one in blocks.
func (l *linear) kept(c *Ctx) (w, low *Tensor) {
	if l.blocks != nil {
		return nil, nil
	}
	return c.stand(l.w), l.wLow
}

// weight is the weight as [K,N] for the gradient g.
func (l *linear) weight(b *Back, g *Tensor) *Tensor {
	if l.blocks == nil {
		return l.m
	}
	return swapLast(b.convert(l.op, b.dequantized(l.blocks, l.w.Shape()), g.dtype))
}

// float32s are bytes as float32.
func float32s(mem []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/4)
}

// quantized are the blocks that stand for t, as long as nothing has made its elements; else nil.
func (t *Tensor) quantized() *Tensor {
	if t == nil || t.leaf == nil || t.leaf.blocks == nil || t.Deferred() == nil || t.RequiresGrad() {
		return nil
	}
	return t.leaf.blocks
}

// Quantized reports whether t is in blocks: see Quantize.
func (t *Tensor) Quantized() bool { return t.quantized() != nil }

// dequantized are the numbers that blocks stand for.
func (c *Ctx) dequantized(blocks *Tensor, shape []int) *Tensor {
	y := c.empty("Quantize", Float32, shape...)
	from, _ := HostBytes(c, blocks)
	to, _ := HostBytes(c, y)
	c.eng.dev.be.(backend.BlockProducts).DequantizeQ8(float32s(to), from)
	return y
}

// linearQuantized is linear for a weight in blocks.
func (c *Ctx) linearQuantized(l *linear, blocks *Tensor) *Tensor {
	l.x.check(c, l.op)
	k := l.w.shape[1]
	products := c.eng.dev.be.(backend.BlockProducts)
	plain := c.lower == Invalid && c.parted == nil && l.x.dtype == Float32 && l.x.ndim > 0 && l.x.Size(-1) == k &&
		l.f == ActivationNone && l.x.Numel() > 0 && l.x.Numel()/k <= products.RowsQ8()
	if !plain || c.records([]*Tensor{l.x, l.bias}) {
		return c.Scope(func(c *Ctx) []*Tensor {
			if c.parted == nil {
				l.blocks = blocks
			}
			l.w = c.dequantized(blocks, l.w.Shape())
			return []*Tensor{c.linear(l)}
		})[0]
	}
	x := c.rows(l.op, l.x, k)
	y := c.empty(l.op, Float32, x.shape[0], l.w.shape[0])
	from, _ := HostBytes(c, x)
	w, _ := HostBytes(c, blocks)
	to, _ := HostBytes(c, y)
	products.MultiplyQ8(float32s(to), float32s(from), w, x.shape[0], k)
	out := y.reshaped(append(slices.Clone(l.x.Shape()[:l.x.ndim-1]), l.w.shape[0]))
	if l.bias != nil {
		return Add(c, out, l.bias)
	}
	return out
}

// embeddingQuantized is Embedding of a table in blocks.
func (c *Ctx) embeddingQuantized(blocks, ids *Tensor, width int) *Tensor {
	const name = "Embedding"
	c.wantIndex(name, ids)
	picked := ToSlice[int64](c, Cast(c, ids, Int64))
	from, _ := HostBytes(c, blocks)
	size := blocks.shape[1]
	raw := make([]byte, 0, len(picked)*size)
	for _, id := range picked {
		if id < 0 || id >= int64(blocks.shape[0]) {
			c.fail(name, []*Tensor{ids}, "id %d: want one in [0, %d)", id, blocks.shape[0])
		}
		raw = append(raw, from[int(id)*size:][:size]...)
	}
	rows := c.empty(name, Float32, append(slices.Clone(ids.Shape()), width)...)
	to, _ := HostBytes(c, rows)
	c.eng.dev.be.(backend.BlockProducts).DequantizeQ8(float32s(to), raw)
	return rows
}
