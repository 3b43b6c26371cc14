// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
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
	mine, err := ranks.RowsOf(a.ctx.NoGrad(), indices, t)
	if err != nil {
		return nil, nil, a.reject(err)
	}
	parts, err := a.Data().GatherRows(ctx, mine)
	if err != nil {
		return nil, nil, err
	}
	return ranks.JoinRows(a.ctx.NoGrad(), parts)
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
