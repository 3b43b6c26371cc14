// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// MatMul is the matrix product over the last two dims, [B…,M,K]·[B…,K,N] → [B…,M,N];
// the batch dims broadcast. Operands may be strided: a Transpose costs nothing.
func MatMul(c *Ctx, x, y *Tensor) *Tensor {
	if (c.lower != Invalid && x != nil && x.ndim > 2 || c.parted != nil) && y != nil && y.ndim == 2 {
		return AddMM(c, nil, x, y) // lowers its weight, and knows a part of one
	}
	c.wantWhole("MatMul", x, y)
	c.wantFloat("MatMul", x, y)
	if c.lower != Invalid {
		plain, x, y, _ := c.cast("MatMul", x, y, nil)
		return MatMul(plain, x, y)
	}
	c.sameDType("MatMul", x, y)
	if x.ndim < 2 || y.ndim < 2 {
		c.fail("MatMul", []*Tensor{x, y}, "want operands of at least two dims")
	}
	if x.Size(-1) != y.Size(-2) {
		c.fail("MatMul", []*Tensor{x, y}, "inner sizes differ: %d and %d", x.Size(-1), y.Size(-2))
	}
	if y.ndim == 2 && x.ndim > 2 {
		return AddMM(c, nil, x, y)
	}
	z := c.matmul("MatMul", x, y)
	c.record("MatMul", []*Tensor{z}, []*Tensor{x, y}, []*Tensor{x, y}, func(b *Back) {
		g := b.Grad(0)
		b.separate(0, func(b *Back) { b.setProduct("MatMul", 0, x, g, swapLast(y)) }, g, y) // dX = dZ·Yᵀ
		b.separate(1, func(b *Back) { b.setProduct("MatMul", 1, y, swapLast(x), g) }, x, g) // dY = Xᵀ·dZ
	})
	return z
}

// AddMM is x·w + bias for x [B…,K], w [K,N] and bias [N] (nil: none): a linear layer
// whose weight maps rows. Linear takes the weight as torch.nn.Linear stores it.
func AddMM(c *Ctx, bias, x, w *Tensor) *Tensor {
	return c.linear(&linear{op: "AddMM", x: x, w: w, bias: bias})
}

// AddMMActivated is f(AddMM) in one pass over the outputs, with the bits of the two ops.
func AddMMActivated(c *Ctx, bias, x, w *Tensor, f Activation) *Tensor {
	return c.linear(&linear{op: "AddMMActivated", x: x, w: w, bias: bias, f: f})
}

// Linear is x·wᵀ + bias for x [B…,K], w [N,K] and bias [N] (nil: none), as
// torch.nn.functional.linear.
func Linear(c *Ctx, x, w, bias *Tensor) *Tensor {
	return c.linear(&linear{op: "Linear", x: x, w: w, bias: bias, transposed: true})
}

// LinearActivated is f(Linear) in one pass over the outputs, as AddMMActivated.
func LinearActivated(c *Ctx, x, w, bias *Tensor, f Activation) *Tensor {
	return c.linear(&linear{op: "LinearActivated", x: x, w: w, bias: bias, transposed: true, f: f})
}

// linear is one linear layer with its activation.
type linear struct {
	op         string
	x, w, bias *Tensor
	transposed bool // w is [N,K]
	f          Activation

	// Under Autocast gradients go to the parameters w and bias, and products are computed with lower copies of them.
	wLow, biasLow *Tensor

	rows, m *Tensor // x as a matrix, wLow as [K,N]
	parted  *PartedSum
	blocks  *Tensor // of which w was made for this product alone; nil: of none
	source  *Node   // computes x again for the gradient of w, instead of keeping it; nil: rows are kept
	saved   *Tensor // what the activation's gradient reads, as a matrix
}

func (c *Ctx) linear(l *linear) *Tensor {
	if blocks := l.w.quantized(); blocks != nil && l.transposed {
		return c.linearQuantized(l, blocks)
	}
	c.wantFloat(l.op, l.x, c.stand(l.w))
	c.autocast(l.op, &l.x)
	l.w, l.wLow = c.lowerParam(l.w)
	l.bias, l.biasLow = c.lowerParam(l.bias)
	l.check(c)
	k, n := l.m.shape[0], l.m.shape[1]
	l.rows = c.rows(l.op, l.x, k)
	ins := []*Tensor{l.x, l.w, l.bias}
	var y *Tensor
	if l.parted != nil && l.parted.Rowwise {
		y = l.sumOfParts(c)
	} else {
		y = l.product(c, c.records(ins))
	}
	out := y.reshaped(append(slices.Clone(l.x.Shape()[:l.x.ndim-1]), n))
	if l.parted.dividesOutputs() {
		out.part = uint8(out.ndim)
	}
	kept := l.rows
	if l.source = l.x.recomputable(); l.source != nil || !l.w.RequiresGrad() {
		kept = nil // only the gradient of w reads it
	}
	w, low := l.kept(c)
	node := c.record(l.op, []*Tensor{out}, ins, []*Tensor{kept, w, low, l.saved}, l.backward)
	if l.source != nil && node != nil && l.w.RequiresGrad() {
		l.source.readers++
	}
	if l.saved != nil && l.saved != y {
		node.recomputes(y, func(c *Ctx) *Tensor { return c.applied(l.op, activations[l.f].op, &attrs{}, l.saved) })
		if node != nil && activations[l.f].both {
			node.nOut, node.recomputeAndStep = 2, l.applyBoth
		}
	}
	return out
}

