// SPDX-License-Identifier: Apache-2.0

package metrics

import "math"

// Perplexity is that of a language model whose loss has the given mean over the tokens, in nats: exp(loss). It is +Inf
// where that overflows.
func Perplexity(loss float64) float64 { return math.Exp(loss) }

// ExactMatch is the share of texts that equal their reference.
func ExactMatch(references, predictions []string) (float64, error) {
	if err := sameLength(len(references), len(predictions)); err != nil {
		return 0, err
	}
	equal := 0
	for i, r := range references {
		if r == predictions[i] {
			equal++
		}
	}
	return float64(equal) / float64(len(references)), nil
}
