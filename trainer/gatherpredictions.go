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

// row is what ranks tell each other of a prediction: its logits and, if it has them, its labels.
func (p Prediction) row() ranks.Row {
	arrays := []ranks.Array{{DType: tensor.Float32, Shape: p.Shape, Data: bytesOf(p.Logits)}}
	if p.Labels != nil {
		arrays = append(arrays, ranks.Array{DType: tensor.Float64, Shape: p.LabelShape, Data: bytesOf(p.Labels)})
	}
	return ranks.Row{Index: p.Index, Arrays: arrays}
}

func predictionOf(r ranks.Row) (Prediction, error) {
	p, n := Prediction{Index: r.Index}, len(r.Arrays)
	if n < 1 || n > 2 || r.Arrays[0].DType != tensor.Float32 || n == 2 && r.Arrays[1].DType != tensor.Float64 {
		return p, fmt.Errorf("sample %d: want logits in float32 and, if there are any, labels in float64", r.Index)
	}
	p.Shape, p.Logits = r.Arrays[0].Shape, elementsOf[float32](r.Arrays[0])
	if n == 2 {
		p.LabelShape, p.Labels = r.Arrays[1].Shape, elementsOf[float64](r.Arrays[1])
	}
	return p, nil
}

func bytesOf[T float32 | float64](list []T) []byte {
	raw, _ := binary.Append(nil, binary.LittleEndian, list) // it takes these types
	return raw
}

func elementsOf[T float32 | float64](a ranks.Array) []T {
	list := make([]T, len(a.Data)/a.DType.Size())
	_, _ = binary.Decode(a.Data, binary.LittleEndian, list) // it takes these types
	return list
}
