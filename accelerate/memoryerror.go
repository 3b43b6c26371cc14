// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"

	"github.com/lockstep-ml/lockstep/tensor"
)

// MemoryError is returned by all ranks of a window under WindowOptions.TryMemory in which a pass of some rank ran out
// of memory. All ranks are still in step and no parameter has changed: retry the window with smaller micro-batches,
// after Prepare.
type MemoryError struct {
	Err error // this rank's failure; nil if only others failed
}

// Error implements error.
func (e *MemoryError) Error() string {
	if e.Err == nil {
		return "another rank is out of memory"
	}
	return e.Err.Error()
}

// Unwrap gives Err.
func (e *MemoryError) Unwrap() error { return e.Err }

// tryPasses runs passes, of which the ranks exchange nothing before all of them know that none ran out of memory.
func (s *PendingStep) tryPasses(ctx context.Context, o WindowOptions, passes func(context.Context, WindowOptions) error,
) error {
	failed := s.a.NoSync(func() error { return passes(ctx, o) })
	_, short := errors.AsType[*tensor.OutOfMemoryError](failed)
	if failed != nil && !short {
		return failed
	}
	any := short
	if err := s.a.Agree(ctx, &any); err != nil {
		return errors.Join(failed, err)
	}
	if any {
		return &MemoryError{failed}
	}
	return nil
}
