package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// row is one comparison. peer.py has a row of the same name that does the same.
type row struct {
	name  string
	bytes float64 // that must move at least, 0 where flops count
	flops float64
	// open prepares the operands on a device with so many workers; run is what is timed.
	open func(threads int) (run, end func())
}

// rate says what a time means for the row.
func (r row) rate(seconds float64) string {
	if r.flops > 0 {
		return fmt.Sprintf("%6.1f GFLOP/s", r.flops/seconds/1e9)
	}
	return fmt.Sprintf("%6.1f GB/s", r.bytes/seconds/1e9)
}

const elements = 16 << 20

// rows are all comparisons.
func rows() []row {
	all := slices.Concat(
		pointwise("layer_norm", []int{16384, 1024}, 2, 4, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return tensor.LayerNorm(c, x, parameter(c, 1024), parameter(c, 1024), 1e-5)
		}),
		pointwise("softmax", []int{16384, 1024}, 2, 4, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Softmax(c, x, -1) }),
		pointwise("gelu", []int{elements}, 2, 4, tensor.GELU),
		pointwise("gelu_tanh", []int{elements}, 2, 4, tensor.GELUTanh),
		pointwise("cross_entropy", []int{8192, 2048}, 1, 3, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
			ids := make([]int64, 8192)
			for i := range ids {
				ids[i] = int64(i * 7919 % 2048)
			}
			return tensor.CrossEntropy(c, x, tensor.FromSlice(c, ids, 8192), -100)
		}),
		[]row{{name: "adamw", bytes: 7 * 4 * elements, open: adamW}},
	)
	for _, t := range []int{256, 1024} {
		all = append(all, attention(t, true), attention(t, false))
	}
	all = append(all, productRows()...)
	return append(all, step())
}

// filled is a tensor of small numbers.
func filled(c *tensor.Ctx, shape ...int) *tensor.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i*7919%2001-1000) / 500
	}
	return tensor.FromSlice(c, x, shape...)
}

func parameter(c *tensor.Ctx, n int) *tensor.Tensor {
	return tensor.Full(c, tensor.Float32, 1, n).SetRequiresGrad(true)
}

// pointwise is a function of 16 Mi elements in two rows: forward, and forward and backward. passes and both count how often so many elements must at least be
// read or written.
func pointwise(name string, shape []int, passes, both float64, f func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor) []row {
	forward := func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		c := tensor.NewCtx(dev).NoGrad()
		x := filled(c, shape...)
		return func() { c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { f(c, x); return nil }) }, func() { dev.Close() }
	}
	backward := func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		c := tensor.NewCtx(dev)
		x := filled(c, shape...).SetRequiresGrad(true)
		seed := tensor.Full(c, tensor.Float32, 1, f(c.NoGrad(), x).Shape()...)
		return func() {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				tensor.Backward(c, []*tensor.Tensor{f(c, x)}, []*tensor.Tensor{seed}, nil)
				return nil
			})
			x.ZeroGrad()
		}, func() { dev.Close() }
	}
	return []row{
		{name: name + "_fwd", bytes: 4 * elements * passes, open: forward},
		{name: name + "_fwdbwd", bytes: 4 * elements * both, open: backward},
	}
}

func adamW(threads int) (run, end func()) {
	dev := tensor.NewCPU(threads)
	c := tensor.NewCtx(dev)
	p := filled(c, elements).SetRequiresGrad(true)
	opt := optim.NewAdamW(c, []*optim.Group{{Params: []optim.Param{{Name: "p", Tensor: p}}, LR: 1e-3, WeightDecay: 0.01}}, 0.9, 0.999, 1e-8)
	p.SwapGrad(filled(c, elements), true)
	return func() { opt.Step(c) }, func() { dev.Close() }
}

func attention(t int, causal bool) row {
	const batch, heads, d = 4, 8, 64
	flops := 14 * float64(batch*heads*t*t*d) // two products forward, five backward
	if causal {
		flops /= 2
	}
	name := map[bool]string{true: "causal", false: "full"}[causal]
	return row{name: fmt.Sprintf("attention_%d_%s", t, name), flops: flops, open: func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		c := tensor.NewCtx(dev)
		var qkv [3]*tensor.Tensor
		for i := range qkv {
			qkv[i] = filled(c, batch, heads, t, d).SetRequiresGrad(true)
		}
		seed := filled(c, batch, heads, t, d)
		return func() {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				y, _ := tensor.Attention(c, qkv[0], qkv[1], qkv[2], tensor.AttentionOptions{Causal: causal})
				tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{seed}, nil)
				return nil
			})
			for _, x := range qkv {
				x.ZeroGrad()
			}
		}, func() { dev.Close() }
	}}
}

// step is a training step: 4 layers, width 256, 8 heads, vocabulary 2048, batch 8×128, clipping and AdamW.
func step() row {
	const layers, width, vocab, batch, block = 4, 256, 2048, 8, 128
	params := layers*12*width*width + vocab*width
	flops := float64(batch*block) * (6*float64(params) + 12*layers*width*block)
	return row{name: "step", flops: flops, open: func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		cfg := gpt2.DefaultConfig()
		cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = layers, width, 8, vocab, block
		cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
		m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
		if err != nil {
			panic(err)
		}
		c, tree := tensor.NewCtx(dev), nn.Walk(m)
		var ps []optim.Param
		for _, p := range tree.Parameters() {
			ps = append(ps, optim.Param{Name: p.Name, Tensor: p.Tensor})
		}
		opt := optim.NewAdamW(c, []*optim.Group{{Params: ps, LR: 1e-4, WeightDecay: 0.01}}, 0.9, 0.999, 1e-8)
		ids := make([]int32, batch*block)
		for i := range ids {
			ids[i] = int32(i * 7919 % vocab)
		}
		t := tensor.FromSlice(c, ids, batch, block)
		b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t}, Count: batch * (block - 1), Size: batch}
		return func() {
			opt.ZeroGrad()
			nn.NewCtx(c, tree, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
				seed := tensor.Full(c.Ctx, tensor.Float32, 1/float64(b.Count))
				tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, b).Loss}, []*tensor.Tensor{seed}, nil)
				return nil
			})
			if norm := optim.ClipGradNorm(c, opt.Params(), 1); math.IsNaN(norm) {
				panic("the gradient is not a number")
			}
			opt.Step(c)
		}, func() { dev.Close() }
	}}
}
