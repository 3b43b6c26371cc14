// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/flatten"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// bucket is a run of gradients of one dtype that travel together.
type bucket struct {
	*flatten.Bucket
	label  string
	offset int            // in bytes, in the reducer's memory
	flat   *tensor.Tensor // all of it, on the device
	layout uint64         // hash of names, shapes and dtypes in their order: equal on all ranks or an error

	pending int // gradients that are not complete
	wait    func(context.Context) error
}

// plan cuts parameters into buckets, see flatten.Buckets.
func plan(params []tensor.Named, order []int, first, limit int) (list []*bucket) {
	offset := 0
	for n, b := range flatten.Buckets(params, order, first, limit) {
		list = append(list, &bucket{Bucket: b, offset: offset, layout: layout(params, b.List),
			label: fmt.Sprintf("bucket %d (%s)", n, between(params, b.List))})
		offset += b.Bytes()
	}
	return list
}

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
