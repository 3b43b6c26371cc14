// SPDX-License-Identifier: Apache-2.0

//go:build unix

package checkpointer_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Variables of a process that is killed while it saves: the folder, the engine, and the number of kills, for runs that
// take longer.
const (
	folderVariable = "LOCKSTEP_TEST_CHECKPOINT_FOLDER"
	engineVariable = "LOCKSTEP_TEST_CHECKPOINT_ENGINE"
	killsVariable  = "LOCKSTEP_CHECKPOINT_KILLS"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(folderVariable); dir != "" {
		fmt.Fprintln(os.Stderr, saveForever(dir, os.Getenv(engineVariable)))
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// killedMesh is that of the ranks that are killed.
var killedMesh = comm.Mesh{PP: 2, DPReplicate: 2}

// saveForever saves, as a rank of a mesh, the steps 1 to 4 in turn, over and over, in both forms. Rank 0 tells on
// standard output which save ids are done. It returns only with an error.
func saveForever(dir, engine string) error {
	config, err := rendezvous.FromEnv()
	if err != nil {
		return err
	}
	config.Timeout = time.Minute
	join := map[string]func(context.Context, rendezvous.Config, comm.Options) (*comm.Group, error){
		"shm": shm.Join, "tcp": tcp.Join}[engine]
	ctx := context.Background()
	g, err := join(ctx, config, comm.Options{Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	c, r, opt := meshRun(folder{vfs.OS, dir}, killedMesh, g)
	for save := int64(0); ; save++ {
		c.Args.FSDPStateDictType = []args.StateDictType{args.FullStateDict, args.ShardedStateDict}[save%2]
		r.fill(save, opt)
		info, err := c.Save(ctx, numbered(save%4+1, save), opt)
		if err != nil {
			return err
		}
		if g.Rank() != 0 {
			continue
		}
		if _, err := fmt.Println(info.SaveID); err != nil {
			return err
		}
		if _, err := c.Store.Rotate(2, "a run"); err != nil {
			return err
		}
	}
}

// A rank of a mesh, or all of them, killed at any moment of a save leaves a folder from which every other mesh resumes.
// The others end by themselves.
func TestRanksOfAMeshKilledInsideSaves(t *testing.T) {
	kills := 6
	if v := os.Getenv(killsVariable); v != "" {
		var err error
		kills, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	to := folder{vfs.OS, t.TempDir()}
	store := &checkpoint.Store{Dir: to.dir, Log: slog.New(slog.DiscardHandler)}
	r := rand.New(rand.NewPCG(5, 6))
	var last int64
	for round := range kills {
		done := killedMeshRanks(t, to.dir, []string{"shm", "tcp"}[round%2], r.IntN(5),
			time.Duration(r.IntN(30_000))*time.Microsecond)
		resumeOn(t, to, meshes[round%len(meshes)])
		ck, err := store.Latest(t.Context())
		require.NoError(t, err, "round %d", round)
		require.GreaterOrEqual(t, ck.SaveID, done, "a save that has returned is the least that is found")
		require.GreaterOrEqual(t, ck.SaveID, last, "and what was found once is not lost")
		last = ck.SaveID
	}
	require.GreaterOrEqual(t, last, int64(kills), "each job has saved at least once")
}

// killedMeshRanks starts ranks that save, kills one, or all if who is their number, a while after their first save has
// ended, waits for the others, and returns the last save id that rank 0 told.
func killedMeshRanks(t *testing.T, dir, engine string, who int, while time.Duration) (done int64) {
	t.Helper()
	n := killedMesh.Size(^comm.Axes(0))
	port := commtest.FreePort(t)
	procs, errs := make([]*exec.Cmd, n), make([]strings.Builder, n)
	var out io.Reader
	for k := range procs {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), folderVariable+"="+dir, engineVariable+"="+engine, fmt.Sprint("RANK=", k),
			fmt.Sprint("WORLD_SIZE=", n), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port,
			env.VarJobToken+"="+string(commtest.Token))
		cmd.Stderr = &errs[k]
		if k == 0 {
			var err error
			out, err = cmd.StdoutPipe()
			require.NoError(t, err)
		}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all went well
		procs[k] = cmd
	}
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	time.Sleep(while)
	for k, cmd := range procs {
		if who == k || who == n {
			_ = cmd.Process.Kill() // one that has ended already is told below
		}
	}
	require.NoError(t, err, errs[0].String())
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	for k, cmd := range procs {
		_ = cmd.Wait()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.Equal(t, who == k || who == n, status.Signaled(), "rank %d: %s", k, errs[k].String())
		if !status.Signaled() {
			require.Equal(t, 3, status.ExitStatus())
			require.Contains(t, errs[k].String(), "is lost", "rank %d names the other", k)
		}
	}
	told := strings.Split(first+string(rest), "\n")
	done, err = strconv.ParseInt(told[len(told)-2], 10, 64)
	require.NoError(t, err)
	return done
}
