// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// TestTablesOfPyTorchAreValid: except for Looped BFS, whose backward passes descend, and for 1F1B, whose last rank has
// its forward passes from micro-batch 1 on (PyTorch runs 1F1B without its table).
func TestTablesOfPyTorchAreValid(t *testing.T) {
	for file, text := range tables(t) {
		err := parse(t, string(text)).Validate()
		switch name, _, _ := strings.Cut(file, "-"); name {
		case "looped_bfs":
			require.ErrorContains(t, err, "rank 0: stage 0 adds the weight gradients of micro-batch ", file)
			require.ErrorContains(t, err, "want ascending micro-batches, which give the bits of one process")
		case "1f1b":
			require.ErrorContains(t, err, "F0: want it once", file)
		default:
			require.NoError(t, err, file)
		}
	}
}

// TestDescendingBackward: the control of the promise that pipelines keep the bits of one process.
func TestDescendingBackward(t *testing.T) {
	s := generate(t, "gpipe", 2, 4, 0)
	slices.Reverse(s.Ranks[1][4:])
	slices.Reverse(s.Ranks[0][4:])
	require.EqualError(t, s.Validate(), "schedule gpipe:\n"+
		"  rank 0: stage 0 adds the weight gradients of micro-batch 2 after those of micro-batch 3: want ascending "+
		"micro-batches, which give the bits of one process\n"+
		"  rank 1: stage 1 adds the weight gradients of micro-batch 2 after those of micro-batch 3: want ascending "+
		"micro-batches, which give the bits of one process")
	simulate(t, s, schedule.Uniform(2, unit, 0)) // no reason not to know its time
}

func TestValidateFinds(t *testing.T) {
	const one = "0F0,0B0\n1F0,1I0,1W0"
	const low = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0"
	require.NoError(t, parse(t, one).Validate())
	require.NoError(t, parse(t, low).Validate())
	for _, c := range []struct{ text, edit, to, want string }{
		{one, "1F0,", "", "rank 1: no 1F0: want it once"},
		{one, "1W0", "", "rank 1: no 1W0: want it once"},
		{one, "1I0,", "", "rank 1: no 1I0: want it once"},
		{one, "0B0", "", "stage 0, micro-batch 0: no backward pass on rank 0: want B, or I and W"},
		{one, "1I0", "1B0", "stage 1, micro-batch 0: both B and I or W: want B, or I and W"},
		{one, "0F0", "0F0,,0F0", "rank 0: 0F0 twice, as actions 1 and 3: want it once"},
		{one, "0F0", "0F0,1W0", "rank 0, action 2: 1W0 is on rank 0: want rank 1, which holds stage 1"},
		{one, "1I0,1W0", "1W0,1I0", "rank 1: 1I0 is action 3, after action 2, which needs it: want it before"},
		{one, "1I0,1W0", "1W0,1I0", "deadlock: rank 1 waits in 1W0 for 1I0, which is later in the rank's list"},
		{one, "0F0,0B0", "0B0,0F0", "rank 0: 0F0 is action 2, after action 1, which needs it: want it before"},
		{one, "0F0", "0F0,0UNSHARD", "the parameters of stage 0 stay gathered: want RESHARD after its last pass"},
		{one, "\n", "\n\n", "rank 1 holds no stage: want at least one"},
		{low, "0SEND_F0,", "", "rank 0: no 0SEND_F0: want it once"},
		{low, "1RECV_F0,", "", "rank 1: no 1RECV_F0: want it once"},
		{low, "0F0,0SEND_F0", "0SEND_F0,0F0", "rank 0: 0F0 is action 3, after action 2, which needs it"},
		{low, "0RECV_B0,0B0", "0B0,0RECV_B0", "rank 0: 0RECV_B0 is action 5, after action 4, which needs it"},
		{low, "1B0,1SEND_B0", "1B0,1SEND_B0,1SEND_F0",
			"rank 1, action 5: 1SEND_F0 has no other rank at its other end: want no message"},
		{low, "0UNSHARD,0F0", "0F0,0UNSHARD", "rank 0, action 1: 0F0, but the parameters of stage 0 are not gathered"},
		{low, "0UNSHARD", "0UNSHARD,0UNSHARD", "action 2: 0UNSHARD, but the parameters of stage 0 are gathered"},
		{low, "0RESHARD", "0RESHARD,0RESHARD", "action 8: 0RESHARD, but the parameters of stage 0 are not"},
		{low, "0B0,0REDUCE_GRAD", "0REDUCE_GRAD,0B0", "action 6: 0B0, but the gradients of stage 0 have been reduced"},
		{low, "0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD", "0REDUCE_GRAD, but the gradients of stage 0 have been"},
	} {
		err := parse(t, strings.Replace(c.text, c.edit, c.to, 1)).Validate()
		require.ErrorContains(t, err, c.want, "%s for %s", c.to, c.edit)
	}
	s := parse(t, "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"+
		"1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1")
	require.ErrorContains(t, s.Validate(),
		"message 1 from rank 0 to rank 1 is sent by 0SEND_F1 and received by 1RECV_F0: want the same order on both")
	s = parse(t, "0F0,0SEND_F0,1RECV_F0,1F0,1B0,1SEND_B0,0RECV_B0,0B0")
	require.ErrorContains(t, s.Validate(), "rank 0, action 2: 0SEND_F0 has no other rank at its other end")
}

