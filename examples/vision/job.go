package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	args     *args.TrainingArguments
	model    *ModelArguments
	data     *DataArguments
	out, err io.Writer

	train, test *images.Dataset
	norm        images.Normalization
	net         models.Configured
}

// run trains, or only evaluates if that is all that was asked for.
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
	opts := []trainer.Option{
		trainer.WithTrainData(j.source(j.train)), trainer.WithEvalData(j.source(j.test)), trainer.WithMetrics(&accuracy{}), trainer.WithParts(j.preprocessor()),
	}
	display, _ := j.err.(*os.File) // nil: a test's buffer
	opts = append(opts, trainer.WithDisplay(display))
	t := trainer.New(j.net, j.args, opts...)
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
	fmt.Fprintf(j.out, "eval: accuracy %.4f, loss %.4f over %.0f images\n", m["eval_accuracy"], m["eval_loss"], float64(j.source(j.test).Len()))
	return t.SaveMetrics("eval", m)
}

// read reads the images.
func (j *job) read() error {
	var err error
	if j.train, err = images.OpenIDX(j.data.DataDir, "train"); err == nil {
		j.test, err = images.OpenIDX(j.data.DataDir, "t10k")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w\nwant a data set in IDX files: apt install dataset-fashion-mnist puts one into /usr/share/datasets/fashion-mnist; "+
			"or put MNIST's four files into a folder and give it by --data_dir", err)
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
	if dir := j.model.ModelNameOrPath; dir != "" {
		return j.load(dir)
	}
	j.norm = j.train.Normalization()
	cfg := resnet.DefaultConfig()
	cfg.NumChannels, cfg.EmbeddingSize, cfg.LayerType = 1, j.model.Width, resnet.Basic
	cfg.HiddenSizes, cfg.Depths = nil, slices.Repeat([]int{j.model.Depth}, j.model.Stages)
	for s := range j.model.Stages {
		cfg.HiddenSizes = append(cfg.HiddenSizes, j.model.Width<<s)
	}
	names := make([]string, max(j.train.Classes(), j.test.Classes()))
	for i := range names {
		names[i] = fmt.Sprintf("LABEL_%d", i)
	}
	cfg.ID2Label = resnet.Labels(names...)
	net, err := resnet.New(nn.NewInit(tensor.CPU(), j.args.Seed), cfg)
	if err != nil {
		return err
	}
	j.net = net
	fmt.Fprintf(j.out, "model: resnet, channels %v, %d layers each, %d parameters, %d classes\n", cfg.HiddenSizes, j.model.Depth, nn.NumParameters(net), len(names))
	return nil
}

// preprocessorFile says how pixels become inputs, with transformers' keys.
const preprocessorFile = "preprocessor_config.json"

// preprocessor is its content.
type preprocessor struct {
	DoRescale     bool       `json:"do_rescale"`
	RescaleFactor float64    `json:"rescale_factor"`
	DoNormalize   bool       `json:"do_normalize"`
	ImageMean     [1]float64 `json:"image_mean"`
	ImageStd      [1]float64 `json:"image_std"`
}

func (j *job) preprocessor() checkpoint.Part {
	text, _ := json.MarshalIndent(preprocessor{true, 1.0 / 255, true, [1]float64{j.norm.Mean}, [1]float64{j.norm.Std}}, "", "  ") // numbers always marshal
	return checkpoint.BytesPart(preprocessorFile, append(text, '\n'))
}

// load takes a saved model, and how its inputs were made.
func (j *job) load(dir string) error {
	var err error
	if j.net, err = models.LoadPretrained(tensor.CPU(), dir); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, preprocessorFile))
	if err != nil {
		return err
	}
	var p preprocessor
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, preprocessorFile), err)
	}
	if p.ImageStd[0] <= 0 {
		return fmt.Errorf("%s: image_std = %g: want a positive number", filepath.Join(dir, preprocessorFile), p.ImageStd[0])
	}
	j.norm = images.Normalization{Mean: p.ImageMean[0], Std: p.ImageStd[0]}
	fmt.Fprintf(j.out, "model: %s from %s, %d parameters\n", j.net.ModelType(), dir, nn.NumParameters(j.net))
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
	fmt.Fprintf(j.out, "trained: %d steps, %.1f s, loss %.4f, %.0f images/s; model saved to %s\n", res.GlobalStep, res.Metrics["train_runtime"],
		res.TrainingLoss, res.Metrics["train_samples_per_second"], j.args.OutputDir)
	return nil
}
