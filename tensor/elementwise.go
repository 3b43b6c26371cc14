// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// unaryGrad says how a unary op's gradient is computed.
type unaryGrad struct {
	op   backend.Op // two-input kernel (saved, dy) → dx
	useY bool       // saved is the output rather than the input
}

// unary runs an elementwise op on floats whose gradient is one kernel.
func unary(c *Ctx, name string, op backend.Op, x *Tensor, g unaryGrad) *Tensor {
	return unaryAttrs(c, name, op, &noAttrs, x, g)
}

// noAttrs is never written to; it spares each call of unary an allocation.
var noAttrs attrs

// unaryAttrs is unary with attributes, which the gradient's kernel gets too.
func unaryAttrs(c *Ctx, name string, op backend.Op, a *attrs, x *Tensor, g unaryGrad) *Tensor {
	x.check(c, name)
	c.wantFloat(name, x)
	if c.lower != Invalid {
		plain, x, _, _ := c.cast(name, x, nil, nil)
		return unaryAttrs(plain, name, op, a, x, g)
	}
	y := c.applied(name, op, a, x)
	y.partOf(x)
	saved := x
	if g.useY {
		saved = y
	}
	n := c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{saved}, func(b *Back) {
		dx := b.emptyLike(name, b.Grad(0))
		b.elementwise(g.op, a, dx, saved, b.Grad(0))
		b.Set(0, dx)
	})
	if !g.useY {
		n.recomputes(y, func(c *Ctx) *Tensor { return c.applied(name, op, a, x) })
	}
	return y
}

// applied is an elementwise op of one operand, outside autograd.
func (c *Ctx) applied(name string, op backend.Op, a *attrs, x *Tensor) *Tensor {
	y := c.emptyLike(name, x)
	c.elementwise(op, a, y, x)
	return y
}

// reads says which operand of a unary op its gradient reads.
type reads int

const (
	readsNone reads = iota
	readsX
	readsY
)

// unaryWith runs an elementwise op whose gradient is written with other ops: back
// returns dx from dy and what r names: the input, the output or nil.
func unaryWith(c *Ctx, name string, op backend.Op, a *attrs, x *Tensor, r reads,
	back func(c *Ctx, saved, dy *Tensor) *Tensor) *Tensor {
	x.check(c, name)
	if c.lower != Invalid {
		plain, x, _, _ := c.cast(name, x, nil, nil)
		return unaryWith(plain, name, op, a, x, r, back)
	}
	y := c.emptyLike(name, x)
	y.partOf(x)
	c.elementwise(op, a, y, x)
	if x.dtype.IsFloat() {
		saved := [...]*Tensor{readsX: x, readsY: y}[r]
		c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{saved}, func(b *Back) {
			b.Set(0, back(b.Ctx, saved, b.Grad(0)))
		})
	}
	return y
}

// Tanh is the hyperbolic tangent.
func Tanh(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "Tanh", backend.OpTanh, x, unaryGrad{backend.OpTanhGrad, true})
}

// SoftCap is softCap·tanh(x/softCap), which lies between ±softCap (Gemma 2's logits). It panics unless softCap is
// positive.
func SoftCap(c *Ctx, x *Tensor, softCap float64) *Tensor {
	c.wantSoftCap("SoftCap", x, softCap)
	return Affine(c, Tanh(c, Affine(c, x, 1/softCap, 0)), softCap, 0)
}

func (c *Ctx) wantSoftCap(op string, x *Tensor, softCap float64) {
	c.wantFloat(op, x)
	if !(softCap > 0) || math.IsInf(softCap, 0) {
		c.fail(op, []*Tensor{x}, "soft cap %g: want a positive number", softCap)
	}
}

// Sigmoid is 1/(1+e⁻ˣ).
func Sigmoid(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "Sigmoid", backend.OpSigmoid, x, unaryGrad{backend.OpSigmoidGrad, true})
}

// ReLU is max(x, 0); its gradient at 0 is 0.
func ReLU(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "ReLU", backend.OpReLU, x, unaryGrad{backend.OpReLUGrad, true})
}

