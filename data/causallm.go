// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// CausalLM returns the Collator of causal language models. Samples are sequences of token
// ids; shorter ones are padded on the right with the token pad, which no real token
// attends to, to the longest of the batch. The tensors are input_ids and shift_labels, int64
// [B,T], and attention_mask, int64 [B,T], only if there is padding. shift_labels has at each
// place the token that follows in its sequence, and tensor.IgnoreIndex at the last one and
// where there is padding: the labels as transformers' models have them after they shifted
// them. Count is the number of those that are not tensor.IgnoreIndex.
func CausalLM(pad int32) Collator[[]int32] {
	return func(c *tensor.Ctx, samples [][]int32) (*Batch, error) {
		length, terms, padded := 0, 0, false
		for _, s := range samples {
			padded = padded || length > 0 && len(s) != length
			length = max(length, len(s))
			terms += max(len(s)-1, 0)
		}
		if length == 0 {
			return nil, fmt.Errorf("%d sequences without a token: want at least one token", len(samples))
		}
		n := len(samples) * length
		ids, labels, mask := make([]int64, n), make([]int64, n), make([]int64, n)
		for i, s := range samples {
			row := i * length
			for j := range length {
				ids[row+j], labels[row+j] = int64(pad), tensor.IgnoreIndex
				if j < len(s) {
					ids[row+j], mask[row+j] = int64(s[j]), 1
				}
				if j+1 < len(s) {
					labels[row+j] = int64(s[j+1])
				}
			}
		}
		b := &Batch{Count: float64(terms), Tensors: map[string]*tensor.Tensor{
			InputIDs:    tensor.FromSlice(c, ids, len(samples), length),
			ShiftLabels: tensor.FromSlice(c, labels, len(samples), length),
		}}
		if padded {
			b.Tensors[AttentionMask] = tensor.FromSlice(c, mask, len(samples), length)
		}
		return b, nil
	}
}
