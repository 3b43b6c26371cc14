// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/bench/internal/torchrun"
)

// envWorker holds a worker's settings.
const envWorker = "BENCH_DDP_WORKER"

// usual are the contenders that run unless others are named, in the order in which they take turns.
var usual = []string{"one", "apart", "shm", "tcp", "goroutines", "torch-one", "torch-apart", "torch-ddp"}

// strategies are the ways to shard a model, which may follow an engine's name: shm:full_shard.
var strategies = map[string]shard.Strategy{"": shard.None, "zero_1": shard.Optimizer,
	"zero_2": shard.Gradients, "shard_grad_op": shard.GradOp, "full_shard": shard.Full,
	"full_shard_shared": shard.Full}

// known reports whether there is a contender of that name.
func known(name string) bool {
	engine, strategy := engineOf(name)
	_, ok := strategies[strategy]
	return ok && connected(engine) && !isTorch(engine) || slices.Contains(usual, name) ||
		slices.Contains(sharders, name)
}

// sharders are PyTorch's ways to shard a model that are compared with ours: fully_shard, and DeepSpeed's stage 3.
var sharders = []string{"torch-fsdp2", "torch-deepspeed3"}

// engineOf divides the name of a contender into the engine and the way to shard the model.
func engineOf(name string) (engine, strategy string) {
	engine, strategy, _ = strings.Cut(name, ":")
	return engine, strategy
}

func isTorch(name string) bool { return strings.HasPrefix(name, "torch-") }

// connected reports whether a contender's processes are ranks of one job.
func connected(name string) bool {
	engine, _ := engineOf(name)
	return slices.Contains([]string{"shm", "tcp", "torch-ddp"}, engine) || slices.Contains(sharders, engine)
}

func python() string {
	if p := os.Getenv("PYTHON"); p != "" {
		return p
	}
	return "python3"
}

func checkTorch(modules string) error {
	if out, err := exec.Command(python(), "-c", "import "+modules).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", python(), err, lines[len(lines)-1])
	}
	return nil
}

// allowedCores are the cores that this process may use.
func allowedCores() (list []int) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		status = nil // not Linux: there is no taskset either
	}
	_, after, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	line, _, _ := strings.Cut(after, "\n")
	for part := range strings.SplitSeq(strings.TrimSpace(line), ",") {
		var first, last int
		if n, _ := fmt.Sscanf(part, "%d-%d", &first, &last); n == 1 {
			last = first
		} else if n == 0 {
			continue
		}
		for core := first; core <= last; core++ {
			list = append(list, core)
		}
	}
	if len(list) == 0 {
		return []int{0}
	}
	return list
}

// round runs a contender once and returns what each of its ranks reports.
func (b *bench) round(name string) ([]report, error) {
	n := b.Ranks
	if name == "one" || name == "torch-one" || name == "goroutines" {
		n = 1
	}
	env := os.Environ()
	if connected(name) {
		place, err := torchrun.Environment(b.Ranks)
		if err != nil {
			return nil, err
		}
		env = append(env, place...)
	}
	workers := make([]*worker, n)
	defer func() {
		for _, w := range workers {
			w.kill()
		}
	}()
	for rank := range workers {
		cores := fmt.Sprint(b.cores[rank])
		if name == "goroutines" {
			cores = strings.Trim(strings.ReplaceAll(fmt.Sprint(b.cores[:b.Ranks]), " ", ","), "[]")
		}
		var err error
		if workers[rank], err = b.start(name, rank, cores, env); err != nil {
			return nil, err
		}
	}
	if name == "goroutines" {
		return workers[0].reports(b.Ranks)
	}
	return finish(workers)
}

// start begins a worker, pinned to cores.
func (b *bench) start(name string, rank int, cores string, env []string) (*worker, error) {
	s := b.settings
	s.Contender, s.Rank = name, rank
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := []string{self}
	if isTorch(name) {
		_, here, _, _ := runtime.Caller(0)
		argv = []string{python(), filepath.Join(filepath.Dir(here), "peer", "ddp.py")}
	}
	if taskset, err := exec.LookPath("taskset"); err == nil {
		argv = append([]string{taskset, "-c", cores}, argv...)
	}
	w := &worker{rank: rank, cmd: exec.Command(argv[0], argv[1:]...)}
	w.cmd.Env = append(append([]string(nil), env...), envWorker+"="+string(text), "OMP_NUM_THREADS=1",
		"MKL_NUM_THREADS=1")
	if library := os.Getenv("MKL_PRELOAD"); library != "" && isTorch(name) {
		w.cmd.Env = append(w.cmd.Env, "LD_PRELOAD="+library)
	}
	if connected(name) {
		w.cmd.Env = append(w.cmd.Env, fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank))
	}
	w.cmd.Stderr = &w.complaints
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(stdout)
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return w, w.cmd.Start()
}

// worker is a process that trains.
type worker struct {
	rank       int
	cmd        *exec.Cmd
	in         io.WriteCloser
	out        *bufio.Reader
	complaints bytes.Buffer
}

// kill ends a worker that has not ended, and one that was never started.
func (w *worker) kill() {
	if w != nil && w.cmd.Process != nil && w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill() // it may have ended meanwhile
		_ = w.cmd.Wait()         // that it was killed is no news
	}
}

// ready waits until the worker has warmed up.
func (w *worker) ready() error {
	if line, err := w.out.ReadString('\n'); err != nil || line != "ready\n" {
		return w.fail(fmt.Errorf("it said %q: want ready", line))
	}
	return nil
}

// lines lets the worker time its steps and returns the n lines that it prints.
func (w *worker) lines(n int) ([]report, error) {
	list := make([]report, n)
	for i := range list {
		line, err := w.out.ReadBytes('\n')
		if err != nil {
			return nil, w.fail(err)
		}
		if list[i], err = parseReport(line); err != nil {
			return nil, w.fail(err)
		}
	}
	if err := w.cmd.Wait(); err != nil {
		return nil, w.fail(err)
	}
	return list, nil
}

func (w *worker) fail(err error) error {
	w.kill()
	return fmt.Errorf("worker %d: %w: %s", w.rank, err, w.complaints.String())
}

func (w *worker) reports(n int) ([]report, error) {
	if err := w.ready(); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w.in, "go\n"); err != nil {
		return nil, w.fail(err)
	}
	return w.lines(n)
}

// finish lets all workers time their steps at once, when all have warmed up.
func finish(workers []*worker) ([]report, error) {
	for _, w := range workers {
		if err := w.ready(); err != nil {
			return nil, err
		}
	}
	list, errs := make([]report, len(workers)), make([]error, len(workers))
	var all sync.WaitGroup
	for i, w := range workers {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return nil, w.fail(err)
		}
		all.Go(func() {
			var one []report
			if one, errs[i] = w.lines(1); errs[i] == nil {
				list[i] = one[0]
			}
		})
	}
	all.Wait()
	return list, errors.Join(errs...)
}
