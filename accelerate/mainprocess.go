// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/dist"
)

// MainProcessFirst calls f on rank 0 and then on the others, so that rank 0 downloads or
// prepares what the others use. If f fails on rank 0, the others do not call it, and all
// return an error; if it fails on another rank, only that rank returns an error. It is
// collective, and f must end within ddp_timeout.
func (a *Accelerator) MainProcessFirst(ctx context.Context, f func() error) error {
	if a.group == nil {
		return f()
	}
	var own error
	failure := ""
	if a.IsMain() {
		if own = f(); own != nil {
			failure = own.Error()
		}
	}
	if err := dist.BroadcastObject(ctx, a.group, &failure, 0); err != nil {
		return err
	}
	switch {
	case a.IsMain():
		return own
	case failure != "":
		return fmt.Errorf("accelerate: rank 0, which runs first, failed: %s", failure)
	}
	return f()
}

// WaitForEveryone returns when all ranks have called it: accelerate's name for Barrier.
func (a *Accelerator) WaitForEveryone(ctx context.Context) error { return a.Barrier(ctx) }

// Print writes a line to w on rank 0 and does nothing on the others.
func (a *Accelerator) Print(w io.Writer, v ...any) (n int, err error) {
	if !a.IsMain() {
		return 0, nil
	}
	return fmt.Fprintln(w, v...)
}
