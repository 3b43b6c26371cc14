// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/examples/internal/confusion"
	"github.com/lockstep-ml/lockstep/examples/internal/final"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	*settings
	*program.Process

	train, test images.Set
	norm        images.Normalization
	net         *resnet.Model // nil before there is one
	size        imageSize     // of the images that a saved model reads; 0: they may have any
}

// run trains, or only evaluates if that is all that was asked for, and prints the results.
func (j *job) run(ctx context.Context) error {
	onlyEval := !j.args.TrainingWanted()
	if onlyEval && j.model.ModelNameOrPath == "" {
		return errors.New("--do_eval without --do_train evaluates a saved model: want --model_name_or_path FOLDER")
	}
	if err := j.hub.Model(ctx, j.Process, &j.model.ModelNameOrPath); err != nil {
		return err
	}
	if dir := j.model.ModelNameOrPath; dir != "" { // before the images are read for nothing
		if err := j.load(dir); err != nil {
			return err
		}
	}
	if err := j.read(); err != nil {
		return err
	}
	first, err := j.train.Get(0)
	if err != nil {
		return err
	}
	if err := j.prepare(first.Channels); err != nil {
		return err
	}
	j.Line("data", program.Count(j.train.Len(), "image")+" to learn from",
		program.Count(j.test.Len(), "image")+" held out")
	matrix := confusion.New(j.net.Labels())
	var last final.Evaluation
	change := images.Augmentation{CropPadding: j.data.CropPadding, HorizontalFlip: j.data.HorizontalFlip}
	source := data.NewAugmentedSource(j.train, j.args.Seed, change.Apply, j.norm.Collate)
	t := trainer.New(j.net, j.args, trainer.WithTrainData(source),
		trainer.WithEvalData(data.NewSource(j.test, j.norm.Collate)), trainer.WithMetrics(matrix),
		trainer.WithParts(preprocessorPart(j.norm, first.Height, first.Width)), trainer.WithCallbacks(&last),
		trainer.WithDisplay(j.Stderr))
	defer t.Close() // what went wrong before is the error to report
	if !onlyEval {
		if err := j.learn(ctx, t); err != nil {
			return err
		}
	}
	m, err := last.Of(ctx, t)
	if err != nil {
		return err
	}
	if err := t.SaveMetrics("eval", m); err != nil || !t.IsMain() {
		return err
	}
	if err := matrix.WriteTable(j.Stdout, 3); err != nil {
		return err
	}
	return j.show()
}

// prepare makes the model and how pixels become its inputs, or compares the saved one with the images.
func (j *job) prepare(channels int) error {
	classes, names := max(j.train.Classes(), j.test.Classes()), j.data.LabelNames
	if j.net != nil {
		return j.fits(channels, classes)
	}
	if len(names) == 0 {
		names = j.train.Names()
	}
	if len(names) > 0 && len(names) < classes {
		return fmt.Errorf("label_names has %d names, and %s has images of %d classes: want a name for each",
			len(names), j.data.where(), classes)
	}
	for i := len(names); i < classes; i++ {
		names = append(names, fmt.Sprintf("LABEL_%d", i))
	}
	const measured = 1 << 16 // images, all of the usual data sets
	var err error
	if j.norm, err = images.NormalizationOf(j.train, measured); err != nil {
		return err
	}
	cfg := resnet.DefaultConfig()
	cfg.NumChannels, cfg.EmbeddingSize, cfg.LayerType = channels, j.model.Width, resnet.Basic
	cfg.HiddenSizes, cfg.Depths = nil, slices.Repeat([]int{j.model.Depth}, j.model.Stages)
	for s := range j.model.Stages {
		cfg.HiddenSizes = append(cfg.HiddenSizes, j.model.Width<<s)
	}
	cfg.ID2Label = models.Labels(names...)
	if j.net, err = resnet.New(nn.NewInit(tensor.CPU(), j.args.Seed), cfg); err != nil {
		return err
	}
	j.Line("model", fmt.Sprintf("resnet of channels %v", cfg.HiddenSizes),
		program.Count(j.model.Depth, "layer")+" each",
		program.Count(nn.NumParameters(j.net), "parameter"), program.Count(len(names), "class"))
	return nil
}

// load takes a saved model, and how its inputs were made.
func (j *job) load(dir string) error {
	saved, err := models.OpenPretrained[*resnet.Model](tensor.CPU(), dir, "a ResNetForImageClassification")
	if err != nil {
		return err
	}
	if j.norm, j.size, err = loadPreprocessor(saved); err != nil {
		return err
	}
	net := saved.Model
	if n := net.Cfg.NumChannels; len(j.norm.Mean) != n {
		return fmt.Errorf("%s: %s has %d values of image_mean, and the model reads %d channels", dir, preprocessorFile,
			len(j.norm.Mean), n)
	}
	j.net = net
	j.Line("model", net.ModelType()+" from "+dir, program.Count(nn.NumParameters(net), "parameter"))
	return nil
}

// fits refuses images that the saved model cannot be trained or evaluated on.
func (j *job) fits(channels, classes int) error {
	dir, labels := j.model.ModelNameOrPath, j.net.Labels()
	if n := j.net.Cfg.NumChannels; n != channels {
		return fmt.Errorf("%s reads images of %d channels, and those of %s have %d", dir, n, j.data.where(), channels)
	}
	if len(labels) < classes {
		return fmt.Errorf("%s has %d classes, and the images of %s have %d", dir, len(labels), j.data.where(), classes)
	}
	for i, name := range j.train.Names() {
		if at := slices.Index(labels, name); at >= 0 && at != i {
			return fmt.Errorf("%s has %s as class %d, and in %s it is class %d: want the classes of the model", dir,
				name,
				at, j.data.where(), i)
		}
	}
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
	j.Line("model", "saved to "+j.args.OutputDir)
	return nil
}
