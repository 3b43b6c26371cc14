// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// files are the settings of the scripts that read pairs of sentences.
type files struct {
	TrainFile string `json:"train_file" usage:"CSV file with the columns sentence1, sentence2 and label (0 or 1)"`
	Test      int    `json:"test" usage:"one row of so many is for evaluation"`
}

// The special tokens: what ends a sentence, and what fills a batch.
const (
	endOfText = "<|endoftext|>"
	padding   = "<|pad|>"
	pad       = 1
)

// pairs are sentences of which one may say what the other does, as MRPC has them.
type pairs struct {
	rows  data.Slice[data.LabelledTokens]
	vocab int
}

// readPairs reads a file, and trains a tokenizer on it.
func readPairs(ctx context.Context, path string) (*pairs, error) {
	table, err := tabular.Read(path)
	if err != nil {
		return nil, err
	}
	first, err1 := table.Column("sentence1")
	second, err2 := table.Column("sentence2")
	label, err3 := table.Column("label")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	texts := func(yield func(string, error) bool) {
		for _, row := range table.Rows {
			if !yield(row[first], nil) || !yield(row[second], nil) {
				return
			}
		}
	}
	tok, err := tokenizers.Train(ctx, texts, tokenizers.TrainOptions{VocabSize: 300,
		SpecialTokens: []string{endOfText, padding}})
	if err != nil {
		return nil, err
	}
	p := &pairs{vocab: tok.VocabSize()}
	for _, row := range table.Rows {
		class, err := strconv.ParseInt(row[label], 10, 64)
		if err != nil {
			return nil, err
		}
		one, err1 := tok.Encode(row[first])
		other, err2 := tok.Encode(row[second])
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		p.rows = append(p.rows, data.LabelledTokens{InputIDs: slices.Concat(one, []int32{0}, other), Label: class})
	}
	return p, nil
}

// split are the rows for training, and each nth one, from the given one on, for evaluation.
func (p *pairs) split(n, from int) (train, eval data.Source) {
	var in, out data.Slice[data.LabelledTokens]
	for i, row := range p.rows {
		if i%n == from {
			out = append(out, row)
		} else {
			in = append(in, row)
		}
	}
	return data.NewSource(in, data.WithPadding(pad)), data.NewSource(out, data.WithPadding(pad))
}

// classifier is a small model for pairs.
func (p *pairs) classifier(seed uint64) (*gpt2.Classifier, error) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 1, 32, 2, p.vocab, 64
	return gpt2.NewClassifier(nn.NewInit(tensor.CPU(), seed), gpt2.ClassifierConfig{Config: cfg,
		ID2Label: models.Labels("not_equivalent", "equivalent"), PadTokenID: new(int(pad))})
}

// glue is evaluate's metric of MRPC.
func glue(classes, labels []int64) (map[string]float64, error) {
	c, err := metrics.Classify(labels, classes)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"accuracy": c.Accuracy(), "f1": c.Class(1).F1}, nil
}

// nlp is accelerate's nlp_example.py, and with the settings that all programs have (report_to,
// resume_from_checkpoint, gradient_accumulation_steps) its complete_nlp_example.py.
func nlp(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/nlp_example"), &files{Test: 4}
	a.LearningRate, a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize = 2e-3, 16, 32
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	all, err := readPairs(ctx, f.TrainFile)
	if err != nil {
		return err
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		model, err := all.classifier(a.Seed)
		if err != nil {
			return err
		}
		train, eval := all.split(f.Test, 0)
		e := &epochs{acc: acc, args: a, model: model, train: train, optim: adamW(),
			schedule: linear(2, a.LearningRate), print: func(line string) { acc.Print(p.Stdout, line) },
			evaluate: func() (map[string]float64, error) {
				classes, labels, err := predictions(ctx, acc, model, eval)
				if err != nil {
					return nil, err
				}
				return glue(classes, labels)
			}}
		return e.run(ctx)
	})
}
