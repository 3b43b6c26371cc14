// SPDX-License-Identifier: Apache-2.0

// Clm shows how a language model is trained and fine-tuned, as transformers' run_clm.py does it. With no flags it
// trains a small GPT-2 for half a minute on functions of the Go standard library, which is on every machine with Go:
// first a tokenizer, then the model, with evaluations and checkpoints. At the end it says whether the model predicts
// unseen functions better than counting bytes does, and prints functions that the model wrote. They should look like
// Go.
//
//	go run ./examples/clm
//	go run ./examples/clm --resume_from_checkpoint last
//	go run ./examples/clm --train_file book.txt --do_train --do_eval --output_dir out/book
//	go run ./examples/clm --model_name_or_path out/clm --train_file my.jsonl.gz --output_dir out/tuned
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

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	_ "github.com/lockstep-ml/lockstep/dist/mpi"  // empty without -tags mpi
	_ "github.com/lockstep-ml/lockstep/dist/nccl" // empty without -tags cuda
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	_ "github.com/lockstep-ml/lockstep/integrations/tensorboard"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
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
		fmt.Fprintln(callbacks.TerminalOf(os.Stderr),
			"stopping after what is under way; interrupt again to stop at once")
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
	s := newSettings()
	loader := s.loader()
	resolved, err := loader.Parse(argv)
	if errors.Is(err, args.ErrHelp) {
		fmt.Fprint(stdout, loader.Usage(), demonstrationHelp)
		return err
	}
	if err != nil {
		return err
	}
	level, set := s.args.SlogLevel()
	if !set {
		level = slog.LevelWarn
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(callbacks.AboveBar(stderr), &slog.HandlerOptions{Level: level})))
	if place, err := accelerate.Place(); err != nil {
		return err
	} else if place.Rank > 0 {
		stdout = io.Discard // rank 0 speaks for all
	}
	if err := resolved.WriteNotices(stdout, ""); err != nil {
		return err
	}
	fmt.Fprint(stdout, listing(resolved))
	j := &job{settings: s, out: stdout, err: stderr}
	return j.run(ctx)
}

// demonstrationHelp stands below the settings.
const demonstrationHelp = `Without train_file, validation_file and model_name_or_path clm trains on functions of the Go
standard library, with settings chosen for that. Otherwise HuggingFace's defaults hold.
`
