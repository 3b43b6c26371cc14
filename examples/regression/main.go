// SPDX-License-Identifier: Apache-2.0

// Regression trains a small network on a table: it reads a CSV file, brings its columns into the form that a network
// learns from, holds a part of the rows out, stops when nothing improves any more, and keeps the best weights. Then it
// answers predictions over HTTP.
//
// Without a file it learns the prices of 4,000 diamonds (see diamonds.md), in a few seconds.
//
//	go run ./examples/regression
//	go run ./examples/regression --serve :8080
//	curl -d '{"carat": 0.7, "cut": "Ideal", "color": "G", "clarity": "VS2", "depth": 61.5, "table": 56, "x": 5.7, "y": 5.7, "z": 3.5}' localhost:8080/predict
//
//	go run ./examples/regression --train_file houses.csv --label_column price --output_dir out/houses
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
)

func main() { os.Exit(program.Run(train)) }

// train is the program: it trains or serves.
func train(ctx context.Context, p *program.Process) error {
	a, m, d, s := defaults()
	if _, err := p.Parse(args.Bind(p.Flags(), a, m, d, s)); err != nil {
		return err
	}
	if s.Serve != "" {
		dir := m.ModelNameOrPath
		if dir == "" {
			dir = a.OutputDir
		}
		return serve(ctx, dir, s, p.Stdout)
	}
	j := &job{Process: p, args: a, model: m, data: d}
	return j.run(ctx)
}
