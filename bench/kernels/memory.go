package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// peakRows are the rows whose peak of resident memory is compared too, in processes of their own.
var peakRows = []string{"gpt2_124m"}

// memory compares the peaks of resident memory of three runs of the row, in fresh processes; its ratio is theirs divided by ours.
func (b *bench) memory(row string, threads int, ps *peers) error {
	name := row + "_memory"
	if !b.wanted.MatchString(name) {
		return nil
	}
	ours, err := peakOfProcess(row, threads)
	if err != nil {
		return err
	}
	p, err := ps.start(eager)
	if err != nil {
		fmt.Printf("# no row %s: %v\n", name, err)
		return nil
	}
	defer p.close()
	for range 3 {
		if _, err := p.time(row); err != nil {
			return err
		}
	}
	theirs, err := p.time("peak_memory")
	if err != nil {
		return err
	}
	fmt.Printf("ROW %s %d %.0f %.0f MiB\n", name, threads, ours/(1<<20), theirs/(1<<20))
	fmt.Printf("RATIO %s %d %.3f\n", name, threads, theirs/ours)
	return nil
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

// printPeak runs a row three times and prints the peak of this process's resident memory in bytes.
func printPeak(name string, threads int) error {
	for _, r := range rows() {
		if r.name == name {
			run, end := r.open(threads)
			defer end()
			for range 3 {
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
