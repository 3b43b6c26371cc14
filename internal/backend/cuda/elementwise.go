// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var elementwiseOps = map[backend.Op]row{}

// elementwiseOp is how an op is launched.
type elementwiseOp struct {
	name   string
	ins    int
	bytes  int // of a load of the kernel for contiguous operands, as in kernels/elementwise.cuh
	dtypes []dtype.DType
}

// pointwise are the ops whose output has the dtype of the inputs.
var pointwise = map[backend.Op]elementwiseOp{
	backend.OpNeg: {"neg", 1, 16, signed}, backend.OpAbs: {"abs", 1, 16, signed},
	backend.OpExp: {"exp", 1, 16, floats}, backend.OpLog: {"log", 1, 8, floats},
	backend.OpSqrt: {"sqrt", 1, 16, floats}, backend.OpRsqrt: {"rsqrt", 1, 16, floats},
	backend.OpSin: {"sin", 1, 4, floats}, backend.OpCos: {"cos", 1, 4, floats},
	backend.OpTanh: {"tanh", 1, 8, floats}, backend.OpSigmoid: {"sigmoid", 1, 16, floats},
	backend.OpErf: {"erf", 1, 8, floats}, backend.OpReLU: {"relu", 1, 16, floats},
	backend.OpGELU: {"gelu", 1, 8, floats}, backend.OpGELUTanh: {"gelu_tanh", 1, 16, floats},
	backend.OpSiLU: {"silu", 1, 16, floats}, backend.OpLeakyReLU: {"leaky_relu", 1, 16, floats},
	backend.OpELU: {"elu", 1, 8, floats}, backend.OpSoftplus: {"softplus", 1, 8, floats},
	backend.OpAffine: {"affine", 1, 16, signed}, backend.OpPowScalar: {"pow_scalar", 1, 4, floats},

	backend.OpTanhGrad: {"tanh_grad", 2, 16, floats}, backend.OpSigmoidGrad: {"sigmoid_grad", 2, 16, floats},
	backend.OpReLUGrad: {"relu_grad", 2, 16, floats}, backend.OpGELUGrad: {"gelu_grad", 2, 8, floats},
	backend.OpGELUTanhGrad: {"gelu_tanh_grad", 2, 16, floats}, backend.OpSiLUGrad: {"silu_grad", 2, 16, floats},
	backend.OpLeakyReLUGrad: {"leaky_relu_grad", 2, 16, floats}, backend.OpELUGrad: {"elu_grad", 2, 8, floats},
	backend.OpSoftplusGrad: {"softplus_grad", 2, 8, floats},

	backend.OpAdd: {"add", 2, 16, numbers}, backend.OpSub: {"sub", 2, 16, numbers},
	backend.OpMul: {"mul", 2, 16, numbers}, backend.OpDiv: {"div", 2, 16, floats},
	backend.OpPow: {"pow", 2, 4, floats}, backend.OpMaximum: {"maximum", 2, 16, numbers},
	backend.OpMinimum: {"minimum", 2, 16, numbers}, backend.OpAxpby: {"axpby", 2, 16, floats},
	backend.OpSwiGLU:             {"swiglu", 2, 16, floats},
	backend.OpBCEWithLogits:      {"bce_with_logits", 2, 8, floats},
	backend.OpBCEWithLogitsSlope: {"bce_with_logits_slope", 2, 8, floats},
}

// weighted are the forms with a third input of ops that have one of two.
var weighted = map[backend.Op]elementwiseOp{
	backend.OpBCEWithLogits:      {"bce_with_logits_weighted", 3, 8, floats},
	backend.OpBCEWithLogitsSlope: {"bce_with_logits_slope_weighted", 3, 8, floats},
}

func init() {
	for op, e := range pointwise {
		elementwiseOps[op] = row{e.launcher(), e.dtypes}
	}
	// instead takes another launcher for the calls that a test finds.
	instead := func(op backend.Op, other launcher, test func(c *backend.Call) bool) {
		r := elementwiseOps[op]
		elementwiseOps[op] = row{func(s *stream, c *backend.Call) {
			if test(c) {
				other(s, c)
				return
			}
			r.launch(s, c)
		}, r.dtypes}
	}
	for op, e := range weighted {
		instead(op, e.launcher(), func(c *backend.Call) bool { return c.NIn > 2 })
	}
	instead(backend.OpGELUTanhGrad, geluTanhBoth, func(c *backend.Call) bool { return c.NOut > 1 })
	instead(backend.OpAdd, (*stream).addWide, func(c *backend.Call) bool {
		return c.Out[0].DType == dtype.Float32 && (c.In[0].DType.IsHalf() || c.In[1].DType.IsHalf())
	})
	for op, name := range map[backend.Op]string{backend.OpEq: "eq", backend.OpNe: "ne", backend.OpLt: "lt",
		backend.OpLe: "le", backend.OpGt: "gt", backend.OpGe: "ge"} {
		elementwiseOps[op] = row{comparison(name), anyType}
	}
	elementwiseOps[backend.OpAnd] = row{logic("and_b8_strided", 2), bools}
	elementwiseOps[backend.OpOr] = row{logic("or_b8_strided", 2), bools}
	elementwiseOps[backend.OpNot] = row{logic("not_b8_strided", 1), bools}
	elementwiseOps[backend.OpSwiGLUGrad] = row{swigluGrad, floats}
}

