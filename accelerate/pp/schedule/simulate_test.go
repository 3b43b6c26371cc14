// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// share is a whole stage's work of 1, 1 and 1, divided among v parts.
func share(v int) schedule.StageCosts {
	x := 1 / float64(v)
	return schedule.StageCosts{Forward: x, Input: x, Weight: x, Activation: x}
}

// TestTable: idle time and peak of each schedule are those of PyTorch's tables on a clock, with F = I = W = 1 for the
// part of the model that a rank holds.
func TestTable(t *testing.T) {
	type figures struct{ idle, peak float64 }
	for _, c := range []struct {
		p, m int
		want map[string]figures
	}{
		{2, 4, map[string]figures{
			"gpipe": {3, 4}, "1f1b": {3, 2}, "interleaved_1f1b": {1.5, 2.5}, "looped_bfs": {1.5, 4},
			"zb_h1": {1, 2}, "zbv": {0.5, 2}, "dualpipev": {0.5, 2.5},
		}},
		{4, 4, map[string]figures{
			"gpipe": {9, 4}, "1f1b": {9, 4}, "looped_bfs": {4.5, 4}, "zb_h1": {3, 4},
			"zbv": {3, 4},
		}},
		{4, 8, map[string]figures{
			"gpipe": {9, 8}, "1f1b": {9, 4}, "interleaved_1f1b": {4.5, 5.5}, "looped_bfs": {4.5, 8},
			"zb_h1": {3, 4}, "zbv": {1.5, 4}, "dualpipev": {1.5, 4.5},
		}},
		{4, 16, map[string]figures{
			"gpipe": {9, 16}, "1f1b": {9, 4}, "interleaved_1f1b": {4.5, 5.5}, "looped_bfs": {4.5, 16},
			"zb_h1": {3, 4}, "zbv": {1.5, 4}, "dualpipev": {1.5, 4.5},
		}},
		{8, 16, map[string]figures{
			"gpipe": {21, 16}, "1f1b": {21, 8}, "interleaved_1f1b": {10.5, 11.5}, "looped_bfs": {10.5, 16},
			"zb_h1": {7, 8}, "zbv": {3.5, 8}, "dualpipev": {3.5, 8.5},
		}},
	} {
		for name, want := range c.want {
			s := generate(t, name, c.p, c.m, 0)
			low, err := s.Lower()
			require.NoError(t, err)
			for _, s := range []*schedule.Schedule{s, low} {
				sim := simulate(t, s, schedule.Uniform(s.Stages(), share(s.Stages()/c.p), 0))
				require.Equal(t, 3*float64(c.m)+want.idle, sim.Time, "%s %d %d", name, c.p, c.m)
				require.Equal(t, want.peak, sim.Peak(), "%s %d %d", name, c.p, c.m)
				for _, r := range sim.Ranks {
					require.Equal(t, schedule.Usage{Busy: 3 * float64(c.m), Idle: want.idle, Peak: r.Peak}, r)
				}
				require.InDelta(t, want.idle/sim.Time, sim.Idle(), 1e-12)
			}
		}
	}
}

// TestInterleavedZeroBubble: a schedule that is not generated here is simulated from PyTorch's table of it.
func TestInterleavedZeroBubble(t *testing.T) {
	for file, idle := range map[string]float64{"interleaved_zb-p2-m4-v2": .5, "interleaved_zb-p4-m8-v2": 1.5,
		"interleaved_zb-p4-m8-v2.lowered": 1.5, "interleaved_zb-p8-m16-v2": 3.5} {
		s, err := schedule.ReadFile("testdata/torch/" + file + ".csv")
		require.NoError(t, err)
		require.NoError(t, s.Validate())
		sim := simulate(t, s, schedule.Uniform(s.Stages(), share(2), 0))
		require.Equal(t, idle, sim.Ranks[0].Idle, file)
		require.Equal(t, float64(len(s.Ranks)), sim.Peak(), file)
	}
}

