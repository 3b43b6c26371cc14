// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package workers runs the processes of a benchmark: each is pinned to a core, warms up, waits for the others, and
// reports what it has timed.
package workers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// ready is the line that a worker prints when it has warmed up.
const ready = "ready\n"

// Cores are those that this process may use.
func Cores() (list []int) {
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

// Python is the interpreter of the peers: $PYTHON, or python3.
func Python() string {
	if p := os.Getenv("PYTHON"); p != "" {
		return p
	}
	return "python3"
}

// CheckPython reports modules, separated by commas, that the interpreter does not have.
func CheckPython(modules string) error {
	if out, err := exec.Command(Python(), "-c", "import "+modules).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", Python(), err, lines[len(lines)-1])
	}
	return nil
}

// Worker is a process that times something.
type Worker struct {
	rank       int
	cmd        *exec.Cmd
	in         io.WriteCloser
	out        *bufio.Reader
	complaints bytes.Buffer
}

// Start starts a worker on cores, in taskset's notation, with one compute thread and further variables. Peers in
// Python get $MKL_PRELOAD as LD_PRELOAD, see bench/peers.sh.
func Start(rank int, cores string, argv, env []string) (*Worker, error) {
	peer := argv[0] == Python()
	if taskset, err := exec.LookPath("taskset"); err == nil {
		argv = append([]string{taskset, "-c", cores}, argv...)
	}
	w := &Worker{rank: rank, cmd: exec.Command(argv[0], argv[1:]...)}
	w.cmd.Env = append(append(os.Environ(), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"), env...)
	if library := os.Getenv("MKL_PRELOAD"); library != "" && peer {
		w.cmd.Env = append(w.cmd.Env, "LD_PRELOAD="+library)
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

// Kill ends a worker that has not ended, and one that was never started.
func (w *Worker) Kill() {
	if w != nil && w.cmd.Process != nil && w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill() // it may have ended meanwhile
		_ = w.cmd.Wait()         // that it was killed is no news
	}
}

func (w *Worker) fail(err error) error {
	w.Kill()
	return fmt.Errorf("worker %d: %w: %s", w.rank, err, w.complaints.String())
}

// Reports lets the workers go on together when all have warmed up, and returns the reports of each, as many as asked
// for, in the order of the workers. A report is a line of JSON.
func Reports[T any](list []*Worker, each int) ([]T, error) {
	for _, w := range list {
		if line, err := w.out.ReadString('\n'); err != nil || line != ready {
			return nil, w.fail(fmt.Errorf("it printed %q: want ready", line))
		}
	}
	reports, errs := make([]T, each*len(list)), make([]error, len(list))
	var all sync.WaitGroup
	for i, w := range list {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return nil, w.fail(err)
		}
		all.Go(func() { errs[i] = read(w, reports[i*each:(i+1)*each]) })
	}
	all.Wait()
	return reports, errors.Join(errs...)
}

// read reads a worker's reports and waits for its end.
func read[T any](w *Worker, into []T) error {
	for i := range into {
		line, err := w.out.ReadBytes('\n')
		if err != nil {
			return w.fail(err)
		}
		if err := json.Unmarshal(line, &into[i]); err != nil {
			return w.fail(fmt.Errorf("it printed %q: %w", line, err))
		}
	}
	if err := w.cmd.Wait(); err != nil {
		return w.fail(err)
	}
	return nil
}

// Await is for a worker that has warmed up: it waits until Reports lets it go on.
func Await(in *bufio.Reader, out io.Writer) error {
	if _, err := io.WriteString(out, ready); err != nil {
		return err
	}
	_, err := in.ReadString('\n')
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
