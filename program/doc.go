// SPDX-License-Identifier: Apache-2.0

// Package program is the main function of programs that train: signals, exit codes, settings, the log, and the report
// to a launcher. Use it in every program that [lockstep launch], a scheduler or a terminal may interrupt; it works with
// the Trainer and with your own loop. A main is one line:
//
//	func main() { os.Exit(program.Run(train)) }
//
//	func train(ctx context.Context, p *program.Process) error {
//		a := args.Default("out/line")
//		if _, err := p.Parse(args.Bind(p.Flags(), a)); err != nil {
//			return err
//		}
//		res, err := trainer.New(model, a, trainer.WithTrainData(samples)).TrainContext(ctx)
//		if err != nil {
//			return err
//		}
//		p.Printf("loss %.4f\n", res.TrainingLoss)
//		return nil
//	}
//
// # Signals
//
// The first of these ends the context of [Run]'s function. A Trainer then finishes the step, saves, and returns an
// error that wraps trainer.ErrInterrupted; your own loop returns accelerate.ErrInterrupted.
//
//	SIGINT, SIGTERM  save and stop
//	SIGHUP           save and stop: the terminal or the ssh session is gone. Under nohup it stays ignored
//	SIGQUIT          print the stacks of all goroutines, as Go does, then save and stop
//	SIGUSR1          save and stop, with its own exit code: a scheduler announces the end (Slurm's --signal)
//
// A second signal ends the process immediately, as without a handler. A second signal within 300 ms of the first does
// not count, because terminals and wrappers deliver the same signal twice, and neither does a SIGHUP: closing the
// terminal after Ctrl-C must not lose the checkpoint that is being written.
//
// SIGPIPE and SIGXFSZ are ignored: a closed pipe or the limit of ulimit -f is an error of that write. Writes to
// [Process.Stdout] never fail, so that no output error ends a training.
//
// # Exit codes
//
//	0                   the function returned nil, or --help was asked for
//	[ExitError]         it returned an error, or panicked
//	[ExitUsage]         the settings are wrong: an *args.Error, or LOCKSTEP_KERNELS
//	[ExitInterrupted]   interrupted, here or on another rank
//	128 + SIGUSR1       interrupted by SIGUSR1: 138 on Linux, 158 on macOS and the BSDs
//
// A panic is reported as an error, followed by its stack. Go's runtime ends the process with 2 after failures that
// cannot be recovered: a panic on a goroutine that the program started, and a fatal error such as a deadlock.
//
// # Output
//
// [Process.Line] prints results, a name with facts about it, and [Process.Printf] any text; messages and the log go to
// standard error. On a terminal lines fit its width (COLUMNS, or 80, where the terminal does not report one), names are
// bold, warnings yellow and errors red, unless NO_COLOR or CI is set or TERM is dumb. Other output has no colour, and
// lines of any length. lockstep launch passes the width of its terminal to its ranks. [Process.Phase] shows the
// progress of work before training.
//
// # Memory
//
// Tensors are outside the Go heap, and a step leaves little garbage, but Go's default GOGC of 100 lets the heap, with
// the data set in it, double. Unless the environment or the program sets GOGC, Run sets it to 25, and higher for a heap
// of less than 6 MiB, which is collected at that size: each collection costs the same however little it finds. With 25
// for every heap a training of four processes and 24 small steps takes a third more processor time, and 3 MiB less.
package program
