// SPDX-License-Identifier: Apache-2.0

//go:build unix

package pp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/tensor"
)

// killVariable makes the test binary a rank of a test whose processes are killed: it names the engine and the scene.
const killVariable = "LOCKSTEP_TEST_PIPELINE_KILL"

func TestMain(m *testing.M) {
	if name := os.Getenv(killVariable); name != "" {
		fmt.Fprintln(os.Stderr, rankOfProcess(name))
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// The ranks of a job, of which one is killed.
const (
	processes = 4
	victim    = 1
)

// rankOfProcess is a rank of the job that ends with an error.
func rankOfProcess(name string) error {
	c, err := rendezvous.FromEnv()
	if err != nil {
		return err
	}
	c.Timeout = time.Minute
	engine, scene, _ := strings.Cut(name, " ")
	join := map[string]func(context.Context, rendezvous.Config, comm.Options) (*comm.Group, error){
		"shm": shm.Join, "tcp": tcp.Join}[engine]
	world, err := join(context.Background(), c, comm.Options{Timeout: time.Minute,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if scene == "gather" {
		return gatherInAStage(world)
	}
	return sendToAStage(world)
}

// sendToAStage makes three ranks a pipeline, whose first sends to the second, which waits.
func sendToAStage(world *comm.Group) error {
	g, err := world.Sub("pipeline", []int{1, 2, 3})
	if err != nil {
		return err
	}
	if g == nil {
		<-world.Dead()
		return world.Err()
	}
	go comm.EndTogether(world, g, nil)
	s := settings{layers: 1, width: 256, deterministic: 1, micro: 3}
	r, err := s.rank(g, "1f1b", 0)
	if err != nil {
		return err
	}
	batches := s.batches(r.c, 0)
	for _, b := range batches { // a message that no engine takes at once
		wide := tensor.Zeros(r.c.NoGrad(), tensor.Int64, 2800, length)
		b.Tensors = map[string]*tensor.Tensor{data.InputIDs: wide, data.Labels: wide}
		b.Size = 2800
	}
	switch world.Rank() {
	case victim:
		go sayInside(g, "0SEND_F0")
	case 2:
		hold()
	}
	_, err = r.Step(context.Background(), batches, scale)
	return err
}

// gatherInAStage makes the ranks two pipelines of sharded stages. One that shares the first stage waits before it
// gathers.
func gatherInAStage(world *comm.Group) error {
	s := settings{layers: 2, tied: true, deterministic: 2, micro: 2, window: 4, ended: make(chan struct{})}
	s.wrap = func(_ strategy.Job, of strategy.Strategy) strategy.Strategy {
		if world.Rank() == 0 {
			return holding{of, new(sync.Once)}
		}
		return of
	}
	m, err := s.member(world, "1f1b", spread{mesh: comm.Mesh{PP: 2, DPShard: 2},
		options: shard.Options{Strategy: shard.Full, Gather: true}})
	if err != nil {
		return err
	}
	if world.Rank() == victim {
		go sayInside(m.groups[2], "gather ")
	}
	_, err = m.Step(context.Background(), m.batches(settings{micro: s.window}.batches(m.c, 0)), scale)
	return err
}

// hold waits until standard input ends.
func hold() {
	fmt.Println("ready")
	_, _ = io.ReadAll(os.Stdin)
}

// holding holds before it gathers parameters.
type holding struct {
	strategy.Strategy
	once *sync.Once
}

func (h holding) Parameters() strategy.Parameters { return late{h.Strategy.Parameters(), h.once} }

type late struct {
	strategy.Parameters
	once *sync.Once
}

func (l late) Unshard() {
	l.once.Do(hold)
	l.Parameters.Unshard()
}

// sayInside says on standard output that this rank waits in a call whose label begins so.
func sayInside(g *comm.Group, label string) {
	inside := func(e comm.FlightEntry) bool {
		return strings.HasPrefix(e.Label, label) && e.State == comm.Started &&
			time.Since(e.QueuedAt) > 200*time.Millisecond
	}
	for !slices.ContainsFunc(g.Flight().Entries, inside) {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("inside")
}

// The process of a rank is killed while it is in a send. The others end within two seconds, those of the pipeline with
// errors that name the action and the rank.
func TestARankKilledInsideASend(t *testing.T) {
	for _, engine := range []string{"shm", "tcp"} {
		t.Run(engine, func(t *testing.T) {
			errs := killInside(t, engine+" send", 2)
			require.Regexp(t, `pp: rank 2, 1(RECV_F0|F0): .*"0SEND_F0"`, errs[2])
			require.Regexp(t, `pp: rank 3, 2(RECV_F0|F0): `, errs[3])
		})
	}
}

// The process of a rank is killed while it gathers the parameters of a stage. The others end within two seconds, those
// of other stages too, with errors that name the action and the rank.
func TestARankKilledInsideAGather(t *testing.T) {
	for _, engine := range []string{"shm", "tcp"} {
		t.Run(engine, func(t *testing.T) {
			errs := killInside(t, engine+" gather", 0)
			require.Regexp(t, `pp: rank 0, 0(UNSHARD|F0): `, errs[0])
			require.Regexp(t, `pp: rank 2, 1(RECV_F0|F0): `, errs[2])
			require.Regexp(t, `pp: rank 3, 1(RECV_F0|F0): `, errs[3])
		})
	}
}

// killInside runs the ranks of a scene, kills one that waits inside a call for another, which is held, and gives what
// the others say. They end within two seconds.
func killInside(t *testing.T, scene string, held int) (said [processes]string) {
	port := commtest.FreePort(t)
	var procs [processes]*exec.Cmd
	var errs [processes]syncbuffer.Buffer
	var outs [processes]*bufio.Reader
	var in io.WriteCloser
	for k := range procs {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killVariable+"="+scene, fmt.Sprint("RANK=", k),
			fmt.Sprint("WORLD_SIZE=", processes), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port,
			env.VarJobToken+"="+string(commtest.Token))
		cmd.Stderr = &errs[k]
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		outs[k] = bufio.NewReader(out)
		if k == held {
			in, err = cmd.StdinPipe()
			require.NoError(t, err)
		}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all went well
		procs[k] = cmd
	}
	for k, want := range map[int]string{held: "ready\n", victim: "inside\n"} {
		line, _ := outs[k].ReadString('\n')
		require.Equal(t, want, line, "rank %d: %s", k, errs[k].String())
	}
	require.NoError(t, procs[victim].Process.Kill())
	killed := time.Now()
	require.NoError(t, in.Close())
	for k, cmd := range procs {
		_ = cmd.Wait()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.Equal(t, k == victim, status.Signaled(), "rank %d: %s", k, errs[k].String())
		if said[k] = errs[k].String(); k != victim {
			require.Equal(t, 3, status.ExitStatus(), "rank %d: %s", k, said[k])
			require.Regexp(t, `rank 1 .*is lost`, said[k], "rank %d", k)
		}
	}
	require.Less(t, time.Since(killed), 2*time.Second)
	return said
}
