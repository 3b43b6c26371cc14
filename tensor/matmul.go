package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// MatMul is the matrix product over the last two dims, [B…,M,K]·[B…,K,N] → [B…,M,N];
// the batch dims broadcast. Operands may be strided: a Transpose costs nothing.
func MatMul(c *Ctx, x, y *Tensor) *Tensor {
	c.wantFloat("MatMul", x, y)
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
		if b.Need(0) { // dX = dZ·Yᵀ
			b.setProduct("MatMul", 0, x, g, swapLast(y))
		}
		if b.Need(1) { // dY = Xᵀ·dZ
			b.setProduct("MatMul", 1, y, swapLast(x), g)
		}
	})
	return z
}

// AddMM is x·w + bias for x [B…,K], w [K,N] and bias [N] (nil: none): a linear layer
// whose weight maps rows. Linear takes the weight as torch.nn.Linear stores it.
func AddMM(c *Ctx, bias, x, w *Tensor) *Tensor { return c.linear("AddMM", bias, x, w, false) }

// Linear is x·wᵀ + bias for x [B…,K], w [N,K] and bias [N] (nil: none), as
// torch.nn.functional.linear.
func Linear(c *Ctx, x, w, bias *Tensor) *Tensor { return c.linear("Linear", bias, x, w, true) }

// linear is AddMM, or Linear if w is stored transposed.
func (c *Ctx) linear(op string, bias, x, w *Tensor, transposed bool) *Tensor {
	m := c.checkLinear(op, bias, x, w, transposed)
	k, n := m.shape[0], m.shape[1]
	rows := c.rows(op, x, k)
	y := c.empty(op, x.dtype, rows.shape[0], n)
	a := attrs{}
	if bias != nil {
		c.elementwise(backend.OpCopy, &attrs{}, y, bias)
		a.ints[0] = 1
	}
	c.launchAttrs(backend.OpMatMul, &a, y, rows, m)
	out := y.reshaped(append(slices.Clone(x.Shape()[:x.ndim-1]), n))
	from := x.Shape()
	c.record(op, []*Tensor{out}, []*Tensor{x, w, bias}, []*Tensor{rows, w}, func(b *Back) {
		g := b.materialize(op, b.Grad(0)).reshaped([]int{rows.shape[0], n})
		if b.Need(0) {
			b.Set(0, b.matmul(op, g, swapLast(m)).reshaped(from))
		}
		if b.Need(1) && transposed {
			b.setProduct(op, 1, w, swapLast(g), rows)
		} else if b.Need(1) {
			b.setProduct(op, 1, w, swapLast(rows), g)
		}
		if bias != nil && b.Need(2) {
			b.Set(2, b.reduce(backend.OpSum, op, g, []int{0}, g.dtype).reshaped([]int{n}))
		}
	})
	return out
}

// checkLinear panics unless the operands fit, and returns the weight as [K,N].
func (c *Ctx) checkLinear(op string, bias, x, w *Tensor, transposed bool) *Tensor {
	ins := []*Tensor{x, w}
	c.wantFloat(op, ins...)
	c.sameDType(op, ins...)
	if x.ndim < 1 || w.ndim != 2 {
		c.fail(op, ins, "want an input of at least one dim and a weight of two dims")
	}
	m := w
	if transposed {
		m = swapLast(w)
	}
	if x.Size(-1) != m.shape[0] {
		c.fail(op, ins, "inner sizes differ: %d and %d", x.Size(-1), m.shape[0])
	}
	if bias != nil {
		bias.check(c, op)
		c.sameDType(op, x, bias)
		if bias.ndim != 1 || bias.shape[0] != m.shape[1] {
			c.fail(op, []*Tensor{x, w, bias}, "want a bias of shape [%d]", m.shape[1])
		}
	}
	return m
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
func (c *Ctx) matmul(op string, x, y *Tensor) *Tensor {
	xb, yb := x.alias(), y.alias()
	xb.ndim, yb.ndim = x.ndim-2, y.ndim-2
	batch := c.broadcast(op, xb, yb)
	m, n := x.Size(-2), y.Size(-1)
	z := c.empty(op, x.dtype, append(slices.Clone(batch), m, n)...)
	c.matmulTo(z, x, y, batch, false)
	return z
}

// matmulTo writes the product, or adds it, to z, of the shape [batch…,M,N].
func (c *Ctx) matmulTo(z, x, y *Tensor, batch []int, add bool) {
	m, k, n := x.Size(-2), x.Size(-1), y.Size(-1)
	kc := &c.eng.call
	kc.Op, kc.Ints, kc.Floats, kc.Key = backend.OpMatMul, [8]int{}, [8]float64{}, 0
	if add {
		kc.Ints[0] = 1
	}
	kc.NOut, kc.NIn = 1, 2
	kc.Out[0] = z.view()
	kc.In[0] = x.broadcastView(append(slices.Clone(batch), m, k))
	kc.In[1] = y.broadcastView(append(slices.Clone(batch), k, n))
	c.submit(kc)
	keepAlive([]*Tensor{x, y, z})
}

// setProduct hands in x·y as the gradient of input i, operand of, summed over the batch
// dims that of was broadcast along. It is added where the gradient ends, if that is
// known, or else made in the memory order of of: a transposed weight gets a
// transposed gradient, so that adding it to the leaf's is a straight copy.
func (b *Back) setProduct(op string, i int, of, x, y *Tensor) {
	batch := of.Shape()[:of.ndim-2]
	if of.leaf != nil && b.sameBatch(batch, x, y) {
		if sum, filled := b.into(i); sum != nil {
			b.matmulTo(sum, x, y, batch, filled)
			return
		}
	}
	if n := of.ndim; of.stride[n-2] == 1 && of.stride[n-1] != 1 {
		b.Set(i, swapLast(b.sumTo(b.matmul(op, swapLast(y), swapLast(x)), swapLast(of).Shape())))
		return
	}
	b.Set(i, b.sumTo(b.matmul(op, x, y), of.Shape()))
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
