// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/examples/internal/final"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// diamonds is the table of a run without a file; diamonds.md says where it comes from.
//
//go:embed diamonds.csv
var diamonds []byte

// job is one training run.
type job struct {
	*program.Process
	args  *args.TrainingArguments
	model *ModelArguments
	data  *DataArguments

	table    *tabular.Table // of the rows that are held out
	held     []int          // those rows
	features *features
	net      *mlp.Model
}

// run reads, trains, evaluates and prints some predictions.
func (j *job) run(ctx context.Context) error {
	train, eval, err := j.read()
	if err != nil {
		return err
	}
	sizes := []int{j.features.size()}
	for range j.model.HiddenLayers {
		sizes = append(sizes, j.model.HiddenSize)
	}
	sizes = append(sizes, 1)
	if j.net, err = mlp.New(nn.NewInit(tensor.CPU(), j.args.Seed), mlp.Config{Sizes: sizes}); err != nil {
		return err
	}
	j.Line("model", fmt.Sprintf("mlp of widths %v", sizes), program.Count(nn.NumParameters(j.net), "parameter"))

	opts := []trainer.Option{
		trainer.WithTrainData(data.NewSource(train, data.Stack[sample])),
		trainer.WithEvalData(data.NewSource(eval, data.Stack[sample])),
		trainer.WithMetrics(&fitMetric{std: j.features.Label.Std}),
		trainer.WithParts(checkpoint.BytesPart(featuresFile, j.features.json())), // saved with the model
	}
	if j.model.Patience > 0 {
		opts = append(opts, trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: j.model.Patience}))
	}
	var last final.Evaluation
	opts = append(opts, trainer.WithCallbacks(&last), trainer.WithDisplay(j.Stderr))
	t := trainer.New(j.net, j.args, opts...)
	defer t.Close() // what went wrong before is the error to report
	if err := j.learn(ctx, t); err != nil {
		return err
	}
	m, err := last.Of(ctx, t)
	if err != nil {
		return err
	}
	j.Line("baseline", fmt.Sprintf("mae %.5g, r2 0, by always the mean of %s", baseline(eval)*j.features.Label.Std,
		j.features.Label.Name))
	if err := t.SaveMetrics("eval", m); err != nil || !t.IsMain() {
		return err
	}
	return j.show(eval)
}

// read reads the tables, fits the features to the training rows, and makes samples of both parts.
func (j *job) read() (train, eval data.Slice[sample], err error) {
	t, err := tabular.Parse("diamonds.csv", diamonds)
	if j.data.TrainFile != "" {
		t, err = tabular.Read(j.data.TrainFile)
	}
	if err != nil {
		return nil, nil, err
	}
	j.table = t
	// files are often sorted: hold out rows from all over
	order := rand.New(rand.NewPCG(j.args.Seed, 0)).Perm(len(t.Rows))
	rows := order
	if j.data.ValidationFile != "" {
		if j.table, err = tabular.Read(j.data.ValidationFile); err != nil {
			return nil, nil, err
		}
		for i := range j.table.Rows {
			j.held = append(j.held, i)
		}
	} else {
		n := len(order) * j.data.ValidationSplitPercentage / 100
		if n == 0 {
			return nil, nil, fmt.Errorf("%s has %d rows, of which %d %% are none: "+
				"want more rows, a larger validation_split_percentage, or a validation_file",
				t.Path, len(order), j.data.ValidationSplitPercentage)
		}
		j.held, rows = order[:n], order[n:]
	}
	if j.features, err = fit(t, rows, j.data.LabelColumn, j.data.IgnoreColumns); err != nil {
		return nil, nil, err
	}
	if train, err = j.features.samples(t, rows); err != nil {
		return nil, nil, err
	}
	if eval, err = j.features.samples(j.table, j.held); err != nil {
		return nil, nil, err
	}
	j.Line("data", t.Path, program.Count(len(train), "row")+" to learn "+j.data.LabelColumn+" from",
		fmt.Sprintf("%d held out", len(eval)),
		fmt.Sprintf("%d columns make %d inputs", len(j.features.Columns), j.features.size()))
	return train, eval, nil
}

// learn trains and saves the results and the best model.
func (j *job) learn(ctx context.Context, t *trainer.Trainer) error {
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.SaveMetrics("train", res.Metrics), t.SaveState(), t.SaveModel("")); err != nil {
		return err
	}
	facts := []string{"saved to " + j.args.OutputDir}
	if s := t.State(); s.BestMetric != nil && s.BestGlobalStep != nil && j.args.LoadBestModelAtEnd {
		facts = append([]string{fmt.Sprintf("best at step %d", *s.BestGlobalStep)}, facts...)
	}
	j.Line("model", facts...)
	return nil
}

// baseline is the mean absolute error of a model that always says the training labels' mean, which is 0.
func baseline(eval data.Slice[sample]) float64 {
	var sum float64
	for _, s := range eval {
		sum += math.Abs(float64(s.Labels[0]))
	}
	return sum / float64(len(eval))
}

// show prints what the model says of some rows that it has not learned from.
func (j *job) show(eval data.Slice[sample]) error {
	n := min(5, len(eval))
	inputs := make([][]float32, n)
	for i := range inputs {
		inputs[i] = eval[i].Inputs
	}
	got, err := newPredictor(j.net, j.features).predict(inputs)
	if err != nil {
		return err
	}
	fmt.Fprintln(j.Stdout, "some of the rows that were held out:")
	t := tabwriter.NewWriter(j.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tpredicted", j.features.Label.Name)
	for _, c := range j.features.Columns {
		fmt.Fprintf(t, "\t%s", c.Name)
	}
	fmt.Fprintln(t)
	for i, p := range got {
		fmt.Fprintf(t, "%.5g\t%.5g", j.features.Label.restore(float64(eval[i].Labels[0])), p.Value)
		for _, c := range j.features.Columns {
			at, _ := j.table.Column(c.Name) // it was found before
			fmt.Fprintf(t, "\t%s", j.table.Rows[j.held[i]][at])
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
