// SPDX-License-Identifier: Apache-2.0

//go:build unix

package pp_test

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestMain(m *testing.M) { commtest.Play(m, rankOfProcess) }

// The ranks of a job, of which one is killed.
const (
	processes = 4
	victim    = 1
)

// rankOfProcess is a rank of the job that ends with an error. The scenario is the engine and the scene.
func rankOfProcess(scenario string) error {
	engine, scene, _ := strings.Cut(scenario, " ")
	world, err := commtest.JoinProcesses(map[string]commtest.Join{"shm": shm.Join, "tcp": tcp.Join}[engine])
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
	commtest.Say("ready", "")
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
	commtest.Say("inside", "")
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

// killInside runs the ranks of a scene, kills one that waits inside a call for another, which is held, and gives the
// errors of the others. They end within two seconds.
func killInside(t *testing.T, scenario string, held int) (errs [processes]string) {
	procs := commtest.Processes(t, processes, scenario, nil)
	procs[held].Await(t, "ready", time.Minute)
	procs[victim].Await(t, "inside", time.Minute)
	procs[victim].Kill(t)
	killed := time.Now()
	procs[held].EndInput(t)
	for k, p := range procs {
		p.Ended(t, k == victim)
		if errs[k] = p.Said("error"); k != victim {
			require.Regexp(t, `rank 1 .*is lost`, errs[k], "rank %d", k)
		}
	}
	require.Less(t, time.Since(killed), 2*time.Second)
	return errs
}