// TestIdleTime: idle time follows the formulas of the papers for passes of different lengths.
func TestIdleTime(t *testing.T) {
	for _, c := range []schedule.StageCosts{unit, {Forward: 2, Input: 2, Weight: 1},
		{Forward: 2, Input: 2.5, Weight: 1.5}, {Forward: 4, Input: 4, Weight: 3}} {
		for p := 1; p <= 8; p++ {
			for _, m := range []int{p, 2 * p, 4 * p} {
				f, i, w, d := c.Forward, c.Input, c.Weight, float64(p-1)
				for name, want := range map[string]float64{"gpipe": d * (f + i + w), "1f1b": d * (f + i + w),
					"interleaved_1f1b": d * (f + i + w), "looped_bfs": d * (f + i + w), "zb_h1": d * (f + i - w)} {
					s := generate(t, name, p, m, 0)
					sim := simulate(t, s, schedule.Uniform(s.Stages(), c, 0))
					require.Equal(t, want, sim.Ranks[0].Idle, "%s p=%d m=%d %v", name, p, m, c)
				}
			}
		}
	}
}

// TestTransfers: messages move beside passes, one at a time in each direction between two ranks.
func TestTransfers(t *testing.T) {
	costs := schedule.Uniform(2, unit, 3)
	s := generate(t, "gpipe", 2, 2, 0)
	sim := simulate(t, s, costs)
	require.Equal(t, []schedule.Span{{0, 1}, {1, 2}, {13, 15}, {16, 18}}, sim.Timeline[0],
		"after 3 of message 0, and 3 of message 1 behind it; back in 3 each")
	require.Equal(t, []schedule.Span{{4, 5}, {7, 8}, {8, 10}, {10, 12}}, sim.Timeline[1])
	costs.Transfer = nil
	require.Equal(t, 9.0, simulate(t, s, costs).Time)

	low, err := s.Lower()
	require.NoError(t, err)
	again := simulate(t, low, schedule.Uniform(2, unit, 3))
	require.Equal(t, sim.Time, again.Time)
	for r, list := range low.Ranks {
		for i, a := range list {
			if a.Op == schedule.SendF {
				require.Equal(t, schedule.Span{Start: float64(1 + a.MicroBatch), End: float64(4 + 3*a.MicroBatch)},
					again.Timeline[r][i])
			}
		}
	}
	// A message does not start before its receive.
	late := parse(t, "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"+
		"1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1")
	spans := simulate(t, late, schedule.Uniform(2, unit, 1)).Timeline[1]
	require.Equal(t, []schedule.Span{{0, 2}, {2, 3}, {3, 5}, {5, 6}, {5, 6}, {6, 7}, {7, 9}, {9, 10}}, spans)
}

// TestLoweredTime: receives are listed early enough. Where a message takes no longer than a pass, a lowered schedule
// takes about the time of one whose receivers are always ready.
func TestLoweredTime(t *testing.T) {
	for _, name := range schedule.Names() {
		s := generate(t, name, 4, 8, 0)
		low, err := s.Lower()
		require.NoError(t, err)
		for _, transfer := range []float64{0, .25, .5, 1} {
			costs := schedule.Uniform(s.Stages(), schedule.StageCosts{Forward: 1, Input: 1.25, Weight: 1}, transfer)
			ratio := simulate(t, low, costs).Time / simulate(t, s, costs).Time
			require.GreaterOrEqual(t, ratio, 1.0, "%s %g", name, transfer)
			require.LessOrEqual(t, ratio, 1.03, "%s %g", name, transfer)
			require.True(t, transfer > 0 || ratio == 1, name)
		}
	}
}

