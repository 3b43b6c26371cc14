// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
)

// HookState is the state of a job's communication hooks.
type HookState struct {
	Name  string      // of the hook
	Ranks []ddp.State // in rank order; those that a rank does not take over may be empty, see ddp.Share
}

// stateful is the hook in use, if it has a state.
func stateful(a *Accelerator) (ddp.Stateful, bool) {
	h, ok := a.active.(ddp.Stateful)
	return h, ok
}

// OwnHookState is the name of the communication hook and this rank's state of it, for a checkpoint. Nothing is copied:
// the caller must not change it, and must be done with it before the next step. ok is false on all ranks if the hook
// has no state.
func (a *Accelerator) OwnHookState() (name string, own ddp.State, ok bool) {
	h, ok := stateful(a)
	if !ok {
		return "", ddp.State{}, false
	}
	return h.Name(), h.State(), true
}

// SetHookState gives this rank's communication hook its part of what all ranks of a run saved, on any number of ranks.
// Call it after Prepare, between steps. Another hook than the one that was saved keeps the state that it has.
func (a *Accelerator) SetHookState(saved *HookState) error {
	h, ok := stateful(a)
	if !ok || h.Name() != saved.Name {
		return nil
	}
	s, err := ddp.Share(saved.Ranks, a.Data().Rank(), a.Data().Size())
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	h.SetState(s)
	return nil
}
