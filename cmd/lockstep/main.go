// SPDX-License-Identifier: Apache-2.0

// Lockstep starts distributed jobs, reports a machine's environment, and estimates the memory of a training run.
//
//	lockstep launch --nproc_per_node 4 -- ./train --learning_rate 1e-3
//	lockstep env
//	lockstep estimate-memory out/clm --per_device_train_batch_size 16
//	lockstep simulate --pp_schedule zbv --pp_size 4 --micro_batches 16
//	lockstep diff out/a out/b
//	lockstep help launch
//
// It does not train: training programs are made from the packages, as the examples are. Packages implement its commands
// (accelerate/launch, comm/env, trainer); this program has flags, texts and exit codes.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/internal/misspelt"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// Exit codes, as shells expect them. launch has its ranks' codes beside these.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// launchCommand starts jobs.
const launchCommand = "launch"

func main() {
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv}
	os.Exit(p.run(os.Args[1:]))
}

// program is what a command may touch.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         env.Lookup
}

// command is one word after lockstep.
type command struct {
	name    string
	summary string // one line; "" hides the command
	// run gets the words after the name and returns the exit code.
	run func(p *program, argv []string) int
}

// commands are shown in this order.
func commands() []command {
	return []command{
		{launchCommand, "start a program as several ranks on this host and monitor them", (*program).launch},
		{"env", "show the rank of this process, the variables it comes from, and the machine's " +
			"resources", (*program).env},
		{"estimate-memory", "estimate how much memory training a model takes", (*program).estimateMemory},
		{"simulate", "predict the step of a pipeline, or of a whole job", (*program).simulate},
		{"prove", "train a small model on many arrangements of ranks, and compare their bits", (*program).prove},
		{"diff", "find the first step, op and rank in which two runs diverge", (*program).diff},
		{"config", "show what a configuration file of DeepSpeed, FSDP or accelerate means here", (*program).config},
		{"merge-weights", "merge a sharded checkpoint into a saved model", (*program).mergeWeights},
		{"export", "write a saved model as a GGUF file, for llama.cpp and ollama", (*program).export},
		{"upload", "send a saved model to HuggingFace's Hub", (*program).upload},
		{"debug", "find the rank that made a job fail, from the flight records", (*program).debug},
		{"version", "show the version", (*program).version},
		{"help", "show this text, or the help of a command", (*program).help},
		{guardCommand, "", (*program).guard},
		{rankCommand, "", (*program).proveRank},
	}
}

func find(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

// run dispatches.
func (p *program) run(argv []string) int {
	if len(argv) == 0 {
		p.usage(p.stderr)
		return exitUsage
	}
	switch argv[0] {
	case "-h", "--help":
		return p.help(nil)
	case "--version":
		return p.version(nil)
	}
	c, ok := find(argv[0])
	if !ok {
		return p.unknownCommand(argv[0])
	}
	if c.summary == "" || c.name == launchCommand { // what a job prints is not theirs
		return c.run(p, argv[1:])
	}
	out := &printed{Writer: p.stdout}
	p.stdout = out
	code := c.run(p, argv[1:])
	if out.err != nil && code == exitOK {
		p.complain("lockstep: %s: %v", c.name, out.err)
		return exitError
	}
	return code
}

// printed remembers the first error in printing a result, which is then not there.
type printed struct {
	io.Writer
	err error
}

func (p *printed) Write(text []byte) (int, error) {
	n, err := p.Writer.Write(text)
	p.err = cmp.Or(p.err, err)
	return n, err
}

// Fd is that of the file, if it is one.
func (p *printed) Fd() uintptr {
	if f, ok := p.Writer.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

// unprinted is the first error in printing.
func (p *program) unprinted() error {
	if out, ok := p.stdout.(*printed); ok {
		return out.err
	}
	return nil
}

// help shows the commands, or the help of one.
func (p *program) help(argv []string) int {
	if len(argv) == 0 || argv[0] == "help" {
		p.usage(p.stdout)
		return exitOK
	}
	c, ok := find(argv[0])
	if !ok {
		return p.unknownCommand(argv[0])
	}
	return c.run(p, []string{"--help"})
}

func (p *program) usage(w io.Writer) {
	fmt.Fprint(w, "usage: lockstep COMMAND [FLAGS]\n\n")
	for _, c := range commands() {
		if c.summary != "" {
			head := fmt.Sprintf("  %-16s ", c.name)
			lines := terminal.Fold([]string{c.summary}, "", terminal.Width(w), head, strings.Repeat(" ", len(head)))
			fmt.Fprintln(w, strings.Join(lines, "\n"))
		}
	}
	fmt.Fprint(w, "\nlockstep help COMMAND shows a command's flags.\n")
}

func (p *program) unknownCommand(name string) int {
	var names []string
	for _, c := range commands() {
		if c.summary != "" {
			names = append(names, c.name)
		}
	}
	return p.usageError("unknown command %q; %s", name,
		misspelt.Suggestion(name, "", names, "lockstep help shows the commands"))
}

// complain prints an error. On a terminal its lines fit, and the command's name before the first colon is red.
func (p *program) complain(format string, a ...any) {
	text := terminal.Lines(fmt.Sprintf(format, a...), terminal.Width(p.stderr))
	name, rest, _ := strings.Cut(text, ":")
	fmt.Fprintln(p.stderr, terminal.Paint(p.stderr, terminal.Red, name+":")+rest)
}

// usageError describes what is wrong with the command line.
func (p *program) usageError(format string, a ...any) int {
	p.complain("lockstep: "+format, a...)
	return exitUsage
}

// parse reads flags. done says that there is nothing left to do but to exit with code.
func (p *program) parse(fs *pflag.FlagSet, argv []string, usage string) (code int, done bool) {
	fs.SetOutput(io.Discard)
	fs.SetNormalizeFunc(underscores)
	fs.SortFlags = false
	err := fs.Parse(argv)
	var unknown *pflag.NotExistError
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, pflag.ErrHelp):
		columns := terminal.Width(p.stdout)
		fmt.Fprint(p.stdout, terminal.Paragraphs(usage, columns),
			terminal.Lines(fs.FlagUsagesWrapped(columns), columns))
		return exitOK, true
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		var names []string
		fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		name := unknown.GetSpecifiedName()
		return p.usageError("%s: unknown flag --%s; %s", fs.Name(), name,
			misspelt.Suggestion(string(underscores(nil, name)), "--", names,
				"lockstep help "+fs.Name()+" shows the flags")), true
	}
	return p.usageError("%s: %v", fs.Name(), err), true
}

// noWords refuses words after a command that takes none.
func (p *program) noWords(fs *pflag.FlagSet) (code int, done bool) {
	if fs.NArg() == 0 {
		return 0, false
	}
	return p.usageError("%s: unexpected word %q", fs.Name(), fs.Arg(0)), true
}

// underscores makes --log-dir and --log_dir the same flag, as torchrun does.
func underscores(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
}
