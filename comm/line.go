// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"slices"
	"sync"
	"time"
)

// line is the order in which a rank's calls reach its device, those of all its groups: the order in which the program
// issued them. A library of collectives may wait for ever if two ranks queue the work of two groups in different
// orders, where a device has no room for both.
type line struct {
	mu    sync.Mutex
	turns []*turn // of calls whose work is not queued yet
}

// turn is the place of a call.
type turn struct {
	of    *line
	first chan struct{} // closed when no earlier call is left
}

// join takes the last place.
func (l *line) join() *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &turn{l, make(chan struct{})}
	l.turns = append(l.turns, t)
	if len(l.turns) == 1 {
		close(t.first)
	}
	return t
}

// leave gives the place up, once.
func (t *turn) leave() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	i := slices.Index(t.of.turns, t)
	if i < 0 {
		return
	}
	t.of.turns = slices.Delete(t.of.turns, i, i+1)
	if i == 0 && len(t.of.turns) > 0 {
		close(t.of.turns[0].first)
	}
}

// Queued tells that the call's work is queued on the device, so that the rank's next call may queue its own. Device
// engines call it; when Run returns, it is so in any case.
func (c *Call) Queued() {
	if c.turn != nil {
		c.turn.leave()
	}
}

// awaitTurn waits until the work of this rank's earlier calls is queued.
func (g *Group) awaitTurn(c *Call) error {
	timer := time.NewTimer(time.Until(c.Deadline))
	defer timer.Stop()
	select {
	case <-c.turn.first:
		return nil
	case <-g.dead:
		return g.Err()
	case <-timer.C:
		return NewTimeoutError(c, g.Rank(), nil)
	}
}
