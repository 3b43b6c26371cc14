// SPDX-License-Identifier: Apache-2.0

//go:build unix

package checkpoint_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/checkpoint/checkpointtest"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

func TestMain(m *testing.M) { commtest.Play(m, saveForever) }

// saveForever saves the steps 1 to 4 in turn, over and over: as one process, or as a rank among processes, as the
// scenario, "one" or "ranks", has it. The folder follows.
func saveForever(scenario string) error {
	how, dir, _ := strings.Cut(scenario, " ")
	s := quiet(nil, dir)
	if how == "one" {
		return checkpointtest.SaveForever(s, run, 0, func(i int64) (checkpoint.Info, error) {
			st := state{i%4 + 1, fmt.Sprintf("%d.%d", os.Getpid(), i)}
			return s.Save(ctx, st.Step, st.content())
		})
	}
	g, err := commtest.JoinProcesses(shm.Join)
	if err != nil {
		return err
	}
	return checkpointtest.SaveForever(s, run, g.Rank(), func(i int64) (checkpoint.Info, error) {
		st := state{i%4 + 1, fmt.Sprint(i)}
		return s.SaveShards(ctx, g, st.Step, st.sharded(g.Rank(), g.Size()))
	})
}

// killed runs a scenario, and requires that a save and a rotation clear up all that was left.
func killed(t *testing.T, how string, ranks, kills int, check func(killed int, ck *checkpoint.Checkpoint, dir string)) {
	dir := t.TempDir()
	s := quiet(nil, dir)
	checkpointtest.Kills{Store: s, Ranks: ranks, Kills: kills, Within: 15 * time.Millisecond,
		Scenario: func(int) string { return how + " " + dir },
		Check:    func(_, killed int, ck *checkpoint.Checkpoint) { check(killed, ck, dir) }}.Run(t)
	save(t, s, state{100, "after"})
	_, err := s.Rotate(1, run)
	require.NoError(t, err)
	require.Equal(t, "LATEST checkpoint-100", names(t, vfs.OS, dir), "and all leftovers are gone")
}

func TestKilledAtRandomMoments(t *testing.T) {
	var last int64
	killed(t, "one", 1, 30, func(_ int, ck *checkpoint.Checkpoint, _ string) {
		whole(t, ck)
		last = ck.SaveID
	})
	require.Greater(t, last, int64(30), "some process has saved more than once")
}

// A rank, or all of them, killed at any moment of a save leaves a folder that can be loaded; the others end by
// themselves.
func TestRanksKilledInsideShardedSaves(t *testing.T) {
	killed(t, "ranks", 2, 10, func(killed int, ck *checkpoint.Checkpoint, dir string) {
		wholeShards(t, ck)
		if killed == 1 {
			require.NotContains(t, names(t, vfs.OS, dir), ".tmp-checkpoint", "rank 0 clears up what rank 1 began")
		}
	})
}
