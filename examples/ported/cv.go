// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// pictures are the settings of the scripts that read images.
type pictures struct {
	DataDir string `json:"data_dir" usage:"folder with a folder of images for each class, below train and test"`
	Side    int    `json:"side" usage:"pixels of a side, to which images are resized"`
}

// oneCycle is torch's OneCycleLR, of the optimizer's rate as the highest.
func oneCycle(total int64) (func(int64) float64, error) {
	cosine := func(from, to, t float64) float64 { return to + (from-to)/2*(1+math.Cos(math.Pi*t)) }
	top := 0.3*float64(total) - 1
	return func(step int64) float64 {
		if x := float64(step); x <= top {
			return cosine(1.0/25, 1, x/top)
		} else {
			return cosine(1, 1.0/25/1e4, (x-top)/(float64(total)-1-top))
		}
	}, nil
}

// cv is accelerate's cv_example.py and complete_cv_example.py: the last layer of a ResNet learns the classes of the
// images of a folder.
func cv(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/cv_example"), &pictures{Side: 16}
	a.LearningRate, a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize = 3e-2, 16, 16
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	train, test, err := images.Open(f.DataDir)
	if err != nil {
		return err
	}
	train, test = images.Resized(train, f.Side, f.Side), images.Resized(test, f.Side, f.Side)
	normal, err := images.NormalizationOf(train, 0)
	if err != nil {
		return err
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		cfg := resnet.ResNet18(train.Names()...)
		cfg.EmbeddingSize, cfg.HiddenSizes, cfg.Depths = 8, []int{8, 16}, []int{1, 1}
		model, err := resnet.New(nn.NewInit(tensor.CPU(), a.Seed), cfg)
		if err != nil {
			return err
		}
		for _, q := range nn.NamedParameters(model) {
			q.Tensor.SetRequiresGrad(false)
		}
		for _, q := range nn.NamedParameters(model.Classifier) {
			q.Tensor.SetRequiresGrad(true)
		}
		e := &epochs{acc: acc, args: a, model: model, train: data.NewSource[images.Image](train, normal.Collate),
			optim: adamW(), schedule: oneCycle, print: func(line string) { acc.Print(p.Stdout, line) },
			evaluate: func() (map[string]float64, error) {
				classes, labels, err := predictions(ctx, acc, model,
					data.NewSource[images.Image](test, normal.Collate))
				if err != nil {
					return nil, err
				}
				c, err := metrics.Classify(labels, classes)
				if err != nil {
					return nil, err
				}
				return map[string]float64{"accuracy": c.Accuracy()}, nil
			}}
		return e.run(ctx)
	})
}
