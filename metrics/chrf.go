// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"unicode"
)

const (
	chrFOrder = 6 // the longest n-grams
	chrFBeta2 = 4 // recall weighs β² as much as precision
)

// ChrF is the chrF2 of a corpus, from 0 to 100: sacrebleu's corpus_chrf with its defaults and one reference for each
// text. It compares n-grams of up to 6 characters without white space.
func ChrF(references, predictions []string) (float64, error) {
	if err := sameLength(len(references), len(predictions)); err != nil {
		return 0, err
	}
	var both, inReference, inPrediction [chrFOrder]int
	for i := range references {
		r, p := characters(references[i]), characters(predictions[i])
		for k := range chrFOrder {
			ours, theirs := ngrams(p, k+1), ngrams(r, k+1)
			for gram, n := range ours {
				both[k] += min(n, theirs[gram])
			}
			inReference[k] += max(len(r)-k, 0)
			if len(r) > k { // sacrebleu counts a prediction's n-grams where the reference has some
				inPrediction[k] += max(len(p)-k, 0)
			}
		}
	}
	var precision, recall, orders float64 // summed over the lengths that both have
	for k := range chrFOrder {
		if inReference[k] > 0 && inPrediction[k] > 0 {
			precision += float64(both[k]) / float64(inPrediction[k])
			recall += float64(both[k]) / float64(inReference[k])
			orders++
		}
	}
	if precision == 0 {
		return 0, nil
	}
	precision, recall = precision/orders, recall/orders
	return 100 * (1 + chrFBeta2) * precision * recall / (chrFBeta2*precision + recall), nil
}

// characters are those of a text that are not white space.
func characters(s string) []rune {
	return []rune(strings.Map(func(r rune) rune {
		if isSpace(r) {
			return -1
		}
		return r
	}, s))
}

// isSpace reports white space as Python does, which counts the four separators of ASCII, as Unicode does not.
func isSpace(r rune) bool { return unicode.IsSpace(r) || '\x1c' <= r && r <= '\x1f' }

// ngrams counts the n-grams of a text.
func ngrams(s []rune, n int) map[string]int {
	counts := map[string]int{}
	for i := 0; i+n <= len(s); i++ {
		counts[string(s[i:i+n])]++
	}
	return counts
}
