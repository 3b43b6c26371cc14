// Clm trains a small GPT on text: with no flags, on the source of the Go standard library
// that is on every machine with Go. It evaluates, writes checkpoints in HuggingFace's
// layout, and prints a sample that the model writes.
//
//	go run ./examples/clm
//	go run ./examples/clm --train_file book.txt --validation_file other.txt --output_dir out/book
//	go run ./examples/clm --resume_from_checkpoint last
//	go run ./examples/clm --do_eval --model_name_or_path out/clm --validation_file FILE --output_dir out/eval
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	_ "github.com/lockstep-ml/lockstep/integrations/tensorboard"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Exit codes, as shells and schedulers expect them.
const (
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	// The first Ctrl-C or SIGTERM lets the step finish and saves; the second kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "\nstopping after what is under way; interrupt again to stop at once")
	})
	ignoreFileSizeSignal()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // tensors live off the Go heap: headroom for garbage would only grow the process
	}
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		_ = accelerate.RecordError(err) // for a launcher; the error itself is printed all the same
	}
	os.Exit(exitCode(err, os.Stderr))
}

// exitCode says what went wrong and what the process ends with.
func exitCode(err error, stderr io.Writer) int {
	var usage *args.Error
	switch {
	case err == nil || errors.Is(err, args.ErrHelp):
		return 0
	case errors.Is(err, trainer.ErrInterrupted), errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "clm: interrupted:", err)
		return exitInterrupted
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "clm:", err)
		return exitUsage
	}
	fmt.Fprintln(stderr, "clm:", err)
	return exitError
}

// run is the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	a, m, d, s := defaults()
	flags := pflag.NewFlagSet("clm", pflag.ContinueOnError)
	loader := args.Bind(flags, a, m, d, s)
	resolved, err := loader.Parse(argv)
	if errors.Is(err, args.ErrHelp) {
		fmt.Fprint(stdout, loader.Usage())
		return err
	}
	if err != nil {
		return err
	}
	if _, err := a.Reporters(callbacks.ReporterNames()...); err != nil { // before a tokenizer is trained
		return err
	}
	level, set := a.SlogLevel()
	if !set {
		level = slog.LevelWarn
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})))
	if place, err := accelerate.Place(); err != nil {
		return err
	} else if place.Rank > 0 {
		stdout = io.Discard // rank 0 speaks for all
	}
	fmt.Fprintln(stdout, "arguments that are not defaults:")
	if err := writeOrigins(stdout, resolved); err != nil {
		return err
	}
	j := &job{args: a, model: m, data: d, sample: s, out: stdout, err: stderr}
	return j.run(ctx)
}

// writeOrigins lists the settings that somebody set, and who.
func writeOrigins(w io.Writer, r *args.Resolved) error {
	n := 0
	for _, row := range r.Table() {
		if row[2] != "default" {
			n++
			if _, err := fmt.Fprintf(w, "  %-28s %-24s %s\n", row[0], row[1], row[2]); err != nil {
				return err
			}
		}
	}
	if n == 0 {
		_, err := fmt.Fprintln(w, "  none")
		return err
	}
	return nil
}