// GELU is x·Φ(x), with the exact normal distribution function (Hendrycks & Gimpel 2016).
func GELU(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "GELU", backend.OpGELU, x, unaryGrad{backend.OpGELUGrad, false})
}

// GELUTanh is GPT-2's approximation, ½x(1 + tanh(√(2/π)(x + 0.044715x³))).
func GELUTanh(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "GELUTanh", backend.OpGELUTanh, x, unaryGrad{backend.OpGELUTanhGrad, false})
}

// SiLU is x·σ(x), also called swish.
func SiLU(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "SiLU", backend.OpSiLU, x, unaryGrad{backend.OpSiLUGrad, false})
}

// LeakyReLU is x where x > 0 and slope·x elsewhere (Maas et al. 2013); its gradient at 0 is slope.
func LeakyReLU(c *Ctx, x *Tensor, slope float64) *Tensor {
	a := floats(slope)
	return unaryAttrs(c, "LeakyReLU", backend.OpLeakyReLU, &a, x, unaryGrad{backend.OpLeakyReLUGrad, false})
}

// ELU is x where x > 0 and alpha·(eˣ − 1) elsewhere (Clevert et al. 2016); its gradient at 0 is alpha.
func ELU(c *Ctx, x *Tensor, alpha float64) *Tensor {
	a := floats(alpha)
	return unaryAttrs(c, "ELU", backend.OpELU, &a, x, unaryGrad{backend.OpELUGrad, false})
}

// Softplus is ln(1 + e^(beta·x))/beta, and x itself where beta·x is above threshold, as
// torch.nn.functional.softplus (whose defaults are 1 and 20). It never overflows; with an infinite threshold
// the formula holds everywhere. beta must be positive.
func Softplus(c *Ctx, x *Tensor, beta, threshold float64) *Tensor {
	const name = "Softplus"
	x.check(c, name)
	if !(beta > 0) {
		c.fail(name, []*Tensor{x}, "beta %g: want a positive number", beta)
	}
	a := floats(beta, threshold)
	return unaryAttrs(c, name, backend.OpSoftplus, &a, x, unaryGrad{backend.OpSoftplusGrad, false})
}

// SwiGLU is SiLU(gate)·up, the gate of LLaMA's feed-forward part (Shazeer, "GLU Variants
// Improve Transformer", 2020), in one pass. Both must have the same shape and dtype.
func SwiGLU(c *Ctx, gate, up *Tensor) *Tensor {
	const name = "SwiGLU"
	ins := []*Tensor{gate, up}
	c.wantFloat(name, ins...)
	if c.lower != Invalid {
		plain, gate, up, _ := c.cast(name, gate, up, nil)
		return SwiGLU(plain, gate, up)
	}
	c.sameDType(name, ins...)
	if !slices.Equal(gate.Shape(), up.Shape()) {
		c.fail(name, ins, "want operands of one shape")
	}
	compute := func(c *Ctx) *Tensor {
		y := c.emptyLike(name, gate)
		c.launch(backend.OpSwiGLU, y, gate, up)
		return y
	}
	y := compute(c)
	y.partOf(gate)
	node := c.record(name, []*Tensor{y}, ins, ins, func(b *Back) {
		x, u, dy := b.materialize(name, gate), b.materialize(name, up), b.materialize(name, b.Grad(0))
		dx, du := b.emptyLike(name, x), b.emptyLike(name, x)
		b.launchMulti(backend.OpSwiGLUGrad, &attrs{}, []*Tensor{dx, du}, x, u, dy)
		b.Set(0, dx)
		b.Set(1, du)
	})
	node.recomputes(y, compute)
	return y
}

// Exp is eˣ.
func Exp(c *Ctx, x *Tensor) *Tensor {
	return unary(c, "Exp", backend.OpExp, x, unaryGrad{backend.OpMul, true})
}

// Log is the natural logarithm.
func Log(c *Ctx, x *Tensor) *Tensor {
	c.wantFloat("Log", x)
	return unaryWith(c, "Log", backend.OpLog, &attrs{}, x, readsX, func(c *Ctx, x, dy *Tensor) *Tensor {
		return Div(c, dy, x)
	})
}

