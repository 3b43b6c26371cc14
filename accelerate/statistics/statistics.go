// SPDX-License-Identifier: Apache-2.0

// Package statistics keeps the buffers of modules such as batch norms the same on any number of ranks. It collects
// the statistics that the modules report in a step's forward passes. When the step ends, it updates the buffers in
// the order of the micro-batches over all ranks. It is for package accelerate. Start with [New].
package statistics

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Reports are those of a window. They implement nn.Observer.
type Reports struct {
	c       *tensor.Ctx
	modules []nn.Tracker
	number  map[nn.Tracker]int
	reports []report
	unowned int // reports from here on wait for their micro-batch's number
	spare   [][][]*tensor.Tensor

	exchanged bool        // the ranks have told each other, and all are their reports
	all       []ranks.Row // in the order of the micro-batches
	sent      []byte
	arrays    []ranks.Array
}

// report is what one forward pass of a module told.
type report struct {
	microBatch, module int
	stats              []*tensor.Tensor
}

// Peers are the ranks that see other data.
type Peers interface {
	GatherBytes(ctx context.Context, mine []byte) ([][]byte, error)
}

// New is nil for a model that tracks nothing. c has no Scope.
func New(c *tensor.Ctx, t *nn.Tree) *Reports {
	s := &Reports{c: c, modules: t.Trackers(), number: map[nn.Tracker]int{}}
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
func (s *Reports) Observe(m nn.Tracker, stats []*tensor.Tensor) {
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
func (s *Reports) room(module int, like []*tensor.Tensor) []*tensor.Tensor {
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

// Own says which micro-batch the forward passes since the last call belong to; −1: they count nowhere.
func (s *Reports) Own(microBatch int) {
	if microBatch < 0 {
		s.forget(s.unowned)
		return
	}
	for i := s.unowned; i < len(s.reports); i++ {
		s.reports[i].microBatch = microBatch
	}
	s.unowned = len(s.reports)
}

// Forget gives the window up.
func (s *Reports) Forget() { s.forget(0) }

// forget drops the reports from number first on.
func (s *Reports) forget(first int) {
	for _, r := range s.reports[first:] {
		s.spare[r.module] = append(s.spare[r.module], r.stats)
	}
	clear(s.reports[first:])
	s.reports = s.reports[:first]
	s.unowned = min(s.unowned, first)
	s.exchanged = false
}

// Exchange tells the peers what was reported here, and hears what they did; nil: there are none. Forward passes without
// a backward pass do not count.
func (s *Reports) Exchange(ctx context.Context, peers Peers) error {
	s.forget(s.unowned)
	if peers == nil {
		return nil
	}
	parts, err := peers.GatherBytes(ctx, s.encode())
	if err != nil {
		return fmt.Errorf("statistics: exchanging batch statistics: %w", err)
	}
	s.all = s.all[:0]
	for rank, part := range parts {
		if s.all, err = ranks.DecodeRows(s.all, part, len(s.modules)); err != nil {
			return fmt.Errorf("statistics: batch statistics of rank %d: %w", rank, err)
		}
	}
	slices.SortStableFunc(s.all, func(a, b ranks.Row) int { return cmp.Compare(a.Index, b.Index) })
	s.exchanged = true
	return nil
}

// Track moves the buffers, and ends the window.
func (s *Reports) Track() {
	if s.exchanged {
		for i := range s.all {
			r := &s.all[i]
			stats := s.upload(r)
			s.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				s.modules[r.Module].Track(c, stats)
				return nil
			})
			s.spare[r.Module] = append(s.spare[r.Module], stats)
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
func (s *Reports) upload(r *ranks.Row) []*tensor.Tensor {
	free := s.spare[r.Module]
	if n := len(free); n > 0 {
		s.spare[r.Module] = free[:n-1]
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
func (s *Reports) encode() []byte {
	s.sent = s.sent[:0]
	for _, r := range s.reports {
		s.arrays = s.arrays[:0]
		for _, t := range r.stats {
			raw, ok := tensor.HostBytes(s.c, t)
			if !ok {
				raw = tensor.ReadBytes(s.c, t)
			}
			s.arrays = append(s.arrays, ranks.Array{DType: t.DType(), Shape: t.Shape(), Data: raw})
		}
		s.sent = ranks.AppendRow(s.sent, ranks.Row{Index: int64(r.microBatch), Arrays: s.arrays, Module: r.module})
	}
	return s.sent
}
