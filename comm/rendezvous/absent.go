// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"

	"github.com/lockstep-ml/lockstep/comm"
)

// AbsentError names the ranks that a process waited for in vain while the job, or one of its groups, came together:
// they did not come in time, went away, or could not be reached.
type AbsentError struct {
	Ranks []int // in the job
	err   error // which names them
}

// Error says what happened.
func (e *AbsentError) Error() string { return e.err.Error() }

// Unwrap returns the error below.
func (e *AbsentError) Unwrap() error { return e.err }

// absent makes err name a rank, unless it names one already.
func absent(err error, rank int) error {
	if _, named := errors.AsType[*AbsentError](err); named {
		return err
	}
	return &AbsentError{Ranks: []int{rank}, err: err}
}

// missing is the error of a request that the store gave up since ranks did not come. Members are the job ranks of those
// who meet; nil means all ranks of the job.
func missing(ranks, members []int, why string) error {
	e := &AbsentError{Ranks: comm.JobRanks(members, ranks)}
	e.err = errors.New(comm.RankList(e.Ranks) + " " + why)
	return e
}
