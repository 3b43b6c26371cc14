// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// row is one comparison. peer.py has a row of the same name that does the same.
type row struct {
	name  string
	bytes float64 // that must move at least, 0 where flops count
	flops float64
	// double tells that the operations are of float64, of which there are half as many in a vector.
	double bool
	// reads tells that bytes are read, hardly any are written, and reading's speed is the ceiling.
	reads bool
	// open prepares the operands on a device with so many workers; run is what is timed.
	open func(threads int) (run, end func())
	// against are the other sides, each with its own ratio; nil is PyTorch as people call it.
	against []side
	// own is another row of ours to take turns with, as if it were a side, under its name behind "_against"; nil: none.
	own *row
	// ofCeiling makes a ratio of the share of the ceiling too: the FMA peak if flops count, else reading's or copying's
	// speed.
	ofCeiling bool
	extra     bool // left out of a quick run: takes long, or nothing is wanted of it
}

// ceiling is the suffix of the share's row.
func (r row) ceiling() string {
	switch {
	case r.flops > 0:
		return "_peak"
	case r.reads:
		return "_read"
	}
	return "_copy"
}

// share is what part a time means of a ceiling in floats or bytes a second; 0 without one.
func (r row) share(seconds, ceiling float64) float64 {
	work := r.bytes
	if r.flops > 0 {
		work = r.flops
	}
	if r.double {
		ceiling /= 2
	}
	if ceiling == 0 {
		return 0
	}
	return work / seconds / ceiling
}

// beside runs a turn of ours and measures the ceiling beside it: the loop of fused multiply-adds before and after,
// since the clock drifts; reading, likewise; or the highest speed of copying yet. It is 0 for a row that needs none.
func (r row) beside(threads int, turn time.Duration, ours func() float64) (seconds, ceiling float64) {
	switch {
	case !r.ofCeiling:
		return ours(), 0
	case r.reads:
		before := readSpeed(threads)
		seconds = ours()
		return seconds, max(before, readSpeed(threads))
	case r.flops == 0:
		seconds = ours()
		return seconds, highest("copy", threads, copySpeed)
	}
	turn = max(turn/2, shortestTurn)
	before := fmaSpeed(threads, turn)
	seconds = ours()
	return seconds, (before + fmaSpeed(threads, turn)) / 2
}

// rate says what a time means for the row.
func (r row) rate(seconds float64) string {
	if r.double {
		return fmt.Sprintf("%.1f float64 GFLOP/s", r.flops/seconds/1e9)
	}
	if r.flops > 0 {
		return fmt.Sprintf("%.1f GFLOP/s", r.flops/seconds/1e9)
	}
	return fmt.Sprintf("%.1f GB/s", r.bytes/seconds/1e9)
}

const elements = 16 << 20

// rows are all comparisons.
func rows() []row {
	all := slices.Concat(
		pointwise("layer_norm", []int{16384, 1024}, 2, 5, 2, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			return tensor.LayerNorm(c, x[0], x[1], x[2], 1e-5)
		}),
		extras(pointwise("rms_norm", []int{16384, 1024}, 2, 5, 1,
			func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor { return tensor.RMSNorm(c, x[0], x[1], 1e-5) })...),
		pointwise("softmax", []int{16384, 1024}, 2, 5, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			return tensor.Softmax(c, x[0], -1)
		}),
		pointwise("gelu", []int{elements}, 2, 5, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			return tensor.GELU(c, x[0])
		}),
		extras(pointwise("gelu_tanh", []int{elements}, 2, 5, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			return tensor.GELUTanh(c, x[0])
		})...),
		pointwise("cross_entropy", []int{8192, 2048}, 1, 3, 0, func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor {
			ids := make([]int64, 8192)
			for i := range ids {
				ids[i] = int64(i * 7919 % 2048)
			}
			return tensor.CrossEntropy(c, x[0], tensor.FromSlice(c, ids, 8192), -100)
		}),
		[]row{{name: "adamw", bytes: 7 * 4 * elements, open: adamW, against: []side{eager, reused}, ofCeiling: true}},
	)
	for _, t := range []int{256, 1024, 4096} {
		all = append(all, attention(t, "causal"), attention(t, "full"))
	}
	all = append(all, extras(attention(4096, "window"), attention(1024, "padded"), attention(1024, "grouped"),
		attention(1024, "dropout"))...)
	all = append(all, productRows()...)
	return append(append(all, imageRows()...), steps()...)
}

