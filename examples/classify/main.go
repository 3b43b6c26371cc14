// SPDX-License-Identifier: Apache-2.0

// Classify trains a text classifier, as HuggingFace's run_glue.py does: a GPT-2 with a head that reads a text's last
// token. It takes tables of texts with labels, trains a tokenizer and a model or fine-tunes saved ones, measures
// accuracy and F1, and saves a folder that transformers loads as GPT2ForSequenceClassification. Then it answers over
// HTTP.
//
// Without a file it learns, in some ten seconds, to tell from a comment of the Go standard library which part of it the
// comment is about. It then uses its own settings; with a file they are HuggingFace's, which suit fine-tuning. A new
// model needs a learning rate of 1e-3 and more epochs.
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
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/mpi"  // empty without -tags mpi
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/scripts"
	"github.com/lockstep-ml/lockstep/hub"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(train)) }

// train is the program: it trains, evaluates or serves.
func train(ctx context.Context, p *program.Process) error {
	s := newSettings(false)
	if _, err := p.Parse(s.loader(p)); err != nil {
		return err
	}
	if err := s.download(ctx, p); err != nil {
		return err
	}
	if s.serve.Serve != "" {
		dir := s.model.ModelNameOrPath
		if dir == "" {
			dir = s.args.OutputDir
		}
		return serve(ctx, dir, s.serve, p.Stdout)
	}
	j := &job{settings: s, Process: p}
	return j.run(ctx)
}

// tableFiles are what package data/tabular reads.
var tableFiles = []string{".csv", ".tsv", ".jsonl", ".json", ".parquet"}

// download gets what is of the Hub.
func (s *settings) download(ctx context.Context, p *program.Process) error {
	if err := s.hub.Model(ctx, p, &s.model.ModelNameOrPath); err != nil || s.set.DatasetName == "" {
		return err
	}
	into := map[string]*string{hub.Train: &s.data.TrainFile, hub.Validation: &s.data.ValidationFile}
	if s.args.DoPredict && s.data.TestFile == "" {
		into[hub.Test] = &s.data.TestFile
	}
	files, err := s.hub.Files(ctx, p, s.set, tableFiles, slices.Sorted(maps.Keys(into))...)
	if err != nil {
		return err
	}
	for split, list := range files {
		if len(list) > 1 {
			return fmt.Errorf("dataset_name %s has %s for %s: want one", s.set.DatasetName,
				program.Count(len(list), "file"), split)
		}
		*into[split] = list[0]
	}
	return nil
}

// loader reads the settings.
func (s *settings) loader(p *program.Process) *args.Loader {
	l := args.Bind(p.Flags(), s.args, s.model, s.data, s.serve, s.hub, s.set)
	l.Defaults(s.choose)
	l.Predicts = true
	l.Know(scripts.Lengths("max_seq_length")...)
	l.Know(downloads.Aliases()...)
	l.Know(scripts.RunGLUE()...)
	return l
}

// choose makes the defaults those of the demonstration, if no text and no model of the user's is given.
func (s *settings) choose(given func(key string) bool) string {
	if given("train_file") || given("validation_file") || given("dataset_name") || given("model_name_or_path") {
		return ""
	}
	demo := newSettings(true)
	*s.args, *s.model, *s.data = *demo.args, *demo.model, *demo.data
	return "demonstration"
}
