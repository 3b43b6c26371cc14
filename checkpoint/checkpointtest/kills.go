// SPDX-License-Identifier: Apache-2.0

//go:build unix

package checkpointtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm/commtest"
)

// envKills replaces the number of kills, for runs that take longer.
const envKills = "LOCKSTEP_CHECKPOINT_KILLS"

// soon is time enough for a process to start, or to end, on a busy machine.
const soon = time.Minute

// SaveForever saves over and over, by save, which gets the number of the save. Rank 0 prints which save ids are done
// and keeps two checkpoints of a run. It returns only with an error.
func SaveForever(s *checkpoint.Store, run string, rank int, save func(i int64) (checkpoint.Info, error)) error {
	for i := int64(0); ; i++ {
		info, err := save(i)
		if err != nil {
			return err
		}
		if rank != 0 {
			continue
		}
		commtest.Say("saved", fmt.Sprint(info.SaveID))
		if _, err := s.Rotate(2, run); err != nil {
			return err
		}
	}
}

// Kills is a test that kills one rank of a job, or all of them, inside saves.
type Kills struct {
	Store *checkpoint.Store
	Ranks int // of the job
	Kills int // how many jobs are started, unless $LOCKSTEP_CHECKPOINT_KILLS is set
	// Within is the longest time between the end of a job's first save and the kill.
	Within time.Duration
	// Scenario is what the processes of a round play, see [commtest.Play]: it calls [SaveForever].
	Scenario func(round int) string
	// Check checks the newest checkpoint after a round. killed is the rank that was killed, or Ranks for all.
	Check func(round, killed int, ck *checkpoint.Checkpoint)
}

// Run requires that each job leaves a checkpoint that is no older than its last save, and that its other ranks end by
// themselves with an error that names the lost rank.
func (k Kills) Run(t *testing.T) {
	kills := k.Kills
	if v := os.Getenv(envKills); v != "" {
		var err error
		kills, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	var last int64
	for round := range kills {
		killed := r.IntN(k.Ranks + 1)
		done := k.round(t, round, killed, time.Duration(r.Int64N(int64(k.Within))))
		ck, err := k.Store.Latest(t.Context())
		require.NoError(t, err, "round %d", round)
		k.Check(round, killed, ck)
		require.GreaterOrEqual(t, ck.SaveID, done, "a save that has returned is the least that is found")
		require.GreaterOrEqual(t, ck.SaveID, last, "and what was found once is not lost")
		last = ck.SaveID
	}
	require.GreaterOrEqual(t, last, int64(kills), "each job has saved at least once")
}

// round starts a job, kills one of its ranks, or all, a while after the first save, waits for the others, and returns
// the last save id that rank 0 printed.
func (k Kills) round(t *testing.T, round, killed int, while time.Duration) (done int64) {
	procs := commtest.Processes(t, k.Ranks, k.Scenario(round), nil)
	procs[0].Await(t, "saved", soon)
	time.Sleep(while)
	dies := func(rank int) bool { return killed == rank || killed == k.Ranks }
	for rank, p := range procs {
		if dies(rank) {
			p.Kill(t)
		}
	}
	for rank, p := range procs {
		p.Ended(t, dies(rank))
		if !dies(rank) {
			require.Contains(t, p.Said("error"), "is lost", "rank %d names the other", rank)
		}
	}
	done, err := strconv.ParseInt(procs[0].Said("saved"), 10, 64)
	require.NoError(t, err)
	return done
}
