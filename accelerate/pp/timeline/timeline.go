// SPDX-License-Identifier: Apache-2.0

// Package timeline compares a measured step of a pipeline with the predicted one: when each rank ran each action, and
// when the simulator predicts it from the measured times of the passes. Start with [New]; package pp measures
// (pp.Pipeline.Timeline).
package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// Timeline is a step, in seconds from the start of its first pass.
type Timeline struct {
	Measured  *schedule.Simulation
	Predicted *schedule.Simulation // from Costs
	// Costs are the mean times of each stage's passes, and the median time of a message over each border.
	Costs schedule.Costs
}

// New makes a timeline of the times of each action of each rank's list, on one clock. s is lowered. The time of a pass
// is that in which it computes; what it waits for before is idle.
func New(s *schedule.Schedule, spans [][]schedule.Span) (*Timeline, error) {
	if !s.Lowered() && len(s.Ranks) > 1 {
		return nil, fmt.Errorf("timeline: schedule %s lists no messages: want a lowered one", s.Name)
	}
	m := &schedule.Simulation{Schedule: s, Ranks: make([]schedule.Usage, len(s.Ranks))}
	first, last := math.Inf(1), math.Inf(-1)
	for r, list := range s.Ranks {
		if len(spans) != len(s.Ranks) || len(spans[r]) != len(list) {
			return nil, fmt.Errorf("timeline: schedule %s has %d actions of rank %d: want a time for each", s.Name,
				len(list), r)
		}
		for i, a := range list {
			if a.Op.Computes() {
				first, last = min(first, spans[r][i].Start), max(last, spans[r][i].End)
				m.Ranks[r].Busy += spans[r][i].End - spans[r][i].Start
			}
		}
	}
	if m.Time = last - first; !(m.Time > 0) {
		return nil, errors.New("timeline: no pass took any time")
	}
	for r, list := range spans {
		m.Ranks[r].Idle = m.Time - m.Ranks[r].Busy
		shifted := slices.Clone(list)
		for i := range shifted {
			shifted[i].Start -= first
			shifted[i].End -= first
		}
		m.Timeline = append(m.Timeline, shifted)
	}
	t := &Timeline{Measured: m, Costs: costs(m)}
	var err error
	if t.Predicted, err = s.Simulate(t.Costs); err != nil {
		return nil, fmt.Errorf("timeline: %w", err)
	}
	for r := range m.Ranks {
		m.Ranks[r].Peak = t.Predicted.Ranks[r].Peak // which the order of the actions decides
	}
	return t, nil
}

// costs finds what the simulator needs in a measured step.
func costs(m *schedule.Simulation) schedule.Costs {
	s := m.Schedule
	c := schedule.Costs{Stages: make([]schedule.StageCosts, s.Stages()), Transfer: make([]float64, s.Stages()-1)}
	times := make([]map[schedule.Op]total, s.Stages())
	ends := map[string][]schedule.Span{} // of messages, by their sends
	for r, list := range s.Ranks {
		for i, a := range list {
			span := m.Timeline[r][i]
			switch a.Op {
			case schedule.F, schedule.I, schedule.W, schedule.B:
				if times[a.Stage] == nil {
					times[a.Stage] = map[schedule.Op]total{}
				}
				t := times[a.Stage][a.Op]
				times[a.Stage][a.Op] = total{t.count + 1, t.sum + span.End - span.Start}
			case schedule.SendF, schedule.SendB:
				ends[a.String()] = append(ends[a.String()], span)
			case schedule.RecvF, schedule.RecvB:
				send := schedule.Action{Op: schedule.SendF, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
				if a.Op == schedule.RecvB {
					send.Op, send.Stage = schedule.SendB, a.Stage+1
				}
				ends[send.String()] = append(ends[send.String()], span)
			}
		}
	}
	for i, of := range times {
		c.Stages[i] = stageCosts(of)
		c.Stages[i].Activation = float64(len(s.Ranks)) / float64(s.Stages())
	}
	for border := range c.Transfer {
		var took []float64
		for n := range s.MicroBatches {
			for _, send := range []schedule.Action{{Op: schedule.SendF, Stage: border, MicroBatch: n},
				{Op: schedule.SendB, Stage: border + 1, MicroBatch: n}} {
				if both := ends[send.String()]; len(both) == 2 {
					end := max(both[0].End, both[1].End)
					took = append(took, max(0, end-max(both[0].Start, both[1].Start)))
				}
			}
		}
		if slices.Sort(took); len(took) > 0 {
			c.Transfer[border] = took[len(took)/2]
		}
	}
	return c
}

// total adds up the times of a stage's passes of one kind.
type total struct{ count, sum float64 }

func (t total) mean() float64 { return t.sum / max(t.count, 1) }

// stageCosts are the mean times of a stage's passes. Where it has backward passes as a whole and in parts, the parts'
// ratio is theirs, and their sum is such that the stage works as long as it did.
func stageCosts(of map[schedule.Op]total) schedule.StageCosts {
	c := schedule.StageCosts{Forward: of[schedule.F].mean(), Input: of[schedule.I].mean(),
		Weight: of[schedule.W].mean()}
	whole := of[schedule.B]
	if of[schedule.I].count == 0 {
		c.Input = whole.mean()
		return c
	}
	took := of[schedule.I].sum + of[schedule.W].sum
	if all := took + whole.count*(c.Input+c.Weight); all > 0 {
		by := (took + whole.sum) / all
		c.Input, c.Weight = c.Input*by, c.Weight*by
	}
	return c
}

// String returns the times of both steps and their idle time in per cent.
func (t *Timeline) String() string {
	return fmt.Sprintf("%s: a step of %s, %.1f %% idle; predicted %s, %.1f %% idle", t.Measured.Schedule.Name,
		seconds(t.Measured.Time), 100*t.Measured.Idle(), seconds(t.Predicted.Time), 100*t.Predicted.Idle())
}

// seconds is a time with three digits.
func seconds(x float64) string {
	for _, unit := range []struct {
		name string
		of   float64
	}{{"s", 1}, {"ms", 1e-3}} {
		if x >= unit.of {
			return fmt.Sprintf("%.3g %s", x/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%.3g µs", x*1e6)
}

// Write writes the timeline as files: NAME.json, a Chrome trace, and the pictures NAME-light.svg and NAME-dark.svg.
func (t *Timeline) Write(name string) error {
	f, err := os.Create(name + ".json")
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	if err := cmp.Or(t.Trace(f), f.Close()); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return t.drawing().Write(name)
}

// drawing has the measured step above the predicted one.
func (t *Timeline) drawing() *Drawing {
	note := func(s *schedule.Simulation) string {
		return fmt.Sprintf("%s, %.1f %% idle", seconds(s.Time), 100*s.Idle())
	}
	return &Drawing{Title: fmt.Sprintf("A step of %s on %d ranks, %d micro-batches", t.Measured.Schedule.Name,
		len(t.Measured.Ranks), t.Measured.Schedule.MicroBatches),
		Note:  "Above as measured, below as predicted from the passes' mean times. Numbers are micro-batches.",
		Steps: []Step{{"measured", note(t.Measured), t.Measured}, {"predicted", note(t.Predicted), t.Predicted}}}
}