// Sqrt is the square root; its gradient at 0 is infinite.
func Sqrt(c *Ctx, x *Tensor) *Tensor {
	c.wantFloat("Sqrt", x)
	return unaryWith(c, "Sqrt", backend.OpSqrt, &attrs{}, x, readsY, func(c *Ctx, y, dy *Tensor) *Tensor {
		return Affine(c, Div(c, dy, y), 0.5, 0)
	})
}

// Rsqrt is 1/√x.
func Rsqrt(c *Ctx, x *Tensor) *Tensor {
	c.wantFloat("Rsqrt", x)
	return unaryWith(c, "Rsqrt", backend.OpRsqrt, &attrs{}, x, readsY, func(c *Ctx, y, dy *Tensor) *Tensor {
		return Affine(c, Mul(c, dy, Mul(c, y, Mul(c, y, y))), -0.5, 0)
	})
}

// Sin is the sine of x radians.
func Sin(c *Ctx, x *Tensor) *Tensor {
	c.wantFloat("Sin", x)
	return unaryWith(c, "Sin", backend.OpSin, &attrs{}, x, readsX, func(c *Ctx, x, dy *Tensor) *Tensor {
		return Mul(c, dy, Cos(c, x))
	})
}

// Cos is the cosine of x radians.
func Cos(c *Ctx, x *Tensor) *Tensor {
	c.wantFloat("Cos", x)
	return unaryWith(c, "Cos", backend.OpCos, &attrs{}, x, readsX, func(c *Ctx, x, dy *Tensor) *Tensor {
		return Neg(c, Mul(c, dy, Sin(c, x)))
	})
}

// Erf is the error function.
func Erf(c *Ctx, x *Tensor) *Tensor {
	c.wantFloat("Erf", x)
	const twoOverRootPi = 1.12837916709551257390
	return unaryWith(c, "Erf", backend.OpErf, &attrs{}, x, readsX, func(c *Ctx, x, dy *Tensor) *Tensor {
		return Affine(c, Mul(c, dy, Exp(c, Neg(c, Mul(c, x, x)))), twoOverRootPi, 0)
	})
}

// Neg is −x, for floats and signed integers.
func Neg(c *Ctx, x *Tensor) *Tensor {
	c.wantSigned("Neg", x)
	return unaryWith(c, "Neg", backend.OpNeg, &attrs{}, x, readsNone, func(c *Ctx, _, dy *Tensor) *Tensor {
		return Neg(c, dy)
	})
}

// Abs is |x|, for floats and signed integers; its gradient at 0 is 0.
func Abs(c *Ctx, x *Tensor) *Tensor {
	c.wantSigned("Abs", x)
	return unaryWith(c, "Abs", backend.OpAbs, &attrs{}, x, readsX, func(c *Ctx, x, dy *Tensor) *Tensor {
		zero := Scalar(c, x.dtype, 0)
		return Where(c, Gt(c, x, zero), dy, Where(c, Lt(c, x, zero), Neg(c, dy), zero))
	})
}

func (c *Ctx) wantSigned(op string, x *Tensor) {
	x.check(c, op)
	if x.dtype == Bool || x.dtype == Uint8 {
		c.fail(op, []*Tensor{x}, "want a floating-point or signed integer dtype")
	}
}

// Affine is scale·x + shift with host numbers, for floats and signed integers (whose
// scale and shift are truncated to integers).
func Affine(c *Ctx, x *Tensor, scale, shift float64) *Tensor {
	c.wantSigned("Affine", x)
	a := floats(scale, shift)
	a.ints[0], a.ints[1] = int(scale), int(shift)
	return unaryWith(c, "Affine", backend.OpAffine, &a, x, readsNone, func(c *Ctx, _, dy *Tensor) *Tensor {
		return Affine(c, dy, scale, 0)
	})
}

// PowScalar is x raised to a host number.
func PowScalar(c *Ctx, x *Tensor, p float64) *Tensor {
	c.wantFloat("PowScalar", x)
	a := floats(p)
	return unaryWith(c, "PowScalar", backend.OpPowScalar, &a, x, readsX, func(c *Ctx, x, dy *Tensor) *Tensor {
		return Affine(c, Mul(c, dy, PowScalar(c, x, p-1)), p, 0)
	})
}

