// SPDX-License-Identifier: Apache-2.0

// Classify trains a text classifier, as HuggingFace's run_glue.py does: a GPT-2 with a head that reads a text's last
// token. It takes tables of texts with labels, trains a tokenizer and a model or fine-tunes saved ones, measures
// accuracy and F1, and saves a folder that transformers loads as GPT2ForSequenceClassification. Then it answers over
// HTTP.
//
// Without a file of your own it learns, in some ten seconds, to tell from a comment of the Go standard library which
// part of it the comment is about. It then has settings of its own for that; with a file they are HuggingFace's, which
// suit fine-tuning. A new model wants a learning rate of 1e-3 and more epochs.
//
//	go run ./examples/classify
//	go run ./examples/classify --serve :8080
//	curl -d '{"text": "Sqrt returns the square root of x."}' localhost:8080/predict
//
//	go run ./examples/classify --train_file reviews.csv --text_column review --label_column stars --learning_rate 1e-3 \
//	    --num_train_epochs 10 --output_dir out/reviews
//	go run ./examples/classify --model_name_or_path gpt2 --train_file train.jsonl --validation_file dev.jsonl
//	go run ./examples/classify --do_eval --model_name_or_path out/classify --output_dir out/eval
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

func main() {
	// The first Ctrl-C or SIGTERM lets the step finish and saves, or ends the service; the second kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var usage *args.Error
	switch {
	case err == nil || errors.Is(err, args.ErrHelp):
		return
	case errors.Is(err, trainer.ErrInterrupted), errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "classify: interrupted:", err)
		os.Exit(130)
	}
	_ = accelerate.RecordError(err) // for a launcher; the error itself is printed all the same
	fmt.Fprintln(os.Stderr, "classify:", err)
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
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
	if s.serve.Serve != "" {
		dir := s.model.ModelNameOrPath
		if dir == "" {
			dir = s.args.OutputDir
		}
		return serve(ctx, dir, s.serve, stdout)
	}
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

// parse reads the settings: with HuggingFace's defaults, and again with the demonstration's if no text and no model of
// the user's is given.
func parse(argv []string) (s *settings, resolved *args.Resolved, usage string, err error) {
	for _, demo := range []bool{false, true} {
		s = newSettings(demo)
		loader := args.Bind(pflag.NewFlagSet("classify", pflag.ContinueOnError), s.args, s.model, s.data, s.serve)
		scripts.Know(loader, scripts.RunGLUE())
		if resolved, err = loader.Parse(argv); err != nil {
			return nil, nil, loader.Usage(), err
		}
		if s.data.TrainFile != "" || s.data.ValidationFile != "" || s.model.ModelNameOrPath != "" {
			break
		}
	}
	return s, resolved, "", nil
}
