// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Death is the end of a rank, or of a host with all its ranks, in the middle of a run.
type Death struct {
	Rank int     // −1: a host dies
	Host int     // −1: a rank's process dies
	At   float64 // seconds from the start of the first step
	// SaveSteps is how many steps lie between two checkpoints, the first of them after so many; 0: there are none.
	SaveSteps int
}

// Moment is what a rank does at a time.
type Moment struct {
	Action  string  `json:"action"`        // as a schedule writes it, or "update": the optimizer's step
	Waits   bool    `json:"waits"`         // for a message or for other ranks, and computes nothing
	For     string  `json:"for,omitempty"` // the action of another rank that it waits for
	ForRank int     `json:"for_rank"`      // that rank; −1: several
	until   float64 // when it computes no more
}

// Survivor is a rank that does not die.
type Survivor struct {
	Rank   int     `json:"rank"`
	Moment         // when the other dies
	End    float64 `json:"end"` // seconds after the death, when its call fails: it ends then
}

// Outcome is what comes of a death.
type Outcome struct {
	Step      int        `json:"step"` // that is under way, from 1
	Into      float64    `json:"into"` // seconds since its start
	Dead      []int      `json:"dead"`
	Moment    Moment     `json:"moment"`    // of the first of the dead
	Survivors []Survivor `json:"survivors"` // in the order of their ends
	// LastSaved is the step of the last checkpoint, 0 for none; LostSteps are those that are done again, the one under
	// way included.
	LastSaved int `json:"last_saved"`
	LostSteps int `json:"lost_steps"`
	// Seconds: of work that is lost; from the death until the last survivor has ended; of the restart, its checkpoint
	// included; and all together, until the job is back where it was.
	LostSeconds, Detection, Restart, Total float64 `json:"-"`
}

// Kill simulates a death. Ranks are connected with each other, each with all. The kernel of a host that lives closes
// the connections of a process that dies, and the others notice one latency later; a host that dies is silent, which
// the others notice after rendezvous.DefaultSilence. Then all calls of a rank fail: a rank that waits ends at once, one
// that computes ends with its pass.
func (s *Step) Kill(d Death) (*Outcome, error) {
	dead, err := s.dead(d)
	if err != nil {
		return nil, err
	}
	o := &Outcome{Dead: dead, Step: int(d.At/s.Time) + 1}
	o.Into = d.At - float64(o.Step-1)*s.Time
	o.Moment = s.moment(dead[0], o.Into, nil)
	reach := map[int][]int{} // of each pipeline
	for rank := range s.Ranks {
		column := s.Job.Mesh.Coord(rank, columns)
		if reach[column] == nil && o.Into < s.GradientsEnd {
			reach[column] = s.reach(column, dead, o.Into)
		}
		if !slices.Contains(dead, rank) {
			o.Survivors = append(o.Survivors, s.survivor(rank, dead, d.Rank < 0, o.Into, reach[column]))
		}
	}
	slices.SortStableFunc(o.Survivors, func(a, b Survivor) int {
		switch {
		case a.End < b.End:
			return -1
		case a.End > b.End:
			return 1
		}
		return 0
	})
	if n := len(o.Survivors); n > 0 {
		o.Detection = o.Survivors[n-1].End
	}
	if d.SaveSteps > 0 {
		o.LastSaved = (o.Step - 1) / d.SaveSteps * d.SaveSteps
	}
	o.LostSteps = o.Step - o.LastSaved
	o.LostSeconds = d.At - float64(o.LastSaved)*s.Time
	h, bytes := s.Job.Hardware, int64(0)
	for _, r := range s.Job.Pipeline {
		bytes = max(bytes, r.Parameters+r.State)
	}
	o.Restart = launch.DefaultRestartDelay.Seconds() + h.Start
	if o.LastSaved > 0 {
		o.Restart += float64(bytes) / h.Disk
	}
	o.Total = o.LostSeconds + o.Detection + o.Restart
	return o, nil
}

// dead lists the ranks that die.
func (s *Step) dead(d Death) (list []int, err error) {
	if !(d.At >= 0) || math.IsInf(d.At, 0) || d.At/s.Time > 1e15 {
		return nil, fmt.Errorf("simulation: a kill at %v s: want a time of at least 0", d.At)
	}
	if d.Rank >= 0 {
		if d.Rank >= len(s.Ranks) {
			return nil, fmt.Errorf("simulation: no rank %d to kill: want 0 to %d", d.Rank, len(s.Ranks)-1)
		}
		return []int{d.Rank}, nil
	}
	for rank, r := range s.Ranks {
		if r.Host == d.Host {
			list = append(list, rank)
		}
	}
	if list == nil {
		return nil, fmt.Errorf("simulation: no host %d to kill: want 0 to %d", d.Host, s.Ranks[len(s.Ranks)-1].Host)
	}
	return list, nil
}

