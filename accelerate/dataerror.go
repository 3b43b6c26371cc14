// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
)

// DataError is returned by all ranks of a job of which some could not read their data: a file that was cut short, a
// disk that failed, a dataset or collator that panicked. All ranks are still in step, no parameter has changed, and the
// group can be used: to save, for example.
type DataError struct {
	Failed []DataFailure // in the order of the ranks
	Err    error         // this rank's failure; nil if only others failed
	ranks  int
}

// DataFailure is what one rank could not read.
type DataFailure struct {
	Rank  int // of the job
	Cause string
}

// Error implements error. It names each rank that failed.
func (e *DataError) Error() string {
	if e.ranks == 1 {
		return e.Failed[0].Cause
	}
	var causes []string
	for _, f := range e.Failed {
		causes = append(causes, fmt.Sprintf("rank %d: %s", f.Rank, f.Cause))
	}
	return strings.Join(causes, "; ")
}

// Unwrap gives Err.
func (e *DataError) Unwrap() error { return e.Err }

// maxCause bounds the text that a rank sends, in bytes.
const maxCause = 4096

// ShareDataError makes a *DataError of what kept each rank from reading its data; own is nil on ranks that could.
// It is collective: call it once all ranks know that one failed. RunWindow does so by itself.
func (a *Accelerator) ShareDataError(ctx context.Context, own error) error {
	peers := a.LossRanks()
	if a.division != nil { // all have heard of it
		peers = &a.Peers
	}
	if peers.WorldSize() < a.WorldSize() { // ranks that see the same data hear of nothing
		if own == nil {
			own = errors.New("accelerate: another rank could not read its data")
		}
		return own
	}
	text := ""
	if own != nil {
		text = cmp.Or(own.Error(), fmt.Sprintf("%T", own))
	}
	all, err := peers.GatherBytes(ctx, []byte(text[:min(len(text), maxCause)]))
	if err != nil {
		return errors.Join(own, err)
	}
	e := &DataError{Err: own, ranks: peers.WorldSize()}
	for rank, text := range all {
		if len(text) == 0 {
			continue
		}
		if peers.Group() != nil {
			rank = peers.Group().JobRank(rank)
		}
		e.Failed = append(e.Failed, DataFailure{rank, string(text)})
	}
	return e
}

// blamed lists the ranks that failed.
func (e *DataError) blamed() (ranks []int) {
	for _, f := range e.Failed {
		ranks = append(ranks, f.Rank)
	}
	return ranks
}
