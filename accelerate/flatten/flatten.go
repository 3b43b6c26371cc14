// SPDX-License-Identifier: Apache-2.0

// Package flatten lays tensors of one dtype side by side in a vector, which ranks exchange by one call: gradients in
// buckets, and parameters in shards. It is for the packages of accelerate.
package flatten

import (
	"cmp"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Alignment is the grid, in elements, on which tensors begin: kernels like it.
const Alignment = 16

// Layout is where tensors lie in a vector, which consists of equal shards of whole cells.
type Layout struct {
	sizes   []int // of each tensor, in elements
	offsets []int // of each tensor's first element
	ranks   int
	Shard   int // elements of a rank's shard
}

// New places tensors of the given sizes, in their order, for so many ranks. A large one begins at a cell's border;
// small ones share cells, so that less than one cell per rank and two per large tensor are left empty.
func New(sizes []int, ranks, cell int) Layout {
	l := Layout{sizes: sizes, offsets: make([]int, len(sizes)), ranks: ranks}
	at := 0
	for i, n := range sizes {
		if n > cell-at%cell {
			at = up(at, cell)
		}
		l.offsets[i] = at
		at = up(at+n, Alignment)
	}
	l.Shard = up(up(at, cell)/cell, ranks) / ranks * cell
	return l
}

// up is the next multiple of unit.
func up(n, unit int) int { return (n + unit - 1) / unit * unit }

// Numel is the number of elements of the vector.
func (l Layout) Numel() int { return l.Shard * l.ranks }

// Within is the range of tensor i's elements that lie in a rank's shard.
func (l Layout) Within(i, rank int) tensor.Range {
	begin := l.offsets[i]
	return tensor.Range{Start: min(max(rank*l.Shard-begin, 0), l.sizes[i]),
		Stop: min(max((rank+1)*l.Shard-begin, 0), l.sizes[i])}
}

// View is tensor i's place in a vector, in its shape.
func (l Layout) View(c *tensor.Ctx, vector *tensor.Tensor, i int, shape ...int) *tensor.Tensor {
	lo := l.offsets[i]
	return tensor.Reshape(c, tensor.Slice(c, vector, 0, lo, lo+l.sizes[i]), shape...)
}

// Own is a rank's shard of a vector.
func (l Layout) Own(c *tensor.Ctx, vector *tensor.Tensor, rank int) *tensor.Tensor {
	return tensor.Slice(c, vector, 0, rank*l.Shard, (rank+1)*l.Shard)
}

// Local is what lies of tensor i in a rank's shard, which is given; nil if that is nothing.
func (l Layout) Local(c *tensor.Ctx, shard *tensor.Tensor, i, rank int) *tensor.Tensor {
	own := l.Within(i, rank)
	if own.Len() == 0 {
		return nil
	}
	at := l.offsets[i] + own.Start - rank*l.Shard
	return tensor.Slice(c, shard, 0, at, at+own.Len())
}

// Vector makes a vector of n elements: in memory, if the device computes there, else of zeros on the device.
func Vector(c *tensor.Ctx, memory []byte, dt tensor.DType, n int) (vector *tensor.Tensor, host bool) {
	if memory != nil {
		if vector, host = tensor.FromHost(c, memory, dt, n); host {
			return vector, true
		}
	}
	return tensor.Zeros(c, dt, n), false
}

// Fill makes a gradient the elements of its place in a vector, where it may lie already. Without one, nil, the place
// has −0, which changes no sum.
func Fill(c *tensor.Ctx, place, grad *tensor.Tensor) {
	switch {
	case grad == nil:
		tensor.FillInto(c, place, math.Copysign(0, -1))
	case grad != place:
		tensor.CopyInto(c, place, grad)
	}
}

// Bucket is gradients of one dtype that travel together, the tensors of its layout.
type Bucket struct {
	Layout
	List  []int // which they are, in the order of their place
	DType tensor.DType
}

// Bytes is the size of the bucket's vector.
func (b Bucket) Bytes() int { return b.Numel() * b.DType.Size() }

// Buckets cuts the gradients of parameters, in the order in which they become complete, into buckets. A bucket holds
// one dtype. The first of each dtype is closed once it holds first bytes, so that communication begins early; a
// gradient that would make a bucket larger than limit opens the next one, so that only one that is larger by itself
// makes a larger bucket. Buckets come in the order in which they become complete.
func Buckets(params []tensor.Named, order []int, first, limit int) []*Bucket {
	var list []*Bucket
	open, opened, bytes := map[tensor.DType]*Bucket{}, map[tensor.DType]int{}, map[*Bucket]int{}
	last := map[*Bucket]int{} // position in the order of a bucket's last gradient
	for at, i := range order {
		dt := params[i].GradDType()
		size := Bytes(params[i])
		b := open[dt]
		if b == nil || bytes[b]+size > limit {
			b = &Bucket{DType: dt}
			list = append(list, b)
			open[dt] = b
			opened[dt]++
		}
		b.List = append(b.List, i)
		bytes[b] += size
		last[b] = at
		if opened[dt] == 1 && bytes[b] >= first {
			delete(open, dt)
		}
	}
	slices.SortFunc(list, func(x, y *Bucket) int { return cmp.Compare(last[x], last[y]) })
	for _, b := range list {
		sizes := make([]int, len(b.List))
		for n, i := range b.List {
			sizes[n] = params[i].Numel()
		}
		b.Layout = New(sizes, 1, Alignment)
	}
	return list
}

// Bytes is how much of a bucket the gradient of a parameter takes.
func Bytes(p tensor.Named) int { return up(p.Numel(), Alignment) * p.GradDType().Size() }
