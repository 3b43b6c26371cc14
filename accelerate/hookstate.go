// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
)

// HookState is the name of the communication hook and this rank's state of it, for a checkpoint. Nothing is copied: the
// caller must not change it, and must be done with it before the next step. ok is false on all ranks if the hook has no
// state.
func (a *Accelerator) HookState() (name string, own ddp.HookState, ok bool) {
	h, ok := a.active.(ddp.Stateful)
	if !ok {
		return "", own, false
	}
	return h.Name(), h.State(), true
}

// SetHookState gives this rank's communication hook its part of what all ranks of a run saved, on any number of ranks.
// saved has the states in rank order; those that this rank does not take over may be empty, see ddp.Share. Call it
// after Prepare, between steps. Another hook than the one called name keeps the state that it has.
func (a *Accelerator) SetHookState(name string, saved []ddp.HookState) error {
	h, ok := a.active.(ddp.Stateful)
	if !ok || h.Name() != name {
		return nil
	}
	s, err := ddp.Share(saved, a.DataRanks().Rank(), a.DataRanks().WorldSize())
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	h.SetState(s)
	return nil
}