// product computes the outputs, and what is saved of them if the op is recorded.
func (l *linear) product(c *Ctx, recorded bool) (y *Tensor) {
	y = c.empty(l.op, l.x.dtype, l.rows.shape[0], l.m.shape[1])
	outs := []*Tensor{y}
	l.saved = y
	if f := activations[l.f]; f.op == backend.OpInvalid {
		l.saved = nil
	} else if !f.grad.useY && recorded {
		l.saved = c.emptyLike(l.op, y)
		outs = append(outs, l.saved)
	}
	a := ints(int(activations[l.f].op))
	c.launchMulti(backend.OpLinear, &a, outs, l.rows, l.m, l.biasLow)
	return y
}

// sumOfParts is product for a rowwise layer whose sum is added in parts.
func (l *linear) sumOfParts(c *Ctx) (y *Tensor) {
	z := l.parted.rowwise(c, l)
	if l.biasLow != nil {
		c.elementwise(backend.OpAdd, &attrs{}, z, z, c.convert(l.op, l.biasLow, z.dtype))
	}
	z = c.convert(l.op, z, l.x.dtype)
	f := activations[l.f]
	if f.op == backend.OpInvalid {
		return z
	}
	y = c.applied(l.op, f.op, &attrs{}, z)
	if l.saved = z; f.grad.useY {
		l.saved = y
	}
	return y
}

// inputGrad is the gradient of x as a matrix.
func (l *linear) inputGrad(b *Back, g *Tensor) *Tensor {
	if l.parted == nil || l.parted.Rowwise {
		return b.matmul(l.op, g, swapLast(l.weight(b, g)))
	}
	return b.convert(l.op, l.parted.colwise(b.Ctx, l, g, func() {}), g.dtype)
}

// applyBoth applies the activation once more, and its gradient to g, in place.
func (l *linear) applyBoth(c *Ctx, g *Tensor) (y, dz *Tensor) {
	dz = g.reshaped(l.saved.Shape())
	y = c.emptyLike(l.op, dz)
	c.launchMulti(activations[l.f].grad.op, &attrs{}, []*Tensor{dz, y}, l.saved, dz)
	return y, dz
}

// grad is the gradient of the product: that of the outputs through the activation, and what has been passed through it
// already.
func (l *linear) grad(b *Back) (g *Tensor) {
	shape := []int{l.rows.shape[0], l.m.shape[1]}
	if out := b.Grad(0); out != nil {
		g = b.materialize(l.op, out).reshaped(shape)
		if l.saved != nil {
			dz := b.emptyLike(l.op, g)
			b.launch(activations[l.f].grad.op, dz, l.saved, g)
			g = dz
		}
	}
	if b.node.nOut == 1 || b.Grad(1) == nil {
		return g
	}
	passed := b.materialize(l.op, b.Grad(1)).reshaped(shape)
	if g == nil {
		return passed
	}
	b.launch(backend.OpAdd, g, g, passed)
	return g
}

// input is x as a matrix, if the gradient of w is wanted.
func (l *linear) input(b *Back) *Tensor {
	switch {
	case !b.Need(1):
		return nil
	case l.source == nil:
		return l.rows
	}
	return b.recompute(l.source).reshaped(l.rows.Shape())
}

func (l *linear) backward(b *Back) {
	g := l.grad(b)
	switch {
	case !b.Need(0):
		l.paramGrads(b, g, l.input(b))
		return
	case l.parted.sumsInputGrads():
		dx := l.parted.colwise(b.Ctx, l, g, func() { l.paramGrads(b, g, l.input(b)) })
		b.Set(0, b.convert(l.op, dx, g.dtype).reshaped(l.x.Shape()))
		return
	}
	dx := l.inputGrad(b, g).reshaped(l.x.Shape())
	if l.source != nil && b.Need(1) {
		if x, ok := b.recomputeAndStep(l.source, 0, dx); ok {
			l.paramGrads(b, g, x.reshaped(l.rows.Shape()))
			return
		}
	}
	b.Set(0, dx)
	l.paramGrads(b, g, l.input(b))
}

// paramGrads hands in the gradients of w and the bias, for that of the product and x as a matrix.
func (l *linear) paramGrads(b *Back, g, x *Tensor) {
	b.separate(1, func(b *Back) {
		if l.transposed {
			b.setProduct(l.op, 1, l.w, swapLast(g), x)
		} else {
			b.setProduct(l.op, 1, l.w, swapLast(x), g)
		}
	}, x, g)
	b.separate(2, func(b *Back) {
		b.Set(2, b.reduce(backend.OpSum, l.op, g, []int{0}, l.bias.GradDType()).reshaped(l.bias.Shape()))
	}, g)
}

