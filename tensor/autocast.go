// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// Precision says in which dtype an op computes under [Ctx.Autocast], as the lists of torch.amp.autocast do.
type Precision uint8

// The precisions.
const (
	// Widest is the widest dtype of the operands.
	Widest Precision = iota
	// Lower is the dtype of Autocast: products, convolutions and attention. Their sums are float32 inside.
	Lower
	// Wide is float32: norms, softmax, losses, sums, exponentials and powers.
	Wide
)

// precisions of the ops. An op that is not here takes the dtypes of its operands as they are: creation, conversion,
// views, writes in place, indexing and what has one operand and no sums.
var precisions = map[string]Precision{
	"MatMul": Lower, "AddMM": Lower, "AddMMActivated": Lower, "Linear": Lower, "LinearActivated": Lower,
	"Conv2D": Lower, "Attention": Lower, "LinearCrossEntropy": Lower, "LinearLogProbs": Lower,
	"LinearCrossEntropyCapped": Lower, "LinearLogProbsCapped": Lower,

	"Softmax": Wide, "LogSoftmax": Wide, "CrossEntropy": Wide, "BCEWithLogits": Wide, "LayerNorm": Wide,
	"RMSNorm": Wide, "LayerNormLowered": Wide, "RMSNormLowered": Wide,
	"GroupNorm": Wide, "Sum": Wide, "Mean": Wide, "RowMean": Wide, "LogSumExp": Wide, "Var": Wide, "Std": Wide,
	"CumSum": Wide, "SumSquares": Wide, "Exp": Wide, "Log": Wide, "Rsqrt": Wide, "Erf": Wide, "Pow": Wide,
	"PowScalar": Wide, "Softplus": Wide,

	"Add": Widest, "AddOnto": Widest, "Sub": Widest, "Mul": Widest, "Div": Widest, "Maximum": Widest,
	"Minimum": Widest, "Where": Widest, "MaskedFill": Widest, "Concat": Widest, "Stack": Widest, "ScatterAdd": Widest,
	"SwiGLU": Widest, "Eq": Widest, "Ne": Widest, "Lt": Widest, "Le": Widest, "Gt": Widest, "Ge": Widest,
}

// PrecisionOf is the precision of an op of this package by its name; false if Autocast does not convert its operands.
func PrecisionOf(op string) (Precision, bool) {
	p, ok := precisions[op]
	return p, ok
}

// Autocast returns a context whose ops compute with float32 operands in the lower dtype dt, BFloat16 or Float16, where
// that pays and is safe (see Precision), as torch.amp.autocast. Parameters stay float32: a copy of each in dt is made
// when it is first used and kept until the parameter changes, and gradients of products are summed in float32 and reach
// the parameter without having been rounded. Float64 operands stay unchanged. The gradient functions of ops run in the
// dtypes that forward ran in. Float32 converts operands of half types to float32 everywhere, so that a part of an
// autocasting model can compute in float32. Invalid ends autocasting: operands must fit each other then.
func (c *Ctx) Autocast(dt DType) *Ctx {
	if dt != Invalid && dt != Float32 && !dt.IsHalf() {
		panic(
			&Error{Op: "Autocast", Msg: fmt.Sprintf("%v is not a lower dtype: want %v, %v or %v", dt, BFloat16, Float16,
				Float32)})
	}
	d := *c
	if d.lower = dt; dt != c.lower {
		d.counts = nil
	}
	return &d
}

// plain is c without Autocast, for kernels whose operands have been converted.
func (c *Ctx) plain() *Ctx {
	d := *c
	d.lower = Invalid
	return &d
}

// Lower is the dtype of Autocast, Invalid without it.
func (c *Ctx) Lower() DType { return c.lower }

// autocast converts the operands of op as its precision says.
func (c *Ctx) autocast(op string, operands ...**Tensor) {
	if c.lower == Invalid {
		return
	}
	p, ok := precisions[op]
	if !ok {
		return
	}
	to := Float32
	switch p {
	case Lower:
		to = c.lower
	case Widest:
		to = widest(operands)
	}
	for _, t := range operands {
		if *t != nil && (*t).dtype.IsFloat() && (*t).dtype != Float64 {
			*t = Cast(c, *t, to)
		}
	}
}

// cast is autocast for operands that closures keep: taking their address would cost an allocation. It also returns the
// context to continue with.
func (c *Ctx) cast(op string, x, y, z *Tensor) (plain *Ctx, _, _, _ *Tensor) {
	c.autocast(op, &x, &y, &z)
	return c.plain(), x, y, z
}

// widest is the widest floating-point dtype; that of both half types is float32.
func widest(operands []**Tensor) DType {
	to := Invalid
	for _, t := range operands {
		if *t == nil || !(*t).dtype.IsFloat() {
			continue
		}
		switch dt := (*t).dtype; {
		case to == Invalid || to == dt:
			to = dt
		case to == Float64 || dt == Float64:
			to = Float64
		default:
			to = Float32
		}
	}
	return to
}

