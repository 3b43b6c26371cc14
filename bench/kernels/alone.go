// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// peakRows are the rows whose peak of resident memory is compared too, in their own processes.
var peakRows = []string{"gpt2_124m"}

// aloneRuns is how often a row runs in its own process: the second run has the optimizer's state from its start, and
// those after it take no more memory.
const aloneRuns = 2

// key is a row at a number of threads.
type key struct {
	row     string
	threads int
}

// alone is what a row took in its own process, and the ceiling beside it.
type alone struct{ peak, seconds, ceiling float64 }

// memory compares the peaks of resident memory of a row in fresh processes, two at once, since no clock does; its ratio
// is theirs divided by ours.
func (b *bench) memory(row string, ps *peers) error {
	name := row + "_memory"
	if !b.wanted.MatchString(name) {
		return nil
	}
	theirs := make([]float64, len(b.threads))
	var all errgroup.Group
	all.SetLimit(2)
	for i, n := range b.threads {
		p, err := ps.start(eager, n)
		if err != nil {
			fmt.Printf("# no row %s: %v\n", name, err)
			return nil
		}
		defer p.close()
		all.Go(func() (err error) { theirs[i], err = p.peak(row); return err })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for i, n := range b.threads {
		ours, err := b.alone(row, n)
		if err != nil {
			return err
		}
		fmt.Printf("ROW %s %d %.0f %.0f MiB\n", name, n, ours.peak/(1<<20), theirs[i]/(1<<20))
		fmt.Printf("RATIO %s %d %.3f\n", name, n, theirs[i]/ours.peak)
	}
	return nil
}

// peak is the peak of the peer's resident memory in bytes after it ran a row.
func (p *peer) peak(row string) (float64, error) {
	for range aloneRuns {
		if _, err := p.time(row); err != nil {
			return 0, err
		}
	}
	return p.time("peak_memory")
}

// alone runs this program for one row, unless it has before.
func (b *bench) alone(row string, threads int) (a alone, err error) {
	k := key{row, threads}
	if a, done := b.runs[k]; done {
		return a, nil
	}
	self, err := os.Executable()
	if err != nil {
		return a, err
	}
	cmd := exec.Command(self, "--alone", row, "--threads", strconv.Itoa(threads), "--turn", b.turn.String())
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(threads))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("%s: %w", cmd, err)
	}
	if _, err := fmt.Sscan(string(out), &a.peak, &a.seconds, &a.ceiling); err != nil {
		return a, err
	}
	if b.runs == nil {
		b.runs = map[key]alone{}
	}
	b.runs[k] = a
	return a, nil
}

// printAlone runs a row and prints the peak of this process's resident memory in bytes, the seconds of the last run and
// the ceiling beside it.
func (b *bench) printAlone(name string, threads int) error {
	for _, r := range rows() {
		if r.name == name {
			run, end := r.open(threads)
			defer end()
			var seconds, ceiling float64
			for range aloneRuns {
				seconds, ceiling = r.beside(threads, b.turn, func() float64 { return timed(run, 0) })
			}
			peak, err := peakMemory()
			fmt.Println(peak, seconds, ceiling)
			return err
		}
	}
	return fmt.Errorf("no row %q", name)
}

var highWater = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// peakMemory is the peak of this process's resident memory in bytes, which Linux tells.
func peakMemory() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	m := highWater.FindSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("no VmHWM in /proc/self/status")
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kib << 10, err
}
