// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// bucket is a run of gradients of one dtype that travel together.
type bucket struct {
	label  string
	params []int // indices into the reducer's parameters, in the order of their place
	dtype  tensor.DType
	offset int // in bytes, in the reducer's memory
	bytes  int
	flat   *tensor.Tensor // all of it, on the device
	layout uint64         // hash of names, shapes and dtypes in their order: equal on all ranks or an error

	pending int // gradients that are not complete
	wait    func(context.Context) error
}

// alignment of a gradient in its bucket, in bytes: kernels like it.
const alignment = 64

func align(n int) int { return (n + alignment - 1) / alignment * alignment }

// plan cuts parameters, in the order in which their gradients become complete, into
// buckets. A bucket holds one dtype. The first of each dtype is closed once it holds first
// bytes, so that communication begins early; a parameter that would make a bucket larger
// than limit opens the next one, so that only a parameter that is larger by itself makes a
// larger bucket. Buckets come in the order in which they become complete.
func plan(params []tensor.Named, order []int, first, limit int) []*bucket {
	var list []*bucket
	open, opened := map[tensor.DType]*bucket{}, map[tensor.DType]int{}
	last := map[*bucket]int{} // position in the order of a bucket's last parameter
	for at, i := range order {
		p := params[i]
		size, dt := align(gradBytes(p)), p.GradDType()
		b := open[dt]
		if b == nil || b.bytes+size > limit {
			b = &bucket{dtype: dt}
			list = append(list, b)
			open[dt] = b
			opened[dt]++
		}
		b.params = append(b.params, i)
		b.bytes += size
		last[b] = at
		if opened[dt] == 1 && b.bytes >= first {
			delete(open, dt)
		}
	}
	slices.SortFunc(list, func(x, y *bucket) int { return cmp.Compare(last[x], last[y]) })
	offset := 0
	for n, b := range list {
		b.offset, b.label, b.layout = offset, fmt.Sprintf("bucket %d (%s)", n, between(params, b.params)),
			layout(params, b.params)
		offset += b.bytes
	}
	return list
}

// gradBytes is the size of a parameter's gradient.
func gradBytes(p tensor.Named) int { return p.Numel() * p.GradDType().Size() }

// between names a bucket's parameters in a few words.
func between(params []tensor.Named, list []int) string {
	if len(list) == 1 {
		return params[list[0]].Name
	}
	return fmt.Sprintf("%s … %s", params[list[0]].Name, params[list[len(list)-1]].Name)
}

// layout is a hash of the parameters in their order, frozen or not: Usage names those on which ranks differ in that.
func layout(params []tensor.Named, list []int) uint64 {
	var text strings.Builder
	for _, i := range list {
		fmt.Fprintf(&text, "%s %v%v;", params[i].Name, params[i].DType(), params[i].Shape())
	}
	return comm.Hash(text.String())
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

// checkOrder refuses what is not a permutation of n.
func checkOrder(order []int, n int) error {
	if len(order) != n {
		return fmt.Errorf("ddp: order of %d parameters: want %d", len(order), n)
	}
	for i, v := range slices.Sorted(slices.Values(order)) {
		if i != v {
			return fmt.Errorf("ddp: order %v of parameters is not a permutation of %d", order, n)
		}
	}
	return nil
}