// lowered is a parameter's copy in the dtype of Autocast.
type lowered struct {
	mu   sync.Mutex // contexts of several goroutines may run one model
	copy *Tensor    // nil before the first use
	of   uint32     // version of the parameter that copy holds
	made *engine    // whose stream wrote it
	lent bool       // copy is the caller's of LendLowered, who keeps it up to date
}

// LoweredBytes is the size of the copy that Autocast keeps of the parameter t; 0 if there is none.
func (t *Tensor) LoweredBytes() int {
	if t.leaf == nil {
		return 0
	}
	l := &t.leaf.lowered
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.copy == nil || l.copy.gen != l.copy.st.gen {
		return 0
	}
	return l.copy.Bytes()
}

// DropLowered frees the copy that Autocast keeps of the parameter t. It is made again when it is next used.
func (t *Tensor) DropLowered() {
	if t.leaf != nil {
		t.leaf.lowered.drop()
	}
}

// LendLowered makes low what ops compute with in place of the parameter t under Autocast(low's dtype): t's elements in
// that dtype. It is memory of the caller's, who keeps it up to date and tells changes by Written. t may then be
// unloaded while it is used so, and low while it is not: both are brought back as OnMissing says. nil ends that.
func (t *Tensor) LendLowered(low *Tensor) {
	switch {
	case t.node != nil || t.dtype != Float32:
		panic(&Error{Op: "LendLowered", Inputs: []string{describe(t)}, Msg: "want a float32 parameter"})
	case low != nil && (!low.dtype.IsHalf() || !slices.Equal(low.Shape(), t.Shape()) || low.takesPart()):
		panic(&Error{Op: "LendLowered", Inputs: []string{describe(t), describe(low)},
			Msg: "want a tensor of the parameter's shape, of a half type, that takes no part in autograd"})
	}
	if t.leaf == nil {
		t.leaf = &leaf{frozen: true}
	}
	l := &t.leaf.lowered
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.copy, l.lent = low, low != nil
}

// end is drop, and ends a loan.
func (l *lowered) end() {
	l.drop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.copy, l.lent = nil, false
}

// moveLoan gives another parameter's what LendLowered lent, if it did.
func (l *lowered) moveLoan(to *lowered) {
	l.mu.Lock()
	loan, lent := l.copy, l.lent
	if lent {
		l.copy, l.lent = nil, false
	}
	l.mu.Unlock()
	if lent {
		to.end()
		to.mu.Lock()
		to.copy, to.lent = loan, true
		to.mu.Unlock()
	}
}

// stand is what ops of c read in place of t: the copy that LendLowered gave it, if that has the dtype of c's Autocast,
// else t.
func (c *Ctx) stand(t *Tensor) *Tensor {
	if t == nil || t.leaf == nil || !c.lower.IsHalf() || t.dtype != Float32 {
		return t
	}
	l := &t.leaf.lowered
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lent && l.copy.dtype == c.lower {
		return l.copy
	}
	return t
}

// drop frees the copy; it is made again when it is next used. One that is lent stays.
func (l *lowered) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lent {
		return
	}
	if l.copy != nil && l.copy.gen == l.copy.st.gen {
		l.copy.st.release()
	}
	l.copy = nil
}

// lower is a parameter in the dtype of Autocast: edge is where its gradient goes, low what is computed with. Of a leaf
// that is the copy, so that the gradient reaches it as it is formed; of anything else a recorded Cast.
func (c *Ctx) lowerParam(t *Tensor) (edge, low *Tensor) {
	switch {
	case c.lower == Invalid || t == nil || t.dtype == c.lower || t.dtype == Float64 || !t.dtype.IsFloat():
		return t, t
	case t.leaf == nil || t.dtype != Float32:
		low = Cast(c, t, c.lower)
		return low, low
	}
	if low := c.stand(t); low != t {
		low.check(c, "Autocast")
		return t, low
	}
	t.check(c, "Autocast") // before the lock: it may have to be brought back
	l := &t.leaf.lowered
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lent { // in another half type than that of c
		low = Cast(c, t, c.lower)
		return low, low
	}
	if l.copy == nil || l.copy.dtype != c.lower || l.copy.gen != l.copy.st.gen {
		free := *c
		free.scope = nil
		l.copy, l.of = free.empty("Autocast", c.lower, t.Shape()...), t.st.ver-1
	}
	if l.of != t.st.ver {
		c.launch(backend.OpCopy, l.copy, t)
		l.copy.st.ver++ // what was saved of it is gone
		l.of, l.made = t.st.ver, c.eng
	}
	if l.made != c.eng {
		c.Device().Sync()
		l.made = c.eng
	}
	return t, l.copy
}
