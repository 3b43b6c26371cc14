// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/dist"
)

const debugUsage = `usage: lockstep debug flight DIR

Reads the flight records that the ranks of a failed job left in DIR (they write them to the
folder that LOCKSTEP_FLIGHT_DIR names) and says, for each group, which call did not end, who
did not come to it and who called something else.
`

// debug says what is to be learnt from what a failed job left.
func (p *program) debug(argv []string) int {
	fs := pflag.NewFlagSet("debug", pflag.ContinueOnError)
	if code, done := p.parse(fs, argv, debugUsage); done {
		return code
	}
	words := fs.Args()
	if len(words) != 2 || words[0] != "flight" {
		fmt.Fprintf(p.stderr, "lockstep debug: %q; want flight and a folder\n", words)
		return exitUsage
	}
	report, err := dist.Diagnose(words[1])
	if err != nil {
		fmt.Fprintf(p.stderr, "lockstep debug: %v\n", err)
		return exitError
	}
	for _, f := range report.Findings {
		fmt.Fprintln(p.stdout, f)
	}
	return exitOK
}
