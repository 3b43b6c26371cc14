// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// The logits of LinearCrossEntropy exist for so many rows at a time as fit into headBytes, or into a headShare of the
// memory of a device that has its own; a multiple of headRows. A product of the host sums 256 rows at a time in
// registers: in pieces of as many, the weight's gradient has the bits of a sum over all rows at once. A device's
// library sums in its own order, which these numbers are part of: they follow from the size of the device's memory,
// never from what of it is free, and checkpoints keep it (Ctx.SetLossMemory).
const (
	headRows  = 256
	headBytes = 128 << 20
	headShare = 64
	// frozenRows is how many rows it is on the host where weight and bias are frozen.
	frozenRows = 64
	// keptShare is the share of a device's memory that is too much for what another device took.
	keptShare = 16
)

// LossMemory is how many bytes of a device's own memory LinearCrossEntropy and LinearLogProbs take for their outputs at
// a time, if that is more than 128 MiB: 1/64 of it, or what SetLossMemory has set. It is 0 on a host.
func (c *Ctx) LossMemory() int64 {
	if c.eng.lossMemory > 0 {
		return c.eng.lossMemory
	}
	return c.eng.dev.traits.Memory / headShare
}

// SetLossMemory makes c, and all contexts that have an ancestor with it in common, use another LossMemory: that of the
// device on which a run began, since the bits of a sum over rows are those of its pieces. Where n is 1/16 of the
// device's memory or more, it keeps its own; a host has none.
func (c *Ctx) SetLossMemory(n int64) {
	if n > 0 && n < c.eng.dev.traits.Memory/keptShare {
		c.eng.lossMemory = n
	}
}

// LinearCrossEntropy is the cross entropy of a linear layer's outputs, summed over all rows: Σᵢ CrossEntropy(x·weightᵀ
// + bias, targets)ᵢ for x [N,K], weight [V,K], bias [V] (nil: none) and targets [N] (int32 or int64; ignoreIndex does
// not count). The result is a scalar, in float32 (float64 for float64 operands), with the bits of the separate ops. A
// target outside [0,V) is a fault.
//
// The outputs [N,V], the largest tensors in a step of a language model, are never stored as a whole: rows are processed
// in chunks, and each chunk's part of the gradients is computed together with its loss and scaled by the gradient of
// the sum once that is known. So backward has no matrix product left, and between the two passes the gradients of x and
// weight are kept instead of the outputs, as in Hsu et al. 2024, "Liger Kernel".
func LinearCrossEntropy(c *Ctx, x, weight, bias, targets *Tensor, ignoreIndex int) *Tensor {
	return newHead(c, "LinearCrossEntropy", x, weight, bias, targets, ignoreIndex).crossEntropy(c)
}

// LinearCrossEntropyCapped is LinearCrossEntropy of outputs that pass SoftCap, with the bits of the separate ops
// (Gemma 2).
func LinearCrossEntropyCapped(c *Ctx, x, weight, bias, targets *Tensor, ignoreIndex int, softCap float64) *Tensor {
	h := newHead(c, "LinearCrossEntropyCapped", x, weight, bias, targets, ignoreIndex)
	return h.withSoftCap(c, softCap).crossEntropy(c)
}

func (h *head) crossEntropy(c *Ctx) *Tensor {
	h.prepareGrads(c, func(i int) bool { return c.grad && h.ins[i].takesPart() })
	total := c.reduce(backend.OpSum, h.op, h.run(c), []int{0}, h.stat).reshaped(nil)
	h.record(c, total)
	return total
}

// run computes the losses [N] of all rows, and the gradients that are wanted.
func (h *head) run(c *Ctx) *Tensor {
	n := h.x.shape[0]
	losses, lse := c.empty(h.op, h.stat, n), c.empty(h.op, h.stat, n)
	in := c.enter() // for the outputs
	defer in.leave(nil)
	in.grad = false
	weight := h.weight
	defer func() { h.weight = weight }()
	h.pad(in)
	room := max(headBytes, int(c.LossMemory()))
	if h.softCap > 0 {
		room /= 2 // for slopes
	}
	widest := h.outputs
	if h.parted != nil { // ranks exchange figures of the same rows, whatever tokens they have
		widest = h.parted.Parts * h.parted.Vocabulary.Length
	}
	rows := max(1, room/max(1, widest*h.stat.Size()*headRows)) * headRows // half outputs are sums of float32 first
	if h.dw == nil && h.db == nil && h.parted == nil && c.eng.dev.traits.Memory == 0 {
		rows = min(rows, frozenRows) // no sum goes over the rows
	}
	z := in.empty(h.op, h.x.dtype, min(n, rows), h.outputs)
	if h.softCap > 0 {
		h.slopes = in.empty(h.op, h.x.dtype, min(n, rows), h.outputs)
		defer func() { h.slopes = nil }()
	}
	for lo := 0; lo < n; lo += rows {
		m := min(rows, n-lo)
		h.chunk(in, lo, z.narrow(0, 0, m), losses.narrow(0, lo, m), lse.narrow(0, lo, m))
	}
	return losses
}

