// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// Operand is an element type of the operands of [Widened].
type Operand interface {
	float32 | dtype.BF16 | dtype.F16
}

// Widened is [Float32Fused] for operands of which one or both are of a half type; a nil f is nothing to be done to C.
// Elements of a half type are widened, which is exact, while panels are packed or where they lie: the bits are those of
// widening the operands to float32 beforehand. That holds for processors that multiply pairs of bfloat16, too; only
// which NaN an element becomes may differ.
func Widened[A, B Operand](p *parallel.Pool, m, n, k int, a Matrix[A], b Matrix[B], c Rows[float32],
	f *Fused[float32]) {
	check(m, n, k, a, b, c)
	q := newProblem(m, n, k, Strided[float32](nil, a.RowStride, a.ColStride),
		Strided[float32](nil, b.RowStride, b.ColStride), c, false)
	q.a, q.halfA = widening(a.Data)
	q.b, q.halfB = widening(b.Data)
	if f != nil {
		f.addTo(&q)
	}
	multiply(p, engine32(), q)
}

// half is an operand of a half type. The zero value is none: the operand is of the type of C.
type half[T element] struct {
	bits       []uint16
	*format[T] // nil: none
}

// format is how a variant reads operands of a half type.
type format[T element] struct {
	// pack is engine.pack for a half type.
	pack func(dst []T, width, lanes, k int, src []uint16, laneStride, kStride int)
	// copyA and copyB are those of engine for a half type; nil: there is none.
	copyA, copyB copyPanels[T, uint16]
	// stream and dots are engine.stream and engine.dots for a B of a half type.
	stream   direct[T, uint16]
	dots     directAhead[T, uint16]
	bfloat16 bool // whether the elements are that
	// pairing, if not nil, is how products of two such operands are computed where there are enough rows.
	pairing *pairing[T]
}

// widening tells the operands of Widened apart.
func widening[A Operand](x []A) ([]float32, half[float32]) {
	switch x := any(x).(type) {
	case []float32:
		return x, half[float32]{}
	case []dtype.BF16:
		return nil, half[float32]{asBits(x), formatBF16()}
	case []dtype.F16:
		return nil, half[float32]{asBits(x), formatF16()}
	}
	panic(fmt.Sprintf("gemm: operand %T", x)) // not reached: Operand lists no other
}

func asBits[H dtype.BF16 | dtype.F16](x []H) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// The portable formats.
var (
	genericBF16 = format[float32]{pack: packBF16Generic, bfloat16: true}
	genericF16  = format[float32]{pack: packF16Generic}
)

func widenBF16(x uint16) float32 { return dtype.BF16(x).Float32() }
func widenF16(x uint16) float32  { return dtype.F16(x).Float32() }

// packBF16Generic is packGeneric for bfloat16.
func packBF16Generic(dst []float32, width, lanes, k int, src []uint16, laneStride, kStride int) {
	packWidened(widenBF16, dst, width, lanes, k, src, laneStride, kStride)
}

// packF16Generic is packGeneric for float16.
func packF16Generic(dst []float32, width, lanes, k int, src []uint16, laneStride, kStride int) {
	packWidened(widenF16, dst, width, lanes, k, src, laneStride, kStride)
}

func packWidened(widen func(uint16) float32, dst []float32, width, lanes, k int, src []uint16, laneStride,
	kStride int) {
	for p := range k {
		row, from := dst[p*width:(p+1)*width], src[p*kStride:]
		for i := range lanes {
			row[i] = widen(from[i*laneStride])
		}
		clear(row[lanes:])
	}
}

// packA packs lanes rows of A from row i on, and k products from p on.
func (j *job[T]) packA(dst []T, lanes, k, i, p int) {
	at := i*j.ars + p*j.acs
	if j.halfA.format != nil {
		j.halfA.pack(dst, lanes, lanes, k, j.halfA.bits[at:], j.ars, j.acs)
		return
	}
	j.pack(dst, lanes, lanes, k, j.a[at:], j.ars, j.acs)
}

// packB packs lanes columns of B from column col on, and k products from p on, to a whole panel.
func (j *job[T]) packB(dst []T, lanes, k, p, col int) {
	at := p*j.brs + col*j.bcs
	if j.halfB.format != nil {
		j.halfB.pack(dst, j.nr, lanes, k, j.halfB.bits[at:], j.bcs, j.brs)
		return
	}
	j.pack(dst, j.nr, lanes, k, j.b[at:], j.bcs, j.brs)
}
