package ddp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// bucket is a run of gradients of one dtype that travel together.
type bucket struct {
	label  string
	params []int // indices into the reducer's parameters, in the order of their place
	dtype  tensor.DType
	offset int // in bytes, in the reducer's memory
	bytes  int
	layout uint64 // hash of names, shapes and places: equal on all ranks or an error

	pending int // gradients that are not complete
	handle  *dist.Handle
}

// alignment of a gradient in its bucket, in bytes: kernels like it.
const alignment = 64

func align(n int) int { return (n + alignment - 1) / alignment * alignment }

// plan cuts parameters, in the given order, into buckets: the first of at most first bytes, so
// that communication begins early, the others of at most limit bytes (a larger parameter has
// one of its own). A bucket holds one dtype.
func plan(params []optim.Param, order []int, first, limit int) []*bucket {
	var done []*bucket
	open := map[tensor.DType]*bucket{}
	for _, i := range order {
		p := params[i]
		size := align(p.Bytes())
		b := open[p.DType()]
		if b != nil && b.bytes+size > limit {
			b = nil
		}
		if b == nil {
			b = &bucket{dtype: p.DType()}
			done = append(done, b)
			open[p.DType()] = b
		}
		b.params = append(b.params, i)
		b.bytes += size
		if len(done) == 1 && b.bytes >= first {
			delete(open, b.dtype)
		}
	}
	at := 0
	for n, b := range done {
		b.offset, b.label = at, fmt.Sprintf("bucket %d (%s)", n, describe(params, b.params))
		at += b.bytes
		text := ""
		for _, i := range b.params {
			text += fmt.Sprintf("%s %v %v;", params[i].Name, params[i].DType(), params[i].Shape())
		}
		b.layout = dist.Hash(text)
	}
	return done
}

// describe names a bucket's parameters in a few words.
func describe(params []optim.Param, list []int) string {
	if len(list) == 1 {
		return params[list[0]].Name
	}
	return fmt.Sprintf("%s … %s", params[list[0]].Name, params[list[len(list)-1]].Name)
}

// reversed is the order in which gradients are expected before one backward was seen:
// the last parameter first.
func reversed(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = n - 1 - i
	}
	return order
}

// checkOrder refuses what is no permutation of n.
func checkOrder(order []int, n int) error {
	sorted := slices.Clone(order)
	slices.SortFunc(sorted, cmp.Compare[int])
	for i, v := range sorted {
		if i != v {
			return fmt.Errorf("ddp: order %v of parameters is no permutation of %d", order, n)
		}
	}
	if len(order) != n {
		return fmt.Errorf("ddp: order of %d parameters, want %d", len(order), n)
	}
	return nil
}
