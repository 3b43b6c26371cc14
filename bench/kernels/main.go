// Kernels compares streaming kernels, attention, matrix products and a training step with PyTorch on the CPU.
//
// Both sides run the same rows, in turns, since a machine's speed drifts: ours, theirs, ours, theirs …; a row's value is the median over the
// rounds of theirs divided by ours, above 1 where Lockstep is faster. The peer is peer.py under the Python that the environment variable PYTHON names.
// The machine's own ceilings (FMA peak, copy) are measured between the rows.
//
//	PYTHON=venv/bin/python go run ./bench/kernels --threads 1,2 --rounds 5 --rows 'gelu|adamw'
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

func main() {
	log.SetFlags(0)
	threads := pflag.IntSlice("threads", []int{1, 2}, "numbers of threads to compare at")
	rounds := pflag.Int("rounds", 5, "turns of each side per row")
	pattern := pflag.String("rows", "", "regular expression of the rows to run; empty: all")
	budget := pflag.Duration("turn", 300*time.Millisecond, "time of one turn, at least one run")
	dir := pflag.String("dir", "bench/kernels", "the folder that holds peer.py")
	pflag.Parse()
	if err := kernels.Init(); err != nil {
		log.Fatal(err)
	}
	wanted, err := regexp.Compile(*pattern)
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range *threads {
		if err := compare(n, *rounds, *budget, filepath.Join(*dir, "peer.py"), wanted); err != nil {
			log.Fatal(err)
		}
	}
}

// compare runs all wanted rows at one number of threads.
func compare(threads, rounds int, turn time.Duration, script string, wanted *regexp.Regexp) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	p, err := startPeer(script, threads, turn)
	if err != nil {
		return err
	}
	defer p.close()
	fmt.Printf("# %d threads; kernels %s; peer %s\n", threads, kernels.Active(), p.version)
	for _, r := range rows() {
		if !wanted.MatchString(r.name) {
			continue
		}
		run, end := r.open(threads)
		var ours, theirs, ratios []float64
		for round := range rounds + 1 {
			a := timed(run, turn)
			b, err := p.time(r.name)
			if err != nil {
				return err
			}
			if round > 0 { // the first is for caches and allocators
				ours, theirs, ratios = append(ours, a), append(theirs, b), append(ratios, b/a)
			}
		}
		end()
		fmt.Printf("%-28s ours %9.3f ms  theirs %9.3f ms  %s  (copy %.1f GB/s, FMA %.0f GFLOP/s)\n",
			r.name, 1e3*median(ours), 1e3*median(theirs), r.rate(median(ours)), copySpeed(threads)/1e9, fmaSpeed(threads)/1e9)
		fmt.Printf("RATIO %s %d %.3f\n", r.name, threads, median(ratios))
	}
	return nil
}

// timed is the median time of one run, of as many as fit in a turn.
func timed(run func(), turn time.Duration) float64 {
	var times []float64
	for start := time.Now(); len(times) == 0 || time.Since(start) < turn; {
		t := time.Now()
		run()
		times = append(times, time.Since(t).Seconds())
	}
	return median(times)
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// peer is the process of the other side: it reads a row's name per line and answers with seconds.
type peer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	version string
}

func startPeer(script string, threads int, turn time.Duration) (*peer, error) {
	python := os.Getenv("PYTHON")
	if python == "" {
		return nil, fmt.Errorf("the environment variable PYTHON is empty: want a Python interpreter with PyTorch")
	}
	p := &peer{cmd: exec.Command(python, script, strconv.Itoa(threads), fmt.Sprint(turn.Seconds()))}
	n := strconv.Itoa(threads)
	p.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS="+n, "MKL_NUM_THREADS="+n, "OPENBLAS_NUM_THREADS="+n, "OMP_WAIT_POLICY=PASSIVE")
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.version, err = p.line()
	return p, err
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

// close ends the process, whose input is at its end.
func (p *peer) close() {
	p.in.Close()
	p.cmd.Wait()
}