// The kernels of OpAdd in float32 of numbers of a half type: the second input, or both.
var (
	addMixed, addMixedStrided   = namesOf("add_mixed", "", halfTypes), namesOf("add_mixed", "_strided", halfTypes)
	addHalves, addHalvesStrided = namesOf("add_halves", "", halfTypes), namesOf("add_halves", "_strided", halfTypes)
)

// addWide is OpAdd in float32 of inputs of which at least one is of a half type.
func (s *stream) addWide(c *backend.Call) {
	w := s.elementwise(c, 2)
	x, y := c.In[0].DType, c.In[1].DType
	if y == dtype.Float32 { // a sum has the same bits either way
		x, y = y, x
		w.at[1], w.at[2] = w.at[2], w.at[1]
		w.bytes[1], w.bytes[2] = w.bytes[2], w.bytes[1]
		w.stride[1], w.stride[2] = w.stride[2], w.stride[1]
	}
	wide, strided := addMixed[y], addMixedStrided[y]
	if x == y {
		wide, strided = addHalves[y], addHalvesStrided[y]
	} else if x != dtype.Float32 || !y.IsHalf() {
		s.fault(c, "no kernel for %s and %s", x, y)
	}
	flag := s.flag(c)
	const width = 4
	if !w.contiguous() || !w.aligned(width) {
		s.walked(strided, w, flag)
		return
	}
	if w.n == 0 {
		return
	}
	var a args
	for k := range w.ops {
		a.ptr(w.at[k])
	}
	a.i64(w.n)
	a.ptr(flag)
	s.kernel(wide, s.gridFor((w.n+width-1)/width), block256, 0, &a)
}

// names are the kernels of an op, by dtype; empty where there is none.
type names [dtype.Bool + 1]string

func namesOf(prefix, ending string, dtypes []dtype.DType) (n names) {
	for _, dt := range dtypes {
		n[dt] = prefix + "_" + suffix(dt) + ending
	}
	return n
}

// launcher is that of an op whose output has the dtype of its inputs.
func (e elementwiseOp) launcher() launcher {
	wide, strided := namesOf(e.name, "", e.dtypes), namesOf(e.name, "_strided", e.dtypes)
	for _, dt := range []dtype.DType{dtype.Float64, dtype.Int32, dtype.Int64, dtype.Uint8} {
		wide[dt] = "" // the strided one is as good
	}
	return func(s *stream, c *backend.Call) {
		dt := c.In[0].DType
		s.sameDTypes(c, e.ins, dt, dt)
		w := s.elementwise(c, e.ins)
		flag, number := s.flag(c), s.number(c, e.ins)
		var a args
		if n := e.bytes / dt.Size(); wide[dt] != "" && w.contiguous() && w.aligned(n) {
			if w.n == 0 {
				return
			}
			for k := range maxOperands {
				a.ptr(w.at[k])
			}
			a.i64(w.n)
			a.f64(c.Floats[0])
			a.f64(c.Floats[1])
			a.ptr(flag)
			a.ptr(number)
			s.kernel(wide[dt], s.gridFor((w.n+n-1)/n), block256, 0, &a)
			return
		}
		for i := range w.pieces(maxWalk) {
			w := w.piece(maxWalk, i)
			a.n = 0
			a.dims(&w)
			for k := range maxOperands {
				a.ptr(w.at[k])
			}
			if dt.IsFloat() {
				a.f64(c.Floats[0])
				a.f64(c.Floats[1])
			} else {
				a.i64(c.Ints[0])
				a.i64(c.Ints[1])
			}
			a.ptr(flag)
			a.ptr(number)
			s.kernel(strided[dt], s.gridFor(w.n), block256, 0, &a)
		}
	}
}

// number is the address of what takes the place of OpAffine's Floats[0], 0 if nothing does.
func (s *stream) number(c *backend.Call, ins int) cuda.Ptr {
	if c.Op != backend.OpAffine || c.NIn == ins {
		return 0
	}
	if c.NIn != 2 || !c.In[0].DType.IsFloat() {
		s.fault(c, "%d inputs: want 1, or 2 for floats", c.NIn)
	}
	s.wantFlat(c, &c.In[1], dtype.Float64, 1, "input", 1)
	return s.addr(&c.In[1])
}

// comparison is the launcher of an op with a bool output. Bools are compared as uint8.
func comparison(name string) launcher {
	kernel := namesOf(name, "_strided", numbers)
	kernel[dtype.Bool] = kernel[dtype.Uint8]
	return func(s *stream, c *backend.Call) {
		dt := c.In[0].DType
		s.sameDTypes(c, 2, dt, dtype.Bool)
		s.walked(kernel[dt], s.elementwise(c, 2))
	}
}

