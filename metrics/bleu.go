// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"regexp"
	"strings"
)

const bleuOrder = 4 // the longest n-grams

// BLEU is that of a corpus, from 0 to 100 (Papineni et al. 2002): sacrebleu's corpus_bleu with its defaults, the words
// of mteval-v13a and exponential smoothing. Further references are other translations of the same texts.
func BLEU(references, predictions []string, further ...[]string) (float64, error) {
	for _, r := range append([][]string{references}, further...) {
		if err := sameLength(len(r), len(predictions)); err != nil {
			return 0, err
		}
	}
	var both, ours [bleuOrder]int
	length, closest := 0, 0
	for i, prediction := range predictions {
		p := bleuWords(prediction)
		texts := [][]string{bleuWords(references[i])}
		for _, r := range further {
			texts = append(texts, bleuWords(r[i]))
		}
		length, closest = length+len(p), closest+closestLength(len(p), texts)
		for k := range bleuOrder {
			most := map[string]int{} // of an n-gram in a reference
			for _, r := range texts {
				for gram, n := range wordGrams(r, k+1) {
					most[gram] = max(most[gram], n)
				}
			}
			for gram, n := range wordGrams(p, k+1) {
				both[k] += min(n, most[gram])
			}
			ours[k] += max(len(p)-k, 0)
		}
	}
	return bleu(both, ours, length, closest), nil
}

// bleu is the score of so many n-grams that predictions share with references, of all in predictions, and of the words
// in predictions and in references.
func bleu(both, ours [bleuOrder]int, length, closest int) float64 {
	if both == [bleuOrder]int{} || ours[bleuOrder-1] == 0 {
		return 0
	}
	logs, smooth := 0.0, 1.0
	for k := range bleuOrder {
		shared := float64(both[k])
		if both[k] == 0 {
			smooth *= 2
			shared = 1 / smooth
		}
		logs += math.Log(100 * shared / float64(ours[k]))
	}
	return math.Exp(logs/bleuOrder + min(0, 1-float64(closest)/float64(length)))
}

// closestLength is that of the reference that is nearest to so many words, the shorter of two.
func closestLength(words int, references [][]string) int {
	best := len(references[0])
	for _, r := range references[1:] {
		old, now := max(best-words, words-best), max(len(r)-words, words-len(r))
		if now < old || now == old && len(r) < best {
			best = len(r)
		}
	}
	return best
}

var (
	// what mteval-v13a writes blanks around
	symbols   = regexp.MustCompile("[{-~[-` -&(-+:-@/]")
	afterText = regexp.MustCompile(`([^0-9])([.,])`)
	afterStop = regexp.MustCompile(`([.,])([^0-9])`)
	dash      = regexp.MustCompile(`([0-9])-`)
)

// bleuWords are the words of a text by mteval-v13a.
func bleuWords(text string) []string {
	text = strings.TrimRightFunc(text, isSpace)
	text = strings.ReplaceAll(strings.ReplaceAll(text, "<skipped>", ""), "-\n", "")
	text = " " + unescaped(strings.ReplaceAll(text, "\n", " ")) + " "
	text = symbols.ReplaceAllString(text, " $0 ")
	text = afterText.ReplaceAllString(text, "$1 $2 ")
	text = afterStop.ReplaceAllString(text, " $1 $2")
	text = dash.ReplaceAllString(text, "$1 - ")
	return strings.FieldsFunc(text, isSpace)
}

// unescaped replaces entities, one kind after the other, so that &amp;lt; becomes < too.
func unescaped(text string) string {
	if !strings.Contains(text, "&") {
		return text
	}
	for _, pair := range [][2]string{{"&quot;", `"`}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}} {
		text = strings.ReplaceAll(text, pair[0], pair[1])
	}
	return text
}

// wordGrams counts the n-grams of words.
func wordGrams(words []string, n int) map[string]int {
	counts := map[string]int{}
	for i := 0; i+n <= len(words); i++ {
		counts[strings.Join(words[i:i+n], " ")]++
	}
	return counts
}
