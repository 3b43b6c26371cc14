// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/lockstep-ml/lockstep/bench/internal/torchrun"
)

const envRank = "BENCH_DIST_ENGINE" // set in the processes that are ranks

// contender is one way to reduce.
type contender struct {
	name string
	run  func(s settings) (result, error)
}

// newContender returns an error that says what is missing if the contender cannot run here.
func newContender(name, dir string) (contender, error) {
	switch name {
	case "shm", "shm-heap", "tcp", "tcp-fast", "server":
		return contender{name, func(s settings) (result, error) { return own(name, s) }}, nil
	case "mpi", "mpi-fast":
		return newMPI(name)
	case "openmpi":
		return newOpenMPI(name, dir)
	case "gloo":
		return newGloo(name)
	}
	return contender{}, fmt.Errorf("unknown contender %q", name)
}

// source returns a file beside this one.
func source(name string) string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(self), name)
}

// own starts the ranks as processes of this program.
func own(name string, s settings) (result, error) {
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	env, err := place(s)
	if err != nil {
		return result{}, err
	}
	return ranks(s, func(int) *exec.Cmd { return exec.Command(self) }, append(env, envRank+"="+name))
}

// place returns the variables that all ranks share.
func place(s settings) ([]string, error) {
	env, err := torchrun.Environment(s.ranks)
	return append(env, fmt.Sprint("BENCH_BYTES=", s.bytes), fmt.Sprint("BENCH_ITERATIONS=", s.iterations)), err
}

// ranks starts one process for each rank and returns what rank 0 printed.
func ranks(s settings, command func(rank int) *exec.Cmd, env []string) (result, error) {
	cmds := make([]*exec.Cmd, s.ranks)
	outputs, complaints := make([]bytes.Buffer, s.ranks), make([]bytes.Buffer, s.ranks)
	for r := range cmds {
		cmds[r] = command(r)
		cmds[r].Env = append(append(os.Environ(), env...), fmt.Sprint("RANK=", r), fmt.Sprint("LOCAL_RANK=", r))
		cmds[r].Stdout, cmds[r].Stderr = &outputs[r], &complaints[r]
		if err := cmds[r].Start(); err != nil {
			return result{}, err
		}
	}
	var failed error
	for r, cmd := range cmds {
		if err := cmd.Wait(); err != nil && failed == nil {
			failed = fmt.Errorf("rank %d: %w: %s", r, err, complaints[r].String())
		}
	}
	if failed != nil {
		return result{}, failed
	}
	return parse(outputs[0].Bytes())
}

func parse(text []byte) (result, error) {
	var got result
	if err := json.Unmarshal(text, &got); err != nil {
		return got, fmt.Errorf("output %q: %w", text, err)
	}
	return got, nil
}

// newMPI is comm/mpi under mpirun.
func newMPI(name string) (contender, error) {
	if joins["mpi"] == nil {
		return contender{}, errors.New("want a program built with -tags mpi")
	}
	if _, err := exec.LookPath("mpirun"); err != nil {
		return contender{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return contender{}, err
	}
	return contender{name, func(s settings) (result, error) {
		env, err := place(s)
		if err != nil {
			return result{}, err
		}
		return mpirun(s, append(env, envRank+"="+name), "sh", "-c", "RANK=$OMPI_COMM_WORLD_RANK exec "+self)
	}}, nil
}

// mpirun starts one process for each rank under Open MPI and returns what rank 0 printed.
func mpirun(s settings, env []string, line ...string) (result, error) {
	cmd := exec.Command("mpirun", append([]string{"--allow-run-as-root", "--oversubscribe", "-n", fmt.Sprint(s.ranks)},
		line...)...)
	var complaints bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), &complaints
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("%w: %s", err, complaints.String())
	}
	return parse(out)
}

func newOpenMPI(name, dir string) (contender, error) {
	for _, tool := range []string{"mpicc", "mpirun"} {
		if _, err := exec.LookPath(tool); err != nil {
			return contender{}, err
		}
	}
	program := filepath.Join(dir, "allreduce")
	if out, err := exec.Command("mpicc", "-O2", "-o", program,
		source("peer/allreduce.c")).CombinedOutput(); err != nil {
		return contender{}, fmt.Errorf("mpicc: %w: %s", err, out)
	}
	return contender{name, func(s settings) (result, error) {
		return mpirun(s, nil, program, fmt.Sprint(s.bytes), fmt.Sprint(s.iterations))
	}}, nil
}

func newGloo(name string) (contender, error) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import torch.distributed").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return contender{}, fmt.Errorf("%s has no PyTorch: %w: %s", python, err, lines[len(lines)-1])
	}
	return contender{name, func(s settings) (result, error) {
		env, err := place(s)
		if err != nil {
			return result{}, err
		}
		return ranks(s, func(int) *exec.Cmd { return exec.Command(python, source("peer/allreduce.py")) }, env)
	}}, nil
}

// processor names the CPU, if the system says.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return fmt.Sprintf("%s, %d cores", strings.TrimLeft(strings.TrimSpace(name), ": \t"), runtime.NumCPU())
		}
	}
	return runtime.GOARCH
}