// TestValidateMadeSchedules: schedules that a program has put together.
func TestValidateMadeSchedules(t *testing.T) {
	require.EqualError(t, (&schedule.Schedule{}).Validate(),
		"schedule: 0 ranks, 0 stages, 0 micro-batches: want at least 1 of each")
	s := generate(t, "1f1b", 2, 2, 0)
	s.Ranks[0][0] = schedule.Action{Op: 99}
	s.Ranks[0][1].MicroBatch = -1
	s.Ranks[1][0].Stage = 2
	s.Ranks[1][1].Overlap = true
	s.Ranks[1] = s.Ranks[1][:2]
	err := s.Validate()
	for _, want := range []string{"rank 0, action 1: 0Op(99) is unknown: want an op of this package",
		"rank 0, action 2: 0F-1 is of micro-batch -1: want 0 to 1", "rank 1, action 1: 2F0 is of stage 2: want 0 to 1",
		"rank 1, action 2: 1B0 overlaps with no pass after it: want two passes"} {
		require.ErrorContains(t, err, want)
	}
	s = generate(t, "1f1b", 2, 2, 0)
	s.StageToRank = []int{0, 2}
	require.EqualError(t, s.Validate(),
		"schedule 1f1b:\n  stage 1 is on rank 2: want 0 to 1\n  rank 1 holds no stage: want at least one")
	s = generate(t, "1f1b", 2, 2, 0)
	s.ForwardOnly = true
	require.ErrorContains(t, s.Validate(), "rank 0, action 3: 0B0 is a part of training: want forward passes alone")

	s = generate(t, "gpipe", 4, 64, 0)
	for r := range s.Ranks {
		s.Ranks[r] = nil
	}
	var invalid *schedule.InvalidError
	require.ErrorAs(t, s.Validate(), &invalid)
	require.Len(t, invalid.Faults, 20)
	require.Equal(t, 4*64*2-20, invalid.More)
	require.Contains(t, invalid.Error(), "\n  and 492 more")
}

// TestGarbage: whatever a program puts into a schedule, all functions end with a result or an error.
func TestGarbage(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	number := func() int { return random.IntN(9) - 2 }
	valid := 0
	for range 3000 {
		s := generate(t, schedule.Names()[random.IntN(7)], 3, 6, 0)
		if random.IntN(2) == 0 {
			low, err := s.Lower()
			require.NoError(t, err)
			s = low.Forward()
			if random.IntN(2) == 0 {
				s = low
			}
		}
		for range random.IntN(3) {
			list := s.Ranks[random.IntN(3)]
			a := &list[random.IntN(len(list))]
			switch random.IntN(6) {
			case 0:
				a.Stage = number()
			case 1:
				a.MicroBatch = number()
			case 2:
				a.Op = schedule.Op(random.IntN(15))
			case 3:
				a.Overlap = !a.Overlap
			case 4:
				s.StageToRank[random.IntN(s.Stages())] = number()
			case 5:
				s.MicroBatches = number()
			}
		}
		err := s.Validate()
		sim, cannot := s.Simulate(schedule.Uniform(s.Stages(), unit, 1))
		if err == nil {
			require.NoError(t, cannot)
			require.NotEmpty(t, sim.Text(80))
			valid++
		}
		if low, err := s.Lower(); err == nil {
			require.NotNil(t, low)
		}
		_ = s.Forward().Validate()
		if cut, err := s.Truncate(2); err == nil {
			_ = cut.Validate()
		}
		require.NoError(t, s.WriteCSV(io.Discard))
	}
	require.Greater(t, valid, 500)
}