// pad gives the weight the rows of zeros that outputs counts.
func (h *head) pad(c *Ctx) {
	v := h.weight.shape[0]
	if v == h.outputs {
		return
	}
	w := c.empty(h.op, h.weight.dtype, h.outputs, h.weight.shape[1])
	c.launch(backend.OpCopy, w.narrow(0, 0, v), h.weight)
	c.fill(w.narrow(0, v, h.outputs-v), 0)
	h.weight = w
}

// head is one LinearCrossEntropy: operands, and the gradients of the sum that are wanted, nil where not. Those of
// weight and bias add up over the chunks in stat, that of x has x's dtype.
type head struct {
	op                       string
	x, weight, bias, targets *Tensor // weight and bias in the dtype of x: under Autocast lower copies
	ignore                   attrs
	stat                     DType
	// columns of the logits: V, or more where products of that size would be slow. Those beyond V have rows of zeros in
	// weight, are 0 themselves, and no loss sees them.
	outputs    int
	classes    int // V
	ins        []*Tensor
	dx, dw, db *Tensor
	seeds      *Tensor    // [N] in x's dtype, that multiply the gradients of the losses; nil: 1
	parted     *PartedSum // weight has the rows of some tokens; nil: of all
	softCap    float64    // of outputs; 0: none
	slopes     *Tensor    // of a chunk's capped outputs: the derivatives by what is capped
}

func newHead(c *Ctx, op string, x, weight, bias, targets *Tensor, ignoreIndex int) *head {
	if c.parted != nil && (c.parted.Rowwise || c.parted.Vocabulary == nil) {
		c.wantWhole(op, x, weight)
	}
	if blocks := weight.quantized(); blocks != nil {
		weight = c.dequantized(blocks, weight.Shape())
	}
	c.wantFloat(op, x, c.stand(weight))
	c.wantIndex(op, targets)
	c.autocast(op, &x)
	ins := []*Tensor{x, nil, nil}
	ins[1], weight = c.lowerParam(weight)
	ins[2], bias = c.lowerParam(bias)
	shown := []*Tensor{x, weight, targets}
	c.sameDType(op, x, weight)
	if x.ndim != 2 || weight.ndim != 2 || targets.ndim != 1 || x.shape[1] != weight.shape[1] ||
		x.shape[0] != targets.shape[0] {
		c.fail(op, shown, "want x [N K], weight [V K] and targets [N]")
	}
	if bias != nil {
		bias.check(c, op)
		c.sameDType(op, x, bias)
		if bias.ndim != 1 || bias.shape[0] != weight.shape[0] {
			c.fail(op, []*Tensor{weight, bias}, "want a bias of shape [%d]", weight.shape[0])
		}
	}
	x = Contiguous(c, x)
	ins[0] = x
	outputs, align := weight.shape[0], c.eng.dev.traits.Align
	if align > 0 && x.dtype.IsHalf() && bias == nil && c.parted == nil {
		outputs = (outputs + align - 1) / align * align
	}
	return &head{op: op, x: x, weight: weight, bias: bias, targets: c.materialize(op, targets),
		ignore: ints(ignoreIndex), stat: statDType(x), outputs: outputs,
		classes: weight.shape[0], ins: ins, parted: c.parted}
}

// prepareGrads allocates the gradients of the inputs that are wanted.
func (h *head) prepareGrads(c *Ctx, want func(i int) bool) {
	wanted := func(i int, dt DType, shape ...int) *Tensor {
		if !want(i) {
			return nil
		}
		g := c.empty(h.op, dt, shape...)
		if h.x.shape[0] == 0 {
			c.fill(g, 0)
		}
		return g
	}
	n, k := h.x.shape[0], h.x.shape[1]
	h.dx, h.dw, h.db = wanted(0, h.x.dtype, n, k), wanted(1, h.stat, h.outputs, k), wanted(2, h.stat, h.outputs)
}

// chunk computes the losses of the rows from lo on, and adds their part of the gradients. z is memory for their
// outputs.
func (h *head) chunk(c *Ctx, lo int, z, losses, lse *Tensor) {
	c = c.enter()
	defer c.leave(nil)
	m := z.shape[0]
	x, targets := h.x.narrow(0, lo, m), h.targets.narrow(0, lo, m)
	logits := z.narrow(1, 0, h.classes)
	product := attrs{}
	if h.bias != nil {
		c.elementwise(backend.OpCopy, &attrs{}, z, h.bias)
		product = ints(1)
	}
	c.launchAttrs(backend.OpMatMul, &product, z, x, swapLast(h.weight))
	h.cap(c, z)
	if h.parted != nil {
		var dx *Tensor
		if h.dx != nil {
			dx = h.dx.narrow(0, lo, m)
		}
		h.partedChunk(c, lo, z, x, dx, targets, losses)
		return
	}
	if h.dx == nil && h.dw == nil && h.db == nil {
		c.launchMulti(backend.OpCrossEntropy, &h.ignore, []*Tensor{losses}, logits, targets)
		return
	}
	// z is its own gradient from here on
	c.launchMulti(backend.OpCrossEntropy, &h.ignore, []*Tensor{losses, lse, logits}, logits, targets)
	h.seed(c, lo, z)
	h.uncap(c, z)
	if h.dx != nil {
		c.launch(backend.OpMatMul, h.dx.narrow(0, lo, m), z, h.weight)
	}
	h.addParams(c, lo, z, x)
}

