// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/simulation"
	"github.com/lockstep-ml/lockstep/comm"
)

// job has two pipelines of two ranks. Ranks 0 and 1 have stage 0, on host 0. A message between the stages takes 2 s, F
// takes 1 and B 2, the sum of a stage's gradients 2, and the optimizer 7.
func job(t *testing.T, mesh comm.Mesh, sharding simulation.Sharding) *simulation.Step {
	s, err := schedule.Load("1f1b", schedule.Shape{Ranks: 2, MicroBatches: 2})
	require.NoError(t, err)
	h := simulation.Hardware{FLOPS: 1, MemoryBandwidth: 10, RanksPerHost: 2, Within: simulation.Link{Bandwidth: 5},
		Across: simulation.Link{Bandwidth: 10, Latency: 1}, Disk: 3, Start: 5}
	rehearsal := func(stage int, outputs, inputs int64) *pp.Rehearsal {
		costs := schedule.StageCosts{Forward: 1, Input: 2}
		return &pp.Rehearsal{Stages: []pp.StageWork{{Stage: stage, StageCosts: costs, Output: outputs / 2,
			InputGradient: inputs / 2, Parameters: 10, Gradients: 10}}, Parameters: 10, Gradients: 10, State: 20,
			Outputs: outputs, Inputs: inputs}
	}
	j := &simulation.Job{Hardware: h, Mesh: mesh, Schedule: s, Sharding: sharding,
		Pipeline: []*pp.Rehearsal{rehearsal(0, 20, 0), rehearsal(1, 0, 20)}}
	step, err := j.Run()
	require.NoError(t, err)
	return step
}

var replicas = comm.Mesh{PP: 2, DPReplicate: 2, DPShard: 1}

func TestStep(t *testing.T) {
	s := job(t, replicas, simulation.Sharding{})
	require.Equal(t, []float64{14, 16, 23, 23}, []float64{s.PassesEnd, s.GradientsEnd, s.UpdateEnd, s.Time})
	require.Equal(t, simulation.Rank{Busy: 13, Bubble: 8, Exchange: 2,
		Traffic: simulation.Traffic{Outputs: 20, Gradients: 10, AcrossHosts: 20}}, s.Ranks[0])
	require.Equal(t, simulation.Rank{Pipeline: 1, Host: 1, Busy: 13, Bubble: 8, Exchange: 2,
		Traffic: simulation.Traffic{InputGradients: 20, Gradients: 10, AcrossHosts: 20}}, s.Ranks[3])
	require.InDelta(t, 8.0/23, s.Bubble(), 1e-12)

	// The parameters of a stage are gathered in 1 s in front of its first pass, gradients go to their owners in 1 s,
	// and each optimizer steps half of the parameters.
	s = job(t, comm.Mesh{PP: 2, DPReplicate: 1, DPShard: 2}, simulation.Sharding{Optimizer: true, Parameters: true})
	require.Equal(t, []float64{15, 16, 19.5, 19.5}, []float64{s.PassesEnd, s.GradientsEnd, s.UpdateEnd, s.Time})
	require.Equal(t, simulation.Traffic{Outputs: 20, Gradients: 5, Parameters: 5, AcrossHosts: 20}, s.Ranks[1].Traffic)

	// ZeRO gathers behind the optimizer.
	s = job(t, comm.Mesh{PP: 2, DPReplicate: 1, DPShard: 2}, simulation.Sharding{Optimizer: true})
	require.Equal(t, []float64{14, 15, 18.5, 19.5}, []float64{s.PassesEnd, s.GradientsEnd, s.UpdateEnd, s.Time})
}

// A rank dies while it computes. Ranks that wait notice it as soon as its connection ends, one that computes when its
// pass has ended.
func TestKill(t *testing.T) {
	s := job(t, replicas, simulation.Sharding{})
	o, err := s.Kill(simulation.Death{Rank: 3, Host: -1, At: 23 + 4.5, SaveSteps: 1})
	require.NoError(t, err)
	require.Equal(t, 2, o.Step)
	require.Equal(t, "1B0", o.Moment.Action)
	var got []simulation.Survivor
	for _, v := range o.Survivors {
		got = append(got, simulation.Survivor{Rank: v.Rank, End: v.End, Moment: simulation.Moment{Action: v.Action,
			Waits: v.Waits, For: v.For, ForRank: v.ForRank}})
	}
	require.Equal(t, []simulation.Survivor{
		{Rank: 0, End: 1, Moment: simulation.Moment{Action: "0RECV_B0", Waits: true, For: "1SEND_B0", ForRank: 2}},
		{Rank: 1, End: 1, Moment: simulation.Moment{Action: "0RECV_B0", Waits: true, For: "1SEND_B0", ForRank: 3}},
		{Rank: 2, End: 1.5, Moment: simulation.Moment{Action: "1B0", ForRank: -1}},
	}, got)
	require.Equal(t, []float64{4.5, 1.5, 1 + 5 + 10, 22}, []float64{o.LostSeconds, o.Detection, o.Restart, o.Total})
	require.Equal(t, []int{1, 1}, []int{o.LastSaved, o.LostSteps})

	// Without a checkpoint all is lost. The other pipeline has ended its passes when the host is found to be silent.
	h := s.Job.Hardware
	h.RanksPerHost = 1
	s.Job.Hardware = h
	for i := range s.Ranks {
		s.Ranks[i].Host = i
	}
	o, err = s.Kill(simulation.Death{Rank: -1, Host: 3, At: 12})
	require.NoError(t, err)
	require.Equal(t, []int{3}, o.Dead)
	require.Equal(t, "1REDUCE_GRAD", o.Moment.Action)
	for _, v := range o.Survivors {
		require.Equal(t, 4.0, v.End)
		require.True(t, v.Waits)
	}
	require.Equal(t, 12.0, o.LostSeconds)
	for _, bad := range []simulation.Death{{Rank: 4, Host: -1}, {Rank: -1, Host: 4}, {Rank: 0, Host: -1, At: -1}} {
		_, err := s.Kill(bad)
		require.Error(t, err)
	}
}

func TestBadJobs(t *testing.T) {
	j := job(t, replicas, simulation.Sharding{}).Job
	bad := *j
	bad.Hardware.FLOPS = 0
	_, err := bad.Run()
	require.EqualError(t, err, "simulation: flops is 0: want a number of at least 1")
	bad = *j
	bad.Mesh.PP = 4
	_, err = bad.Run()
	require.ErrorContains(t, err, "a schedule of 2 ranks and 2 rehearsals: want as many of each")
}
