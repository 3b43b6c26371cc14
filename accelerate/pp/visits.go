// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// visits bring the parameters of other stages to this rank for a while. While they may come, those of this rank are
// withdrawn too, so that every rank notices when a parameter is used, and its owner sends it.
type visits struct {
	*Strategy
	mine   []bool           // by the number of a parameter: this rank has it
	kept   []*tensor.Tensor // the memory of this rank's while they are withdrawn
	guests []int            // parameters that are here, in the order in which they came
	open   bool
}

// mostGuests is how many parameters are here at the same time: more than an op uses.
const mostGuests = 8

func newVisits(s *Strategy) *visits {
	v := &visits{Strategy: s, mine: make([]bool, len(s.held)), kept: make([]*tensor.Tensor, len(s.held))}
	for i, h := range s.held {
		v.mine[i] = slices.Contains(h.ranks, s.rank)
	}
	return v
}

// begin gives all ranks the values of the job's first one, parameter by parameter: the ranks of each pipeline those of
// its first, and those with the same stages those of the first pipeline.
func (s *Strategy) begin(ctx context.Context) (differed int, err error) {
	v, mine := s.away, []tensor.Named(nil)
	for i, h := range s.held {
		if v.mine[i] {
			mine = append(mine, h.Named)
		}
		if h.Numel() == 0 {
			continue
		}
		deferred := h.Unloaded()
		others := slices.DeleteFunc(slices.Clone(h.ranks), func(r int) bool { return r == 0 })
		if v.mine[i] || s.rank == 0 && len(others) > 0 {
			s.present(h)
		}
		for _, r := range slices.Compact(slices.Sorted(slices.Values(others))) {
			var bring func(comm.Buffer) *comm.Handle
			switch s.rank {
			case 0:
				bring = func(b comm.Buffer) *comm.Handle { return s.cfg.Group.Send(b, r, comm.Label(h.Name)) }
			case r:
				bring = func(b comm.Buffer) *comm.Handle { return s.cfg.Group.Recv(b, 0, comm.Label(h.Name)) }
			default:
				continue
			}
			changed, err := ddp.Adopt(ctx, s.root, s.cfg.Group.CountsOnly(), h.Named, bring)
			if err != nil {
				return differed, fmt.Errorf("pp: sending %s: %w", h.Name, err)
			}
			if changed {
				differed++
			}
		}
		switch {
		case v.mine[i]:
		case deferred:
			v.leave(i)
		default:
			s.late = append(s.late, i)
		}
	}
	g := cmp.Or(s.cfg.Same, s.cfg.Job.Peers.Loss)
	if g == nil {
		return differed, nil
	}
	more, err := ddp.Verify(ctx, s.cfg.Job.Ctx, g, mine)
	if err != nil {
		return differed, err
	}
	// a rank that is a goroutine may copy parameters from another one's model, which moves them next
	if meet := s.cfg.Meet; meet != nil {
		return differed + more, meet(ctx)
	}
	return differed + more, errors.Join(s.cfg.Group.Barrier().Wait(ctx), g.Barrier().Wait(ctx))
}

// GiveUp releases the memory of what other ranks have. It comes when all ranks of the job have their strategy: those
// that are goroutines may copy their parameters from this one's model.
func (s *Strategy) GiveUp() error {
	return tensor.Try(func() {
		for _, i := range s.late {
			s.away.leave(i)
		}
		s.late = nil
	})
}

// present makes a parameter that has no memory here get it.
func (s *Strategy) present(h held) { tensor.Reshape(s.root, h.Tensor, h.Numel()) }

// leave releases a parameter's memory; this rank's are withdrawn, until they are used again.
func (v *visits) leave(i int) {
	h := v.held[i]
	if !v.mine[i] {
		h.DropLowered() // its owner's will change
		h.Defer(func(c *tensor.Ctx) *tensor.Tensor { return v.receive(c, i) })
		return
	}
	v.kept[i] = h.Withdraw()
	h.OnMissing(func() {
		v.back(i)
		v.send(v.root, h.Tensor, i)
	})
}