// relaxed is when each pass ends, found in another way than the simulator's: all passes and messages start as soon as
// what they wait for has ended, repeated from zero until nothing moves. A pass is known by its op, stage and
// micro-batch, with I for B.
func relaxed(s *schedule.Schedule, c schedule.Costs) map[schedule.Action]float64 {
	end, arrived := map[schedule.Action]float64{}, map[schedule.Action]float64{}
	pass := func(op schedule.Op, stage, microBatch int) schedule.Action {
		return schedule.Action{Op: op, Stage: stage, MicroBatch: microBatch}
	}
	for moved := true; moved; {
		moved = false
		free := map[[2]int]float64{} // links between two ranks
		for rank, list := range s.Ranks {
			now := 0.0
			for _, a := range list {
				each, from, send := c.Stages[a.Stage], a.Stage-1, pass(schedule.SendF, a.Stage, a.MicroBatch)
				takes, makes := each.Forward, pass(schedule.F, a.Stage, a.MicroBatch)
				switch a.Op {
				case schedule.W:
					takes, from, send = each.Weight, -1, schedule.Action{}
				case schedule.I, schedule.B:
					takes, from, send.Op, makes.Op = each.Input, a.Stage+1, schedule.SendB, schedule.I
					if a.Op == schedule.B {
						takes += each.Weight
					}
				}
				if from >= 0 && from < s.Stages() {
					needs := pass(makes.Op, from, a.MicroBatch)
					if s.StageToRank[from] == rank {
						now = max(now, end[needs])
					} else {
						now = max(now, arrived[needs])
					}
				}
				now += takes
				if a.Op == schedule.W {
					continue
				}
				moved = moved || end[makes] != now
				end[makes] = now
				if to := s.Peer(send); to >= 0 {
					link := [2]int{rank, to}
					border := a.Stage
					if send.Op == schedule.SendB {
						border--
					}
					free[link] = max(free[link], now) + c.Transfer[border]
					moved = moved || arrived[makes] != free[link]
					arrived[makes] = free[link]
				}
			}
		}
	}
	return end
}

// TestSimulateAgainstRelaxation: two ways to find the times agree, for any costs.
func TestSimulateAgainstRelaxation(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for _, name := range schedule.Names() {
		for range 5 {
			p := 1 + random.IntN(5)
			s := generate(t, name, p, 3*p, 0)
			costs := randomCosts(random, s.Stages())
			sim, want := simulate(t, s, costs), relaxed(s, costs)
			for rank, list := range s.Ranks {
				for i, a := range list {
					a.Overlap = false
					if a.Op == schedule.B {
						a.Op = schedule.I
					}
					if a.Op != schedule.W {
						require.InDelta(t, want[a], sim.Timeline[rank][i].End, 1e-9, "%s p=%d: %v", name, p, a)
					}
				}
			}
		}
	}
}

func TestSimulateRefuses(t *testing.T) {
	s := generate(t, "1f1b", 2, 2, 0)
	_, err := s.Simulate(schedule.Uniform(3, unit, 0))
	require.EqualError(t, err,
		"costs:\n  3 stages: want 2\n  2 transfers: want 1, one for each two neighbouring stages")
	bad := schedule.Uniform(2, unit, math.NaN())
	bad.Stages[1].Weight = -1
	bad.Stages[0].Activation = math.Inf(1)
	_, err = s.Simulate(bad)
	require.ErrorContains(t, err, "stage 0: {1 1 1 +Inf}: want numbers from 0 to 1e+18\n  stage 1: {1 1 -1 1}")
	require.ErrorContains(t, err, "transfer 0: NaN: want a number from 0 to 1e+18")
	s.Ranks[0] = s.Ranks[0][1:]
	_, err = s.Simulate(schedule.Uniform(2, unit, 0))
	require.ErrorContains(t, err, "rank 0: no 0F0: want it once")
}

// TestDeadlock: two passes in the wrong order wait for each other, and the error names the cycle.
func TestDeadlock(t *testing.T) {
	s := generate(t, "1f1b", 2, 4, 0) // rank 1: F0 B0 F1 B1 F2 …
	list := s.Ranks[1]
	list[1], list[4] = list[4], list[1]
	const want = "deadlock: rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F2 for 0F2 of rank 0"
	_, err := s.Simulate(schedule.Uniform(2, unit, 0))
	require.EqualError(t, err, want)
	var deadlock *schedule.DeadlockError
	require.ErrorAs(t, err, &deadlock)
	require.Len(t, deadlock.Cycle, 2)
	require.ErrorContains(t, s.Validate(), want)
	_, err = s.Lower()
	require.EqualError(t, err, want)

	// receives that are listed too late, in a schedule with messages
	s = parse(t, "0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0")
	_, err = s.Simulate(schedule.Uniform(2, unit, 0))
	require.EqualError(t, err, "deadlock: rank 0 waits in 0B0 for 0RECV_B0, which is later in the rank's list")
	s = parse(t, "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"+
		"1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1")
	_, err = s.Simulate(schedule.Uniform(2, unit, 0))
	require.EqualError(t, err,
		"deadlock: rank 0 waits in 0B0 for 1SEND_B0 of rank 1; rank 1 waits in 1F1 for 0SEND_F1 of rank 0")
}