// Not is the logical negation of a Bool tensor.
func Not(c *Ctx, x *Tensor) *Tensor {
	x.check(c, "Not")
	c.wantBool("Not", x)
	return unaryWith(c, "Not", backend.OpNot, &attrs{}, x, readsNone, nil)
}

func (c *Ctx) wantBool(op string, xs ...*Tensor) {
	for _, x := range xs {
		x.check(c, op)
		if x.dtype != Bool {
			c.fail(op, xs, "want bool operands")
		}
	}
}

// binary runs an elementwise op with broadcasting, whose result is of dtype out, or of the operands' if that is
// Invalid; back returns the gradients in the broadcast shape, nil where need is false.
func binary(c *Ctx, name string, op backend.Op, x, y *Tensor, out DType,
	back func(c *Ctx, x, y, z, dz *Tensor, need [2]bool) (dx, dy *Tensor)) *Tensor {
	x.check(c, name)
	y.check(c, name)
	mixed := op == backend.OpAdd && c.lower != Invalid && (x.dtype == Float32 && y.dtype.IsHalf() ||
		x.dtype.IsHalf() && y.dtype == Float32) // the kernel converts what it reads
	switch {
	case mixed:
		out = Float32
	case c.lower != Invalid:
		plain, x, y, _ := c.cast(name, x, y, nil)
		return binary(plain, name, op, x, y, out, back)
	default:
		c.sameDType(name, x, y)
	}
	z := c.empty(name, resultDType(out, x), c.broadcast(name, x, y)...)
	z.partOf(x)
	z.partOf(y)
	c.elementwise(op, &attrs{}, z, x, y)
	if back != nil && x.dtype.IsFloat() {
		saved := binarySaves(op, x, y, z)
		node := c.record(name, []*Tensor{z}, []*Tensor{x, y}, saved, func(b *Back) {
			dx, dy := back(b.Ctx, x, y, z, b.Grad(0), [2]bool{b.Need(0), b.Need(1)})
			if dx != nil {
				b.setSummed(name, 0, dx, x, mixed)
			}
			if dy != nil {
				b.setSummed(name, 1, dy, y, mixed)
			}
		})
		for _, t := range []*Tensor{x, y} {
			if mixed && node != nil && t.takesPart() && t.sumsIn().IsHalf() {
				node.half = t.dtype
			}
		}
	}
	return z
}

// setSummed sets the gradient of input i, of, of an op that broadcasts, from g of the result's shape. The operands may
// be of several dtypes if they are mixed.
func (b *Back) setSummed(op string, i int, g, of *Tensor, mixed bool) {
	low := b.node.low
	summed := b.sumTo(g, of.Shape())
	switch dt := of.sumsIn(); {
	case !mixed:
	case low != nil && low.dtype == dt && summed == b.node.grads[0]:
		summed = low
	default:
		summed = b.convert(op, summed, dt)
	}
	b.Set(i, summed)
}

// resultDType is dt, or that of the operand x if dt is Invalid.
func resultDType(dt DType, x *Tensor) DType {
	if dt == Invalid {
		return x.dtype
	}
	return dt
}

// binarySaves lists what the gradient of a binary op reads.
func binarySaves(op backend.Op, x, y, z *Tensor) []*Tensor {
	switch op {
	case backend.OpAdd, backend.OpSub:
		return nil
	case backend.OpMul:
		if !x.takesPart() {
			return []*Tensor{x}
		} else if !y.takesPart() {
			return []*Tensor{y}
		}
	case backend.OpDiv:
		if !y.takesPart() {
			return []*Tensor{y}
		}
		return []*Tensor{y, z}
	case backend.OpPow:
		return []*Tensor{x, y, z}
	}
	return []*Tensor{x, y}
}

// Add is x + y with broadcasting, for all dtypes except Bool.
func Add(c *Ctx, x, y *Tensor) *Tensor { return c.added("Add", x, y) }

