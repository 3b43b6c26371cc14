// SPDX-License-Identifier: Apache-2.0

// Regression trains a small network on a table: it reads a CSV file, brings its columns into the form that a network
// learns from, holds a part of the rows out, stops when nothing improves any more, and keeps the best weights. Then it
// answers predictions over HTTP.
//
// Without a file of your own it learns the prices of 4,000 diamonds (see diamonds.md), in a few seconds.
//
//	go run ./examples/regression
//	go run ./examples/regression --serve :8080
//	curl -d '{"carat": 0.7, "cut": "Ideal", "color": "G", "clarity": "VS2", "depth": 61.5, "table": 56, "x": 5.7, "y": 5.7, "z": 3.5}' localhost:8080/predict
//
//	go run ./examples/regression --train_file houses.csv --label_column price --output_dir out/houses
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
		fmt.Fprintln(os.Stderr, "regression: interrupted:", err)
		os.Exit(130)
	}
	_ = accelerate.RecordError(err) // for a launcher; the error itself is printed all the same
	fmt.Fprintln(os.Stderr, "regression:", err)
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}

// run is the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	a, m, d, s := defaults()
	loader := args.Bind(pflag.NewFlagSet("regression", pflag.ContinueOnError), a, m, d, s)
	_, err := loader.Parse(argv)
	if errors.Is(err, args.ErrHelp) {
		fmt.Fprint(stdout, loader.Usage())
		return err
	}
	if err != nil {
		return err
	}
	if _, err := a.Reporters(callbacks.ReporterNames()...); err != nil {
		return err
	}
	level, set := a.SlogLevel()
	if !set {
		level = slog.LevelWarn
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})))
	if s.Serve != "" {
		dir := m.ModelNameOrPath
		if dir == "" {
			dir = a.OutputDir
		}
		return serve(ctx, dir, s, stdout)
	}
	if place, err := accelerate.Place(); err != nil {
		return err
	} else if place.Rank > 0 {
		stdout = io.Discard // rank 0 speaks for all
	}
	j := &job{args: a, model: m, data: d, out: stdout, err: stderr}
	return j.run(ctx)
}
