// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// texts are the settings of the scripts that read texts.
type texts struct {
	TrainFile      string `json:"train_file" usage:"text file"`
	ValidationFile string `json:"validation_file" usage:"text file"`
	BlockSize      int    `json:"block_size" usage:"tokens of a sample"`
}

// joined are the tokens of a file.
func (t *texts) joined(tok *tokenizers.Tokenizer, path string) (data.TokenSlice, error) {
	var list [][]int32
	for one, err := range text.Texts(text.Read([]string{path}, text.Options{})) {
		if err != nil {
			return nil, err
		}
		ids, err := tok.Encode(one)
		if err != nil {
			return nil, err
		}
		list = append(list, ids)
	}
	return data.JoinDocuments(list, 0), nil
}

// clm is transformers' run_clm_no_trainer.py, and accelerate's
// by_feature/gradient_accumulation_for_autoregressive_models.py: the loss of a step is divided by its tokens, not by
// its micro-batches, in any case.
func clm(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/run_clm_no_trainer"), &texts{BlockSize: 32}
	a.LearningRate, a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize = 3e-3, 8, 8
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	tok, err := tokenizers.Train(ctx, text.Texts(text.Read([]string{f.TrainFile}, text.Options{})),
		tokenizers.TrainOptions{VocabSize: 300, SpecialTokens: []string{endOfText}})
	if err != nil {
		return err
	}
	in, err := f.joined(tok, f.TrainFile)
	if err != nil {
		return err
	}
	held, err := f.joined(tok, f.ValidationFile)
	if err != nil {
		return err
	}
	train, err := data.TrainBlocks(in, f.BlockSize)
	if err != nil {
		return err
	}
	eval, err := data.EvalBlocks(held, f.BlockSize)
	if err != nil {
		return err
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		cfg := gpt2.DefaultConfig()
		cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 1, 32, 2, tok.VocabSize(), f.BlockSize
		model, err := gpt2.New(nn.NewInit(tensor.CPU(), a.Seed), cfg)
		if err != nil {
			return err
		}
		e := &epochs{acc: acc, args: a, model: model, train: data.NewSource[[]int32](train, data.CausalLM(0)),
			optim: adamW(), schedule: linear(2, a.LearningRate),
			print: func(line string) { acc.Print(p.Stdout, line) },
			evaluate: func() (map[string]float64, error) {
				return perplexity(ctx, acc, model, data.NewSource[[]int32](eval, data.CausalLM(0)))
			}}
		return e.run(ctx)
	})
}

// perplexity is that of a data set, over all ranks.
func perplexity(ctx context.Context, acc *accelerate.Accelerator, model *gpt2.Model,
	source data.Source) (map[string]float64, error) {
	batches, err := acc.Batches(ctx, source)
	if err != nil {
		return nil, err
	}
	defer batches.Close()
	var mine accelerate.WindowLoss
	for window, err := range batches.All() {
		if err != nil {
			return nil, err
		}
		if err := acc.Evaluate(ctx, window.Batches, func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
			out := model.Forward(c, b)
			mine.Sum, mine.Count = mine.Sum+tensor.Item(c.Ctx, out.Loss), mine.Count+b.Count
			return accelerate.Output{Loss: out.Loss, Count: b.Count}, nil
		}); err != nil {
			return nil, err
		}
	}
	all, err := accelerate.GatherObjects(ctx, acc, mine)
	if err != nil {
		return nil, err
	}
	var sum accelerate.WindowLoss
	for _, one := range all {
		sum.Sum, sum.Count = sum.Sum+one.Sum, sum.Count+one.Count
	}
	return map[string]float64{"eval_loss": sum.Mean(), "perplexity": metrics.Perplexity(sum.Mean())}, nil
}