// extras leaves rows out of a quick run.
func extras(rows ...row) []row {
	for i := range rows {
		rows[i].extra = true
	}
	return rows
}

// filled is a tensor of small numbers.
func filled(c *tensor.Ctx, shape ...int) *tensor.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	const period = 2001
	x := make([]float32, n)
	for i := range min(n, period) {
		x[i] = float32(i*7919%period-1000) / 500
	}
	for i := period; i < n; i *= 2 {
		copy(x[i:], x[:i])
	}
	return tensor.FromSlice(c, x, shape...)
}

// pointwise is a function of 16 Mi elements in two rows: forward, and forward and backward. passes and both count how
// often so many elements must at least be read or written. f gets the operand and so many parameters of its width;
// gradients are handed back, as PyTorch's leaves take over the first.
func pointwise(name string, shape []int, passes, both float64, params int,
	f func(c *tensor.Ctx, x []*tensor.Tensor) *tensor.Tensor) []row {
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
	sides := []side{eager, reused}
	return []row{
		{name: name + "_fwd", bytes: 4 * elements * passes, open: forward, against: sides, ofCeiling: true},
		{name: name + "_fwdbwd", bytes: 4 * elements * both, open: backward, against: sides, ofCeiling: true},
	}
}

func adamW(threads int) (run, end func()) {
	dev := tensor.NewCPU(threads)
	c := tensor.NewCtx(dev)
	p := filled(c, elements).SetRequiresGrad(true)
	opt := optim.DefaultAdamW().New(c,
		[]*optim.Group{{Params: []tensor.Named{{Name: "p", Tensor: p}}, LR: 1e-3, WeightDecay: 0.01}})
	p.SwapGrad(filled(c, elements), true)
	return func() { opt.Step(c) }, func() { dev.Close() }
}

// longAttention is the number of operations from which on attention is left out of a quick run.
const longAttention = 3e11

// attention is forward and backward over t positions of 4 samples, 8 heads of 64: of all keys, or causal, and then in a
// window of 256, of 2 key heads, or with dropout; or of samples that are padded by none, an eighth, two and three
// eighths.
func attention(t int, kind string) row {
	const batch, heads, d, window = 4, 8, 64, 256
	opt := tensor.AttentionOptions{Causal: kind != "full" && kind != "padded"}
	kvHeads, hidden := heads, make([]int, batch)
	switch kind {
	case "window":
		opt.Window = window
	case "grouped":
		kvHeads = 2
	case "dropout":
		opt.Dropout = 0.1
	case "padded":
		for b := range hidden {
			hidden[b] = b * t / 8
		}
	}
	scores := 0 // that are seen, of a head
	for b := range batch {
		for i := range t {
			first, last := 0, t-hidden[b]
			if opt.Causal {
				last = i + 1
			}
			if opt.Window > 0 {
				first = max(0, last-window)
			}
			scores += last - first
		}
	}
	flops := 14 * float64(heads*d) * float64(scores) // two products forward, five backward
	return row{name: fmt.Sprintf("attention_%d_%s", t, kind), flops: flops, against: []side{kept},
		extra: flops > longAttention, open: func(threads int) (run, end func()) {
			dev := tensor.NewCPU(threads)
			c := tensor.NewCtx(dev)
			opt := opt
			if kind == "padded" {
				seen := make([]bool, batch*t)
				for i := range seen {
					seen[i] = i%t < t-hidden[i/t]
				}
				opt.Mask = tensor.FromSlice(c, seen, batch, 1, 1, t)
			}
			var qkv [3]*tensor.Tensor
			for i, h := range []int{heads, kvHeads, kvHeads} {
				qkv[i] = filled(c, batch, h, t, d).SetRequiresGrad(true)
			}
			seed := filled(c, batch, heads, t, d)
			return func() {
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					y, _ := tensor.Attention(c, qkv[0], qkv[1], qkv[2], opt)
					tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{seed}, qkv[:])
					return nil
				})
			}, func() { dev.Close() }
		}}
}
