// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Collate returns the Collator of samples. Shorter ones are padded on the right with the token pad. The tensors are
// those of data.CausalLM; shift_labels has the tokens that are learned, and tensor.IgnoreIndex in place of others.
//
// Of packed samples there are two more, int64 [B,T]: segment_ids numbers the texts of a row, and position_ids begins
// again with each. The first token of a text is no label of the text before it.
func Collate(pad int32) data.Collator[Sample] {
	plain := data.CausalLM(pad)
	return func(c *tensor.Ctx, samples []Sample) (*data.Batch, error) {
		ids, length, packed := make([][]int32, len(samples)), 0, false
		for i, s := range samples {
			ids[i] = s.IDs
			length = max(length, len(s.IDs))
			packed = packed || s.Lengths != nil
		}
		b, err := plain(c, ids)
		if err != nil {
			return nil, err
		}
		n, terms := len(samples)*length, 0
		all := places{make([]int64, n), make([]int64, n), make([]int64, n)}
		for i, s := range samples {
			terms += all.from(i*length, (i+1)*length).fill(s)
		}
		put := func(name string, values []int64) {
			if old := b.Tensors[name]; old != nil {
				old.Free()
			}
			b.Tensors[name] = tensor.FromSlice(c, values, len(samples), length)
		}
		put(data.ShiftLabels, all.labels)
		if packed {
			put(data.SegmentIDs, all.segments)
			put(data.PositionIDs, all.positions)
		}
		b.Count = float64(terms)
		return b, nil
	}
}

// places are what a batch has of each token.
type places struct{ labels, segments, positions []int64 }

func (p places) from(start, end int) places {
	return places{p.labels[start:end], p.segments[start:end], p.positions[start:end]}
}

// fill writes the row of a sample, and returns how many labels it has.
func (p places) fill(s Sample) (terms int) {
	texts, at := s.Lengths, 0
	if texts == nil {
		texts = []int{len(s.IDs)}
	}
	for number, n := range append(slices.Clip(texts), len(p.labels)-len(s.IDs)) { // the last is the padding
		for i := range n {
			p.segments[at], p.positions[at], p.labels[at] = int64(number), int64(i), tensor.IgnoreIndex
			if i+1 < n && at+1 < len(s.IDs) && s.Learned[at+1] {
				p.labels[at] = int64(s.IDs[at+1])
				terms++
			}
			at++
		}
	}
	return terms
}
