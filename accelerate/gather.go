// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// rows is a rank's part of a gathered tensor.
type rows struct {
	DType   string  `json:"dtype"`
	Shape   []int   `json:"shape"` // of one row
	Indices []int64 `json:"indices"`
	data    []byte
}

// GatherForMetrics collects the rows of all ranks on every rank, sorted by sample index and
// with each index once: the result of an evaluation over all ranks, without samples that were
// repeated to fill batches. indices[i] is the sample of row i (dim 0) of t; a rank without
// samples passes nil for both. Rows with the same index must be equal; that of the lowest
// rank is kept. The result belongs to no scope and is nil if there are no rows. It is
// collective.
func (a *Accelerator) GatherForMetrics(ctx context.Context, indices []int64, t *tensor.Tensor) (all *tensor.Tensor, order []int64, err error) {
	mine, err := encodeRows(a.ctx.NoGrad(), indices, t)
	if err != nil {
		return nil, nil, a.reject(err)
	}
	parts, err := a.Data().GatherBytes(ctx, mine)
	if err != nil {
		return nil, nil, err
	}
	decoded := make([]rows, len(parts))
	for rank, part := range parts {
		if decoded[rank], err = decodeRows(part); err != nil {
			return nil, nil, fmt.Errorf("accelerate: gathering: rank %d: %w", rank, err)
		}
	}
	return mergeRows(a.ctx.NoGrad(), decoded)
}

// encodeRows writes the length of a JSON header, the header, and the rows.
func encodeRows(c *tensor.Ctx, indices []int64, t *tensor.Tensor) ([]byte, error) {
	r := rows{Indices: indices}
	if t != nil {
		r.DType, r.Shape = t.DType().String(), slices.Clone(t.Shape())
	}
	switch {
	case t == nil && len(indices) == 0:
	case t == nil || len(r.Shape) == 0 || r.Shape[0] != len(indices):
		return nil, fmt.Errorf("accelerate: gathering %d indices with a tensor of shape %v: want one row (dim 0) for each index", len(indices), r.Shape)
	default:
		r.Shape = r.Shape[1:]
		if err := tensor.Try(func() { r.data = tensor.ReadBytes(c, t) }); err != nil {
			return nil, err
		}
	}
	head, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head, r.data), nil
}

func decodeRows(part []byte) (r rows, err error) {
	if len(part) < 8 {
		return r, fmt.Errorf("%d bytes are too few for rows", len(part))
	}
	n := binary.LittleEndian.Uint64(part)
	part = part[8:]
	if n > uint64(len(part)) {
		return r, fmt.Errorf("a header of %d bytes in %d", n, len(part))
	}
	if err := json.Unmarshal(part[:n], &r); err != nil {
		return r, err
	}
	r.data = part[n:]
	return r, nil
}

// mergeRows puts the ranks' rows together.
func mergeRows(c *tensor.Ctx, parts []rows) (all *tensor.Tensor, order []int64, err error) {
	type place struct{ rank, row int }
	var first *rows
	places := map[int64]place{}
	for rank := range parts {
		p := &parts[rank]
		if len(p.Indices) == 0 {
			continue
		}
		if first == nil {
			first = p
		}
		if p.DType != first.DType || !slices.Equal(p.Shape, first.Shape) {
			return nil, nil, fmt.Errorf("accelerate: gathering rows of %s%v and, from rank %d, of %s%v: want the same shape and dtype", first.DType, first.Shape, rank, p.DType, p.Shape)
		}
		for row, index := range p.Indices {
			if _, seen := places[index]; !seen {
				places[index] = place{rank, row}
				order = append(order, index)
			}
		}
	}
	if first == nil {
		return nil, nil, nil
	}
	slices.Sort(order)
	dt, err := dtype.Parse(first.DType)
	if err != nil {
		return nil, nil, err
	}
	size := len(first.data) / len(first.Indices)
	var joined bytes.Buffer
	for _, index := range order {
		at := places[index]
		joined.Write(parts[at.rank].data[at.row*size : (at.row+1)*size])
	}
	err = tensor.Try(func() {
		all = tensor.FromBytes(c, joined.Bytes(), dt, append([]int{len(order)}, first.Shape...)...)
	})
	return all, order, err
}

// GatherObjects returns the values of all ranks, in rank order, on every rank. They are sent
// as JSON. It is collective.
func GatherObjects[T any](ctx context.Context, a *Accelerator, v T) ([]T, error) {
	if a.group == nil {
		return []T{v}, nil
	}
	return dist.AllGatherObject(ctx, a.group, v)
}

// SplitBetweenProcesses returns this rank's part of a list that all ranks have: consecutive
// elements, where the first len(list) mod WorldSize ranks get one more than the others. With
// pad the others repeat the last element of the list, so that all parts have the same length
// (0 if the list is empty).
func SplitBetweenProcesses[T any](a *Accelerator, list []T, pad bool) []T {
	n, each, extra := len(list), len(list)/a.size, len(list)%a.size
	lo := a.rank*each + min(a.rank, extra)
	hi := lo + each
	if a.rank < extra {
		hi++
	}
	part := slices.Clone(list[lo:hi])
	if pad && extra > 0 && a.rank >= extra {
		part = append(part, list[n-1])
	}
	return part
}
