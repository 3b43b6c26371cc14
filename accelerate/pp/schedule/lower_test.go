// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

func TestLower(t *testing.T) {
	low, err := generate(t, "1f1b", 2, 2, 0).Lower()
	require.NoError(t, err)
	want := parse(t, "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"+
		"1UNSHARD,1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD")
	require.Equal(t, lines(want.Ranks), lines(low.Ranks))
	same, err := low.Lower()
	require.NoError(t, err)
	require.Same(t, low, same)

	// The turn of a V sends nothing, and the second stage is gathered while the first is at work.
	low, err = generate(t, "zbv", 2, 1, 0).Lower()
	require.NoError(t, err)
	require.Equal(t, "0UNSHARD,3UNSHARD,0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,3REDUCE_GRAD,3RESHARD,"+
		"0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\r\n"+
		"1UNSHARD,1RECV_F0,2UNSHARD,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2W0,2REDUCE_GRAD,2RESHARD,"+
		"1I0,1SEND_B0,1W0,1REDUCE_GRAD,1RESHARD\r\n", lines(low.Ranks))
}

// meets reports whether a lowered schedule comes to its end where a message moves only when both ranks have come to it
// and nothing else: sends and receives that block, as the strictest library has them.
func meets(s *schedule.Schedule) bool {
	next := make([]int, len(s.Ranks))
	head := func(r int) (a schedule.Action, ok bool) {
		for ; next[r] < len(s.Ranks[r]); next[r]++ {
			if a := s.Ranks[r][next[r]]; a.Op >= schedule.SendF && a.Op <= schedule.RecvB {
				return a, true
			}
		}
		return schedule.Action{}, false
	}
	for moved := true; moved; {
		moved = false
		for r := range s.Ranks {
			a, ok := head(r)
			var peer schedule.Action
			switch {
			case ok && a.Op == schedule.SendF:
				peer = schedule.Action{Op: schedule.RecvF, Stage: a.Stage + 1, MicroBatch: a.MicroBatch}
			case ok && a.Op == schedule.SendB:
				peer = schedule.Action{Op: schedule.RecvB, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
			default:
				continue
			}
			to := s.StageToRank[peer.Stage]
			if b, ok := head(to); ok && b == peer {
				next[r]++
				next[to]++
				moved = true
			}
		}
	}
	for r := range s.Ranks {
		if _, ok := head(r); ok {
			return false
		}
	}
	return true
}

// apart are lists whose passes do not overlap.
func apart(lists [][]schedule.Action) [][]schedule.Action {
	for _, list := range lists {
		for i := range list {
			list[i].Overlap = false
		}
	}
	return lists
}

// TestLoweredSchedulesMayBlock: no order of messages depends on sends that do not wait for their receivers.
func TestLoweredSchedulesMayBlock(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, name := range schedule.Names() {
		for range 20 {
			p := 1 + random.IntN(8)
			s, err := generate(t, name, p, 4*p, 0).Truncate(1 + random.IntN(4*p))
			require.NoError(t, err)
			low, err := s.Lower()
			require.NoError(t, err)
			require.True(t, meets(low), "%s %d %d", name, p, s.MicroBatches)
			require.Equal(t, lines(apart(passes(s))), lines(passes(low)))
			for rank, list := range low.Ranks {
				count := map[schedule.Op]int{}
				for _, a := range list {
					count[a.Op]++
					require.False(t, a.Overlap)
				}
				stages := len(low.StagesOf(rank))
				require.Equal(t, stages, count[schedule.Unshard])
				require.Equal(t, stages, count[schedule.Reshard])
				require.Equal(t, stages, count[schedule.ReduceGrad])
			}
		}
	}
	// Where each rank sends first, both wait, unless sends do not.
	s := parse(t, "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"+
		"1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1")
	require.False(t, meets(s))
	simulate(t, s, schedule.Uniform(2, unit, 1))
	require.ErrorContains(t, s.Validate(), "deadlock: rank 0 waits in 0SEND_F1 for 1RECV_F1 of rank 1; "+
		"rank 1 waits in 1SEND_B0 for 0RECV_B0 of rank 0")
	for file, text := range tables(t) {
		if s := parse(t, string(text)); s.Lowered() {
			require.True(t, meets(s), file)
		}
	}
}

// TestMovedMessages: with two of a rank's messages exchanged, a schedule is valid only if blocking ranks get through.
func TestMovedMessages(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	valid, blocked := 0, 0
	for _, name := range schedule.Names() {
		for range 100 {
			s, err := generate(t, name, 3, 6, 0).Lower()
			require.NoError(t, err)
			list := s.Ranks[random.IntN(3)]
			var ends []int
			for i, a := range list {
				if a.Op >= schedule.SendF && a.Op <= schedule.RecvB {
					ends = append(ends, i)
				}
			}
			k := random.IntN(len(ends) - 1)
			list[ends[k]], list[ends[k+1]] = list[ends[k+1]], list[ends[k]]
			if err := s.Validate(); err == nil {
				require.True(t, meets(s))
				valid++
			} else if !meets(s) {
				blocked++
			}
		}
	}
	require.Greater(t, valid, 50)
	require.Greater(t, blocked, 50)
}
