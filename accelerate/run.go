// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Connect joins the ranks that Replicas returned into a group. Each rank leaves it with
// Close. After a failure, call Connect again to replace the group.
func Connect(accs []*Accelerator) {
	list := make([]*ranks.Ranks, len(accs))
	for i, a := range accs {
		list[i] = a.Ranks
	}
	ranks.Connect(list)
}

// RunRanks connects the ranks, unless they are already connected (WithGroup), calls body for each in its own
// goroutine, and returns when all have ended. If body returns an error or panics on one rank, the others are aborted,
// because they would wait for it, and RunRanks returns the original error. A panic is raised again in the caller. The
// ranks are closed.
func RunRanks(ctx context.Context, accs []*Accelerator, body func(acc *Accelerator) error) error {
	if len(accs) == 1 {
		return runRank(ctx, accs[0], body, nil)
	}
	if accs[0].Group() == nil {
		Connect(accs)
	}
	errs, panics := make([]error, len(accs)), make([]any, len(accs))
	var all sync.WaitGroup
	for i, acc := range accs {
		all.Go(func() { errs[i] = runRank(ctx, acc, body, &panics[i]) })
	}
	all.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
	if r := comm.RootCause(errs); r >= 0 {
		return errs[r]
	}
	return nil
}

// errGoexit is the error of a rank whose body ended its goroutine by runtime.Goexit, as
// testing.T.FailNow does.
var errGoexit = errors.New("accelerate: the rank's goroutine ended")

// runRank opens the rank, calls body, tells the others if it fails, and closes the rank. A panic is kept in panicked,
// or continues if that is nil.
func runRank(ctx context.Context, a *Accelerator, body func(acc *Accelerator) error, panicked *any) (err error) {
	returned := false
	defer func() {
		var p any
		if !returned {
			err = errGoexit
			p = recover()
			switch fault, _ := p.(*tensor.Error); {
			case fault != nil && fault.Cause != nil: // a rank was lost in a hook
				p, err = nil, fault
			case p != nil:
				err = fmt.Errorf("panic: %v", p)
			}
		}
		if err != nil {
			a.Abort(err)
		}
		var closed error
		fault := tensor.Recover(func() { closed = a.Close() }) // of a strategy of the program's, say
		if e := errors.Join(closed, fault); e != nil {
			err = errors.Join(err, e)
		}
		switch {
		case panicked != nil:
			*panicked = p
		case p != nil:
			panic(p)
		}
	}()
	if err = a.Open(ctx); err == nil {
		err = body(a)
	}
	returned = true
	return err
}