// TestSwappedPairs: any two passes of a rank that change places make a schedule that is refused or comes to its end.
func TestSwappedPairs(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	deadlocks := 0
	for _, name := range schedule.Names() {
		for range 100 {
			s := generate(t, name, 4, 8, 0)
			list := s.Ranks[random.IntN(4)]
			i, j := random.IntN(len(list)), random.IntN(len(list))
			list[i].Overlap, list[j].Overlap = false, false
			list[i], list[j] = list[j], list[i]
			sim, err := s.Simulate(schedule.Uniform(s.Stages(), unit, 0))
			var deadlock *schedule.DeadlockError
			if err != nil {
				require.ErrorAs(t, err, &deadlock)
				require.Error(t, s.Validate())
				for k, w := range deadlock.Cycle {
					require.Equal(t, w.OfRank, deadlock.Cycle[(k+1)%len(deadlock.Cycle)].Rank)
				}
				deadlocks++
				continue
			}
			require.GreaterOrEqual(t, sim.Time, 3*8.0)
		}
	}
	require.Greater(t, deadlocks, 300)
}

// TestLargePipeline: a step of the largest published runs is made, checked, lowered and simulated; CI's limit on the
// time of tests holds it to seconds.
func TestLargePipeline(t *testing.T) {
	s := generate(t, "interleaved_1f1b", 64, 512, 4)
	require.NoError(t, s.Validate())
	sim := simulate(t, s, schedule.Uniform(256, share(4), 0))
	require.Equal(t, 3*63/4.0, sim.Ranks[0].Idle)
	low, err := s.Lower()
	require.NoError(t, err)
	require.NoError(t, low.Validate())
	require.Equal(t, sim.Time, simulate(t, low, schedule.Uniform(256, share(4), 0)).Time)
}

func BenchmarkSimulate(b *testing.B) {
	s, err := schedule.New("interleaved_1f1b", schedule.Shape{Ranks: 64, MicroBatches: 512, StagesPerRank: 4})
	require.NoError(b, err)
	costs := schedule.Uniform(256, share(4), 0)
	for b.Loop() {
		_, err := s.Simulate(costs)
		require.NoError(b, err)
	}
}

// Ranks that share a stage gather its parameters before its first pass and reduce its gradients behind its last.
func TestSimulateSharded(t *testing.T) {
	s := generate(t, "gpipe", 2, 1, 0)
	low, err := s.Lower()
	require.NoError(t, err)
	costs := schedule.Uniform(2, schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 0)
	costs.Unshard, costs.Reduce = []float64{5, 7}, []float64{3, 4}
	sim := simulate(t, low, costs)
	for i, a := range low.Ranks[1] {
		switch a.Op { // 7 for the parameters, longer than the 5 + 1 of the input; F and B take 3
		case schedule.F:
			require.Equal(t, schedule.Span{Start: 7, End: 8}, sim.Timeline[1][i])
		case schedule.ReduceGrad:
			require.Equal(t, schedule.Span{Start: 10, End: 14}, sim.Timeline[1][i])
		}
	}
	require.Equal(t, 15.0, sim.Time, "rank 0: B ends at 12, and then 3 for its gradients")
	require.Equal(t, 3.0, sim.Ranks[0].Busy)
	costs.Reduce = []float64{1}
	_, err = low.Simulate(costs)
	require.ErrorContains(t, err, "1 reductions: want 2, one for each stage")
}
