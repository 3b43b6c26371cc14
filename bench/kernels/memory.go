package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// peakRows are the rows whose peak of resident memory is compared too, in processes of their own.
var peakRows = []string{"gpt2_124m"}

// peakRuns is how often a row runs before its peak is read: the second run has the optimizer's state from its start, and those after it take no more.
const peakRuns = 2

// memory compares the peaks of resident memory of a row in fresh processes, which run at once, since no clock does; its ratio is theirs divided by ours.
func (b *bench) memory(row string, threads int, ps *peers) error {
	name := row + "_memory"
	if !b.wanted.MatchString(name) {
		return nil
	}
	p, err := ps.start(eager)
	if err != nil {
		fmt.Printf("# no row %s: %v\n", name, err)
		return nil
	}
	defer p.close()
	var ours, theirs float64
	var both errgroup.Group
	both.Go(func() (err error) { ours, err = peakOfProcess(row, threads); return err })
	both.Go(func() (err error) { theirs, err = p.peak(row); return err })
	if err := both.Wait(); err != nil {
		return err
	}
	fmt.Printf("ROW %s %d %.0f %.0f MiB\n", name, threads, ours/(1<<20), theirs/(1<<20))
	fmt.Printf("RATIO %s %d %.3f\n", name, threads, theirs/ours)
	return nil
}

// peak is the peak of the peer's resident memory in bytes after it ran a row.
func (p *peer) peak(row string) (float64, error) {
	for range peakRuns {
		if _, err := p.time(row); err != nil {
			return 0, err
		}
	}
	return p.time("peak_memory")
}

// peakOfProcess runs this program for one row and returns the peak of resident memory in bytes.
func peakOfProcess(row string, threads int) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, "--peak", row, "--threads", strconv.Itoa(threads))
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(threads))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", cmd, err)
	}
	var peak float64
	_, err = fmt.Sscan(string(out), &peak)
	return peak, err
}

// printPeak runs a row and prints the peak of this process's resident memory in bytes.
func printPeak(name string, threads int) error {
	for _, r := range rows() {
		if r.name == name {
			run, end := r.open(threads)
			defer end()
			for range peakRuns {
				run()
			}
			peak, err := peakMemory()
			fmt.Println(peak)
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
