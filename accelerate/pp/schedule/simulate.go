// SPDX-License-Identifier: Apache-2.0

package schedule

import "slices"

// StageCosts are the costs of a stage for one micro-batch. All schedules of a comparison must use one unit of time and
// one of memory, whichever they are.
type StageCosts struct {
	Forward, Input, Weight float64 // time of F, I and W; B takes that of I and W
	// Activation is the memory from the start of F to the end of W or B: what the passes keep for each other.
	Activation float64
}

// Costs are those of a pipeline.
type Costs struct {
	Stages   []StageCosts
	Transfer []float64 // time of a message between stage i and stage i + 1, in each direction; nil: none
	// Unshard and Reduce are the times of the actions UNSHARD and REDUCE_GRAD of each stage, which a lowered schedule
	// lists; nil: none. They take a rank no time, and run one after the other. A pass waits for the UNSHARD of its
	// stage, and a step ends after its last REDUCE_GRAD.
	Unshard, Reduce []float64
}

// Uniform are costs of stages that are all alike.
func Uniform(stages int, each StageCosts, transfer float64) Costs {
	return Costs{Stages: slices.Repeat([]StageCosts{each}, stages),
		Transfer: slices.Repeat([]float64{transfer}, max(stages-1, 0))}
}

// check reports costs that are not those of a number of stages.
func (c Costs) check(stages int) error {
	f := faults{of: "costs"}
	if len(c.Stages) != stages {
		f.add("%d stages: want %d", len(c.Stages), stages)
	}
	if c.Transfer != nil && len(c.Transfer) != stages-1 {
		f.add("%d transfers: want %d, one for each two neighbouring stages", len(c.Transfer), stages-1)
	}
	for _, of := range []struct {
		what  string
		times []float64
	}{{"unshards", c.Unshard}, {"reductions", c.Reduce}} {
		if of.times != nil && len(of.times) != stages {
			f.add("%d %s: want %d, one for each stage", len(of.times), of.what, stages)
		}
		for i, x := range of.times {
			if !isCost(x) {
				f.add("%s %d: %v: want a number from 0 to %g", of.what, i, x, maxCost)
			}
		}
	}
	for i, stage := range c.Stages {
		for _, x := range []float64{stage.Forward, stage.Input, stage.Weight, stage.Activation} {
			if !isCost(x) {
				f.add("stage %d: %v: want numbers from 0 to %g", i, stage, maxCost)
				break
			}
		}
	}
	for i, x := range c.Transfer {
		if !isCost(x) {
			f.add("transfer %d: %v: want a number from 0 to %g", i, x, maxCost)
		}
	}
	return f.err()
}

// maxCost keeps sums far from the largest numbers.
const maxCost = 1e18

func isCost(x float64) bool { return x >= 0 && x <= maxCost }

// of is the time of a pass.
func (c StageCosts) of(op Op) float64 {
	switch op {
	case F:
		return c.Forward
	case I:
		return c.Input
	case W:
		return c.Weight
	case B:
		return c.Input + c.Weight
	}
	return 0
}

// Simulation is a step of a schedule on a clock.
type Simulation struct {
	Schedule *Schedule
	Time     float64  // from the start of the first action to the end of the last
	Ranks    []Usage  // of each rank
	Timeline [][]Span // of each rank: when each action of its list starts and ends
}

// Usage is what a rank does in the time of a step.
type Usage struct {
	Busy, Idle float64 // they add up to the step's time
	Peak       float64 // of activations
}

// Span is the time of an action. That of a send or a receive ends when the message has arrived, that of UNSHARD and
// REDUCE_GRAD when the ranks have exchanged all, and the rank runs its next actions meanwhile.
type Span struct{ Start, End float64 }

// Idle is the part of the ranks' time in which they wait, 0 to 1: the pipeline's bubble.
func (s *Simulation) Idle() float64 {
	if s.Time == 0 {
		return 0
	}
	sum := 0.0
	for _, r := range s.Ranks {
		sum += r.Idle
	}
	return sum / (s.Time * float64(len(s.Ranks)))
}

// Peak is the largest of the ranks' peaks.
func (s *Simulation) Peak() float64 {
	peak := 0.0
	for _, r := range s.Ranks {
		peak = max(peak, r.Peak)
	}
	return peak
}

// Simulate runs a step on a clock. A rank runs its passes one after the other, in the order of its list; passes that
// may overlap also run one after the other. Sends and receives take a rank no time: a message starts when it has been
// sent and its receive has been reached, lasts for the border's transfer time, and a pass that needs it waits for its
// end. Between two ranks and in one direction, one message moves at a time. Without a lowered schedule's messages, a
// message is sent at the end of its pass, and its receiver is ready.
//
// The error is an [InvalidError] for a schedule whose passes or messages are not complete, and a [DeadlockError] for
// one that cannot come to an end. Other faults (see [Schedule.Validate]) do not keep a schedule from being simulated.
func (s *Schedule) Simulate(c Costs) (*Simulation, error) {
	if v := s.inspect(); v.unsound {
		return nil, v.err()
	}
	if err := c.check(s.Stages()); err != nil {
		return nil, err
	}
	k := newClock(s, c)
	if d := k.run(); d != nil {
		return nil, d
	}
	return k.result(), nil
}
