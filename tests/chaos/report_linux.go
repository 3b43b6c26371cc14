// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// outcome is how a scenario went.
type outcome struct {
	scenario
	counts
	err  error
	took time.Duration
}

// line tells it.
func (o outcome) line() string {
	verdict := "ok    "
	if o.err != nil {
		verdict = "FAILED"
	}
	return fmt.Sprintf("%s %5.1f s  tries %d, restarts %d  %s", verdict, o.took.Seconds(), o.tries, o.counts.restarts,
		o.scenario)
}

// report prints the table and returns the exit code.
func (h *harness) report(w io.Writer) int {
	failed, total, strangers, drawn := 0, counts{}, 0, 0
	table := map[kind]map[layout]int{}
	runs := map[layout]int{}
	for _, o := range h.done {
		if o.err != nil {
			failed++
		}
		runs[o.layout]++
		drawn += len(o.faults)
		total.tries, total.restarts, total.kills, total.helped = total.tries+o.tries, total.restarts+o.counts.restarts,
			total.kills+o.kills, total.helped+o.helped
		strangers += o.connections
		for k, n := range o.applied {
			if table[k] == nil {
				table[k] = map[layout]int{}
			}
			table[k][o.layout] += n
		}
	}
	fmt.Fprintf(w, "\n%-16s", "faults")
	for _, l := range layouts {
		fmt.Fprintf(w, "%12s", l)
	}
	fmt.Fprintln(w)
	happened := 0
	for _, t := range traits {
		fmt.Fprintf(w, "%-16s", t.kind)
		for _, l := range layouts {
			cell := "-"
			if slices.Contains(t.layouts, l) {
				cell = fmt.Sprint(table[t.kind][l])
			}
			happened += table[t.kind][l]
			fmt.Fprintf(w, "%12s", cell)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%-16s", "scenarios")
	for _, l := range layouts {
		fmt.Fprintf(w, "%12d", runs[l])
	}
	fmt.Fprintf(w, "\n\n%d scenarios in %.0f s (seed %d): %d faults happened, %d came too late; %d processes killed, "+
		"%d connections of strangers\n",
		len(h.done), time.Since(h.began).Seconds(), h.seed, happened, drawn-happened, total.kills, strangers)
	fmt.Fprintf(w, "%d resumes by hand, %d restarts by launchers; %d times the other host's launcher had to be told\n",
		total.tries-len(h.done), total.restarts, total.helped)
	if failed == 0 {
		fmt.Fprintln(w, "every job ended with the reference's bits and left nothing behind")
	}
	h.reportMissing(w)
	if failed > 0 {
		fmt.Fprintf(w, "%d of %d scenarios FAILED; their folders are in %s/%s\n", failed, len(h.done), h.outer,
			failedFolder)
		return 1
	}
	return 0
}

// reportMissing says what was left out, and why.
func (h *harness) reportMissing(w io.Writer) {
	for _, l := range slices.Sorted(maps.Keys(h.no)) {
		fmt.Fprintf(w, "LEFT OUT: layout %s: %s\n", l, h.no[l])
	}
	var kinds []string
	for _, t := range traits {
		if h.without[t.kind] != "" {
			kinds = append(kinds, string(t.kind))
			fmt.Fprintf(w, "LEFT OUT: %s: %s\n", t.kind, h.without[t.kind])
		}
	}
	if len(kinds) > 0 {
		fmt.Fprintf(w, "%d of %d kinds of faults LEFT OUT: %s\n", len(kinds), len(traits), strings.Join(kinds, " "))
	}
}
