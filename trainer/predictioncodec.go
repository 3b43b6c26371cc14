// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// gatherPredictions collects the predictions of all ranks, in the dataset's order.
func (t *Trainer) gatherPredictions(ctx context.Context, mine []Prediction) ([]Prediction, error) {
	if t.acc.Data().Size() == 1 {
		return mine, nil
	}
	parts, err := t.acc.Data().GatherBytes(ctx, encodePredictions(mine))
	if err != nil {
		return nil, err
	}
	var all []Prediction
	for rank, part := range parts {
		p, err := decodePredictions(part)
		if err != nil {
			return nil, fmt.Errorf("trainer: predictions of rank %d: %w", rank, err)
		}
		all = append(all, p...)
	}
	slices.SortStableFunc(all, func(a, b Prediction) int { return int(a.Index - b.Index) })
	return all, nil
}

// encodePredictions writes each prediction, little-endian: its index; the number of dims, the dims and the values of
// its logits and of its labels. The number of dims is -1 where there are no labels.
func encodePredictions(list []Prediction) []byte {
	var b bytes.Buffer
	write := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a buffer takes everything
	for _, p := range list {
		write(p.Index)
		write(encodedShape(p.Shape))
		write(p.Logits)
		if p.Labels == nil {
			write(int64(-1))
			continue
		}
		write(encodedShape(p.LabelShape))
		write(p.Labels)
	}
	return b.Bytes()
}

func encodedShape(shape []int) []int64 {
	list := []int64{int64(len(shape))}
	for _, s := range shape {
		list = append(list, int64(s))
	}
	return list
}

func decodePredictions(raw []byte) ([]Prediction, error) {
	r := bytes.NewReader(raw)
	var list []Prediction
	for r.Len() > 0 {
		var p Prediction
		err := binary.Read(r, binary.LittleEndian, &p.Index)
		if err == nil {
			p.Shape, p.Logits, err = decodeRow[float32](r)
		}
		if err == nil && p.Logits == nil {
			err = errors.New("a prediction without logits")
		}
		if err == nil {
			p.LabelShape, p.Labels, err = decodeRow[float64](r)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// decodeRow reads dims and values; nil where the number of dims is -1. It takes memory for what r still has.
func decodeRow[T float32 | float64](r *bytes.Reader) (shape []int, values []T, err error) {
	var dims int64
	if err := binary.Read(r, binary.LittleEndian, &dims); err != nil || dims == -1 {
		return nil, nil, err
	}
	if dims < 0 || dims > tensor.MaxDims {
		return nil, nil, fmt.Errorf("a prediction of %d dims: want at most %d", dims, tensor.MaxDims)
	}
	sizes, n := make([]int64, dims), int64(1)
	if err := binary.Read(r, binary.LittleEndian, sizes); err != nil {
		return nil, nil, err
	}
	for _, s := range sizes {
		if s < 0 || s > 0 && n > int64(r.Len())/s {
			return nil, nil, fmt.Errorf("a prediction of shape %v in %d bytes", sizes, r.Len())
		}
		shape = append(shape, int(s))
		n *= s
	}
	if n*int64(binary.Size(T(0))) > int64(r.Len()) {
		return nil, nil, fmt.Errorf("a prediction of shape %v in %d bytes", sizes, r.Len())
	}
	values = make([]T, n)
	return shape, values, binary.Read(r, binary.LittleEndian, values)
}
