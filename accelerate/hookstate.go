// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/dist"
)

// HookState is the state of a job's communication hooks.
type HookState struct {
	Name  string      // of the hook
	Ranks []ddp.State // in rank order
}

// stateful is the hook in use, if it has a state.
func stateful(a *Accelerator) (ddp.Stateful, bool) {
	r, ok := a.grads.(*reduced)
	if !ok {
		return nil, false
	}
	h, ok := r.hook.(ddp.Stateful)
	return h, ok
}

// GatherHookState collects the states of all ranks' communication hooks on rank 0, for a checkpoint. It is nil on other
// ranks, and if the hook has no state. It is collective.
func GatherHookState(ctx context.Context, a *Accelerator) (*HookState, error) {
	h, ok := stateful(a)
	if !ok {
		return nil, nil
	}
	g := a.Data().group
	own := h.State()
	names := slices.Sorted(maps.Keys(own.Own))
	lengths := make([]int, len(names))
	var mine []float32
	for i, name := range names {
		lengths[i] = len(own.Own[name])
		mine = append(mine, own.Own[name]...)
	}
	type table struct {
		Names   []string
		Lengths []int
	}
	tables, err := dist.AllGatherObject(ctx, g, table{names, lengths})
	if err != nil {
		return nil, fmt.Errorf("accelerate: state of the communication hook: %w", err)
	}
	states := make([]ddp.State, len(tables))
	for rank, t := range tables {
		s := ddp.State{Steps: own.Steps, Own: map[string][]float32{}, Shared: own.Shared}
		total := 0
		for _, n := range t.Lengths {
			total += n
		}
		all := mine
		switch g.Rank() {
		case rank:
			if rank > 0 {
				err = g.Send(dist.Of(mine), 0).Wait(ctx)
			}
		case 0:
			all = make([]float32, total)
			err = g.Recv(dist.Of(all), rank).Wait(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("accelerate: state of the communication hook: %w", err)
		}
		if g.Rank() == 0 {
			for i, name := range t.Names {
				s.Own[name], all = all[:t.Lengths[i]], all[t.Lengths[i]:]
			}
			states[rank] = s
		}
	}
	if g.Rank() != 0 {
		return nil, nil
	}
	return &HookState{h.Name(), states}, nil
}

// SetHookState gives this rank's communication hook its part of what GatherHookState collected, on any number of ranks.
// Call it after Prepare, between steps. Another hook than the one that was saved keeps the state that it has.
func SetHookState(a *Accelerator, saved *HookState) error {
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
