// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"github.com/lockstep-ml/lockstep/args"
)

// clock is the time that max_train_seconds gives a run, in seconds of its training steps, those before a resume
// included. Ranks use rank 0's: its seconds come with each agreement.
type clock struct {
	Limit float64 `json:"limit"` // max_train_seconds, as of Until
	Until float64 `json:"until"` // when the time is up; 0: never
	Warm  float64 `json:"warm"`  // when the warm-up's steps were done; 0: they are not, or there are none
}

// start sets when the time is up for a run that has trained for some seconds already. One that was interrupted has what
// is left of its time. One whose time was up gets as much again, so that it continues when it is resumed.
func (t *clock) start(limit, spent float64) (again bool) {
	switch {
	case limit == 0 || limit > spent:
		t.Until = limit
	case limit == t.Limit && t.Until > spent:
	default:
		t.Until, again = spent+limit, true
	}
	t.Limit = limit
	return again
}

// startClock starts or continues with the time that the arguments give the run.
func (r *run) startClock() {
	spent := r.progress.Seconds
	if again := r.progress.Time.start(r.args.MaxTrainSeconds, spent); again {
		r.jobLog().Info("max_train_seconds had passed before the resume: the run continues for as long again",
			"max_train_seconds", r.args.MaxTrainSeconds, "trained_seconds", spent, "until", r.progress.Time.Until)
	}
}

func (r *run) timeIsUp() bool {
	until := r.progress.Time.Until
	return until > 0 && r.progress.Seconds >= until
}

// scheduled is the step that the schedule has reached: that of the steps taken, or that of the time used where this is
// further along, so that the schedule ends with the run whichever limit ends it.
func (r *run) scheduled() int64 {
	taken := r.stepsTaken()
	return max(taken, r.stepByTime(taken))
}

// stepsTaken leaves out the steps for which the schedule stands still: those that fp16 skips, and those without loss
// terms.
func (r *run) stepsTaken() int64 {
	n := r.state.GlobalStep - r.progress.Empty.Steps
	if s := r.acc.Scaler(); s != nil {
		n -= s.Skipped
	}
	return n
}

// warmShare is the most of the time that a warm-up in steps may take.
const warmShare = 0.2

// clockSlack is how far, as a share of the run, the time may be ahead of the steps at the beginning without a change of
// the rate, so that a slow first step changes no bit of a run that has time enough. It becomes 0 towards the end.
const clockSlack = 0.05

// stepByTime is the planned step that corresponds to the time used. A warm-up in steps takes these steps, or a fifth of
// the time if they take longer; the time after it is divided among the other steps. A warm-up that is a share of the
// run takes this share of the time.
func (r *run) stepByTime(taken int64) int64 {
	t, total := &r.progress.Time, r.steps.MaxSteps
	if t.Until <= 0 || !r.args.LRScheduleByTime || r.args.LRSchedulerType == args.SchedulerInverseSqrt {
		return 0 // inverse_sqrt has no end
	}
	first, from := int64(0), 0.0
	if r.args.WarmupSteps >= 1 {
		first = int64(r.args.NumWarmupSteps(int(total)))
		warm := int64(float64(first) * r.progress.Seconds / (t.Until * warmShare))
		if max(taken, warm) < first {
			return warm
		}
		if t.Warm == 0 { // where a checkpoint does not have it, the steps since count
			t.Warm = r.progress.Seconds * min(1, float64(first)/float64(max(taken, 1)))
		}
		from = t.Warm
	}
	if first >= total || from >= t.Until {
		return 0
	}
	share := min(max((r.progress.Seconds-from)/(t.Until-from), 0), 1)
	share = max(share-clockSlack*(1-share), 0)
	return min(first+int64(share*float64(total-first)), total-1)
}