// seed multiplies z, the gradient of the losses of the rows from lo on, by their seeds.
func (h *head) seed(c *Ctx, lo int, z *Tensor) {
	if h.seeds != nil {
		c.elementwise(backend.OpMul, &attrs{}, z, z, Unsqueeze(c, h.seeds.narrow(0, lo, z.shape[0]), 1))
	}
}

// withSoftCap caps the outputs.
func (h *head) withSoftCap(c *Ctx, softCap float64) *head {
	c.wantSoftCap(h.op, h.x, softCap)
	h.softCap = softCap
	return h
}

// cap caps outputs z in the steps of SoftCap.
func (h *head) cap(c *Ctx, z *Tensor) {
	if h.softCap == 0 {
		return
	}
	scale := func(y *Tensor, by, add float64) {
		a := floats(by, add)
		c.elementwise(backend.OpAffine, &a, y, y)
	}
	scale(z, 1/h.softCap, 0)
	c.elementwise(backend.OpTanh, &attrs{}, z, z)
	slopes := h.slopes.narrow(0, 0, z.shape[0])
	c.elementwise(backend.OpMul, &attrs{}, slopes, z, z)
	scale(slopes, -1, 1)
	scale(z, h.softCap, 0)
}

// uncap makes of the gradient z of capped outputs that of the products.
func (h *head) uncap(c *Ctx, z *Tensor) {
	if h.softCap > 0 {
		c.elementwise(backend.OpMul, &attrs{}, z, z, h.slopes.narrow(0, 0, z.shape[0]))
	}
}

// addParams adds what the rows from lo on are of the gradients of weight and bias: z is their outputs' gradient.
func (h *head) addParams(c *Ctx, lo int, z, x *Tensor) {
	if h.dw != nil {
		add := ints(min(lo, 1))
		c.launchAttrs(backend.OpMatMul, &add, h.dw, swapLast(z), x)
	}
	if h.db != nil {
		part := c.reduce(backend.OpSum, h.op, z, []int{0}, h.stat).reshaped(h.db.Shape())
		if lo == 0 {
			c.launch(backend.OpCopy, h.db, part)
		} else {
			c.launch(backend.OpAdd, h.db, h.db, part)
		}
	}
}

// convert is x in another dtype, outside autograd.
func (c *Ctx) convert(op string, x *Tensor, dt DType) *Tensor {
	if x.dtype == dt {
		return x
	}
	y := c.empty(op, dt, x.Shape()...)
	y.partOf(x)
	c.launch(backend.OpCopy, y, x)
	return y
}

// record makes total the result. Its node holds the gradients, which no scope owns, until it is run or dropped.
func (h *head) record(c *Ctx, total *Tensor) {
	grads := []*Tensor{h.dx, h.dw, h.db}
	if h.dw != nil {
		grads[1] = h.dw.narrow(0, 0, h.classes)
	}
	c.record(h.op, []*Tensor{total}, h.ins, grads, func(b *Back) {
		seed := b.Grad(0)
		for i, g := range grads {
			if g == nil {
				continue
			}
			b.separate(i, func(b *Back) {
				if dt := h.ins[i].GradDType(); g.dtype != dt || !b.scaledInto(h.op, i, g, seed) {
					b.Set(i, b.convert(h.op, b.scaled(h.op, g, seed), dt))
				}
			}, g, seed)
		}
	})
	for _, g := range grads {
		if g != nil {
			g.st.orphan()
		}
	}
}

// scaledInto adds the saved gradient g of input i times seed, that of the output, where it belongs in the end, if there
// is memory already: else g itself may become the gradient of a leaf.
func (b *Back) scaledInto(op string, i int, g, seed *Tensor) bool {
	if g.dtype != seed.dtype || b.begins(i) && !b.node.run.retain {
		return false
	}
	sum, filled := b.into(i)
	switch {
	case sum == nil:
		return false
	case filled:
		b.launch(backend.OpAdd, sum, sum, b.scaled(op, g, seed))
	default:
		b.elementwise(backend.OpMul, &attrs{}, sum, g, seed)
	}
	return true
}

// scaled is the saved gradient g times seed: in the same memory, which passes to the gradient's scope, unless something
// else may read that, as a retained graph does.
func (b *Back) scaled(op string, g, seed *Tensor) *Tensor {
	from := b.convert(op, g, seed.dtype)
	y := from
	switch {
	case from != g: // a copy already
	case b.node.run.retain || g.st.refs > 1:
		y = b.emptyLike(op, g)
	default:
		g.st.adopt(b.scope)
	}
	b.elementwise(backend.OpMul, &attrs{}, y, from, seed)
	return y
}
