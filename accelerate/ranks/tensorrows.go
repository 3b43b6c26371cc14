// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// RowsOf cuts t into rows along dim 0; indices are their samples.
func RowsOf(c *tensor.Ctx, indices []int64, t *tensor.Tensor) ([]Row, error) {
	var shape []int
	if t != nil {
		shape = t.Shape()
	}
	if n := len(indices); t == nil && n > 0 || t != nil && (len(shape) == 0 || shape[0] != n) {
		return nil,
			fmt.Errorf(
				"accelerate: gathering %d indices with a tensor of shape %v: want one row (dim 0) for each index", n,
				shape)
	} else if n == 0 {
		return nil, nil
	}
	var raw []byte
	if err := tensor.Try(func() { raw = tensor.ReadBytes(c, t) }); err != nil {
		return nil, err
	}
	rows, arrays, size := make([]Row, len(indices)), make([]Array, len(indices)), len(raw)/len(indices)
	for i, index := range indices {
		arrays[i] = Array{DType: t.DType(), Shape: shape[1:], Data: raw[i*size:][:size]}
		rows[i] = Row{Index: index, Arrays: arrays[i:][:1]}
	}
	return rows, nil
}

// JoinRows makes one tensor of the ranks' rows, sorted by sample and with each sample once: that of the lowest rank.
func JoinRows(c *tensor.Ctx, parts [][]Row) (t *tensor.Tensor, order []int64, err error) {
	var all []Row
	for rank, part := range parts {
		all = append(all, part...)
		for _, r := range part {
			if len(r.Arrays) != 1 {
				return nil, nil, fmt.Errorf("accelerate: gathering: rank %d sent a row of %d arrays", rank,
					len(r.Arrays))
			}
			if first, a := all[0].Arrays[0], r.Arrays[0]; a.DType != first.DType ||
				!slices.Equal(a.Shape, first.Shape) {
				return nil, nil,
					fmt.Errorf("accelerate: gathering rows of %s%v and, from rank %d, of %s%v: want the same shape "+
						"and dtype",
						first.DType, first.Shape, rank, a.DType, a.Shape)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil, nil
	}
	slices.SortStableFunc(all, func(a, b Row) int { return cmp.Compare(a.Index, b.Index) })
	all = slices.CompactFunc(all, func(a, b Row) bool { return a.Index == b.Index })
	var joined []byte
	for _, r := range all {
		order = append(order, r.Index)
		joined = append(joined, r.Arrays[0].Data...)
	}
	like := all[0].Arrays[0]
	err = tensor.Try(func() { t = tensor.FromBytes(c, joined, like.DType, append([]int{len(all)}, like.Shape...)...) })
	return t, order, err
}
