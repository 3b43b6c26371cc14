// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Usage is which parameters had a gradient in a step: here, and on any rank. It is for package accelerate.
type Usage struct {
	Here []bool // on this rank, as the step continues
	All  []bool // on any rank, after Agree

	params      []tensor.Named
	requireUsed bool
	static      bool
	first       []bool // Here as it was when a static graph became known; nil before

	// exchanged: per parameter "used", per parameter "missing where there was a backward pass", "no backward pass", and
	// which parameters are frozen
	votes  []uint8
	frozen frozenSet // part of votes
	wait   func(context.Context) error
}

// NewUsage makes the usage of parameters; of the settings RequireUsed and StaticGraph count.
func NewUsage(params []tensor.Named, e strategy.Exchange) *Usage {
	n := len(params)
	frozen := len(newFrozenSet(n))
	u := &Usage{params: params, requireUsed: e.RequireUsed, static: e.StaticGraph, Here: make([]bool, n),
		All: make([]bool, n), votes: make([]uint8, 2*n+1+frozen)}
	u.frozen = u.votes[2*n+1:]
	return u
}

// Send begins the exchange; a static graph that is known needs none. tookPart says whether this rank had a backward
// pass in the step.
func (u *Usage) Send(g *comm.Group, tookPart bool) error {
	u.wait = nil
	if u.first != nil {
		return u.unchanged(tookPart)
	}
	n := len(u.Here)
	clear(u.votes)
	for i, used := range u.Here {
		switch {
		case used:
			u.votes[i] = 1
		case tookPart:
			u.votes[n+i] = 1
		}
	}
	if !tookPart {
		u.votes[2*n] = 1
	}
	u.frozen.fill(u.params)
	u.wait = g.AllReduce(comm.Of(u.votes), comm.Max, comm.Label("parameters in use")).Wait
	return nil
}

// unchanged checks the promise of a static graph.
func (u *Usage) unchanged(tookPart bool) error {
	if !tookPart || slices.Equal(u.Here, u.first) {
		return nil
	}
	for i, used := range u.Here {
		switch {
		case used && !u.first[i]:
			return fmt.Errorf("ddp: parameter %s has a gradient and had none in the first step: want a graph that "+
				"does not change, or ddp_static_graph off", u.params[i].Name)
		case !used && u.first[i]:
			return fmt.Errorf("ddp: parameter %s has no gradient and had one in the first step: want a graph that "+
				"does not change, or ddp_static_graph off", u.params[i].Name)
		}
	}
	return nil
}

// Agree waits for the exchange and sets All. It is an error on every rank if a parameter is frozen on some alone.
func (u *Usage) Agree(ctx context.Context) error {
	if u.wait == nil {
		return nil
	}
	if err := u.wait(ctx); err != nil {
		return fmt.Errorf("ddp: %w", err)
	}
	if err := u.frozen.check(u.params); err != nil {
		return err
	}
	n := len(u.Here)
	for i := range u.All {
		u.All[i] = u.votes[i] == 1
	}
	if u.static && u.votes[2*n] == 0 {
		u.first = slices.Clone(u.Here)
	}
	if !u.requireUsed {
		return nil
	}
	return u.refuseMissing(u.votes[n : 2*n])
}

// refuseMissing names the parameters that had no gradient.
func (u *Usage) refuseMissing(missing []uint8) error {
	const listed = 3
	var names []string
	for i, m := range missing {
		if m == 1 {
			names = append(names, u.params[i].Name)
		}
	}
	count := len(names)
	if count == 0 {
		return nil
	}
	if count > listed {
		names = append(names[:listed], "…")
	}
	return fmt.Errorf("ddp: %d of %d parameters had no gradient in a step: %s: want a loss that uses every "+
		"parameter, or ddp_find_unused_parameters on",
		count, len(missing), strings.Join(names, ", "))
}
