// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// statistics gathers what modules report during a window's forward passes, as batch norms
// do, and moves their buffers at the end of the step: in the order of the leaves over
// all ranks, so that the buffers do not depend on who computed which leaf. It implements
// nn.Observer.
type statistics struct {
	c       *tensor.Ctx
	modules []nn.Tracker
	number  map[nn.Tracker]int
	reports []report
	unowned int // reports from here on wait for their leaf's number
	spare   [][][]*tensor.Tensor

	exchanged bool  // the ranks have told each other, and all are their reports
	all       []Row // in the order of the leaves
	sent      []byte
	arrays    []Array
}

// report is what one forward pass of a module told.
type report struct {
	leaf, module int
	stats        []*tensor.Tensor
}

// newStatistics is nil for a model that tracks nothing.
func newStatistics(c *tensor.Ctx, t *nn.Tree) *statistics {
	s := &statistics{c: c, modules: t.Trackers(), number: map[nn.Tracker]int{}}
	for i, m := range s.modules {
		s.number[m] = i
	}
	if len(s.modules) == 0 {
		return nil
	}
	s.spare = make([][][]*tensor.Tensor, len(s.modules))
	return s
}

// Observe copies a report.
func (s *statistics) Observe(m nn.Tracker, stats []*tensor.Tensor) {
	i, ok := s.number[m]
	if !ok {
		panic(&tensor.Error{Op: "accelerate.Observe",
			Msg: fmt.Sprintf("a %T that is not part of the prepared model reports statistics", m)})
	}
	room := s.room(i, stats)
	for k, t := range stats {
		tensor.CopyInto(s.c, room[k], t)
	}
	s.reports = append(s.reports, report{-1, i, room})
}

// room is memory for a report of a module, outside every scope.
func (s *statistics) room(module int, like []*tensor.Tensor) []*tensor.Tensor {
	if n := len(s.spare[module]); n > 0 {
		room := s.spare[module][n-1]
		s.spare[module] = s.spare[module][:n-1]
		return room
	}
	room := make([]*tensor.Tensor, len(like))
	for k, t := range like {
		room[k] = tensor.Zeros(s.c, t.DType(), t.Shape()...)
	}
	return room
}

// own says which leaf the forward passes since the last call belong to; −1: they count nowhere.
func (s *statistics) own(leaf int) {
	if leaf < 0 {
		s.forget(s.unowned)
		return
	}
	for i := s.unowned; i < len(s.reports); i++ {
		s.reports[i].leaf = leaf
	}
	s.unowned = len(s.reports)
}

// forget drops the reports from number first on.
func (s *statistics) forget(first int) {
	for _, r := range s.reports[first:] {
		s.spare[r.module] = append(s.spare[r.module], r.stats)
	}
	clear(s.reports[first:])
	s.reports = s.reports[:first]
	s.unowned = min(s.unowned, first)
	s.exchanged = false
}

// exchange tells the other ranks what was reported here, and hears what they did. Forward
// passes without a backward pass do not count.
func (s *statistics) exchange(ctx context.Context, a *Accelerator) error {
	s.forget(s.unowned)
	if a.Data().group == nil || !a.plan.exchange.statistics {
		return nil
	}
	parts, err := a.Data().GatherBytes(ctx, s.encode())
	if err != nil {
		return fmt.Errorf("accelerate: exchanging batch statistics: %w", err)
	}
	s.all = s.all[:0]
	for rank, part := range parts {
		if s.all, err = decodeRows(s.all, part, len(s.modules)); err != nil {
			return fmt.Errorf("accelerate: batch statistics of rank %d: %w", rank, err)
		}
	}
	slices.SortStableFunc(s.all, func(a, b Row) int { return cmp.Compare(a.Index, b.Index) })
	s.exchanged = true
	return nil
}

// track moves the buffers, and ends the window.
func (s *statistics) track() {
	if s.exchanged {
		for i := range s.all {
			r := &s.all[i]
			stats := s.upload(r)
			s.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				s.modules[r.module].Track(c, stats)
				return nil
			})
			s.spare[r.module] = append(s.spare[r.module], stats)
		}
	} else {
		for _, r := range s.reports {
			s.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				s.modules[r.module].Track(c, r.stats)
				return nil
			})
		}
	}
	s.forget(0)
}

// upload makes the report's tensors, in memory that a module's reports share.
func (s *statistics) upload(r *Row) []*tensor.Tensor {
	free := s.spare[r.module]
	if n := len(free); n > 0 {
		s.spare[r.module] = free[:n-1]
		for i, a := range r.Arrays {
			tensor.WriteBytes(s.c, free[n-1][i], a.Data)
		}
		return free[n-1]
	}
	stats := make([]*tensor.Tensor, len(r.Arrays))
	for i, a := range r.Arrays {
		stats[i] = tensor.FromBytes(s.c, a.Data, a.DType, a.Shape...)
	}
	return stats
}

// encode writes the reports as rows.
func (s *statistics) encode() []byte {
	s.sent = s.sent[:0]
	for _, r := range s.reports {
		s.arrays = s.arrays[:0]
		for _, t := range r.stats {
			raw, ok := tensor.HostBytes(s.c, t)
			if !ok {
				raw = tensor.ReadBytes(s.c, t)
			}
			s.arrays = append(s.arrays, Array{t.DType(), t.Shape(), raw})
		}
		s.sent = appendRow(s.sent, Row{int64(r.leaf), s.arrays, r.module})
	}
	return s.sent
}
