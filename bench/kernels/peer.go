// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// side is a peer in one of its settings.
type side struct {
	suffix  string // of the row's name, for rows with several sides
	program string // a script beside peer.py, or the environment variable that names a program
	mode    string // peer.py's third argument
	form    string // of the row: what it is asked for has this behind its name
	env     []string
	slow    bool // one turn is enough; none in a quick run
}

// The sides. All have as many threads as ours, and threads that wait do not spin: spinning ones would take the other
// side's turn. MKL takes kernels of AVX2 times on processors that are not Intel's: MKL_PRELOAD names a library that
// makes it take its AVX-512 ones, see run.sh.
var (
	eager     = side{program: "peer.py", mode: "eager", env: mkl}
	installed = side{suffix: "_installed", program: "peer.py", mode: "installed", slow: true}
	// reused has its outputs allocated beforehand, and what it must allocate itself it takes again from huge pages that
	// it keeps.
	reused   = side{suffix: "_out", program: "peer.py", mode: "out", env: keepMemory}
	kept     = side{program: "peer.py", mode: "out", env: keepMemory} // reused, where there is no other setting
	compiled = side{suffix: "_compile", program: "peer.py", mode: "out", form: "_compile", env: keepMemory}
	openblas = side{suffix: "_openblas", program: "openblas.py", env: coreType(os.Getenv(kernels.EnvVar))}
	gomlx    = side{suffix: "_gomlx", program: "GOMLX"}
	llmc     = side{suffix: "_llmc", program: "LLMC", slow: true}

	mkl = preload(os.Getenv("MKL_PRELOAD"))
	// keepMemory has malloc keep what is freed, in huge pages; peer.py has it take all that a row needs beforehand.
	keepMemory = append(
		[]string{
			"GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776"},
		mkl...)
)

// key names the process that a side needs.
func (s side) key() string {
	if s.mode != "" {
		return s.mode
	}
	return strings.ToLower(strings.TrimSuffix(s.program, ".py"))
}

// coreType is the setting of OpenBLAS's kernels: it takes those of AVX2 times on processors that it does not know, and
// is held to AVX2 where ours are.
func coreType(variant string) []string {
	if variant == kernels.AVX2.String() {
		return []string{"OPENBLAS_CORETYPE=Haswell"}
	}
	if slices.Contains(kernels.Available(), kernels.AVX512) {
		return []string{"OPENBLAS_CORETYPE=SkylakeX"}
	}
	return nil
}

func preload(library string) []string {
	if library == "" {
		return nil
	}
	return []string{"LD_PRELOAD=" + library}
}

// peers are the processes of the other sides, started when first asked for.
type peers struct {
	dir     string
	most    int // threads
	turn    time.Duration
	started map[string]*peer // by key
	failed  map[string]error
}

// get is a side's process, which from then on computes on so many threads.
func (ps *peers) get(s side, threads int) (*peer, error) {
	p, err := ps.process(s)
	if err != nil || p.threads == threads {
		return p, err
	}
	p.threads = threads
	_, err = p.time(fmt.Sprint("threads ", threads))
	return p, err
}

// process is a side's process.
func (ps *peers) process(s side) (*peer, error) {
	if p := ps.started[s.key()]; p != nil {
		return p, nil
	}
	if err := ps.failed[s.key()]; err != nil {
		return nil, err
	}
	p, err := ps.start(s, ps.most)
	if err != nil {
		if ps.failed == nil {
			ps.failed = map[string]error{}
		}
		ps.failed[s.key()] = err
		return nil, err
	}
	if ps.started == nil {
		ps.started = map[string]*peer{}
	}
	ps.started[s.key()] = p
	return p, nil
}

// drop has the sides of a row free what they hold for it. Where that is gibibytes, those that keep memory end.
func (ps *peers) drop(r row) {
	for _, s := range r.against {
		if p := ps.started[s.key()]; p != nil && (slices.Contains(peakRows, r.name) || p.drop() != nil) {
			ps.forget(s)
		}
	}
}

// forget ends the processes of sides; the next row starts others.
func (ps *peers) forget(sides ...side) {
	for _, s := range sides {
		if p := ps.started[s.key()]; p != nil {
			p.close()
			delete(ps.started, s.key())
		}
	}
}

func (ps *peers) close() {
	for _, p := range ps.started {
		p.close()
	}
}

// start starts a side's process for at most so many threads and waits until it has said what it is.
func (ps *peers) start(s side, threads int) (*peer, error) {
	n := strconv.Itoa(threads)
	arguments := []string{n, fmt.Sprint(ps.turn.Seconds()), s.mode}
	variable := "PYTHON"
	if strings.HasSuffix(s.program, ".py") {
		arguments = append([]string{filepath.Join(ps.dir, s.program)}, arguments...)
	} else {
		variable = s.program
	}
	program := os.Getenv(variable)
	if program == "" {
		return nil, fmt.Errorf("the environment variable %s is empty", variable)
	}
	p := &peer{threads: threads, cmd: exec.Command(program, arguments...)}
	p.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS="+n, "MKL_NUM_THREADS="+n, "OPENBLAS_NUM_THREADS="+n,
		"GOMAXPROCS="+n, "OMP_WAIT_POLICY=PASSIVE")
	p.cmd.Env = append(p.cmd.Env, s.env...)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if p.version, err = p.line(); err != nil {
		return nil, errors.Join(err, p.cmd.Wait())
	}
	fmt.Printf("PEER %s %d %s\n", s.key(), threads, p.version)
	return p, nil
}

// peer is the process of another side: it reads a row's name per line and answers with seconds. An empty name frees
// what rows hold, and "threads" with a number says how many to compute on.
type peer struct {
	threads int
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	version string
}

func (p *peer) line() (string, error) {
	s, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended: %w", p.cmd, err)
	}
	return strings.TrimSpace(s), nil
}

func (p *peer) time(row string) (float64, error) {
	if _, err := fmt.Fprintln(p.in, row); err != nil {
		return 0, err
	}
	s, err := p.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(s, 64)
}

// drop frees what rows hold.
func (p *peer) drop() error {
	_, err := p.time("")
	return err
}

// close ends the process, whose input is at its end.
func (p *peer) close() {
	p.in.Close()
	p.cmd.Wait()
}
