// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"cmp"
	"fmt"
	"slices"
)

// PackingStrategy is how texts are put into rows of equal length, by TRL's names.
type PackingStrategy string

// The strategies. Best-fit decreasing takes the longest text first, and puts it into the row that it fills best.
const (
	BestFit      PackingStrategy = "bfd"       // longer texts are cut
	BestFitSplit PackingStrategy = "bfd_split" // longer texts are split into several
	Wrapped      PackingStrategy = "wrapped"   // rows are full: a text that crosses the end of one is split
)

// PackingStrategies are all strategies.
func PackingStrategies() []PackingStrategy { return []PackingStrategy{BestFit, BestFitSplit, Wrapped} }

// PackedTogether is how many samples Pack packs at a time, as TRL does it.
const PackedTogether = 1000

// Pack puts samples behind one another into rows of at most length tokens, as TRL's pack_dataset does: the rows are the
// same. The samples must not be packed yet. Learned tokens, order and lengths of the texts stay with them, so that
// [Collate] can keep the texts of a row apart.
func Pack(samples []Sample, length int, strategy PackingStrategy) ([]Sample, error) {
	switch {
	case length < 2:
		return nil, fmt.Errorf("chat: rows of %d tokens: want at least 2", length)
	case !slices.Contains(PackingStrategies(), strategy):
		return nil, fmt.Errorf("chat: packing strategy %.40q: want one of %q", strategy, PackingStrategies())
	}
	for _, s := range samples {
		if s.Lengths != nil {
			return nil, fmt.Errorf("chat: a sample has %d texts: want samples that are not packed yet", len(s.Lengths))
		}
	}
	var rows []Sample
	for some := range slices.Chunk(samples, PackedTogether) {
		if strategy == Wrapped {
			rows = append(rows, wrap(some, length)...)
			continue
		}
		var texts []Sample
		for _, s := range some {
			texts = append(texts, fitting(s, length, strategy)...)
		}
		rows = append(rows, bestFit(texts, length)...)
	}
	return rows, nil
}

// fitting are the texts of at most length tokens that a sample becomes.
func fitting(s Sample, length int, strategy PackingStrategy) (texts []Sample) {
	cut := s.Cut
	for len(s.IDs) > 0 {
		var head Sample
		head, s = s.split(min(length, len(s.IDs)))
		if strategy == BestFit {
			head.Cut = cut + len(s.IDs)
			return []Sample{head}
		}
		texts = append(texts, head)
	}
	return texts
}

// split is the first n tokens of a sample and the others.
func (s Sample) split(n int) (head, tail Sample) {
	head = Sample{IDs: s.IDs[:n:n], Learned: s.Learned[:n:n]}
	tail = Sample{IDs: s.IDs[n:], Learned: s.Learned[n:], Cut: s.Cut}
	if len(tail.IDs) == 0 {
		head.Cut = s.Cut
	}
	return head, tail
}

// join puts a text behind those of the row.
func (s *Sample) join(text Sample) {
	s.IDs = append(s.IDs, text.IDs...)
	s.Learned = append(s.Learned, text.Learned...)
	s.Lengths = append(s.Lengths, len(text.IDs))
	s.Cut += text.Cut
}

// bestFit packs texts that are not empty.
func bestFit(texts []Sample, length int) []Sample {
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(len(texts[j].IDs), len(texts[i].IDs)) })
	var rows []Sample
	var spaces []int          // that rows have left, each once, sorted
	having := map[int][]int{} // rows by the space that they have left, the first first
	for _, i := range order {
		n := len(texts[i].IDs)
		row, at := len(rows), 0
		if at, _ = slices.BinarySearch(spaces, n); at < len(spaces) {
			space := spaces[at]
			row, having[space] = having[space][0], having[space][1:]
			if len(having[space]) == 0 {
				spaces = slices.Delete(spaces, at, at+1)
			}
		} else {
			rows = append(rows, Sample{})
		}
		rows[row].join(texts[i])
		left := length - len(rows[row].IDs)
		if at, found := slices.BinarySearch(spaces, left); !found && left > 0 {
			spaces = slices.Insert(spaces, at, left)
		}
		having[left] = append(having[left], row)
	}
	return rows
}

// wrap fills rows with texts in their order.
func wrap(texts []Sample, length int) (rows []Sample) {
	row := Sample{}
	for _, text := range texts {
		for len(text.IDs) > 0 {
			var head Sample
			head, text = text.split(min(length-len(row.IDs), len(text.IDs)))
			if row.join(head); len(row.IDs) == length {
				rows, row = append(rows, row), Sample{}
			}
		}
	}
	if len(row.IDs) > 0 {
		rows = append(rows, row)
	}
	return rows
}
