// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
)

// Sharding is what the ranks along dp_shard have parts of.
type Sharding struct{ Optimizer, Parameters bool }

// Job is what is simulated.
type Job struct {
	Hardware Hardware
	Mesh     comm.Mesh // see comm.Mesh.Of
	Schedule *schedule.Schedule
	// Pipeline is each rank of a pipeline, with costs by Hardware.Kernel and Hardware.Exchange, and what it sends along
	// tp and cp (pp.Rehearsal.Beside), if anything.
	Pipeline []*pp.Rehearsal
	Sharding Sharding
}

// Traffic is what a rank sends in a step, in bytes.
type Traffic struct {
	Outputs        int64 `json:"outputs"`         // of stages, to the ranks of the next ones
	InputGradients int64 `json:"input_gradients"` // of stages, to the ranks of the previous ones
	Tied           int64 `json:"tied"`            // gradients of parameters that are on two ranks of a pipeline
	Gradients      int64 `json:"gradients"`       // to the ranks that have the same stages
	Parameters     int64 `json:"parameters"`      // gathered by the ranks that have the same stages
	Tensors        int64 `json:"tensors"`         // in passes, to the ranks that have other parts of the same layers
	Tokens         int64 `json:"tokens"`          // in passes, to the ranks that have other tokens of the same samples
	AcrossHosts    int64 `json:"across_hosts"`    // how much of all that goes to other hosts
}

// Sum is all that the rank sends.
func (t Traffic) Sum() int64 {
	return t.Outputs + t.InputGradients + t.Tied + t.Gradients + t.Parameters + t.Tensors + t.Tokens
}

// Rank is a rank in a step. Its times add up to that of the step.
type Rank struct {
	Pipeline int     // its number in its pipeline
	Host     int     //
	Busy     float64 // seconds in passes and in the optimizer
	Bubble   float64 // seconds in which it waits until the last pass of the pipeline has ended
	Exchange float64 // seconds after that in which ranks exchange gradients or parameters
	Traffic  Traffic
}

// Step is a simulated step of a job.
type Step struct {
	Job   *Job
	Time  float64 // seconds
	Ranks []Rank
	// Passes is the step of a pipeline. All pipelines take that of the one whose messages take the longest.
	Passes *schedule.Simulation
	// PassesEnd is when the last pass ends, GradientsEnd when all gradients have been exchanged, and UpdateEnd when the
	// optimizers have stepped. What comes after that gathers the parameters.
	PassesEnd, GradientsEnd, UpdateEnd float64
}

// Bubble is the part of the ranks' time, 0 to 1, in which they wait for each other's passes.
func (s *Step) Bubble() float64 {
	if s.Time == 0 {
		return 0
	}
	sum := 0.0
	for _, r := range s.Ranks {
		sum += r.Bubble
	}
	return sum / (s.Time * float64(len(s.Ranks)))
}

// shared are the ranks that see other samples, and columns those that have the same stages as one, or parts of them.
const (
	shared  = comm.DPReplicate | comm.DPShard
	columns = shared | comm.CP | comm.TP
)

// Run simulates a step.
func (j *Job) Run() (*Step, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	low, err := j.Schedule.Lower()
	if err != nil {
		return nil, err
	}
	s := &Step{Job: j}
	if s.Passes, err = low.Simulate(j.costs()); err != nil {
		return nil, err
	}
	s.PassesEnd = s.lastPass()
	s.GradientsEnd = max(s.Passes.Time, s.tied())
	s.UpdateEnd = s.GradientsEnd
	updates := make([]float64, len(j.Pipeline))
	for i := range updates {
		updates[i] = j.update(i)
		s.UpdateEnd = max(s.UpdateEnd, s.GradientsEnd+updates[i])
	}
	s.Time = s.UpdateEnd
	for i := range j.Pipeline {
		s.Time = max(s.Time, s.GradientsEnd+updates[i]+j.spread(i))
	}
	for rank := range j.Mesh.Size(^comm.Axes(0)) {
		i := j.Mesh.Coord(rank, comm.PP)
		passes := s.Passes.Ranks[i].Busy
		r := Rank{Pipeline: i, Host: j.Hardware.host(rank), Busy: passes + updates[i], Bubble: s.PassesEnd - passes}
		r.Exchange = s.Time - r.Busy - r.Bubble
		r.Traffic = j.traffic(rank)
		s.Ranks = append(s.Ranks, r)
	}
	return s, nil
}

func (j *Job) check() error {
	if err := j.Hardware.Check(); err != nil {
		return err
	}
	m := j.Mesh
	if m.PP != len(j.Pipeline) || m.PP != len(j.Schedule.Ranks) {
		return fmt.Errorf("simulation: mesh %v, a schedule of %d ranks and %d rehearsals: want as many of each", m,
			len(j.Schedule.Ranks), len(j.Pipeline))
	}
	return nil
}

// stages calls f with each stage's work and the rank of the pipeline that has it.
func (j *Job) stages(f func(rank int, w pp.StageWork)) {
	for rank, r := range j.Pipeline {
		for _, w := range r.Stages {
			f(rank, w)
		}
	}
}

