// SPDX-License-Identifier: Apache-2.0

// Vision trains a small ResNet on labelled images and saves it as transformers saves a
// ResNetForImageClassification: with the names of the classes in config.json and the normalisation of the pixels in
// preprocessor_config.json, which an evaluation or a service needs. It prints precision and recall of each class.
//
// With no flags it learns Fashion-MNIST, as Debian's package dataset-fashion-mnist installs it, in half a minute on two
// cores. It then uses its own settings; with your own folder they are HuggingFace's, which suit fine-tuning. A new
// model needs a learning rate of about 3e-3.
//
//	go run ./examples/vision
//	go run ./examples/vision --data_dir cifar-10-batches-bin --crop_padding 4 --horizontal_flip --learning_rate 3e-3 \
//	    --num_train_epochs 10 --output_dir out/cifar
//	go run ./examples/vision --train_dir pets/train --validation_dir pets/val --image_size 64 --learning_rate 3e-3
//	go run ./examples/vision --data_dir FOLDER --learning_rate 3e-3 --num_train_epochs 3 --output_dir out/mnist
//	go run ./examples/vision --resume_from_checkpoint last
//	go run ./examples/vision --do_eval --model_name_or_path out/vision --output_dir out/eval
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/mpi"  // empty without -tags mpi
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/scripts"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(train)) }

// train is the program.
func train(ctx context.Context, p *program.Process) error {
	s := newSettings(false)
	if _, err := p.Parse(s.loader(p)); err != nil {
		return err
	}
	if s.data.DataDir == "" {
		s.data.DataDir = fashionDir
	}
	j := &job{settings: s, Process: p}
	return j.run(ctx)
}

// loader reads the settings.
func (s *settings) loader(p *program.Process) *args.Loader {
	l := args.Bind(p.Flags(), s.args, s.model, s.data, s.hub)
	l.Defaults(s.choose)
	l.Know(downloads.Aliases()...)
	l.Know(scripts.RunImageClassification()...)
	return l
}

// choose makes the defaults those of the demonstration, if no images and no model of the user's are given.
func (s *settings) choose(given func(key string) bool) string {
	if given("data_dir") || given("train_dir") || given("model_name_or_path") {
		return ""
	}
	demo := newSettings(true)
	*s.args, *s.model, *s.data = *demo.args, *demo.model, *demo.data
	return "demonstration"
}
