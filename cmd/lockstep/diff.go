// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/trainer/hashes"
)

const diffUsage = `usage: lockstep diff RUN RUN [FLAGS]

Finds the first step in which two runs diverge, and what differs: the data, losses, gradients,
learning rate, optimizer state or weights, of which parameters and on which ranks. RUN is the output
folder of a run with --record_hashes step. The runs may have had any number of ranks. The command
also lists settings that differ.

Then it prints commands that rerun both programs, from the last checkpoint before that step that both
have, and record the result of each module in that step. With --replay it runs these commands and
names the first module whose result differs. If the runs have no hashes, it compares their checkpoints.

The exit code is 0 if the runs have the same bits, 1 if they do not, and 2 after an error.

`

// exitTrouble is diff's exit code for what keeps it from comparing.
const exitTrouble = 2

// differ is a call of diff.
type differ struct {
	*program
	replay bool
	json   bool
	into   string // folder of the replays
	dirs   [2]string
}

func (p *program) diff(argv []string) int {
	d := &differ{program: p}
	fs := pflag.NewFlagSet("diff", pflag.ContinueOnError)
	fs.BoolVar(&d.replay, "replay", false, "rerun both programs up to the step in which they diverge")
	fs.StringVar(&d.into, "replay_dir", "", "new folder for the output of the replays (default: lockstep-diff)")
	fs.BoolVar(&d.json, "json", false, "print JSON")
	if code, done := p.parse(fs, argv, diffUsage); done {
		return code
	}
	if fs.NArg() != 2 {
		return p.usageError("diff: %s: want two, the output folders of two runs", quantity.Of(fs.NArg(), "word"))
	}
	d.dirs = [2]string(fs.Args())
	c, err := d.compare()
	if err == nil && d.json {
		err = p.json(c)
	}
	err = cmp.Or(err, p.unprinted())
	switch {
	case err != nil:
		p.complain("lockstep: diff: %v", err)
		return exitTrouble
	case c.Found != nil || c.Parted > 0:
		return exitError
	}
	return exitOK
}

// compare compares the runs' records, or their checkpoints, and runs the programs again if it is asked to.
func (d *differ) compare() (*hashes.Comparison, error) {
	runs, err := loadRuns(d.dirs)
	if err != nil {
		return nil, err
	}
	steps, err := hashes.Checkpoints(d.dirs[0], d.dirs[1])
	if err != nil {
		return nil, err
	}
	c := hashes.Compare(runs[0], runs[1])
	if c.Steps == 0 {
		return c, errors.Join(d.checkpoints(c, steps), missing(runs[0]), missing(runs[1]))
	}
	d.say(c.Changed())
	if c.Found == nil {
		d.say(c.Same())
		return c, nil
	}
	d.say(c.Found.String())
	if !c.Found.Computed() {
		return c, nil
	}
	return c, d.again(c, runs, steps)
}

// missing says which ranks have no record.
func missing(r *hashes.Run) error {
	if list := r.Missing(); len(list) > 0 {
		return fmt.Errorf("%s: no records of ranks %v of %d: want those of all ranks in one folder", r.Path, list,
			r.Header().Ranks)
	}
	return nil
}

func loadRuns(dirs [2]string) (runs [2]*hashes.Run, err error) {
	for i, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			return runs, err
		}
		if runs[i], err = hashes.Load(dir); err != nil {
			return runs, err
		}
	}
	return runs, nil
}

// say prints text, unless JSON is asked for.
func (d *differ) say(text string) {
	if !d.json {
		fmt.Fprint(d.stdout, terminal.Lines(text, terminal.Width(d.stdout)))
	}
}

// checkpoints compares runs without records of the same steps.
func (d *differ) checkpoints(c *hashes.Comparison, steps []int64) error {
	if len(steps) == 0 {
		return fmt.Errorf("%s and %s have no step in common, neither hashes nor checkpoints: want runs with "+
			"--record_hashes step", d.dirs[0], d.dirs[1])
	}
	equal, parted, ok, err := hashes.LastEqual(d.dirs[0], d.dirs[1], steps)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("the runs saved their tensors in different files: want checkpoints of one form, or runs " +
			"with --record_hashes step")
	}
	if c.Parted = parted; parted == 0 {
		d.say(fmt.Sprintf("the checkpoints of %s have the same bits, up to step %d; no hashes of the same steps were "+
			"recorded\n", quantity.Of(len(steps), "step"), equal))
		return nil
	}
	from := "which is the first"
	if equal > 0 {
		from = fmt.Sprintf("that of step %d is equal", equal)
	}
	d.say(fmt.Sprintf("the runs diverge before the checkpoint of step %d (%s)\nrun both from there with "+
		"--record_hashes step to find the step\n", parted, from))
	return nil
}

// again prints how the programs are run again, or runs them and reports the first op that differs.
func (d *differ) again(c *hashes.Comparison, runs [2]*hashes.Run, steps []int64) error {
	from := int64(0)
	for _, n := range steps {
		if n < c.Found.Step {
			from = n
		}
	}
	if d.into == "" {
		d.into = "lockstep-diff"
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var out [2]string
	for i, run := range runs {
		out[i] = filepath.Join(d.into, []string{"first", "second"}[i])
		r, err := run.Again(from, c.Found.Step, string(args.RecordOp), out[i], self)
		switch {
		case err != nil:
			return err
		case !d.replay:
			if i == 0 {
				d.say("to find the first op, add --replay, or run\n")
			}
			d.say(fmt.Sprintf("  %v\n", r))
			continue
		}
		if err := d.runAgain(r); err != nil {
			return err
		}
	}
	if !d.replay {
		d.say(fmt.Sprintf("  lockstep diff %s %s\n", out[0], out[1]))
		return nil
	}
	found, err := loadRuns(out)
	if err != nil {
		return err
	}
	replayed := hashes.Compare(found[0], found[1])
	switch {
	case replayed.Found == nil:
		d.say("the replays have the same bits: the difference did not recur. It may come from a faulty machine, " +
			"or from outside of the program\n")
	case replayed.Found.Op == nil:
		d.say("replayed: " + replayed.Found.String() + "all modules compute the same: the difference arises when " +
			"gradients are added up or exchanged, or after the backward passes\n")
	default:
		c.Found.Op = replayed.Found.Op
		d.say(c.Found.Op.String())
	}
	return nil
}

// runAgain runs a program again. What it prints goes to the error stream.
func (d *differ) runAgain(r *hashes.Replay) error {
	if _, err := os.Stat(r.Out); err == nil {
		return fmt.Errorf("%s exists: want a new folder for the replays, see --replay_dir", r.Out)
	}
	d.say(fmt.Sprintf("running %s\n", strings.Join(r.Argv, " ")))
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.Dir, d.stderr, d.stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the replay of %s: %w", r.Argv[0], err)
	}
	return nil
}