// added is Add under a name.
func (c *Ctx) added(name string, x, y *Tensor) *Tensor {
	c.wantNumber(name, x, y)
	z := binary(c, name, backend.OpAdd, x, y, Invalid, func(_ *Ctx, _, _, _, dz *Tensor, _ [2]bool) (dx, dy *Tensor) {
		return dz, dz
	})
	if c.lower != Invalid && x.dtype == Float32 && y.dtype.IsHalf() && slices.Equal(x.Shape(), y.Shape()) {
		z.node.addsUp(z, x, y)
	}
	return z
}

// AddOnto is Add, with its bits, for an x that nothing reads afterwards: the result overwrites x if x was made in the
// innermost Scope, is contiguous and of the result's shape and dtype, and no gradient needs it. Otherwise it is Add.
func AddOnto(c *Ctx, x, y *Tensor) *Tensor {
	const name = "AddOnto"
	c.wantNumber(name, x, y)
	if !c.spare(x) || x.dtype != y.dtype || !slices.Equal(x.Shape(), y.Shape()) {
		return c.added(name, x, y)
	}
	z := x.alias()
	c.elementwise(backend.OpAdd, &attrs{}, z, x, y)
	z.st.ver++
	if x.dtype.IsFloat() {
		c.record(name, []*Tensor{z}, []*Tensor{x, y}, nil, func(b *Back) {
			b.Set(0, b.Grad(0))
			b.Set(1, b.Grad(0))
		})
	}
	return z
}

// spare reports whether the memory of x may take another result once x itself is not read any more.
func (c *Ctx) spare(x *Tensor) bool {
	return x.st.owner != nil && x.st.owner == c.scope && x.st.refs == 1 && x.IsContiguous() && !x.IsLeaf() &&
		x.recomputable() == nil
}

// sumOf says how the result of an addition of a float32 and a half tensor is computed again.
type sumOf struct {
	parts   [2]*Tensor
	version uint32 // of the result
}

// addsUp notes that z, the result of n, is x + y; n may be nil.
func (n *Node) addsUp(z, x, y *Tensor) {
	if n != nil {
		n.sum = &sumOf{parts: [2]*Tensor{x, y}, version: z.st.ver}
	}
}

// summands are two tensors that can be kept for a gradient function in place of t, which is their sum: another one
// keeps the first already, and the second has half of t's bytes. nil: there are none.
func (t *Tensor) summands() *sumOf {
	if t.node == nil || t.node.sum == nil || t.out != 0 || t.st.ver != t.node.sum.version || !t.IsContiguous() {
		return nil
	}
	s := t.node.sum
	for _, part := range s.parts {
		if !part.st.holds(part.gen) || !part.IsContiguous() {
			return nil
		}
	}
	if kept := s.parts[0].st; kept.refs < 2 {
		return nil
	}
	return s
}

// again is the sum, with its bits.
func (s *sumOf) again(c *Ctx) *Tensor {
	z := c.emptyLike("Add", s.parts[0])
	c.launch(backend.OpAdd, z, s.parts[0], s.parts[1])
	return z
}

// Sub is x − y with broadcasting.
func Sub(c *Ctx, x, y *Tensor) *Tensor {
	c.wantNumber("Sub", x, y)
	return binary(c, "Sub", backend.OpSub, x, y, Invalid,
		func(c *Ctx, _, _, _, dz *Tensor, need [2]bool) (dx, dy *Tensor) {
			if need[1] {
				dy = Neg(c, dz)
			}
			return dz, dy
		})
}

// Mul is the elementwise product with broadcasting.
func Mul(c *Ctx, x, y *Tensor) *Tensor {
	c.wantNumber("Mul", x, y)
	return binary(c, "Mul", backend.OpMul, x, y, Invalid,
		func(c *Ctx, x, y, _, dz *Tensor, need [2]bool) (dx, dy *Tensor) {
			if need[0] {
				dx = Mul(c, dz, y)
			}
			if need[1] {
				dy = Mul(c, dz, x)
			}
			return dx, dy
		})
}

// Div is the elementwise quotient of floats, with broadcasting.
func Div(c *Ctx, x, y *Tensor) *Tensor {
	c.wantFloat("Div", x, y)
	return binary(c, "Div", backend.OpDiv, x, y, Invalid,
		func(c *Ctx, _, y, z, dz *Tensor, need [2]bool) (dx, dy *Tensor) {
			q := Div(c, dz, y)
			if need[1] {
				dy = Neg(c, Mul(c, q, z))
			}
			return q, dy
		})
}

