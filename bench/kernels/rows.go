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
		pointwise("layer_norm", []int{16384, 1024}, 2, 5, 2, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			return tensor.LayerNorm(c, x[0], x[1], x[2], 1e-5)
		}),
		pointwise("softmax", []int{16384, 1024}, 2, 5, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor { return tensor.Softmax(c, x[0], -1) }),
		pointwise("gelu", []int{elements}, 2, 5, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor { return tensor.GELU(c, x[0]) }),
		pointwise("gelu_tanh", []int{elements}, 2, 5, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor { return tensor.GELUTanh(c, x[0]) }),
		pointwise("cross_entropy", []int{8192, 2048}, 1, 3, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			ids := make([]int64, 8192)
			for i := range ids {
				ids[i] = int64(i * 7919 % 2048)
			}
			return tensor.CrossEntropy(c, x[0], tensor.FromSlice(c, ids, 8192), -100)
		}),
		[]row{{name: "adamw", bytes: 7 * 4 * elements, open: adamW}},
	)
	for _, t := range []int{256, 1024, 4096} {
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

// pointwise is a function of 16 Mi elements in four rows: forward, and forward and backward, both against the peer as people call it, where each result is
// new memory, and against its forms that write to memory given (out). passes and both count how often so many elements must at least be read or written. f gets the operand and so many parameters of its width; gradients are handed back, as PyTorch's leaves take over the first.
func pointwise(name string, shape []int, passes, both float64, params int, f func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor) []row {
	operands := func(c *tensor.Ctx) []*tensor.Tensor {
		x := []*tensor.Tensor{filled(c, shape...).SetRequiresGrad(true)}
		for range params {
			x = append(x, tensor.Full(c, tensor.Float32, 1, shape[len(shape)-1]).SetRequiresGrad(true))
		}
		return x
	}
	forward := func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		c := tensor.NewCtx(dev).NoGrad()
		x := operands(c)
		return func() { c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { f(c, x); return nil }) }, func() { dev.Close() }
	}
	backward := func(threads int) (run, end func()) {
		dev := tensor.NewCPU(threads)
		c := tensor.NewCtx(dev)
		x := operands(c)
		seed := tensor.Full(c, tensor.Float32, 1, f(c.NoGrad(), x).Shape()...)
		return func() {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				tensor.Backward(c, []*tensor.Tensor{f(c, x)}, []*tensor.Tensor{seed}, x)
				return nil
			})
		}, func() { dev.Close() }
	}
	var list []row
	for _, against := range []string{"", "_out"} {
		list = append(list,
			row{name: name + "_fwd" + against, bytes: 4 * elements * passes, open: forward},
			row{name: name + "_fwdbwd" + against, bytes: 4 * elements * both, open: backward})
	}
	return list
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
				tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{seed}, qkv[:])
				return nil
			})
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
