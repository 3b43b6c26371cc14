// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Exit codes of Run. An interrupt by SIGUSR1 has 128 + its number.
const (
	ExitError       = 1
	ExitUsage       = 2
	ExitInterrupted = 130
)

// Process is the argument of a program's function. Tests construct one.
type Process struct {
	// Name begins the program's error messages: the base name of its file.
	Name string
	// Args are the words of the command line after the program's name.
	Args []string
	// Stdout takes results. On ranks other than 0 it discards them; os.Stdout is there for output of every rank.
	Stdout io.Writer
	// Stderr takes messages, and shows a run: it is os.Stderr, except in tests.
	Stderr io.Writer

	silent bool // another rank speaks for this one
	noBars bool // disable_tqdm

	signals *signals // nil in tests
}

// Func is a program. ctx ends at the first signal; context.Cause(ctx) is then a SignalError.
type Func func(ctx context.Context, p *Process) error

// Run runs f as the whole of a process and returns the exit code: os.Exit(program.Run(f)). It handles signals, sets
// GOGC, and makes slog's default logger one of callbacks.NewLogHandler on standard error, at level warning. It prints
// the error that f returns, or f's panic with the stack, and records it for a launcher (accelerate.RecordError). An
// error that is a panic which a Trainer handed over has its stack too.
func Run(f Func) (code int) {
	p := &Process{Name: strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"), Args: os.Args[1:],
		Stdout: &output{w: os.Stdout}, Stderr: os.Stderr}
	if place, err := ranks.Locate(); err == nil && place.Rank > 0 { // Parse returns the error
		p.Stdout, p.silent = io.Discard, true // rank 0 speaks for all
	}
	collectEarly()
	p.log(slog.LevelWarn)
	ctx, signals := listen(p.messages())
	defer signals.stop()
	p.signals = signals
	if err := kernels.Init(); err != nil {
		return p.end(&environmentError{err}, nil)
	}
	var err error
	if panicked := tensor.Recover(func() { err = f(ctx, p) }); panicked != nil {
		return p.panicked(panicked)
	}
	return p.end(err, signals.first())
}

// panicked is end for a panic of the program's function, whatever its value is.
func (p *Process) panicked(err error) int {
	var panicked *tensor.PanicError
	errors.As(err, &panicked) // of tensor.Recover
	p.report(err, panicked.Stack)
	return ExitError
}

// report prints an error, with the stack behind an empty line if there is one, and records it for a launcher.
func (p *Process) report(err error, stack []byte) {
	_ = accelerate.RecordError(err) // the error is printed all the same
	w, name := p.messages(), p.Name+":"
	text := terminal.Lines(fmt.Sprintf("%s %v", name, err), terminal.Width(w))
	text = terminal.Paint(w, terminal.Red, name) + text[len(name):] + "\n"
	if len(stack) > 0 {
		text += "\n" + strings.TrimRight(string(stack), "\n") + "\n"
	}
	_, _ = io.WriteString(w, text)
}

// messages is where lines for people go: above the progress bar, if there is one.
func (p *Process) messages() io.Writer { return callbacks.AboveBar(p.Stderr) }

func (p *Process) log(level slog.Level) {
	slog.SetDefault(slog.New(callbacks.NewLogHandler(p.messages(), level)))
}

// Flags returns an empty set of flags with the program's name, for args.Bind.
func (p *Process) Flags() *pflag.FlagSet { return pflag.NewFlagSet(p.Name, pflag.ContinueOnError) }

// Parse reads the command line, the environment and configuration files into the loader's settings, prints its
// notices, and sets the level of the log to log_level if the settings include training arguments. With --help it
// prints the settings and returns args.ErrHelp, which Run takes for success. Under a launcher it also returns an error
// if this process cannot join the other ranks, or they cannot form the mesh that is asked for, before any data is read.
func (p *Process) Parse(l *args.Loader) (*args.Resolved, error) {
	place, located := ranks.Locate()
	of := trainer.Program()
	if located == nil {
		of.Processes = max(place.WorldSize, 1)
	}
	l.ForProgram(of)
	resolved, err := l.Parse(p.Args)
	if errors.Is(err, args.ErrHelp) {
		columns := terminal.Width(p.Stdout)
		fmt.Fprint(p.Stdout, terminal.Lines(l.UsageWrapped(columns), columns))
	}
	if err != nil {
		return nil, err
	}
	a := l.TrainingArguments()
	if a != nil {
		p.noBars = a.ProgressDisabled()
		if level, set := a.SlogLevel(); set {
			p.log(level)
		}
	}
	if located != nil {
		return nil, located
	}
	for _, notice := range resolved.Notices {
		p.Printf("%s\n", notice)
	}
	return resolved, nil
}

// end prints and records what f returned, and gives the exit code. got is the first signal, nil if none came.
func (p *Process) end(err error, got os.Signal) int {
	if err == nil || errors.Is(err, args.ErrHelp) {
		return 0
	}
	p.report(err, stackOf(err))
	var usage *args.Error
	var environment *environmentError
	var interrupt *SignalError
	switch {
	case errors.As(err, &interrupt), errors.Is(err, accelerate.ErrInterrupted),
		got != nil && errors.Is(err, context.Canceled):
		return exitCode(got)
	case errors.As(err, &usage), errors.As(err, &environment):
		return ExitUsage
	}
	return ExitError
}

// stackOf is the stack of the panic that err comes from; nil if it comes from none, or from a misuse, which names the
// operation and the module itself.
func stackOf(err error) []byte {
	var p *tensor.PanicError
	var misuse *tensor.Error
	var c *callbacks.Error
	switch {
	case errors.As(err, &p) && !errors.As(p, &misuse):
		return p.Stack
	case errors.As(err, &c):
		return c.Stack
	}
	return nil
}

// environmentError is what cannot be followed where the process is: a variable, or a mesh of other ranks than it has.
type environmentError struct{ error }

// Permanent says that a launcher need not start the program again: its ranks would get the same environment.
func (*environmentError) Permanent() bool { return true }

// SignalError is the cause of the end of a program's context.
type SignalError struct{ Signal os.Signal }

// Error is the signal's name, as SIGTERM.
func (e *SignalError) Error() string { return signalName(e.Signal) }

// output is standard output that a program may write to whether or not somebody reads it.
type output struct{ w io.Writer }

// Write never fails.
func (o *output) Write(b []byte) (int, error) {
	_, _ = o.w.Write(b)
	return len(b), nil
}

// Fd is the descriptor of the file below, by which programs find out whether it is a terminal.
func (o *output) Fd() uintptr {
	if f, ok := o.w.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0) // of no file
}