// Pow is x raised to y elementwise, with broadcasting. The gradient with respect to y
// is xʸ·ln x, and 0 where x is 0.
func Pow(c *Ctx, x, y *Tensor) *Tensor {
	c.wantFloat("Pow", x, y)
	return binary(c, "Pow", backend.OpPow, x, y, Invalid,
		func(c *Ctx, x, y, z, dz *Tensor, need [2]bool) (dx, dy *Tensor) {
			if need[0] {
				dx = Mul(c, dz, Mul(c, y, Pow(c, x, Affine(c, y, 1, -1))))
			}
			if need[1] {
				zero := Scalar(c, x.dtype, 0)
				dy = Where(c, Eq(c, x, zero), zero, Mul(c, dz, Mul(c, z, Log(c, x))))
			}
			return dx, dy
		})
}

// Maximum is the elementwise maximum, NaN where either is NaN; on a tie the gradient
// goes half to each.
func Maximum(c *Ctx, x, y *Tensor) *Tensor {
	return extremum(c, "Maximum", backend.OpMaximum, Gt, x, y)
}

// Minimum is the elementwise minimum, with Maximum's rules.
func Minimum(c *Ctx, x, y *Tensor) *Tensor {
	return extremum(c, "Minimum", backend.OpMinimum, Lt, x, y)
}

func extremum(c *Ctx, name string, op backend.Op, wins func(*Ctx, *Tensor, *Tensor) *Tensor, x, y *Tensor) *Tensor {
	c.wantNumber(name, x, y)
	return binary(c, name, op, x, y, Invalid, func(c *Ctx, x, y, _, dz *Tensor, need [2]bool) (dx, dy *Tensor) {
		tie := Where(c, Eq(c, x, y), Affine(c, dz, 0.5, 0), Scalar(c, dz.dtype, 0))
		if need[0] {
			dx = Where(c, wins(c, x, y), dz, tie)
		}
		if need[1] {
			dy = Where(c, wins(c, y, x), dz, tie)
		}
		return dx, dy
	})
}

// Clamp is min(max(x, lo), hi), for all dtypes but Bool; an infinite bound is none, and NaN stays. The gradient passes
// where lo < x < hi, as in PyTorch. The bounds of integers must be whole numbers of their dtype, or infinite.
func Clamp(c *Ctx, x *Tensor, lo, hi float64) *Tensor {
	const name = "Clamp"
	c.wantNumber(name, x)
	for _, bound := range []float64{lo, hi} {
		if bound != bound || !math.IsInf(bound, 0) && !x.dtype.IsFloat() && !isInteger(x.dtype, bound) {
			c.fail(name, []*Tensor{x}, "bounds %g and %g: want numbers of the dtype, or infinities", lo, hi)
		}
	}
	low, high := !math.IsInf(lo, -1), !math.IsInf(hi, 1)
	y := c.emptyLike(name, x)
	from := x
	if low {
		c.elementwise(backend.OpMaximum, &attrs{}, y, from, Scalar(c, x.dtype, lo))
		from = y
	}
	if high {
		c.elementwise(backend.OpMinimum, &attrs{}, y, from, Scalar(c, x.dtype, hi))
		from = y
	}
	if from == x {
		c.launch(backend.OpCopy, y, x)
	}
	if !x.dtype.IsFloat() {
		return y
	}
	c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{x}, func(b *Back) {
		g, zero := b.Grad(0), Scalar(b.Ctx, x.dtype, 0)
		if low {
			g = Where(b.Ctx, Gt(b.Ctx, x, Scalar(b.Ctx, x.dtype, lo)), g, zero)
		}
		if high {
			g = Where(b.Ctx, Lt(b.Ctx, x, Scalar(b.Ctx, x.dtype, hi)), g, zero)
		}
		b.Set(0, g)
	})
	return y
}