// back ends the withdrawal of a parameter.
func (v *visits) back(i int) {
	if v.kept[i] != nil {
		v.held[i].Return(v.kept[i])
		v.kept[i] = nil
	}
}

// receive gets a parameter from its owner.
func (v *visits) receive(c *tensor.Ctx, i int) *tensor.Tensor {
	h := v.held[i]
	if !v.open {
		panic(&tensor.Error{Op: "pp.Strategy", Msg: fmt.Sprintf("parameter %s is on rank %d, which has its stage: "+
			"want Summon on every rank, around the code that reads it", h.Name, v.cfg.Group.JobRank(h.ranks[0]))})
	}
	t := tensor.Empty(c, h.DType(), h.Shape()...)
	v.send(c, t, i)
	return t
}

// send gives all ranks the owner's values of a parameter. They arrive behind the work of c, which made t: a device may
// still use the memory for what had it before. The guest that came first goes. The stage at the other end of a tie has
// these values, in memory that other ranks may read: there they go.
func (v *visits) send(c *tensor.Ctx, t *tensor.Tensor, i int) {
	h := v.held[i]
	if v.mine[i] && h.ranks[0] != v.rank {
		v.present(h)
		t = tensor.Empty(v.root, t.DType(), t.Shape()...)
		defer t.Free()
	}
	err := v.cfg.Group.Broadcast(comm.OfTensor(c, t), h.ranks[0], comm.Label(h.Name)).Wait(context.Background())
	if err != nil {
		panic(&tensor.Error{Op: "pp.Strategy", Msg: "parameter " + h.Name + ": " + err.Error(), Cause: err})
	}
	v.guests = append(v.guests, i)
	if len(v.guests) > mostGuests {
		v.leave(v.guests[0])
		v.guests = v.guests[1:]
	}
}

// Summon implements strategy.Parameters.
func (s *Strategy) Summon(write bool, f func() error) error {
	if s.away.open {
		return f()
	}
	call := func() error { return s.away.call(f) }
	for _, t := range s.all() { // which bring what they have cut
		if of := t.Parameters(); of != nil {
			inner := call
			call = func() error { return of.Summon(write, inner) }
		}
	}
	return call()
}

// call calls f, which may use all parameters.
func (v *visits) call(f func() error) (err error) {
	fault := tensor.Try(func() {
		v.open = true
		defer v.end()
		for i, h := range v.held {
			if v.mine[i] && h.Numel() > 0 {
				v.leave(i)
			}
		}
		err = f()
	})
	return errors.Join(err, fault)
}

// end makes the parameters what they were before they were summoned.
func (v *visits) end() {
	v.open = false
	for i, h := range v.held {
		switch {
		case h.Numel() == 0:
		case v.mine[i]:
			v.back(i)
		case !h.Unloaded():
			v.leave(i)
		}
	}
	v.guests = nil
}

// Alone implements strategy.Parameters.
func (s *Strategy) Alone(f func() error) (err error) {
	call := f
	for _, t := range s.all() {
		if of := t.Parameters(); of != nil {
			inner := call
			call = func() error { return of.Alone(inner) }
		}
	}
	if fault := tensor.Try(func() { err = call() }); fault != nil {
		return fault
	}
	return err
}

// Close implements strategy.Strategy. Without whole, other stages' parameters stay where they are.
func (s *Strategy) Close(whole bool) error {
	err := s.release(whole)
	if whole && err == nil {
		err = tensor.Try(func() {
			v := s.away
			v.open = true
			for i, h := range v.held {
				v.guests = nil // they stay
				switch {
				case h.Numel() == 0:
				case v.mine[i]:
					v.send(v.root, h.Tensor, i)
				default:
					s.present(h)
				}
			}
		})
	}
	return errors.Join(err, s.disconnect())
}
