// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// watch makes the parameters of units come and go with the passes of their modules.
func (s *Sharder) watch() {
	for _, u := range s.units {
		s.unhook = append(s.unhook, s.job.Tree.AddHooks(u.Module, &nn.Hooks{
			PreForward: func(c *nn.Ctx) {
				u.lower = c.Lower()
				if c.Recomputing() {
					s.enter(u, 0)
				} else {
					s.enter(u, 1)
				}
			},
			PostForward:  func(c *nn.Ctx) { s.exit(u, c) },
			PreBackward:  func(*tensor.Ctx) { s.enter(u, -1) },
			PostBackward: func(*tensor.Ctx) { s.done(u) },
		}))
	}
}

// enter brings the parameters of a unit, and begins to bring those of the unit that comes after it: the next in the
// forward pass, the one before in the backward pass, none when a pass is run again.
func (s *Sharder) enter(u *unit, direction int) {
	at, known := s.seen[u]
	if !known {
		at = len(s.order)
		s.seen[u], s.order = at, append(s.order, u)
	}
	for _, f := range u.flats {
		f.arrive(s, f.form(u.lower))
		if direction < 0 {
			f.open(s)
		}
	}
	u.users++
	if at += direction; s.options.Prefetch && direction != 0 && at >= 0 && at < len(s.order) {
		for _, f := range s.order[at].flats {
			f.fetch(s, f.form(u.lower))
		}
	}
}

// exit ends a forward pass of a unit.
func (s *Sharder) exit(u *unit, c *nn.Ctx) {
	u.users--
	if c.Grad() && (u.root || s.keep) || c.Recomputing() {
		return // until the backward pass is done
	}
	s.release(u)
}

// done ends the backward pass of a unit.
func (s *Sharder) done(u *unit) {
	u.users--
	if !u.root { // its first op may come before the others' last
		s.release(u)
	}
}

// release frees the parameters of a unit that no pass needs.
func (s *Sharder) release(u *unit) {
	if !s.parameters || u.users > 0 || s.pins > 0 {
		return
	}
	for _, f := range u.flats {
		f.leave(s)
	}
}

// visitors is how many buffers stay of those that something uses outside of the passes of their unit: more than the
// operands of an op.
const visitors = 4

// late brings the parameters of a buffer that something uses outside of the passes of its unit, as a writer of
// checkpoints does. They go when others have come, or when a pass ends.
func (s *Sharder) late(u *unit, f *flat, w *form) {
	if s.alone {
		f.refuse()
	}
	f.arrive(s, w)
	if u.users > 0 || s.pins > 0 {
		return
	}
	s.guests = append(s.guests, u)
	if len(s.guests) > visitors {
		s.release(s.guests[0])
		s.guests = s.guests[1:]
	}
}

// Summon calls f, which may use parameters outside of forward passes: those of a unit are gathered when f uses one of
// them, and go after a while. With write the parameters keep what f makes of them; it must make the same on every rank.
// It is collective: on every rank f uses the same parameters in the same order.
func (s *Sharder) Summon(write bool, f func() error) (err error) {
	if write && s.shared {
		return s.apart(f)
	}
	s.write = write
	defer func() { s.write = false }()
	if fault := tensor.Try(func() {
		err = f()
		s.leaveAll()
	}); fault != nil {
		return fault
	}
	return err
}

// Unshard implements strategy.Parameters. Each parameter is waited for when something uses it.
func (s *Sharder) Unshard() {
	if s.pins++; s.pins > 1 {
		return
	}
	for _, f := range s.all() {
		f.fetch(s, f.form(s.options.Lower))
	}
}

// Reshard implements strategy.Parameters.
func (s *Sharder) Reshard() {
	if s.pins--; s.pins == 0 {
		s.leaveAll()
	}
}

// leaveAll releases the parameters of all units that no pass needs.
func (s *Sharder) leaveAll() {
	s.guests = nil
	for _, u := range s.units {
		s.release(u)
	}
}
