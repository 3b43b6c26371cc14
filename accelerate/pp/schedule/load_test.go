// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

func TestLoad(t *testing.T) {
	s, err := schedule.Load("zbv", schedule.Shape{Ranks: 2, MicroBatches: 4})
	require.NoError(t, err)
	require.Equal(t, generate(t, "zbv", 2, 4, 2), s)
	_, err = schedule.Load("zvb", schedule.Shape{Ranks: 2, MicroBatches: 4})
	require.ErrorContains(t, err, "did you mean zbv?")

	file := filepath.Join(t.TempDir(), "mine.csv")
	require.NoError(t, os.WriteFile(file, []byte("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"), 0o644))
	for _, of := range []schedule.Shape{{}, {Ranks: 2, MicroBatches: 2, StagesPerRank: 1}} {
		s, err = schedule.Load(file, of)
		require.NoError(t, err)
		require.Equal(t, 2, s.MicroBatches)
	}
	s, err = schedule.Load(file, schedule.Shape{MicroBatches: 1})
	require.NoError(t, err)
	require.Equal(t, lines(parse(t, "0F0,0B0\n1F0,1B0").Ranks), lines(s.Ranks))
	_, err = schedule.Load(file, schedule.Shape{Ranks: 3, MicroBatches: 4, StagesPerRank: 2})
	require.EqualError(t, err, "schedule "+file+":\n  a table of 2 ranks: want 3\n"+
		"  a table of 2 stages: want 4, 2 per rank\n  a table of 2 micro-batches: want at least 4")
	_, err = schedule.Load(file, schedule.Shape{MicroBatches: -1})
	require.ErrorContains(t, err, "for a step of -1 micro-batches: want 1 to 2")

	require.NoError(t, os.WriteFile(file, []byte("0F0,0F1,0B1,0B0"), 0o644))
	_, err = schedule.Load(file, schedule.Shape{})
	require.ErrorContains(t, err, "stage 0 adds the weight gradients of micro-batch 0 after those of micro-batch 1")
	_, err = schedule.Load(file+".csv", schedule.Shape{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestPeer(t *testing.T) {
	s := generate(t, "zbv", 2, 4, 0) // stages 0 and 3 on rank 0, 1 and 2 on rank 1
	for _, c := range []struct {
		op    schedule.Op
		stage int
		want  int
	}{
		{schedule.SendF, 0, 1}, {schedule.RecvF, 1, 0}, {schedule.SendB, 1, 0}, {schedule.RecvB, 0, 1},
		{schedule.SendF, 1, -1}, {schedule.SendF, 2, 0}, {schedule.SendF, 3, -1}, {schedule.RecvF, 0, -1},
		{schedule.F, 0, -1}, {schedule.Unshard, 0, -1},
	} {
		require.Equal(t, c.want, s.Peer(schedule.Action{Op: c.op, Stage: c.stage}), "%v of stage %d", c.op, c.stage)
	}
}
