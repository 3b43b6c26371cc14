// SPDX-License-Identifier: Apache-2.0

//go:build unix

package commtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

const envScenario = "LOCKSTEP_COMMTEST_SCENARIO"

// Join makes the group of a process, as shm.Join and tcp.Join do.
type Join func(ctx context.Context, c rendezvous.Config, opts comm.Options) (*comm.Group, error)

// Play is for TestMain: a process that [Processes] started plays its scenario, prints the error that it ends with, and
// ends; any other runs the tests.
func Play(m *testing.M, play func(scenario string) error) {
	name := os.Getenv(envScenario)
	if name == "" {
		m.Run() // whose code the process ends with when TestMain returns
		return
	}
	if err := play(name); err != nil {
		Say("error", err.Error())
		if lost, ok := errors.AsType[*comm.RankLostError](err); ok {
			Say("lost", fmt.Sprint(lost.Rank, " ", lost.PID))
		}
		if timeout, ok := errors.AsType[*comm.TimeoutError](err); ok {
			Say("missing", fmt.Sprint(timeout.Missing))
		}
	}
	Say("end", "")
}

// Main is [Play] for an engine whose ranks are processes, with the scenarios of this package.
func Main(m *testing.M, join Join) {
	Play(m, func(name string) error { return play(name, join) })
}

// JoinProcesses joins a process that [Processes] started with the others.
func JoinProcesses(join Join) (*comm.Group, error) {
	c, err := rendezvous.FromEnv()
	if err != nil {
		return nil, err
	}
	c.Timeout = time.Minute
	return join(context.Background(), c, comm.Options{Timeout: time.Minute})
}

// Say prints a line that [Proc.Await] waits for.
func Say(what, text string) {
	line, _ := json.Marshal([2]string{what, text}) // strings cannot fail
	_, _ = os.Stdout.Write(append(line, '\n'))
}

func play(name string, join Join) error {
	g, err := JoinProcesses(join)
	if err != nil {
		return err
	}
	Say("path", g.Describe().Path)
	switch name {
	case "sums":
		err = sums(g)
	case "stop":
		err = endless(g, stopDeadline)
	default:
		err = endless(g, time.Minute)
	}
	return errors.Join(err, g.Close())
}

// stopDeadline is the deadline of a reduction in the scenario "stop". A busy machine must meet it while no rank is
// stopped.
const stopDeadline = 3 * time.Second

// endless reduces until it fails. The first reductions connect the ranks and have a minute; the others have deadline.
func endless(g *comm.Group, deadline time.Duration) error {
	m, err := g.Alloc(8 << 20)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for i := 0; ; i++ {
		d := deadline
		if i <= 3 {
			d = time.Minute
		}
		if err := g.AllReduce(comm.Bytes(m.Bytes, dtype.Float32), comm.Max, comm.Label("bucket"),
			comm.Timeout(d)).Wait(ctx); err != nil {
			return err
		}
		if i == 3 {
			Say("ready", "")
		}
	}
}

// sums compares reductions between processes with the oracle.
func sums(g *comm.Group) error {
	ctx := context.Background()
	for i, count := range []int{1, 1000, 140_001} {
		for _, d := range DTypes {
			m, err := g.Alloc(count * d.Size())
			if err != nil {
				return err
			}
			inputs := random(func(_, n int) []byte { return make([]byte, n) }, g.Size(), count, d, uint64(i))
			want := Combine(inputs, d, comm.Sum)
			copy(m.Bytes, inputs[g.Rank()])
			for where, b := range map[string][]byte{"alloc": m.Bytes, "heap": bytes.Clone(inputs[g.Rank()])} {
				if err := g.AllReduce(comm.Bytes(b, d), comm.Sum, comm.Label("sum")).Wait(ctx); err != nil {
					return err
				}
				if !bytes.Equal(want, b) {
					return fmt.Errorf("rank %d: sum of %v × %d, %s: wrong bits", g.Rank(), d, count, where)
				}
			}
			if err := m.Free(); err != nil {
				return err
			}
		}
	}
	peer, got := g.Size()-1-g.Rank(), make([]int64, 50_000)
	sent := make([]int64, len(got))
	rng := rand.New(rand.NewPCG(9, 9))
	for k := range sent {
		sent[k] = rng.Int64()
	}
	if peer != g.Rank() {
		if err := comm.WaitAll(ctx, g.Send(comm.Of(sent), peer), g.Recv(comm.Of(got), peer)); err != nil {
			return err
		}
		if fmt.Sprint(sent) != fmt.Sprint(got) {
			return fmt.Errorf("rank %d: a message was altered", g.Rank())
		}
	}
	return g.Barrier().Wait(ctx)
}

// Proc is a rank in its own process.
type Proc struct {
	cmd   *exec.Cmd
	in    io.Closer
	lines chan [2]string
	seen  map[string]string
}

// Processes starts n ranks that play a scenario: what [Play] is given, or with [Main] one of this package, "sums",
// "kill" or "stop". extra, if not nil, returns variables to add for a rank.
func Processes(t *testing.T, n int, scenario string, extra func(rank int) []string) []*Proc {
	port := FreePort(t)
	list := make([]*Proc, n)
	for r := range list {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envScenario+"="+scenario, fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", n),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, env.VarRunID+"=commtest", env.VarJobToken+"="+string(Token))
		if extra != nil {
			cmd.Env = append(cmd.Env, extra(r)...)
		}
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		p := &Proc{cmd: cmd, in: stdin, lines: make(chan [2]string, 1024), seen: map[string]string{}}
		go func() {
			defer close(p.lines)
			for s := bufio.NewScanner(stdout); s.Scan(); {
				var line [2]string
				if json.Unmarshal(s.Bytes(), &line) == nil {
					p.lines <- line
				}
			}
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it has ended, if all went well
			p.wait()
			if t.Failed() {
				t.Logf("rank %d: %s", r, stderr.String())
			}
		})
		list[r] = p
	}
	return list
}

