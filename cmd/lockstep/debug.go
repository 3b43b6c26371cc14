// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm"
)

const debugUsage = `usage: lockstep debug flight DIR
       lockstep debug flight --pid PID [--pid PID …]

Reads the flight records in DIR and reports, for each group of ranks, which call did not finish,
which ranks did not join it, and which called something else. Ranks write records when their
group fails, to the folder that the launcher and the ranks' log name, and on SIGUSR2.

With --pid it first makes a running process write its records: a rank, or a launcher for all
ranks that it started. They continue to run. A call in which ranks wait is not a fault by
itself: run the command again, and see whether the call is still the same.

`

// debug says what is to be learnt from what the ranks of a job recorded.
func (p *program) debug(argv []string) int {
	fs := pflag.NewFlagSet("debug", pflag.ContinueOnError)
	pids := fs.IntSlice("pid", nil, "process `PID` of a rank or a launcher; may be repeated")
	if code, done := p.parse(fs, argv, debugUsage); done {
		return code
	}
	words := fs.Args()
	switch {
	case len(words) == 1 && words[0] == "flight" && len(*pids) > 0:
		return p.debugProcesses(*pids)
	case len(words) == 2 && words[0] == "flight" && len(*pids) == 0:
		return p.diagnose(words[1])
	}
	return p.usageError("debug: %q: want flight and a folder, or flight --pid PID", words)
}

// diagnose says what the flight records in a folder tell.
func (p *program) diagnose(dir string) int {
	report, err := comm.Diagnose(dir)
	if err != nil {
		p.complain("lockstep debug: %v", err)
		return exitError
	}
	for _, f := range report.Findings {
		fmt.Fprintln(p.stdout, f)
	}
	return exitOK
}

// debugProcesses asks processes and all that they have started for their records.
func (p *program) debugProcesses(pids []int) int {
	var dirs []string
	code := exitOK
	fault := func(format string, a ...any) {
		p.complain("lockstep debug: "+format, a...)
		code = exitError
	}
	for _, pid := range pids {
		before := len(dirs)
		for i, id := range append([]int{pid}, flight.Descendants(pid)...) {
			w, err := flight.Ask(context.Background(), id)
			if errors.Is(err, flight.ErrNoRank) {
				continue // a launcher, or what a rank has started
			}
			if err != nil && (i == 0 || !errors.Is(err, flight.ErrNoProcess)) {
				fault("%v", err)
			}
			if w.Error != "" {
				fault("process %d: %s", id, w.Error)
			}
			dirs = append(dirs, w.Dirs...)
		}
		if len(dirs) == before && code == exitOK {
			fault("process %d: neither it nor what it started is a rank of a job", pid)
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		fmt.Fprintf(p.stdout, "flight records: %s\n", dir)
		code = max(code, p.diagnose(dir))
	}
	return code
}
