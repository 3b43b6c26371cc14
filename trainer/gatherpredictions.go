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

// row is what ranks tell each other of a prediction: in this order, what it has of logits, labels, inputs, loss, prompt
// and generated tokens, behind an array that says which.
func (p Prediction) row() ranks.Row {
	has := ranks.Array{DType: tensor.Bool, Shape: []int{len(p.parts())}}
	arrays := []ranks.Array{has}
	for _, part := range p.parts() {
		a, ok := part.array()
		if arrays[0].Data = append(arrays[0].Data, 0); ok {
			arrays[0].Data[len(arrays[0].Data)-1] = 1
			arrays = append(arrays, a)
		}
	}
	return ranks.Row{Index: p.Index, Arrays: arrays}
}

// rowPart is one of the arrays of a prediction.
type rowPart struct {
	dtype tensor.DType
	array func() (a ranks.Array, ok bool)
	set   func(a ranks.Array) bool // false: it has another shape
}

// parts are the arrays that a prediction may have.
func (p *Prediction) parts() []rowPart {
	return []rowPart{
		numbers(tensor.Float32, &p.Logits, &p.Shape),
		numbers(tensor.Float64, &p.Labels, &p.LabelShape),
		numbers(tensor.Float64, &p.Inputs, &p.InputShape),
		{tensor.Float64, func() (a ranks.Array, ok bool) {
			if p.Loss == nil {
				return a, false
			}
			return ranks.Array{DType: tensor.Float64, Shape: []int{}, Data: bytesOf([]float64{*p.Loss})}, true
		}, func(a ranks.Array) bool {
			x := elementsOf[float64](a)
			if len(x) == 1 {
				p.Loss = &x[0]
			}
			return len(x) == 1
		}},
		tokens(&p.Prompt),
		tokens(&p.Generated),
	}
}

// numbers is the part of a list with a shape.
func numbers[T float32 | float64](dt tensor.DType, list *[]T, shape *[]int) rowPart {
	return rowPart{dt, func() (ranks.Array, bool) {
		return ranks.Array{DType: dt, Shape: *shape, Data: bytesOf(*list)}, *list != nil
	}, func(a ranks.Array) bool {
		*list, *shape = elementsOf[T](a), a.Shape
		return true
	}}
}

// tokens is the part of a list of tokens.
func tokens(list *[]int) rowPart {
	return rowPart{tensor.Int64, func() (ranks.Array, bool) { return tokensOf(*list), *list != nil },
		func(a ranks.Array) bool {
			*list = integersOf(a)
			return len(a.Shape) == 1
		}}
}

func predictionOf(r ranks.Row) (Prediction, error) {
	p := Prediction{Index: r.Index}
	parts := p.parts()
	fault := fmt.Errorf("sample %d: the gathered arrays are not a prediction", r.Index)
	if len(r.Arrays) == 0 || len(r.Arrays[0].Data) != len(parts) {
		return p, fault
	}
	rest := r.Arrays[1:]
	for i, part := range parts {
		switch {
		case r.Arrays[0].Data[i] == 0:
		case len(rest) == 0 || rest[0].DType != part.dtype || !part.set(rest[0]):
			return Prediction{Index: r.Index}, fault
		default:
			rest = rest[1:]
		}
	}
	if len(rest) > 0 {
		return Prediction{Index: r.Index}, fault
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