// Await returns the text of the process's next line of the given kind; it fails the test when the process ends or d has
// passed before.
func (p *Proc) Await(t *testing.T, kind string, d time.Duration) string {
	t.Helper()
	if text, ok := p.seen[kind]; ok {
		return text
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			require.True(t, ok, "process %d ended without a line %q: it said %v", p.PID(), kind, p.seen)
			p.seen[line[0]] = line[1]
			if line[0] == kind {
				return line[1]
			}
		case <-timer.C:
			require.Failf(t, "too late", "process %d: no line %q within %v; it said %v", p.PID(), kind, d, p.seen)
		}
	}
}

// PID returns the number of the process.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Kill sends SIGKILL.
func (p *Proc) Kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
}

// EndInput ends the standard input of the process.
func (p *Proc) EndInput(t *testing.T) {
	t.Helper()
	require.NoError(t, p.in.Close())
}

// wait reads all lines and waits for the end of the process.
func (p *Proc) wait() {
	for line := range p.lines {
		p.seen[line[0]] = line[1]
	}
	_ = p.cmd.Wait() // how it has ended is in ProcessState
}

// Ended waits for the end of the process, which must have been killed, or must have played its scenario. Then Said
// returns the last lines.
func (p *Proc) Ended(t *testing.T, killed bool) {
	t.Helper()
	p.wait()
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); killed {
		require.True(t, status.Signaled(), "process %d ended by itself: it said %v", p.PID(), p.seen)
		require.Equal(t, syscall.SIGKILL, status.Signal())
	} else {
		require.Zero(t, status, "process %d: it said %v", p.PID(), p.seen)
		require.Contains(t, p.seen, "end", "process %d", p.PID())
	}
}

// Stop sends SIGSTOP.
func (p *Proc) Stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
}

// Said returns the text of the last line of the given kind that was read.
func (p *Proc) Said(kind string) string { return p.seen[kind] }

// RunProcesses is the part of the suite with ranks in processes: equal bits, a rank that is killed inside a reduction,
// one that is stopped. path must be part of Describe's path; extra is as for [Processes].
func RunProcesses(t *testing.T, path string, extra func(rank int) []string) {
	t.Run("sums", func(t *testing.T) {
		ranks := []int{2, 3, 4}
		if testing.Short() {
			ranks = ranks[1:2]
		}
		for _, n := range ranks {
			for r, p := range Processes(t, n, "sums", extra) {
				p.Await(t, "end", 30*time.Second)
				require.Empty(t, p.Said("error"), "rank %d of %d", r, n)
				require.Contains(t, p.Said("path"), path)
			}
		}
	})
	t.Run("kill", func(t *testing.T) { kill(t, extra) })
	t.Run("stop", func(t *testing.T) { stop(t, extra) })
	t.Run("token", func(t *testing.T) { token(t, extra) })
}

// kill: the survivors name the killed rank long before the deadline of a minute, and nothing stays.
func kill(t *testing.T, extra func(rank int) []string) {
	before := Leftovers(t)
	procs := Processes(t, 4, "kill", extra)
	for _, p := range procs {
		p.Await(t, "ready", 30*time.Second)
	}
	procs[2].Kill(t)
	for r, p := range procs {
		if r == 2 {
			continue
		}
		p.Await(t, "error", soon)
		require.Equal(t, fmt.Sprint(2, " ", procs[2].PID()), p.Await(t, "lost", soon), "rank %d: %s", r,
			p.Said("error"))
		require.Contains(t, p.Said("error"), `comm: group "world": rank 2 (process `)
		p.Await(t, "end", soon)
	}
	for _, name := range Leftovers(t) {
		require.True(t, !strings.HasPrefix(name, "/") || slices.Contains(before, name), "left behind: %s", name)
	}
}

// stop: a rank that stands still is named at the deadline.
func stop(t *testing.T, extra func(rank int) []string) {
	procs := Processes(t, 3, "stop", extra)
	for _, p := range procs {
		p.Await(t, "ready", 30*time.Second)
	}
	procs[1].Stop(t)
	for _, r := range []int{0, 2} {
		procs[r].Await(t, "error", stopDeadline+soon)
		require.Equal(t, "[1]", procs[r].Await(t, "missing", soon), "rank %d: %s", r, procs[r].Said("error"))
	}
	require.NoError(t, procs[1].cmd.Process.Signal(syscall.SIGCONT))
	procs[1].Await(t, "error", stopDeadline+soon)
}

// token: a process with another token is told so at once; it disturbs nobody.
func token(t *testing.T, extra func(rank int) []string) {
	procs := Processes(t, 2, "sums", func(r int) []string {
		list := []string{}
		if extra != nil {
			list = extra(r)
		}
		if r == 1 {
			list = append(list, env.VarJobToken+"=a token of quite another job")
		}
		return list
	})
	require.Contains(t, procs[1].Await(t, "error", soon),
		"belongs to another job: handshake: the job tokens differ")
}
