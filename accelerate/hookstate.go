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

// GatherHookState collects the states of all ranks' communication hooks on rank 0, in rank order, for a checkpoint. It
// is nil on other ranks, and if the hook has no state. It is collective.
func (a *Accelerator) GatherHookState(ctx context.Context) ([]ddp.State, error) {
	h, ok := a.exchange.(ddp.Stateful)
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
	return states, nil
}

// SetHookState gives this rank's communication hook its part of the states that GatherHookState collected, on any number
// of ranks. Call it after Prepare, between steps. A hook without state takes none.
func (a *Accelerator) SetHookState(saved []ddp.State) error {
	h, ok := a.exchange.(ddp.Stateful)
	if !ok {
		return nil
	}
	s, err := ddp.Share(saved, a.Data().Rank(), a.Data().Size())
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	h.SetState(s)
	return nil
}
