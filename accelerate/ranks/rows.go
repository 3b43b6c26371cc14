// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Row is what a rank tells the others of one sample. The shapes of arrays may differ from row to row.
type Row struct {
	Index  int64   // of the sample
	Arrays []Array // at most 255
	Module int     // of batch statistics, where Index is the micro-batch; 0 elsewhere
}

// Array is the elements of a tensor, row-major and little-endian.
type Array struct {
	DType tensor.DType
	Shape []int
	Data  []byte
}

// GatherRows returns the rows of all peers on every rank: by rank, and of each rank in the order in which it gave them.
func (p *Peers) GatherRows(ctx context.Context, mine []Row) ([][]Row, error) {
	if p.group == nil {
		return [][]Row{mine}, nil
	}
	var raw []byte
	for _, r := range mine {
		raw = AppendRow(raw, r)
	}
	parts, err := p.GatherBytes(ctx, raw)
	if err != nil {
		return nil, err
	}
	all := make([][]Row, len(parts))
	for rank, part := range parts {
		if all[rank], err = DecodeRows(nil, part, 1); err != nil {
			return nil, fmt.Errorf("accelerate: rows of rank %d: %w", rank, err)
		}
	}
	return all, nil
}

// AppendRow writes index, module and number of arrays, and for each array dtype, number of dims, dims, number of bytes
// and the bytes.
func AppendRow(raw []byte, r Row) []byte {
	put := func(v int) { raw = binary.AppendUvarint(raw, uint64(v)) }
	raw = binary.AppendUvarint(raw, uint64(r.Index))
	put(r.Module)
	put(len(r.Arrays))
	for _, a := range r.Arrays {
		put(int(a.DType))
		put(len(a.Shape))
		for _, d := range a.Shape {
			put(d)
		}
		put(len(a.Data))
		raw = append(raw, a.Data...)
	}
	return raw
}

// DecodeRows appends the rows of a rank to list, whose memory it uses again. Their modules are less than the given
// number.
func DecodeRows(list []Row, part []byte, modules int) ([]Row, error) {
	r := &rowReader{rest: part}
	for len(r.rest) > 0 && r.err == nil {
		list = slices.Grow(list, 1)[:len(list)+1]
		row := &list[len(list)-1]
		row.Index, row.Module = int64(r.number(math.MaxUint64)), int(r.number(uint64(modules-1)))
		n := int(r.number(math.MaxUint8))
		row.Arrays = slices.Grow(row.Arrays[:0], n)[:n]
		for i := range row.Arrays {
			r.array(&row.Arrays[i])
		}
	}
	return list, r.err
}

// rowReader reads what AppendRow wrote; after an error it gives zeros.
type rowReader struct {
	rest []byte
	err  error
}

// number reads one that is at most the given one.
func (r *rowReader) number(most uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if r.err == nil && (n <= 0 || v > most) {
		r.err = fmt.Errorf("%d, %d bytes before the end: want at most %d", v, len(r.rest), most)
	}
	if r.err != nil {
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// array reads one whose bytes are as many as its dtype and shape say.
func (r *rowReader) array(a *Array) {
	a.DType, a.Shape = tensor.DType(r.number(math.MaxUint8)), a.Shape[:0]
	want := a.DType.Size()
	for range r.number(tensor.MaxDims) {
		d := int(r.number(math.MaxInt))
		if d > 0 && want > math.MaxInt/d {
			r.err = fmt.Errorf("an array of shape %v with more dimensions", a.Shape)
			return
		}
		a.Shape = append(a.Shape, d)
		want *= d
	}
	n := int(r.number(uint64(len(r.rest))))
	if r.err == nil && (n != want || n > len(r.rest) || a.DType.Size() == 0) {
		r.err = fmt.Errorf("%d bytes for an array of %s%v, and %d are left", n, a.DType, a.Shape, len(r.rest))
	}
	if r.err != nil {
		return
	}
	a.Data, r.rest = r.rest[:n:n], r.rest[n:]
}
