// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// steps are whole training steps: forward, backward, clipping and AdamW. The small one is 4 layers of width 256 with 8
// heads and a vocabulary of 2048, on a batch of 8×128; the other is GPT-2 small, 124 M parameters, on 2×512, also under
// autocast in bfloat16, beside PyTorch's autocast and beside our float32.
func steps() []row {
	small, gpt := gpt2.DefaultConfig(), gpt2.DefaultConfig()
	small.NLayer, small.NEmbd, small.NHead, small.VocabSize, small.NPositions = 4, 256, 8, 2048, 128
	a := step("step", small, 8, 128, tensor.Invalid)
	a.against, a.ofCeiling = []side{kept, compiled, installed, gomlx}, true
	b := step("gpt2_124m", gpt, 2, 512, tensor.Invalid)
	b.against, b.ofCeiling = []side{kept, compiled, installed, llmc}, true
	half := step("gpt2_124m_bf16", gpt, 2, 512, tensor.BFloat16)
	half.against, half.own, half.extra = []side{kept}, &b, true
	return []row{a, b, half}
}

// step is a training step of a GPT-2 without dropout, under autocast to lower unless that is Invalid.
func step(name string, cfg gpt2.Config, batch, block int, lower tensor.DType) row {
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	params := cfg.NLayer*12*cfg.NEmbd*cfg.NEmbd + cfg.VocabSize*cfg.NEmbd
	flops := float64(batch*block) * (6*float64(params) + 12*float64(cfg.NLayer*cfg.NEmbd*block))
	return row{name: name, flops: flops, open: func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
		if err != nil {
			panic(err)
		}
		c, tree := tensor.NewCtx(dev), nn.Walk(m)
		opt := optim.DefaultAdamW().New(c, []*optim.Group{{Params: tree.Parameters(), LR: 1e-4, WeightDecay: 0.01}})
		ids := make([]int32, batch*block)
		for i := range ids {
			ids[i] = int32(i * 7919 % cfg.VocabSize)
		}
		t := tensor.FromSlice(c, ids, batch, block)
		b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
			Count: float64(batch * (block - 1)), Size: batch}
		return func() {
			opt.ZeroGrad()
			nn.NewCtx(c.Autocast(lower), tree, true).WithLossOnly().Scope(func(c *nn.Ctx) []*tensor.Tensor {
				seed := tensor.Full(c.Ctx, tensor.Float32, 1/float64(b.Count))
				tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, b).Loss}, []*tensor.Tensor{seed}, nil,
					tensor.DroppingLowered())
				return nil
			})
			norm := optim.GradNorm(c, opt.Params())
			if math.IsNaN(norm) {
				panic("the gradient is not a number")
			}
			opt.ScaleGrads(optim.ClipFactor(norm, 1))
			opt.Step(c)
		}, func() { dev.Close() }
	}}
}
