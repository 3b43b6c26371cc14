// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
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
	trips    map[key]float64   // of a cache line between two threads and back, in nanoseconds
	cores    map[key]float64   // how many times as fast as one thread a row's threads multiply and add together
	beside   map[key][]float64 // speeds of the loop of multiply-adds beside ours, by variant
}

// parse reads lines of the forms
//
//	MACHINE text
//	CEILING name threads value unit
//	PEER mode threads text
//	ROW row threads ours theirs unit [note]
//	RATIO row threads value
//	TRIP row threads value unit
//	CORES row threads value
//	FMA variant threads value unit
//
// and passes over all others. A later line of a row replaces an earlier one, except for FMA, one for each row that is a
// share of its peak. Results from before a line was printed do without it.
func parse(r io.Reader) (*results, error) {
	out := &results{ratios: map[key]float64{}, measures: map[key]measure{}, trips: map[key]float64{},
		cores: map[key]float64{}, beside: map[key][]float64{}}
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
	least := map[string]int{"CEILING": 4, "ROW": 5, "RATIO": 3, "TRIP": 3, "CORES": 3, "FMA": 4}[kind]
	if least == 0 {
		return nil
	}
	if len(f) < least {
		return fmt.Errorf("%d fields: want at least %d", len(f), least)
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
		r.ceiling(ceiling{f[0], threads, value, f[3]})
	case "RATIO":
		if !slices.Contains(r.rows, k.row) {
			r.rows = append(r.rows, k.row)
		}
		r.ratios[k] = value
	case "TRIP":
		r.trips[k] = value
	case "CORES":
		r.cores[k] = value
	case "FMA":
		r.beside[k] = append(r.beside[k], value)
	case "ROW":
		theirs, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			return err
		}
		r.measures[k] = measure{value, theirs, f[4], strings.Join(f[5:], " ")}
	}
	return nil
}

// ceiling keeps the highest value of each ceiling: others may be running meanwhile, and it is what the machine can do.
func (r *results) ceiling(c ceiling) {
	for i, known := range r.ceilings {
		if known.name == c.name && known.threads == c.threads {
			r.ceilings[i].value = max(known.value, c.value)
			return
		}
	}
	r.ceilings = append(r.ceilings, c)
}

// shortestTrip is the time of a cache line's shortest round trip between two threads in any row, in nanoseconds; 0 if
// none was measured.
func (r *results) shortestTrip() float64 {
	if len(r.trips) == 0 {
		return 0
	}
	return slices.Min(slices.Collect(maps.Values(r.trips)))
}

// apart says whether the cores of a row's threads shared no cache: a line took more than twice as long from one to the
// other as in the best row.
func (r *results) apart(k key) bool { return r.trips[k] > 2*r.shortestTrip() }

// shared says whether a row's threads shared cores: together they multiplied and added less than three quarters as fast
// as so many that do not.
func (r *results) shared(k key) bool {
	v, ok := r.cores[k]
	return ok && v < 0.75*float64(k.threads)
}
