// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/tensor"
)

// gatherPredictions collects the predictions of all ranks, in the dataset's order.
func (t *Trainer) gatherPredictions(ctx context.Context, mine []Prediction) ([]Prediction, error) {
	if t.acc.LossRanks().WorldSize() == 1 {
		return mine, nil
	}
	rows := make([]ranks.Row, len(mine))
	for i, p := range mine {
		rows[i] = p.row()
	}
	parts, err := t.acc.LossRanks().GatherRows(ctx, rows)
	if err != nil {
		return nil, err
	}
	var all []Prediction
	for rank, part := range parts {
		for _, row := range part {
			p, err := predictionOf(row)
			if err != nil {
				return nil, fmt.Errorf("trainer: predictions of rank %d: %w", rank, err)
			}
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b Prediction) int { return cmp.Compare(a.Index, b.Index) })
	return all, nil
}

// row is what ranks tell each other of a prediction: its logits and, if it has them, its labels, and its prompt with
// what was generated. Without logits they are empty.
func (p Prediction) row() ranks.Row {
	arrays := []ranks.Array{{DType: tensor.Float32, Shape: p.Shape, Data: bytesOf(p.Logits)}}
	if p.Labels != nil {
		arrays = append(arrays, ranks.Array{DType: tensor.Float64, Shape: p.LabelShape, Data: bytesOf(p.Labels)})
	}
	if p.Generated != nil {
		arrays[0].Shape = []int{0}
		arrays = append(arrays, tokensOf(p.Prompt), tokensOf(p.Generated))
	}
	return ranks.Row{Index: p.Index, Arrays: arrays}
}

func predictionOf(r ranks.Row) (Prediction, error) {
	p, rest := Prediction{Index: r.Index}, r.Arrays
	next := func(dt tensor.DType) (a ranks.Array, ok bool) {
		if ok = len(rest) > 0 && rest[0].DType == dt; ok {
			a, rest = rest[0], rest[1:]
		}
		return a, ok
	}
	logits, ok := next(tensor.Float32)
	if p.Shape, p.Logits = logits.Shape, elementsOf[float32](logits); ok {
		if labels, found := next(tensor.Float64); found {
			p.LabelShape, p.Labels = labels.Shape, elementsOf[float64](labels)
		}
		if prompt, found := next(tensor.Int64); found {
			var made ranks.Array
			made, ok = next(tensor.Int64)
			p.Shape, p.Logits, p.Prompt, p.Generated = nil, nil, integersOf(prompt), integersOf(made)
		}
	}
	if !ok || len(rest) > 0 {
		return Prediction{Index: r.Index}, fmt.Errorf("sample %d: want logits in float32 and, if there are any, "+
			"labels in float64, and a prompt and generated tokens in int64", r.Index)
	}
	return p, nil
}

func bytesOf[T float32 | float64 | int64](list []T) []byte {
	raw, _ := binary.Append(nil, binary.LittleEndian, list) // it takes these types
	return raw
}

func elementsOf[T float32 | float64 | int64](a ranks.Array) []T {
	list := make([]T, len(a.Data)/max(a.DType.Size(), 1))
	_, _ = binary.Decode(a.Data, binary.LittleEndian, list) // it takes these types
	return list
}
