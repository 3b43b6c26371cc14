// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/examples/internal/confusion"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	*settings
	out, err io.Writer

	train, test *images.Dataset
	norm        images.Normalization
	net         *resnet.Model
}

// run trains, or only evaluates if that is all that was asked for, and prints the results.
func (j *job) run(ctx context.Context) error {
	onlyEval := j.args.DoEval && !j.args.DoTrain
	if onlyEval && j.model.ModelNameOrPath == "" {
		return errors.New("--do_eval without --do_train evaluates a saved model: want --model_name_or_path FOLDER")
	}
	if err := j.read(); err != nil {
		return err
	}
	if err := j.prepare(); err != nil {
		return err
	}
	first, err := j.train.Get(0)
	if err != nil {
		return err
	}
	matrix := confusion.New(j.net.Labels())
	display, _ := j.err.(*os.File) // nil: a test's buffer
	t := trainer.New(j.net, j.args,
		trainer.WithTrainData(j.source(j.train)), trainer.WithEvalData(j.source(j.test)), trainer.WithMetrics(matrix),
		trainer.WithParts(preprocessorPart(j.norm, first.Height, first.Width)), trainer.WithDisplay(display))
	defer t.Close() // what went wrong before is the error to report
	if !onlyEval {
		if err := j.learn(ctx, t); err != nil {
			return err
		}
	}
	m, err := t.EvaluateContext(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(j.out, "eval: accuracy %.4f, loss %.4f over %.0f images\n", m["eval_accuracy"], m["eval_loss"],
		float64(j.source(j.test).Len()))
	if err := t.SaveMetrics("eval", m); err != nil || !t.IsMain() {
		return err
	}
	if err := matrix.WriteTable(j.out, 3); err != nil {
		return err
	}
	return j.show()
}

// read reads the images.
func (j *job) read() error {
	var err error
	if j.train, err = images.OpenIDX(j.data.DataDir, "train"); err == nil {
		j.test, err = images.OpenIDX(j.data.DataDir, "t10k")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w\nwant a data set in IDX files: apt install dataset-fashion-mnist puts one into %s; "+
			"or put MNIST's four files into a folder and give it by --data_dir", err, fashionDir)
	}
	return err
}

// source is the dataset, or as much of it as was asked for, with its collator.
func (j *job) source(d *images.Dataset) data.Source {
	if n := j.data.MaxImages; n > 0 && n < d.Len() {
		some := make(data.Slice[images.Image], n)
		for i := range some {
			some[i], _ = d.Get(i) // it is there
		}
		return data.NewSource(some, j.norm.Collate)
	}
	return data.NewSource(d, j.norm.Collate)
}

// prepare makes or loads the model and how pixels become its inputs.
func (j *job) prepare() error {
	classes := max(j.train.Classes(), j.test.Classes())
	if dir := j.model.ModelNameOrPath; dir != "" {
		return j.load(dir, classes)
	}
	names := j.data.LabelNames
	if len(names) > 0 && len(names) < classes {
		return fmt.Errorf("label_names has %d names, and %s has images of %d classes: want a name for each",
			len(names), j.data.DataDir, classes)
	}
	for i := len(names); i < classes; i++ {
		names = append(names, fmt.Sprintf("LABEL_%d", i))
	}
	j.norm = j.train.Normalization()
	cfg := resnet.DefaultConfig()
	cfg.NumChannels, cfg.EmbeddingSize, cfg.LayerType = 1, j.model.Width, resnet.Basic
	cfg.HiddenSizes, cfg.Depths = nil, slices.Repeat([]int{j.model.Depth}, j.model.Stages)
	for s := range j.model.Stages {
		cfg.HiddenSizes = append(cfg.HiddenSizes, j.model.Width<<s)
	}
	cfg.ID2Label = models.Labels(names...)
	var err error
	if j.net, err = resnet.New(nn.NewInit(tensor.CPU(), j.args.Seed), cfg); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "model: resnet, channels %v, %d layers each, %d parameters, %d classes\n", cfg.HiddenSizes,
		j.model.Depth, nn.NumParameters(j.net), len(names))
	return nil
}

// load takes a saved model, and how its inputs were made.
func (j *job) load(dir string, classes int) error {
	m, err := models.LoadPretrained(tensor.CPU(), dir)
	if err != nil {
		return err
	}
	net, ok := m.(*resnet.Model)
	if !ok || net.Cfg.NumChannels != 1 {
		return fmt.Errorf("%s: the model is a %s, want a resnet for images of one channel", dir, m.ModelType())
	}
	if len(net.Labels()) < classes {
		return fmt.Errorf("%s knows %d classes, and %s has images of %d", dir, len(net.Labels()), j.data.DataDir,
			classes)
	}
	if j.norm, err = loadNormalization(dir); err != nil {
		return err
	}
	j.net = net
	fmt.Fprintf(j.out, "model: %s from %s, %d parameters\n", net.ModelType(), dir, nn.NumParameters(net))
	return nil
}

// learn trains and writes the results and the final model.
func (j *job) learn(ctx context.Context, t *trainer.Trainer) error {
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.SaveMetrics("train", res.Metrics), t.SaveState(), t.SaveModel("")); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "trained: %d steps, %.1f s, loss %.4f, %.0f images/s; model saved to %s\n",
		res.GlobalStep, res.Metrics["train_runtime"], res.TrainingLoss, res.Metrics["train_samples_per_second"],
		j.args.OutputDir)
	return nil
}