// logic is the launcher of an op on bools.
func logic(kernel string, ins int) launcher {
	return func(s *stream, c *backend.Call) {
		s.sameDTypes(c, ins, dtype.Bool, dtype.Bool)
		s.walked(kernel, s.elementwise(c, ins))
	}
}

// walked queues a kernel of a walk, its operands, and more addresses.
func (s *stream) walked(kernel string, w walk, more ...cuda.Ptr) {
	for i := range w.pieces(maxWalk) {
		w := w.piece(maxWalk, i)
		var a args
		a.dims(&w)
		for k := range w.ops {
			a.ptr(w.at[k])
		}
		for _, p := range more {
			a.ptr(p)
		}
		s.kernel(kernel, s.gridFor(w.n), block256, 0, &a)
	}
}

// sameDTypes faults unless the first inputs are of one dtype and Out0 of another.
func (s *stream) sameDTypes(c *backend.Call, ins int, in, out dtype.DType) {
	for k := range ins {
		if c.In[k].DType != in || c.Out[0].DType != out {
			s.fault(c, "inputs of %s and %s give %s, not %s", in, c.In[k].DType, out, c.Out[0].DType)
		}
	}
}

// elementwise is the walk over Out0 and the first inputs. It faults unless they have one shape.
func (s *stream) elementwise(c *backend.Call, ins int) walk {
	out := &c.Out[0]
	for k := range ins {
		if in := &c.In[k]; !backend.SameShape(in, out) {
			s.fault(c, "input %d has shape %v, the output %v", k, in.Shape[:in.NDim], out.Shape[:out.NDim])
		}
	}
	switch ins {
	case 0:
		return s.newWalk(out)
	case 1:
		return s.newWalk(out, &c.In[0])
	case 2:
		return s.newWalk(out, &c.In[0], &c.In[1])
	}
	return s.newWalk(out, &c.In[0], &c.In[1], &c.In[2])
}

// flat faults unless the operands are contiguous, of Out0's dtype and of its size, which is the result.
func (s *stream) flat(c *backend.Call, ins int) int {
	dt, n := c.Out[0].DType, c.Out[0].Numel()
	for i := range ins {
		s.wantFlat(c, &c.In[i], dt, n, "input", i)
	}
	for i := range c.NOut {
		s.wantFlat(c, &c.Out[i], dt, n, "output", i)
	}
	return n
}

// wantFlat faults unless the operand is contiguous, and has the dtype and the number of elements.
func (s *stream) wantFlat(c *backend.Call, v *backend.View, dt dtype.DType, n int, what string, i int) {
	if v.DType != dt || v.Numel() != n || !v.Contiguous() {
		s.fault(c, "%s %d is %s of shape %v (contiguous: %t): want %d contiguous elements of %s", what, i, v.DType,
			v.Shape[:v.NDim], v.Contiguous(), n, dt)
	}
}

var (
	geluTanhBothKernels = namesOf("gelu_tanh_both", "", floats)
	swigluGradKernels   = namesOf("swiglu_grad", "", floats)
)

// pairWidth is how many elements the kernels with two outputs take at a time.
func pairWidth(dt dtype.DType) int {
	if dt == dtype.Float64 {
		return 1
	}
	return 4
}

// geluTanhBoth is OpGELUTanhGrad with the function itself as a second output.
func geluTanhBoth(s *stream, c *backend.Call) {
	n := s.flat(c, 2)
	s.pair(c, geluTanhBothKernels[c.Out[0].DType], n, &c.Out[0], &c.Out[1], &c.In[0], &c.In[1])
}

func swigluGrad(s *stream, c *backend.Call) {
	n := s.flat(c, 3)
	s.pair(c, swigluGradKernels[c.Out[0].DType], n, &c.Out[0], &c.Out[1], &c.In[0], &c.In[1], &c.In[2])
}

// pair queues a kernel of contiguous operands, which takes several elements at a time where all are aligned.
func (s *stream) pair(c *backend.Call, kernel string, n int, views ...*backend.View) {
	if n == 0 {
		return
	}
	width := pairWidth(c.Out[0].DType)
	var a args
	all := cuda.Ptr(0)
	for _, v := range views {
		a.ptr(s.addr(v))
		all |= s.addr(v)
	}
	a.i64(n)
	a.aligned(all, width*c.Out[0].DType.Size())
	s.kernel(kernel, s.gridFor((n+width-1)/width), block256, 0, &a)
}

// aligned packs whether addresses, joined by or, are multiples of a number of bytes, of 16 at most.
func (a *args) aligned(all cuda.Ptr, bytes int) {
	if all%cuda.Ptr(min(bytes, 16)) == 0 {
		a.u32(1)
		return
	}
	a.u32(0)
}
