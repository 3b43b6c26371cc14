// SPDX-License-Identifier: Apache-2.0

// Vision trains a small ResNet on labelled images in IDX files and saves it as transformers saves a
// ResNetForImageClassification: with the names of the classes in config.json and the normalisation of the pixels in
// preprocessor_config.json, which an evaluation or a service needs. It prints precision and recall of each class.
//
// With no flags it learns Fashion-MNIST, as Debian's package dataset-fashion-mnist installs it, in half a minute on two
// cores. It then has settings of its own for that; with a folder of your own they are HuggingFace's, which suit
// fine-tuning. A new model wants a learning rate of about 3e-3.
//
//	go run ./examples/vision
//	go run ./examples/vision --data_dir FOLDER --learning_rate 3e-3 --num_train_epochs 3 --output_dir out/mnist
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
	_ "github.com/lockstep-ml/lockstep/dist/mpi"  // empty without -tags mpi
	_ "github.com/lockstep-ml/lockstep/dist/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/scripts"
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
	s, resolved, usage, err := parse(argv)
	if errors.Is(err, args.ErrHelp) {
		fmt.Fprint(stdout, usage)
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
	j := &job{settings: s, out: stdout, err: stderr}
	return j.run(ctx)
}

// parse reads the settings: with HuggingFace's defaults, and again with the demonstration's if no images and no model
// of the user's are given.
func parse(argv []string) (s *settings, resolved *args.Resolved, usage string, err error) {
	for _, demo := range []bool{false, true} {
		s = newSettings(demo)
		loader := args.Bind(pflag.NewFlagSet("vision", pflag.ContinueOnError), s.args, s.model, s.data)
		scripts.Know(loader, scripts.RunImageClassification())
		if resolved, err = loader.Parse(argv); err != nil {
			return nil, nil, loader.Usage(), err
		}
		if s.data.DataDir != "" || s.model.ModelNameOrPath != "" {
			break
		}
	}
	if s.data.DataDir == "" {
		s.data.DataDir = fashionDir
	}
	return s, resolved, "", nil
}
