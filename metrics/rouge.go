// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"regexp"
	"strings"
)

// Rouge has the F1 scores of summaries, from 0 to 1 (Lin 2004, "ROUGE: A Package for Automatic Evaluation of
// Summaries"): the means over all texts.
type Rouge struct {
	Rouge1, Rouge2 float64 // of words, and of pairs of words
	RougeL         float64 // of the longest common subsequence
	RougeLsum      float64 // of those of each pair of lines: a line is a sentence of the summary
}

// RougeOptions say which words are equal.
type RougeOptions struct {
	Stem bool // words of more than three letters without their endings (Porter 1980, as NLTK extends it)
}

// ROUGE compares summaries with their references: rouge_score's scores without resampling, as evaluate's rouge has
// them. Words are runs of a to z and digits.
func ROUGE(references, predictions []string, o RougeOptions) (mean Rouge, err error) {
	if err := sameLength(len(references), len(predictions)); err != nil {
		return mean, err
	}
	n := float64(len(references))
	for i := range references {
		r, p := o.words(references[i]), o.words(predictions[i])
		mean.Rouge1 += f1(shared(wordGrams(r, 1), wordGrams(p, 1)), len(r), len(p)) / n
		mean.Rouge2 += f1(shared(wordGrams(r, 2), wordGrams(p, 2)), max(len(r)-1, 0), max(len(p)-1, 0)) / n
		mean.RougeL += f1(len(common(r, p)), len(r), len(p)) / n
		mean.RougeLsum += o.ofLines(references[i], predictions[i]) / n
	}
	return mean, nil
}

var notWord = regexp.MustCompile("[^a-z0-9]+")

func (o RougeOptions) words(text string) (list []string) {
	for _, w := range strings.Fields(notWord.ReplaceAllString(strings.ToLower(text), " ")) {
		if o.Stem && len(w) > 3 {
			w = stem(w)
		}
		list = append(list, w)
	}
	return list
}

// lines are the words of each line that is not empty.
func (o RougeOptions) lines(text string) (list [][]string, words int) {
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			list = append(list, o.words(line))
			words += len(list[len(list)-1])
		}
	}
	return list, words
}

// ofLines is ROUGE-Lsum: the words of a reference's line that are in a longest common subsequence with any line of the
// prediction, each as often as both texts have it.
func (o RougeOptions) ofLines(reference, prediction string) float64 {
	theirs, m := o.lines(reference)
	ours, n := o.lines(prediction)
	left, leftOurs := map[string]int{}, map[string]int{}
	for _, words := range theirs {
		for _, w := range words {
			left[w]++
		}
	}
	for _, words := range ours {
		for _, w := range words {
			leftOurs[w]++
		}
	}
	hits := 0
	for _, r := range theirs {
		found := map[int]bool{}
		for _, p := range ours {
			for _, i := range common(r, p) {
				found[i] = true
			}
		}
		for i, w := range r {
			if found[i] && left[w] > 0 && leftOurs[w] > 0 {
				hits++
				left[w]--
				leftOurs[w]--
			}
		}
	}
	return f1(hits, m, n)
}

// common lists the places in r of a longest common subsequence with p. Of several it is the one that rouge_score takes:
// from the end, a word of r is left out before one of p.
func common(r, p []string) (places []int) {
	length := make([][]int, len(r)+1)
	for i := range length {
		length[i] = make([]int, len(p)+1)
	}
	for i, a := range r {
		for j, b := range p {
			if a == b {
				length[i+1][j+1] = length[i][j] + 1
			} else {
				length[i+1][j+1] = max(length[i][j+1], length[i+1][j])
			}
		}
	}
	for i, j := len(r), len(p); i > 0 && j > 0; {
		switch {
		case r[i-1] == p[j-1]:
			i, j = i-1, j-1
			places = append(places, i)
		case length[i][j-1] > length[i-1][j]:
			j--
		default:
			i--
		}
	}
	return places
}

// shared counts the n-grams that two texts share.
func shared(r, p map[string]int) (n int) {
	for gram, k := range r {
		n += min(k, p[gram])
	}
	return n
}

// f1 is the harmonic mean of recall and precision.
func f1(hits, inReference, inPrediction int) float64 {
	if hits == 0 {
		return 0
	}
	recall, precision := float64(hits)/float64(inReference), float64(hits)/float64(inPrediction)
	return 2 * precision * recall / (precision + recall)
}
