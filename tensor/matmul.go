package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// MatMul is the matrix product over the last two dims, [B…,M,K]·[B…,K,N] → [B…,M,N];
// the batch dims broadcast. Operands may be strided: a Transpose costs nothing.
func MatMul(c *Ctx, x, y *Tensor) *Tensor {
	c.checkMatMul("MatMul", x, y)
	if y.ndim == 2 && x.ndim > 2 {
		return AddMM(c, nil, x, y)
	}
	z := c.matmul("MatMul", x, y)
	c.record("MatMul", []*Tensor{z}, []*Tensor{x, y}, []*Tensor{x, y}, func(b *Back) {
		g := b.Grad(0)
		if b.Need(0) { // dX = dZ·Yᵀ
			b.Set(0, b.matmulGrad(x, g, swapLast(y)))
		}
		if b.Need(1) { // dY = Xᵀ·dZ
			b.Set(1, b.matmulGrad(y, swapLast(x), g))
		}
	})
	return z
}

// AddMM is x·w + bias for x [B…,K], w [K,N] and bias [N] (nil: none): a linear layer.
// For weights stored as [N,K], as torch.nn.Linear does, pass a Transpose.
func AddMM(c *Ctx, bias, x, w *Tensor) *Tensor {
	c.checkMatMul("AddMM", x, w)
	if w.ndim != 2 {
		c.fail("AddMM", []*Tensor{x, w}, "want a weight of two dims")
	}
	n := w.shape[1]
	if bias != nil {
		bias.check(c, "AddMM")
		c.sameDType("AddMM", x, bias)
		if bias.ndim != 1 || bias.shape[0] != n {
			c.fail("AddMM", []*Tensor{x, w, bias}, "want a bias of shape [%d]", n)
		}
	}
	k := w.shape[0]
	rows := c.rows("AddMM", x, k)
	m := rows.shape[0]
	y := c.empty("AddMM", x.dtype, m, n)
	a := attrs{}
	if bias != nil {
		c.elementwise(backend.OpCopy, &attrs{}, y, bias)
		a.ints[0] = 1
	}
	c.launchAttrs(backend.OpMatMul, &a, y, rows, w)
	out := y.reshaped(append(slices.Clone(x.Shape()[:x.ndim-1]), n))
	from := x.Shape()
	c.record("AddMM", []*Tensor{out}, []*Tensor{x, w, bias}, []*Tensor{rows, w}, func(b *Back) {
		g := b.materialize("AddMM", b.Grad(0)).reshaped([]int{m, n})
		if b.Need(0) {
			b.Set(0, b.matmul("AddMM", g, swapLast(w)).reshaped(from))
		}
		if b.Need(1) {
			b.Set(1, b.matmulGrad(w, swapLast(rows), g))
		}
		if bias != nil && b.Need(2) {
			b.Set(2, b.reduce(backend.OpSum, "AddMM", g, []int{0}, g.dtype).reshaped([]int{n}))
		}
	})
	return out
}

// rows shows x as a matrix whose rows are x's last dim, copying only if it must.
func (c *Ctx) rows(op string, x *Tensor, width int) *Tensor {
	n := 1
	for _, s := range x.Shape()[:x.ndim-1] {
		n *= s
	}
	return c.materialize(op, x).reshaped([]int{n, width})
}

func (c *Ctx) checkMatMul(op string, x, y *Tensor) {
	x.check(c, op)
	y.check(c, op)
	ins := []*Tensor{x, y}
	c.wantFloat(op, ins...)
	c.sameDType(op, ins...)
	if x.ndim < 2 && op == "MatMul" || x.ndim < 1 || y.ndim < 2 {
		c.fail(op, ins, "want operands of at least two dims")
	}
	if x.Size(-1) != y.Size(-2) {
		c.fail(op, ins, "inner sizes differ: %d and %d", x.Size(-1), y.Size(-2))
	}
}

// matmul runs the product outside autograd.
func (c *Ctx) matmul(op string, x, y *Tensor) *Tensor {
	xb, yb := x.alias(), y.alias()
	xb.ndim, yb.ndim = x.ndim-2, y.ndim-2
	batch := c.broadcast(op, xb, yb)
	m, k, n := x.Size(-2), x.Size(-1), y.Size(-1)
	z := c.empty(op, x.dtype, append(slices.Clone(batch), m, n)...)
	kc := &c.eng.call
	kc.Op, kc.Ints, kc.Floats, kc.Key = backend.OpMatMul, [8]int{}, [8]float64{}, 0
	kc.NOut, kc.NIn = 1, 2
	kc.Out[0] = z.view()
	kc.In[0] = x.broadcastView(append(slices.Clone(batch), m, k))
	kc.In[1] = y.broadcastView(append(batch, k, n))
	c.submit(kc)
	keepAlive([]*Tensor{x, y, z})
	return z
}

// matmulGrad is x·y, the gradient of operand of, summed over the batch dims that of
// was broadcast along, in the memory order of of: a transposed weight gets a
// transposed gradient, so that adding it to the leaf's is a straight copy.
func (c *Ctx) matmulGrad(of, x, y *Tensor) *Tensor {
	var g *Tensor
	if n := of.ndim; of.stride[n-2] == 1 && of.stride[n-1] != 1 {
		g = swapLast(c.sumTo(c.matmul("MatMul", swapLast(y), swapLast(x)), swapLast(of).Shape()))
	} else {
		g = c.sumTo(c.matmul("MatMul", x, y), of.Shape())
	}
	return g
}

// swapLast is x with its last two dims exchanged, outside autograd.
func swapLast(x *Tensor) *Tensor {
	y, n := x.alias(), x.ndim
	y.shape[n-2], y.shape[n-1] = x.shape[n-1], x.shape[n-2]
	y.stride[n-2], y.stride[n-1] = x.stride[n-1], x.stride[n-2]
	return y
}