// costs are those of the schedule's stages.
func (j *Job) costs() schedule.Costs {
	n := j.Schedule.Stages()
	c := schedule.Costs{Stages: make([]schedule.StageCosts, n), Transfer: make([]float64, n-1),
		Unshard: make([]float64, n), Reduce: make([]float64, n)}
	j.stages(func(rank int, w pp.StageWork) {
		c.Stages[w.Stage] = w.StageCosts
		if next := w.Stage + 1; w.Output > 0 {
			for column := range j.Mesh.Size(columns) {
				from, to := j.rank(rank, column), j.rank(j.Schedule.StageToRank[next], column)
				c.Transfer[w.Stage] = max(c.Transfer[w.Stage], j.Hardware.link(from, to).time(float64(w.Output)))
			}
		}
		c.Unshard[w.Stage] = j.slowest(rank, func(r int) exchange { return j.gather(r, w.Parameters) })
		c.Reduce[w.Stage] = j.slowest(rank, func(r int) exchange { return j.reduce(r, w.Gradients) })
	})
	return c
}

// rank is the number in the job of a rank of a pipeline.
func (j *Job) rank(inPipeline, pipeline int) int { return inPipeline*j.Mesh.Size(columns) + pipeline }

// lastPass is when the last pass of the pipeline ends.
func (s *Step) lastPass() (end float64) {
	for r, spans := range s.Passes.Timeline {
		for i, a := range s.Passes.Schedule.Ranks[r] {
			if a.Op.Computes() {
				end = max(end, spans[i].End)
			}
		}
	}
	return end
}

// tied is when both ends of the tied parameters have their gradients, 0 if there are none. The first stage sends the
// rows that a micro-batch looks up after the pass that computes their gradients, one after the other, and gets the sum
// back.
func (s *Step) tied() (end float64) {
	j := s.Job
	first, last := j.Schedule.StageToRank[0], j.Schedule.StageToRank[j.Schedule.Stages()-1]
	sum := j.Pipeline[last].Tied
	if sum == 0 || first == last {
		return 0
	}
	takes := func(bytes int64) (longest float64) {
		for column := range j.Mesh.Size(columns) {
			link := j.Hardware.link(j.rank(first, column), j.rank(last, column))
			longest = max(longest, link.time(float64(bytes)))
		}
		return longest
	}
	rows := takes(j.Pipeline[first].Tied / int64(j.Schedule.MicroBatches))
	for i, a := range s.Passes.Schedule.Ranks[first] {
		if a.Stage == 0 && (a.Op == schedule.I || a.Op == schedule.B) {
			end = max(end, s.Passes.Timeline[first][i].End) + rows
		}
	}
	return max(end, s.PassesEnd) + takes(sum)
}

// update is the time of the optimizer's step on a rank of a pipeline, which reads and writes parameters and state.
func (j *Job) update(inPipeline int) float64 {
	r := j.Pipeline[inPipeline]
	bytes := float64(2*r.Parameters + r.Gradients + 2*r.State)
	if j.Sharding.Optimizer {
		bytes /= float64(j.Mesh.Size(j.shards()))
	}
	return bytes / j.Hardware.MemoryBandwidth
}

// spread is how long the ranks that have updated a part of the parameters each take to give each other the rest.
func (j *Job) spread(inPipeline int) float64 {
	if !j.Sharding.Optimizer || j.Sharding.Parameters {
		return 0
	}
	return j.slowest(inPipeline, func(r int) exchange { return j.allGather(r, j.Pipeline[inPipeline].Parameters) })
}

// traffic is what a rank sends in a step.
func (j *Job) traffic(rank int) (t Traffic) {
	i, column := j.Mesh.Coord(rank, comm.PP), j.Mesh.Coord(rank, columns)
	r := j.Pipeline[i]
	t.Outputs, t.InputGradients, t.Tied = r.Outputs, r.Inputs, r.Tied
	for i, into := range []*int64{&t.Tensors, &t.Tokens}[:min(len(r.Beside), 2)] {
		*into = r.Beside[i]
		t.AcrossHosts += int64(j.Hardware.abroad(j.Mesh, rank, []comm.Axes{comm.TP, comm.CP}[i]) * float64(*into))
	}
	across := func(stage int, bytes int64) {
		if stage < 0 || stage >= j.Schedule.Stages() {
			return
		}
		if to := j.rank(j.Schedule.StageToRank[stage], column); j.Hardware.host(to) != j.Hardware.host(rank) {
			t.AcrossHosts += bytes
		}
	}
	for _, w := range r.Stages {
		across(w.Stage+1, w.Output*int64(j.Schedule.MicroBatches))
		across(w.Stage-1, w.InputGradient*int64(j.Schedule.MicroBatches))
		g, p := j.reduce(rank, w.Gradients), j.gather(rank, w.Parameters)
		t.Gradients += int64(g.bytes)
		t.Parameters += int64(p.bytes)
		t.AcrossHosts += int64(g.across + p.across)
	}
	if j.Sharding.Optimizer && !j.Sharding.Parameters {
		p := j.allGather(rank, r.Parameters)
		t.Parameters += int64(p.bytes)
		t.AcrossHosts += int64(p.across)
	}
	if first := j.Schedule.StageToRank[0]; i == first {
		across(j.Schedule.Stages()-1, r.Tied)
	} else {
		across(0, r.Tied)
	}
	return t
}