// survivor is what becomes of a rank when others die.
func (s *Step) survivor(rank int, dead []int, host bool, into float64, reach []int) Survivor {
	v := Survivor{Rank: rank, End: rendezvous.DefaultSilence.Seconds()}
	if !host {
		v.End = s.Job.Hardware.link(rank, dead[0]).Latency
	}
	if v.Moment = s.moment(rank, into+v.End, reach); !v.Waits {
		v.End = v.until - into
	}
	return v
}

// reach is how many passes each rank of a pipeline can run in a step in which ranks die.
func (s *Step) reach(pipeline int, dead []int, into float64) []int {
	sched := s.Passes.Schedule
	done := map[schedule.Action]bool{} // F, and I or B as I
	can := func(a schedule.Action) bool {
		need := schedule.Action{Op: schedule.F, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
		if a.Op != schedule.F {
			need.Op, need.Stage = schedule.I, a.Stage+1
		}
		return a.Op == schedule.W || need.Stage < 0 || need.Stage == sched.Stages() || done[need]
	}
	reach := make([]int, len(sched.Ranks))
	for again := true; again; {
		again = false
		for r, list := range sched.Ranks {
			dies := slices.Contains(dead, s.Job.rank(r, pipeline))
			passes := s.passes(r)
			for reach[r] < len(passes) {
				k := passes[reach[r]]
				if dies && s.Passes.Timeline[r][k].End > into || !can(list[k]) {
					break
				}
				a := list[k]
				a.Overlap = false
				if a.Op == schedule.B {
					a.Op = schedule.I
				}
				done[a], again = true, true
				reach[r]++
			}
		}
	}
	return reach
}

// passes are the places of the passes in the list of a rank of a pipeline.
func (s *Step) passes(inPipeline int) (list []int) {
	for k, a := range s.Passes.Schedule.Ranks[inPipeline] {
		if a.Op.Computes() {
			list = append(list, k)
		}
	}
	return list
}

// moment is what a rank does at a time of the step. reach is how many passes each rank of its pipeline can run; nil:
// all.
func (s *Step) moment(rank int, into float64, reach []int) Moment {
	i, column := s.Job.Mesh.Coord(rank, comm.PP), s.Job.Mesh.Coord(rank, columns)
	list, spans := s.Passes.Schedule.Ranks[i], s.Passes.Timeline[i]
	for n, k := range s.passes(i) {
		switch a, span := list[k], spans[k]; {
		case span.End <= into && (reach == nil || n < reach[i]):
		case span.Start > into || reach != nil && n >= reach[i]:
			return s.wait(a, column)
		default:
			return Moment{Action: a.String(), ForRank: -1, until: span.End}
		}
	}
	reduce := schedule.Action{Op: schedule.ReduceGrad, Stage: s.Job.Pipeline[i].Stages[0].Stage}
	m := Moment{Action: reduce.String(), Waits: true, ForRank: -1}
	switch {
	case reach != nil && into >= s.GradientsEnd: // for the ranks that died
	case into >= s.UpdateEnd:
		m.Action = "gather"
	case into >= s.GradientsEnd && into < s.GradientsEnd+s.Job.update(i):
		return Moment{Action: "update", ForRank: -1, until: s.GradientsEnd + s.Job.update(i)}
	}
	return m
}

// wait is what a rank does that has yet to begin a pass.
func (s *Step) wait(a schedule.Action, column int) Moment {
	receive := schedule.Action{Op: schedule.RecvF, Stage: a.Stage, MicroBatch: a.MicroBatch}
	send := schedule.Action{Op: schedule.SendF, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
	if a.Op != schedule.F {
		receive.Op, send.Op, send.Stage = schedule.RecvB, schedule.SendB, a.Stage+1
	}
	if from := s.Passes.Schedule.Peer(receive); from >= 0 && a.Op != schedule.W {
		return Moment{Action: receive.String(), Waits: true, For: send.String(), ForRank: s.Job.rank(from, column)}
	}
	gather := schedule.Action{Op: schedule.Unshard, Stage: a.Stage}
	return Moment{Action: gather.String(), Waits: true, ForRank: -1}
}