// check panics unless the operands fit.
func (l *linear) check(c *Ctx) {
	ins := []*Tensor{l.x, l.wLow}
	c.sameDType(l.op, ins...)
	if l.x.ndim < 1 || l.w.ndim != 2 {
		c.fail(l.op, ins, "want an input of at least one dim and a weight of two dims")
	}
	l.m = l.wLow
	if l.transposed {
		l.m = swapLast(l.wLow)
	}
	if l.x.Size(-1) != l.m.shape[0] {
		c.fail(l.op, ins, "inner sizes differ: %d and %d", l.x.Size(-1), l.m.shape[0])
	}
	if l.bias != nil {
		l.biasLow.check(c, l.op)
		c.sameDType(l.op, l.x, l.biasLow)
		if l.bias.ndim != 1 || l.bias.shape[0] != l.m.shape[1] {
			c.fail(l.op, []*Tensor{l.x, l.w, l.bias}, "want a bias of shape [%d]", l.m.shape[1])
		}
	}
	if l.parted = c.parted; l.parted != nil {
		l.parted.check(c, l)
	}
	if int(l.f) >= len(activations) {
		c.fail(l.op, ins, "unknown activation %d", l.f)
	}
}

// rows shows x as a matrix whose rows are x's last dim, copying only if it must.
func (c *Ctx) rows(op string, x *Tensor, width int) *Tensor {
	n := 1
	for _, s := range x.Shape()[:x.ndim-1] {
		n *= s
	}
	return c.materialize(op, x).reshaped([]int{n, width})
}

// matmul runs the product outside autograd.
func (c *Ctx) matmul(op string, x, y *Tensor) *Tensor { return c.matmulAs(op, x.dtype, x, y) }

// matmulAs is matmul with a result of dtype dt, which may be float32 for half operands.
func (c *Ctx) matmulAs(op string, dt DType, x, y *Tensor) *Tensor {
	xb, yb := x.alias(), y.alias()
	xb.ndim, yb.ndim = x.ndim-2, y.ndim-2
	batch := c.broadcast(op, xb, yb)
	m, n := x.Size(-2), y.Size(-1)
	z := c.empty(op, dt, append(slices.Clone(batch), m, n)...)
	c.matmulTo(z, x, y, batch)
	return z
}

// matmulTo writes the product to z, of the shape [batch…,M,N].
func (c *Ctx) matmulTo(z, x, y *Tensor, batch []int) {
	m, k, n := x.Size(-2), x.Size(-1), y.Size(-1)
	kc := &c.eng.call
	kc.Op, kc.Ints, kc.Floats, kc.Key, kc.If = backend.OpMatMul, [8]int{}, [8]float64{}, 0, backend.Flag{}
	kc.NOut, kc.NIn = 1, 2
	kc.Out[0] = z.view()
	kc.In[0] = x.broadcastView(append(slices.Clone(batch), m, k))
	kc.In[1] = y.broadcastView(append(slices.Clone(batch), k, n))
	c.submit(kc)
	keepAlive([]*Tensor{x, y, z})
}

// setProduct hands in x·y as the gradient of input i, operand of, summed over the batch
// dims that of was broadcast along. It is written where the gradient ends, or added
// there, if that is known; else it is made in the memory order of of: a transposed weight
// gets a transposed gradient, so that adding it to the leaf's is a straight copy.
func (b *Back) setProduct(op string, i int, of, x, y *Tensor) {
	batch := of.Shape()[:of.ndim-2]
	if of.IsLeaf() && b.sameBatch(batch, x, y) {
		switch sum, filled := b.into(i); {
		case sum == nil:
		case filled: // a product that is summed onto another has other bits than one that is formed apart
			b.launch(backend.OpAdd, sum, sum, b.matmulAs(op, sum.dtype, x, y))
			return
		default:
			b.matmulTo(sum, x, y, batch)
			return
		}
	}
	dt := of.GradDType()
	if n := of.ndim; of.stride[n-2] == 1 && of.stride[n-1] != 1 {
		b.Set(i, swapLast(b.sumTo(b.matmulAs(op, dt, swapLast(y), swapLast(x)), swapLast(of).Shape())))
		return
	}
	b.Set(i, b.sumTo(b.matmulAs(op, dt, x, y), of.Shape()))
}

// sameBatch reports whether the batch dims of a product are batch.
func (b *Back) sameBatch(batch []int, x, y *Tensor) bool {
	return slices.Equal(batch, x.Shape()[:x.ndim-2]) && slices.Equal(batch, y.Shape()[:y.ndim-2])
}

// swapLast is x with its last two dims exchanged, outside autograd.
func swapLast(x *Tensor) *Tensor {
	y, n := x.alias(), x.ndim
	y.shape[n-2], y.shape[n-1] = x.shape[n-1], x.shape[n-2]
	y.stride[n-2], y.stride[n-1] = x.stride[n-1], x.stride[n-2]
	return y
}
