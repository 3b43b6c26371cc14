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
	parts, err := a.DataRanks().GatherRows(ctx, mine)
	if err != nil {
		return nil, nil, err
	}
	return ranks.JoinRows(a.ctx.NoGrad(), parts)
}

// GatherTensor joins the tensors of all ranks along dim 0, in rank order, on every rank, as accelerate's gather does.
// Dim 0 may differ from rank to rank, the other dims and the dtype may not. A tensor without dims counts as one of one
// element. The result belongs to no scope and is nil if no rank has an element of dim 0. It is collective.
func (a *Accelerator) GatherTensor(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
	c := a.ctx.NoGrad()
	if len(t.Shape()) == 0 {
		t = tensor.Reshape(c, t, 1)
	}
	order := make([]int64, t.Size(0))
	for i := range order {
		order[i] = int64(a.Rank())<<32 | int64(i)
	}
	mine, err := ranks.RowsOf(c, order, t)
	if err != nil {
		return nil, a.reject(err)
	}
	parts, err := a.GatherRows(ctx, mine)
	if err != nil {
		return nil, err
	}
	all, _, err := ranks.JoinRows(c, parts)
	return all, err
}

// ReduceTensor combines the tensors of all ranks element by element and returns the result on every rank, with the same
// bits on all, as accelerate's reduce does. All have the same shape and dtype. The result belongs to no scope. It is
// collective.
func (a *Accelerator) ReduceTensor(ctx context.Context, t *tensor.Tensor, op comm.ReduceOp) (*tensor.Tensor, error) {
	c := a.ctx.NoGrad()
	var raw []byte
	if err := tensor.Try(func() { raw = tensor.ReadBytes(c, t) }); err != nil {
		return nil, a.reject(err)
	}
	if a.Group() != nil {
		elements := comm.Aligned(len(raw))
		copy(elements, raw)
		if err := a.Group().AllReduce(comm.Bytes(elements, t.DType()), op, comm.Label("tensor")).Wait(ctx); err != nil {
			return nil, err
		}
		raw = elements
	}
	return tensor.FromBytes(c, raw, t.DType(), t.Shape()...), nil
}

// Peers are ranks that do something together: those of an Accelerator, or of its DataRanks.
type Peers interface {
	Rank() int
	WorldSize() int
	Group() *comm.Group // nil of a rank that is alone
}

// GatherObjects returns the values of all peers, in rank order, on every rank. They are sent as JSON. It is collective.
func GatherObjects[T any](ctx context.Context, p Peers, v T) ([]T, error) {
	if p.Group() == nil {
		return []T{v}, nil
	}
	return comm.AllGatherObject(ctx, p.Group(), v)
}

// SplitBetweenProcesses returns this rank's part of a list that all peers have: consecutive
// elements, where the first len(list) mod WorldSize ranks get one more than the others. With
// pad the others repeat the last element of the list, so that all parts have the same length
// (0 if the list is empty).
func SplitBetweenProcesses[T any](p Peers, list []T, pad bool) []T {
	n, each, extra := len(list), len(list)/p.WorldSize(), len(list)%p.WorldSize()
	lo := p.Rank()*each + min(p.Rank(), extra)
	hi := lo + each
	if p.Rank() < extra {
		hi++
	}
	part := slices.Clone(list[lo:hi])
	if pad && extra > 0 && p.Rank() >= extra {
		part = append(part, list[n-1])
	}
	return part
}
