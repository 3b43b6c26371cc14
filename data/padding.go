// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"

	"github.com/lockstep-ml/lockstep/tensor"
)

// LabelledTokens is a text of a classification set: its tokens and its class.
type LabelledTokens struct {
	InputIDs []int32
	Label    int64
}

// WithPadding returns the Collator of text classification, transformers' DataCollatorWithPadding: texts are padded on
// the right with the token pad, which no real token attends to, to the longest of the batch. The tensors are
// input_ids, int64 [B,T], labels, int64 [B], and attention_mask, int64 [B,T], only if there is padding. Count is the
// number of labels that are not tensor.IgnoreIndex.
//
// Batches of texts of similar length have less padding: see group_by_length of the training arguments.
func WithPadding(pad int32) Collator[LabelledTokens] {
	return func(c *tensor.Ctx, samples []LabelledTokens) (*Batch, error) {
		length, terms, padded := 0, 0.0, false
		labels := make([]int64, len(samples))
		for i, s := range samples {
			padded = padded || i > 0 && len(s.InputIDs) != length
			length = max(length, len(s.InputIDs))
			if labels[i] = s.Label; s.Label != tensor.IgnoreIndex {
				terms++
			}
		}
		if length == 0 {
			return nil, errors.New("all texts are empty: want at least one token")
		}
		ids, mask := make([]int64, len(samples)*length), make([]int64, len(samples)*length)
		for i, s := range samples {
			row := i * length
			for j := range length {
				ids[row+j] = int64(pad)
				if j < len(s.InputIDs) {
					ids[row+j], mask[row+j] = int64(s.InputIDs[j]), 1
				}
			}
		}
		b := &Batch{Count: terms, Tensors: map[string]*tensor.Tensor{
			InputIDs: tensor.FromSlice(c, ids, len(samples), length),
			Labels:   tensor.FromSlice(c, labels, len(samples)),
		}}
		if padded {
			b.Tensors[AttentionMask] = tensor.FromSlice(c, mask, len(samples), length)
		}
		return b, nil
	}
}
