// SPDX-License-Identifier: Apache-2.0

package gpt2

import "github.com/lockstep-ml/lockstep/models"

// weightMap reads the names of GPT2Model's checkpoints, which lack the prefix "transformer.", and leaves out the
// constant causal masks that old checkpoints carry. The arrays of head are kept as they are.
func weightMap(head string) []models.WeightRule {
	return []models.WeightRule{
		{Saved: "*h.*.attn.bias"},
		{Saved: "*h.*.attn.masked_bias"},
		{Saved: head, Params: []string{head}},
		{Saved: "transformer.*", Params: []string{"transformer.*"}},
		{Saved: "*", Params: []string{"transformer.*"}, ReadOnly: true},
	}
}

// WeightMap reads checkpoints of GPT2Model too.
func (m *Model) WeightMap() []models.WeightRule { return weightMap("lm_head.*") }

// WeightMap reads checkpoints of GPT2Model too.
func (m *Classifier) WeightMap() []models.WeightRule { return weightMap("score.*") }
