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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// engineVariable makes the test binary a rank of TestARankKilledInsideASend: it names the engine.
const engineVariable = "LOCKSTEP_TEST_PIPELINE_ENGINE"

func TestMain(m *testing.M) {
	if name := os.Getenv(engineVariable); name != "" {
		fmt.Fprintln(os.Stderr, rankOfProcess(name))
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// The ranks of the job: three are a pipeline, whose first is killed.
const (
	processes = 4
	victim    = 1
	held      = 2 // does not receive what the victim sends
)

// rankOfProcess is a rank of the job that ends with an error.
func rankOfProcess(engine string) error {
	c, err := rendezvous.FromEnv()
	if err != nil {
		return err
	}
	c.Timeout = time.Minute
	join := map[string]func(context.Context, rendezvous.Config, comm.Options) (*comm.Group, error){
		"shm": shm.Join, "tcp": tcp.Join}[engine]
	world, err := join(context.Background(), c, comm.Options{Timeout: time.Minute,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
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
		go sayInside(g)
	case held:
		fmt.Println("ready")
		_, _ = io.ReadAll(os.Stdin)
	}
	_, err = r.Step(context.Background(), batches, scale)
	return err
}

// sayInside says on standard output that this rank waits in its first send.
func sayInside(g *comm.Group) {
	inside := func(e comm.FlightEntry) bool {
		return e.Label == "0SEND_F0" && e.State == comm.Started && time.Since(e.QueuedAt) > 200*time.Millisecond
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
			port := commtest.FreePort(t)
			var procs [processes]*exec.Cmd
			var errs [processes]strings.Builder
			var outs [processes]*bufio.Reader
			var in io.WriteCloser
			for k := range procs {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), engineVariable+"="+engine, fmt.Sprint("RANK=", k),
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
				if k != victim {
					require.Equal(t, 3, status.ExitStatus(), "rank %d: %s", k, errs[k].String())
					require.Regexp(t, `rank 1 .*is lost`, errs[k].String(), "rank %d", k)
				}
			}
			require.Less(t, time.Since(killed), 2*time.Second)
			require.Regexp(t, `pp: rank 2, 1(RECV_F0|F0): .*"0SEND_F0"`, errs[held].String())
			require.Regexp(t, `pp: rank 3, 2(RECV_F0|F0): `, errs[3].String())
		})
	}
}