// isInteger reports whether integer dtype dt has the number v; int64's beyond 2⁵³ do not count.
func isInteger(dt DType, v float64) bool {
	lo, hi := -float64(1<<53), float64(1<<53)
	switch dt {
	case Uint8:
		lo, hi = 0, math.MaxUint8
	case Int32:
		lo, hi = math.MinInt32, math.MaxInt32
	}
	return v == math.Trunc(v) && lo <= v && v <= hi
}

func (c *Ctx) wantNumber(op string, xs ...*Tensor) {
	for _, x := range xs {
		x.check(c, op)
		if x.dtype == Bool {
			c.fail(op, xs, "want numbers, have bool: convert with Cast")
		}
	}
}

// Eq is a Bool tensor: x == y, with broadcasting. So are Ne, Lt, Le, Gt and Ge.
func Eq(c *Ctx, x, y *Tensor) *Tensor { return binary(c, "Eq", backend.OpEq, x, y, Bool, nil) }

// Ne is x ≠ y.
func Ne(c *Ctx, x, y *Tensor) *Tensor { return binary(c, "Ne", backend.OpNe, x, y, Bool, nil) }

// Lt is x < y.
func Lt(c *Ctx, x, y *Tensor) *Tensor { return binary(c, "Lt", backend.OpLt, x, y, Bool, nil) }

// Le is x ≤ y.
func Le(c *Ctx, x, y *Tensor) *Tensor { return binary(c, "Le", backend.OpLe, x, y, Bool, nil) }

// Gt is x > y.
func Gt(c *Ctx, x, y *Tensor) *Tensor { return binary(c, "Gt", backend.OpGt, x, y, Bool, nil) }

// Ge is x ≥ y.
func Ge(c *Ctx, x, y *Tensor) *Tensor { return binary(c, "Ge", backend.OpGe, x, y, Bool, nil) }

// And is the logical conjunction of Bool tensors, with broadcasting.
func And(c *Ctx, x, y *Tensor) *Tensor {
	c.wantBool("And", x, y)
	return binary(c, "And", backend.OpAnd, x, y, Bool, nil)
}

// Or is the logical disjunction of Bool tensors, with broadcasting.
func Or(c *Ctx, x, y *Tensor) *Tensor {
	c.wantBool("Or", x, y)
	return binary(c, "Or", backend.OpOr, x, y, Bool, nil)
}

// Where takes x where cond is true and y elsewhere; all three broadcast.
func Where(c *Ctx, cond, x, y *Tensor) *Tensor {
	ins := []*Tensor{cond, x, y}
	for _, t := range ins {
		t.check(c, "Where")
	}
	if c.lower != Invalid {
		plain, x, y, _ := c.cast("Where", x, y, nil)
		return Where(plain, cond, x, y)
	}
	c.sameDType("Where", x, y)
	if cond.dtype != Bool {
		c.fail("Where", ins, "the condition must be bool")
	}
	z := c.empty("Where", x.dtype, c.broadcast("Where", cond, x, y)...)
	c.elementwise(backend.OpWhere, &attrs{}, z, cond, x, y)
	if x.dtype.IsFloat() {
		xs, ys := slices.Clone(x.Shape()), slices.Clone(y.Shape())
		c.record("Where", []*Tensor{z}, []*Tensor{x, y}, []*Tensor{cond}, func(b *Back) {
			zero := Scalar(b.Ctx, x.dtype, 0)
			if b.Need(0) {
				b.Set(0, b.sumTo(Where(b.Ctx, cond, b.Grad(0), zero), xs))
			}
			if b.Need(1) {
				b.Set(1, b.sumTo(Where(b.Ctx, cond, zero, b.Grad(0)), ys))
			}
		})
	}
	return z
}

// MaskedFill replaces x by the host number v where mask is true; mask broadcasts.
func MaskedFill(c *Ctx, x, mask *Tensor, v float64) *Tensor {
	x.check(c, "MaskedFill")
	mask.check(c, "MaskedFill")
	if mask.dtype != Bool {
		c.fail("MaskedFill", []*Tensor{x, mask}, "the mask must be bool")
	}
	c.broadcast("MaskedFill", x, mask)
	return Where(c, mask, Scalar(c, x.dtype, v), x)
}
