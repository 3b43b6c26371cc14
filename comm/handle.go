// SPDX-License-Identifier: Apache-2.0

package comm

import "context"

// Handle is a call on its way.
type Handle struct {
	done  chan struct{}
	err   error
	call  Call
	entry int // in the flight recorder
}

// Done is closed when the call has ended and its buffers are the caller's again.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Wait returns the call's error when it has ended, or the context's if that ends first; the call then still runs, and
// still owns its buffers.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
		return h.err
	default:
	}
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Signature returns the signature of the call.
func (h *Handle) Signature() Signature { return h.call.Signature }

func (h *Handle) finish(err error) {
	h.err = err
	h.call.In, h.call.Out, h.call.from, h.call.to = nil, nil, nil, nil
	close(h.done)
}

// WaitAll waits for all handles and returns the first error in their order. nil handles are skipped.
func WaitAll(ctx context.Context, handles ...*Handle) error {
	var first error
	for _, h := range handles {
		if h == nil {
			continue
		}
		if err := h.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}
