// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"slices"
)

// BatchList is a list of batches of any sizes, the same in every epoch.
type BatchList struct {
	batches  [][]int64
	first    []int64 // samples before each batch, and of all
	dropLast bool
}

// NewBatchList gives a list of batches of dataset indices, which the caller leaves unchanged. With dropLast, a last
// round that is not complete over all ranks is left out. An error names an empty batch.
func NewBatchList(batches [][]int64, dropLast bool) (*BatchList, error) {
	first := make([]int64, 1, len(batches)+1)
	for j, b := range batches {
		if len(b) == 0 {
			return nil, fmt.Errorf("samplers: batch %d of %d is empty, want at least 1 sample", j, len(batches))
		}
		first = append(first, first[j]+int64(len(b)))
	}
	return &BatchList{batches, first, dropLast}, nil
}

// Len gives the number of batches.
func (l *BatchList) Len() int64 { return int64(len(l.batches)) }

// First gives the number of samples before batch j, 0 ≤ j ≤ Len().
func (l *BatchList) First(j int64) int64 { return l.first[j] }

// Size gives 0: the sizes vary.
func (l *BatchList) Size() int { return 0 }

// DropLast tells whether an incomplete last round is left out.
func (l *BatchList) DropLast() bool { return l.dropLast }

// At gives a copy of batch j; epochs are alike.
func (l *BatchList) At(_, j int64) []int64 { return slices.Clone(l.batches[j]) }
