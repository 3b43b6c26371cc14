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
// (Accelerator.Agree), on another. The loop returns it after saving. Package program then ends the process with the
// exit code of an interrupt.
var ErrInterrupted = errors.New("interrupted")

// RecordError tells the launcher, if there is one, why this process is about to exit:
// err, and the ranks that err blames. The launcher can then report the cause instead of
// its consequences. Programs call it before they exit with an error, like PyTorch's
// record decorator.
func RecordError(err error) error { return launch.RecordError(os.LookupEnv, err, blamed(err)...) }

// blamed lists the ranks of the job that an error is about.
func blamed(err error) []int {
	if absent, ok := errors.AsType[*rendezvous.AbsentError](err); ok {
		return absent.Ranks
	}
	if lost, ok := errors.AsType[*comm.RankLostError](err); ok {
		return []int{lost.Rank}
	}
	if late, ok := errors.AsType[*comm.TimeoutError](err); ok {
		return late.Missing
	}
	if abort, ok := errors.AsType[*comm.AbortError](err); ok {
		return []int{abort.Rank}
	}
	if data, ok := errors.AsType[*DataError](err); ok && data.Err == nil {
		return data.blamed()
	}
	return nil
}
