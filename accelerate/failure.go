// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// ErrInterrupted is returned, wrapped with the cause, by a loop whose context ended on this rank or, by agreement
// (Accelerator.Agree), on another, after it has saved what is to be saved. Package program ends the process with the
// exit code of an interrupt then.
var ErrInterrupted = errors.New("interrupted")

// RecordError tells the launcher, if there is one, why this process is about to exit:
// err, and the ranks that err blames. The launcher can then report the cause instead of
// its consequences. Programs call it before they exit with an error, like PyTorch's
// record decorator.
func RecordError(err error) error { return launch.RecordError(os.LookupEnv, err, blamed(err)...) }

// blamed lists the ranks of the job that an error is about.
func blamed(err error) []int {
	var absent *rendezvous.AbsentError
	if errors.As(err, &absent) {
		return absent.Ranks
	}
	var lost *comm.RankLostError
	if errors.As(err, &lost) {
		return []int{lost.Rank}
	}
	var late *comm.TimeoutError
	if errors.As(err, &late) {
		return late.Missing
	}
	var abort *comm.AbortError
	if errors.As(err, &abort) {
		return []int{abort.Rank}
	}
	var data *DataError
	if errors.As(err, &data) && data.Err == nil {
		return data.blamed()
	}
	return nil
}
