package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// key is a row at a number of threads.
type key struct {
	row     string
	threads int
}

// measure is what both sides of a row took, or reached, in a unit.
type measure struct {
	ours, theirs float64
	unit, note   string
}

// ceiling is what the machine reaches.
type ceiling struct {
	name    string
	threads int
	value   float64
	unit    string
}

// results are what the benchmarks printed.
type results struct {
	machine  []string // lines of text: processor, date, versions
	peers    []string
	ceilings []ceiling
	rows     []string // in the order of their first line
	ratios   map[key]float64
	measures map[key]measure
}

// parse reads lines of the forms
//
//	MACHINE text
//	CEILING name threads value unit
//	PEER mode threads text
//	ROW row threads ours theirs unit [note]
//	RATIO row threads value
//
// and passes over all others. A later line of a row replaces an earlier one.
func parse(r io.Reader) (*results, error) {
	out := &results{ratios: map[key]float64{}, measures: map[key]measure{}}
	for lines, n := bufio.NewScanner(r), 1; ; n++ {
		if !lines.Scan() {
			return out, lines.Err()
		}
		if err := out.add(lines.Text()); err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", n, lines.Text(), err)
		}
	}
}

// add takes in one line.
func (r *results) add(line string) error {
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "MACHINE":
		r.machine = append(r.machine, rest)
		return nil
	case "PEER":
		if f := strings.SplitN(rest, " ", 3); len(f) == 3 && !slices.Contains(r.peers, f[0]+": "+f[2]) {
			r.peers = append(r.peers, f[0]+": "+f[2])
		}
		return nil
	}
	f := strings.Fields(rest)
	least := map[string]int{"CEILING": 4, "ROW": 5, "RATIO": 3}[kind]
	if least == 0 {
		return nil
	}
	if len(f) < least {
		return fmt.Errorf("%d fields, want at least %d", len(f), least)
	}
	threads, err := strconv.Atoi(f[1])
	if err != nil {
		return err
	}
	value, err := strconv.ParseFloat(f[2], 64)
	if err != nil {
		return err
	}
	k := key{f[0], threads}
	switch kind {
	case "CEILING":
		r.ceilings = append(r.ceilings, ceiling{f[0], threads, value, f[3]})
	case "RATIO":
		if !slices.Contains(r.rows, k.row) {
			r.rows = append(r.rows, k.row)
		}
		r.ratios[k] = value
	case "ROW":
		theirs, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			return err
		}
		r.measures[k] = measure{value, theirs, f[4], strings.Join(f[5:], " ")}
	}
	return nil
}
