// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package workers runs the processes of a benchmark: each is pinned to cores, warms up, waits for the others, and
// reports what it has timed. The settings of a worker and its reports are JSON.
package workers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/lockstep-ml/lockstep/bench/internal/torchrun"
)

// envSettings holds a worker's settings.
const envSettings = "BENCH_WORKER"

// ready is the line that a worker prints when it has warmed up.
const ready = "ready\n"

// Play is for main, and for TestMain of a benchmark that tests run: if [Run] has started this process, it works, prints
// its reports, and Play returns true.
func Play[S, R any](work func(settings S) ([]R, error)) bool {
	text := os.Getenv(envSettings)
	if text == "" {
		return false
	}
	var settings S
	var reports []R
	err := json.Unmarshal([]byte(text), &settings)
	if err == nil {
		reports, err = work(settings)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(reports)
	}
	if err != nil {
		log.Fatal(err)
	}
	return true
}

// Pin returns a core for each of n workers: those that are chosen, and then in turn those that this process may use.
func Pin(n int, chosen []int) []int {
	for free := available(); len(chosen) < n; {
		chosen = append(chosen, free[len(chosen)%len(free)])
	}
	return chosen
}

// available are the cores that this process may use.
func available() (list []int) {
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

// python is the interpreter of the peers: $PYTHON, or python3.
func python() string {
	if p := os.Getenv("PYTHON"); p != "" {
		return p
	}
	return "python3"
}

// CheckPython reports modules, separated by commas, that the interpreter does not have.
func CheckPython(modules string) error {
	if out, err := exec.Command(python(), "-c", "import "+modules).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", python(), err, lines[len(lines)-1])
	}
	return nil
}

// Job is workers that run at the same time, with one compute thread each.
type Job struct {
	Cores     [][]int // of each worker
	Connected bool    // they are ranks of a job: they get torchrun's variables
	Script    string  // of the workers of a peer in Python, below bench; "": the workers are this program
	Settings  func(rank int) any
	// Link is the network namespaces of the ranks of a job, by the numbers of processes there: 0 is this process's. The
	// first rank is found at Address. nil: all ranks are in this one, on one host.
	Link    []int
	Address string
}

// Run runs a job to its end and returns the reports in the order of the workers, which begin what they report together:
// when all have warmed up.
func Run[R any](j Job) ([]R, error) {
	var shared []string
	if j.Connected {
		var err error
		if shared, err = torchrun.Environment(len(j.Cores)); err != nil {
			return nil, err
		}
	}
	list := make([]*worker, len(j.Cores))
	defer func() {
		for _, w := range list {
			w.kill()
		}
	}()
	for rank := range list {
		env := slices.Clip(shared)
		if j.Connected {
			env = append(env, fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank))
		}
		if j.Link != nil {
			env = append(env, "MASTER_ADDR="+j.Address, "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1")
		}
		var err error
		if list[rank], err = j.start(rank, env); err != nil {
			return nil, err
		}
	}
	return reports[R](list)
}

// worker is a process that times something.
type worker struct {
	rank       int
	cmd        *exec.Cmd
	in         io.WriteCloser
	out        *bufio.Reader
	complaints bytes.Buffer
}

// start starts a worker. Peers in Python get $MKL_PRELOAD as LD_PRELOAD, see bench/peers.sh.
func (j *Job) start(rank int, env []string) (*worker, error) {
	settings, err := json.Marshal(j.Settings(rank))
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := []string{program}
	env = append(env, envSettings+"="+string(settings), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1")
	if j.Script != "" {
		_, here, _, _ := runtime.Caller(0)
		argv = []string{python(), filepath.Join(filepath.Dir(here), "..", "..", j.Script)}
		if library := os.Getenv("MKL_PRELOAD"); library != "" {
			env = append(env, "LD_PRELOAD="+library)
		}
	}
	if taskset, err := exec.LookPath("taskset"); err == nil {
		cores := strings.Trim(strings.ReplaceAll(fmt.Sprint(j.Cores[rank]), " ", ","), "[]")
		argv = append([]string{taskset, "-c", cores}, argv...)
	}
	if j.Link != nil && j.Link[rank] > 0 {
		argv = append([]string{"nsenter", "-t", fmt.Sprint(j.Link[rank]), "-n"}, argv...)
	}
	w := &worker{rank: rank, cmd: exec.Command(argv[0], argv[1:]...)}
	w.cmd.Env, w.cmd.Stderr = append(os.Environ(), env...), &w.complaints
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

// kill ends a worker that has not ended, and one that was never started.
func (w *worker) kill() {
	if w != nil && w.cmd.Process != nil && w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill() // it may have ended meanwhile
		_ = w.cmd.Wait()         // that it was killed is no news
	}
}

func (w *worker) fail(err error) error {
	w.kill()
	return fmt.Errorf("worker %d: %w: %s", w.rank, err, w.complaints.String())
}

// reports lets the workers continue together when all have warmed up, and reads their reports.
func reports[R any](list []*worker) ([]R, error) {
	for _, w := range list {
		if line, err := w.out.ReadString('\n'); err != nil || line != ready {
			return nil, w.fail(fmt.Errorf("it printed %q: want ready", line))
		}
	}
	all, errs := make([][]R, len(list)), make([]error, len(list))
	var reading sync.WaitGroup
	for i, w := range list {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return nil, w.fail(err)
		}
		reading.Go(func() { errs[i] = w.read(&all[i]) })
	}
	reading.Wait()
	return slices.Concat(all...), errors.Join(errs...)
}

// read reads a worker's reports and waits for its end.
func (w *worker) read(reports any) error {
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		return w.fail(err)
	}
	if err := json.Unmarshal(line, reports); err != nil {
		return w.fail(fmt.Errorf("it printed %q: %w", line, err))
	}
	if err := w.cmd.Wait(); err != nil {
		return w.fail(err)
	}
	return nil
}

// Await is for a worker that has warmed up: it waits until all have.
func Await() error {
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return err
	}
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// CPUSeconds is the processor time that this process has used.
func CPUSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
