// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/tensor"
)

// usage is which parameters had a gradient in a step: here, and on any rank.
type usage struct {
	params      []tensor.Named
	requireUsed bool
	static      bool

	here  []bool // on this rank, as the step goes on
	first []bool // here as it was when a static graph became known; nil before
	all   []bool // on any rank, after agree

	// exchanged: per parameter "used", per parameter "missing where there was a backward pass", "no backward pass"
	votes []uint8
	wait  func(context.Context) error
}

func newUsage(params []tensor.Named, o Options) *usage {
	n := len(params)
	return &usage{params: params, requireUsed: o.RequireUsed, static: o.StaticGraph, here: make([]bool, n),
		all: make([]bool, n), votes: make([]uint8, 2*n+1)}
}

// send begins the exchange; a static graph that is known needs none.
func (u *usage) send(g *dist.Group, tookPart bool) error {
	u.wait = nil
	if u.first != nil {
		return u.unchanged(tookPart)
	}
	n := len(u.here)
	clear(u.votes)
	for i, used := range u.here {
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
	u.wait = g.AllReduce(dist.Of(u.votes), dist.Max, dist.Label("parameters in use")).Wait
	return nil
}

// unchanged checks the promise of a static graph.
func (u *usage) unchanged(tookPart bool) error {
	if !tookPart || slices.Equal(u.here, u.first) {
		return nil
	}
	for i, used := range u.here {
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

// agree waits for the exchange and sets all.
func (u *usage) agree(ctx context.Context) error {
	if u.wait == nil {
		return nil
	}
	if err := u.wait(ctx); err != nil {
		return fmt.Errorf("ddp: %w", err)
	}
	n := len(u.here)
	for i := range u.all {
		u.all[i] = u.votes[i] == 1
	}
	if u.static && u.votes[2*n] == 0 {
		u.first = slices.Clone(u.here)
	}
	if !u.requireUsed {
		return nil
	}
	return u.refuseMissing(u.votes[n : 2*n])
}

// refuseMissing names the parameters that had no gradient.
func (u *usage) refuseMissing(missing []uint8) error {
	const listed = 3
	var names []string
	count := 0
	for i, m := range missing {
		if m == 1 {
			if count++; count <= listed {
				names = append(names, u.params[i].Name)
			}
		}
	}
	if count == 0 {
		return nil
	}
	if count > listed {
		names = append(names, "…")
	}
	return fmt.Errorf("ddp: %d of %d parameters had no gradient in a step: %s: want a loss that uses every "+
		"parameter, or ddp_find_unused_parameters on",
		count, len(missing), strings.Join(names, ", "))
}
