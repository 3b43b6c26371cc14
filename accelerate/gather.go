// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// GatherForMetrics collects the rows of all ranks on every rank, sorted by sample index and
// with each index once: the result of an evaluation over all ranks, without samples that were
// repeated to fill batches. indices[i] is the sample of row i (dim 0) of t; a rank without
// samples passes nil for both. Rows with the same index must be equal; that of the lowest
// rank is kept. The result belongs to no scope and is nil if there are no rows. It is
// collective.
func (a *Accelerator) GatherForMetrics(ctx context.Context, indices []int64, t *tensor.Tensor) (all *tensor.Tensor,
	order []int64, err error) {
	mine, err := rowsOf(a.ctx.NoGrad(), indices, t)
	if err != nil {
		return nil, nil, a.reject(err)
	}
	parts, err := a.Data().GatherRows(ctx, mine)
	if err != nil {
		return nil, nil, err
	}
	return joinRows(a.ctx.NoGrad(), parts)
}

// rowsOf cuts t into rows.
func rowsOf(c *tensor.Ctx, indices []int64, t *tensor.Tensor) ([]ranks.Row, error) {
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
	rows, arrays, size := make([]ranks.Row, len(indices)), make([]ranks.Array, len(indices)), len(raw)/len(indices)
	for i, index := range indices {
		arrays[i] = ranks.Array{DType: t.DType(), Shape: shape[1:], Data: raw[i*size:][:size]}
		rows[i] = ranks.Row{Index: index, Arrays: arrays[i:][:1]}
	}
	return rows, nil
}

// joinRows makes one tensor of the ranks' rows.
func joinRows(c *tensor.Ctx, parts [][]ranks.Row) (t *tensor.Tensor, order []int64, err error) {
	var all []ranks.Row
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
	slices.SortStableFunc(all, func(a, b ranks.Row) int { return cmp.Compare(a.Index, b.Index) })
	all = slices.CompactFunc(all, func(a, b ranks.Row) bool { return a.Index == b.Index })
	var joined []byte
	for _, r := range all {
		order = append(order, r.Index)
		joined = append(joined, r.Arrays[0].Data...)
	}
	like := all[0].Arrays[0]
	err = tensor.Try(func() { t = tensor.FromBytes(c, joined, like.DType, append([]int{len(all)}, like.Shape...)...) })
	return t, order, err
}

// GatherObjects returns the values of all ranks, in rank order, on every rank. They are sent
// as JSON. It is collective.
func GatherObjects[T any](ctx context.Context, a *Accelerator, v T) ([]T, error) {
	if a.Group() == nil {
		return []T{v}, nil
	}
	return comm.AllGatherObject(ctx, a.Group(), v)
}

// SplitBetweenProcesses returns this rank's part of a list that all ranks have: consecutive
// elements, where the first len(list) mod WorldSize ranks get one more than the others. With
// pad the others repeat the last element of the list, so that all parts have the same length
// (0 if the list is empty).
func SplitBetweenProcesses[T any](a *Accelerator, list []T, pad bool) []T {
	n, each, extra := len(list), len(list)/a.WorldSize(), len(list)%a.WorldSize()
	lo := a.Rank()*each + min(a.Rank(), extra)
	hi := lo + each
	if a.Rank() < extra {
		hi++
	}
	part := slices.Clone(list[lo:hi])
	if pad && extra > 0 && a.Rank() >= extra {
		part = append(part, list[n-1])
	}
	return part
}
