// SPDX-License-Identifier: Apache-2.0

//go:build unix

package checkpointer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/checkpoint/checkpointtest"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

func TestMain(m *testing.M) { commtest.Play(m, saveForever) }

// killedMesh is that of the ranks that are killed.
var killedMesh = comm.Mesh{PP: 2, DPReplicate: 2}

// saveForever saves, as a rank of a mesh, the steps 1 to 4 in turn, over and over, in both forms. The scenario is the
// engine and the folder.
func saveForever(scenario string) error {
	engine, dir, _ := strings.Cut(scenario, " ")
	g, err := commtest.JoinProcesses(map[string]commtest.Join{"shm": shm.Join, "tcp": tcp.Join}[engine])
	if err != nil {
		return err
	}
	c, r, opt := meshRun(folder{vfs.OS, dir}, killedMesh, g)
	return checkpointtest.SaveForever(c.Store, "a run", g.Rank(), func(i int64) (checkpoint.Info, error) {
		c.Args.FSDPStateDictType = []args.StateDictType{args.FullStateDict, args.ShardedStateDict}[i%2]
		r.fill(i, opt)
		return c.Save(context.Background(), numbered(i%4+1, i), opt)
	})
}

// A rank of a mesh, or all of them, killed at any moment of a save leaves a folder from which every other mesh resumes.
// The others end by themselves.
func TestRanksOfAMeshKilledInsideSaves(t *testing.T) {
	to := folder{vfs.OS, t.TempDir()}
	store := &checkpoint.Store{Dir: to.dir, Log: slog.New(slog.DiscardHandler)}
	checkpointtest.Kills{Store: store, Ranks: killedMesh.Size(^comm.Axes(0)), Kills: 6, Within: 30 * time.Millisecond,
		Scenario: func(round int) string { return []string{"shm", "tcp"}[round%2] + " " + to.dir },
		Check: func(round, _ int, _ *checkpoint.Checkpoint) {
			resumeOn(t, to, meshes[round%len(meshes)])
		}}.Run(t)
}
