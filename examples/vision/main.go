// Vision trains a small ResNet on labelled images in IDX files: with no flags, on
// Fashion-MNIST as Debian's package dataset-fashion-mnist installs it. It evaluates after
// every epoch and writes checkpoints in HuggingFace's layout.
//
//	go run ./examples/vision
//	go run ./examples/vision --data_dir FOLDER --num_train_epochs 3 --output_dir out/mnist
//	go run ./examples/vision --resume_from_checkpoint last
//	go run ./examples/vision --do_eval --model_name_or_path out/vision --output_dir out/eval
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
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
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		_ = accelerate.RecordError(err) // for a launcher; the error itself is printed all the same
	}
	os.Exit(exitCode(err, os.Stderr))
}

// exitCode says what went wrong and what the process ends with.
func exitCode(err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, args.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "vision:", err)
	var usage *args.Error
	switch {
	case errors.Is(err, trainer.ErrInterrupted), errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitError
}

// run is the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	a, m, d := defaults()
	flags := pflag.NewFlagSet("vision", pflag.ContinueOnError)
	loader := args.Bind(flags, a, m, d)
	_, err := loader.Parse(argv)
	if errors.Is(err, args.ErrHelp) {
		fmt.Fprint(stdout, loader.Usage())
		return err
	}
	if err != nil {
		return err
	}
	if _, err := a.Reporters(callbacks.ReporterNames()...); err != nil { // before images are read
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
	j := &job{args: a, model: m, data: d, out: stdout, err: stderr}
	return j.run(ctx)
}
