// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/cmd/lockstep/internal/proof"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	training "github.com/lockstep-ml/lockstep/program"
)

const proveUsage = `usage: lockstep prove [FLAGS]

Trains a small GPT-2 (830,000 parameters, dropout, AdamW, clipping) repeatedly: on one rank, on
goroutines and on processes, with a rank that is killed, with ranks that become fewer and more, with
sharded parameters, with divided matrices, in a pipeline, and with all three together. After each run
it prints a hash of all losses and norms, and of the final weights and optimizer state. All hashes
must be equal; sums over tensor-parallel ranks have 4 parts on one rank too (tp_parts). A control
run without parts must have another hash. The command takes a minute or two on two cores.

The exit code is 0 if every hash is as expected, and 1 otherwise or after an error.

`

// rankCommand is what a process of the proof runs.
const rankCommand = "prove-rank"

// proveRank trains.
func (p *program) proveRank([]string) int { return training.Run(proof.Rank) }

// prove trains on many arrangements of ranks and compares their bits.
func (p *program) prove(argv []string) int {
	fs := pflag.NewFlagSet("prove", pflag.ContinueOnError)
	dir := fs.String("dir", "", "folder for the output of the runs, deleted at the end (default: a temporary one)")
	if code, done := p.parse(fs, argv, proveUsage); done {
		return code
	}
	if code, done := p.noWords(fs); done {
		return code
	}
	same, err := p.proof(*dir)
	if err != nil {
		p.complain("lockstep: prove: %v", err)
	}
	if err != nil || !same {
		return exitError
	}
	return exitOK
}

// proof does all runs in a folder.
func (p *program) proof(in string) (same bool, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), p.endings()...)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp(in, "lockstep-prove-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is of no use
	job := &proof.Job{Dir: dir, Steps: proof.Steps, Program: []string{self, rankCommand},
		Guard: []string{self, guardCommand}}
	var results []proof.Result
	fmt.Fprintln(p.stdout, terminal.Paint(p.stdout, terminal.Bold, fmt.Sprintf(
		"%d steps of a small GPT-2, sums in %d parts (tp_parts %[2]d)", job.Steps, proof.Parts)))
	for _, a := range proof.Arrangements(job.Steps) {
		fmt.Fprintf(p.stdout, "  %-50s", a.Name)
		r, err := job.Run(ctx, a)
		if err != nil {
			fmt.Fprintln(p.stdout)
			return false, err
		}
		results = append(results, r)
		colour := terminal.Green
		switch {
		case !proof.Same(results):
			colour = terminal.Red
		case a.Control:
			colour = terminal.Bold
		}
		fmt.Fprintf(p.stdout, "%s  %4.1f s\n", terminal.Paint(p.stdout, colour, hash(r)), r.Time.Seconds())
		if err := p.unprinted(); err != nil {
			return false, err
		}
	}
	same = proof.Same(results)
	verdict, colour := "the same bits on all of them, and others in the control", terminal.Green
	if !same {
		verdict, colour = "NOT the same bits", terminal.Red
	}
	fmt.Fprintln(p.stdout, terminal.Paint(p.stdout, colour, verdict))
	return same, p.unprinted()
}

// endings are the signals upon which the proof ends and cleans up, a closed pipe among them.
func (p *program) endings() []os.Signal {
	list := []os.Signal{os.Interrupt}
	for _, s := range signalNames {
		list = append(list, s)
	}
	return append(list, pipes...)
}

// hash is that of a run, as wide as all.
func hash(r proof.Result) string {
	text := r.Digest.String()
	return strings.Repeat("0", 16-len(text)) + text
}
