// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// copyKernel copies and converts. Equal dtypes are moved by size.
func copyKernel(d *Device, c *backend.Call) {
	d.sameShapes(c, 1)
	f := castBlock(c.Out[0].DType, c.In[0].DType)
	t := d.begin(c)
	t.block = f
	t.loops.set(&c.Out[0], &c.In[0])
	if !t.transpose(c) {
		t.do(t.loops.numel(), elementGrain, elementwise)
	}
	t.end()
}

// castBlock is the conversion between two dtypes.
func castBlock(to, from dtype.DType) block {
	if to == from {
		return moves[to.Size()]
	}
	return casts[to][from]
}

var moves = [9]block{1: moveBlock[uint8], 2: moveBlock[uint16], 4: moveBlock[uint32], 8: moveBlock[uint64]}

func moveBlock[T any](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	copy(out, x)
}

// casts is [to][from]. The half types go through float32, as everywhere.
var casts = func() (t [dtype.Bool + 1][dtype.Bool + 1]block) {
	castsFrom[float32](&t, dtype.Float32)
	castsFrom[float64](&t, dtype.Float64)
	castsFrom[int32](&t, dtype.Int32)
	castsFrom[int64](&t, dtype.Int64)
	castsFrom[uint8](&t, dtype.Uint8)
	castsFrom[uint8](&t, dtype.Bool)
	castsFromHalf(&t, dtype.BFloat16, func(x uint16) float32 { return dtype.BF16(x).Float32() })
	castsFromHalf(&t, dtype.Float16, func(x uint16) float32 { return dtype.F16(x).Float32() })
	t[dtype.Float32][dtype.BFloat16] = widenBF16
	t[dtype.Float32][dtype.Float16] = widenF16
	t[dtype.BFloat16][dtype.Float32] = roundBF16
	t[dtype.Float16][dtype.Float32] = roundF16
	return t
}()

// castsFrom fills the column of a source dtype.
func castsFrom[S number](t *[dtype.Bool + 1][dtype.Bool + 1]block, from dtype.DType) {
	t[dtype.Float32][from] = toNumber[float32, S]
	t[dtype.Float64][from] = toNumber[float64, S]
	t[dtype.Int32][from] = toNumber[int32, S]
	t[dtype.Int64][from] = toNumber[int64, S]
	t[dtype.Uint8][from] = toNumber[uint8, S]
	t[dtype.Bool][from] = toBool[S]
	if from == dtype.Float32 || from == dtype.Float64 {
		t[dtype.Int32][from] = truncated[S](truncate[int32](math.MinInt32, math.MaxInt32))
		t[dtype.Int64][from] = truncated[S](truncate[int64](math.MinInt64, math.MaxInt64))
		t[dtype.Uint8][from] = truncated[S](truncate[uint8](0, math.MaxUint8))
	}
	t[dtype.BFloat16][from] = toBF16[S]
	t[dtype.Float16][from] = toF16[S]
}

// castsFromHalf fills the column of a half type except for float32, which has its own loops. The rest is rare.
func castsFromHalf(t *[dtype.Bool + 1][dtype.Bool + 1]block, from dtype.DType, wide func(uint16) float32) {
	t[dtype.Float64][from] = fromHalf(wide, func(f float64) float64 { return f })
	t[dtype.BFloat16][from] = fromHalf(wide, func(f float64) dtype.BF16 { return dtype.ToBF16(float32(f)) })
	t[dtype.Float16][from] = fromHalf(wide, func(f float64) dtype.F16 { return dtype.ToF16(float32(f)) })
	t[dtype.Int32][from] = fromHalf(wide, truncate[int32](math.MinInt32, math.MaxInt32))
	t[dtype.Int64][from] = fromHalf(wide, truncate[int64](math.MinInt64, math.MaxInt64))
	t[dtype.Uint8][from] = fromHalf(wide, truncate[uint8](0, math.MaxUint8))
	t[dtype.Bool][from] = fromHalf(wide, func(f float64) uint8 { return truth(f != 0) })
}

func fromHalf[D any](wide func(uint16) float32, to func(float64) D) block {
	return func(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
		out, x := unsafe.Slice((*D)(p[0]), n), unsafe.Slice((*uint16)(p[1]), n)
		for i := range out {
			out[i] = to(float64(wide(x[i])))
		}
	}
}

func toNumber[D, S number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := unsafe.Slice((*D)(p[0]), n), unsafe.Slice((*S)(p[1]), n)
	x = x[:len(out)]
	for i := range out {
		out[i] = D(x[i])
	}
}

// truncate goes toward zero and stops at the borders lo and hi of the integer type; a NaN gives 0. Go leaves both to
// the processor.
func truncate[D int32 | int64 | uint8](lo, hi D) func(float64) D {
	return func(f float64) D {
		switch {
		case f != f:
			return 0
		case f <= float64(lo):
			return lo
		case f >= float64(hi):
			return hi
		}
		return D(int64(f))
	}
}

func truncated[S, D number](to func(float64) D) block {
	return func(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
		out, x := unsafe.Slice((*D)(p[0]), n), unsafe.Slice((*S)(p[1]), n)
		for i := range out {
			out[i] = to(float64(x[i]))
		}
	}
}

func toBool[S number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := unsafe.Slice((*uint8)(p[0]), n), unsafe.Slice((*S)(p[1]), n)
	for i := range out {
		out[i] = truth(x[i] != 0)
	}
}

func toBF16[S number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := unsafe.Slice((*dtype.BF16)(p[0]), n), unsafe.Slice((*S)(p[1]), n)
	x = x[:len(out)]
	for i := range out {
		out[i] = dtype.ToBF16(float32(x[i]))
	}
}

func toF16[S number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := unsafe.Slice((*dtype.F16)(p[0]), n), unsafe.Slice((*S)(p[1]), n)
	x = x[:len(out)]
	for i := range out {
		out[i] = dtype.ToF16(float32(x[i]))
	}
}

func widenBF16(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	vecmath.WidenBF16(unsafe.Slice((*float32)(p[0]), n), unsafe.Slice((*dtype.BF16)(p[1]), n))
}

func roundBF16(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	vecmath.RoundBF16(unsafe.Slice((*dtype.BF16)(p[0]), n), unsafe.Slice((*float32)(p[1]), n))
}

func widenF16(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	vecmath.WidenF16(unsafe.Slice((*float32)(p[0]), n), unsafe.Slice((*dtype.F16)(p[1]), n))
}

func roundF16(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	vecmath.RoundF16(unsafe.Slice((*dtype.F16)(p[0]), n), unsafe.Slice((*float32)(p[1]), n))
}

// fillKernel and arangeKernel write one value, or a row of them.

func fillKernel(d *Device, c *backend.Call) {
	out := &c.Out[0]
	t := d.begin(c)
	switch out.DType {
	case dtype.Float32:
		t.block = fillFloat[float32]
	case dtype.Float64:
		t.block = fillFloat[float64]
	case dtype.Int32:
		t.block = fillInt[int32]
	case dtype.Int64:
		t.block = fillInt[int64]
	case dtype.Uint8:
		t.block = fillInt[uint8]
	case dtype.Bool:
		t.block = fillBool
	}
	t.loops.set(out)
	t.do(t.loops.numel(), elementGrain, elementwise)
	t.end()
}

func fillFloat[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	v := T(c.Floats[0])
	out := unsafe.Slice((*T)(p[0]), n)
	if v == 0 && !math.Signbit(float64(v)) {
		clear(out)
		return
	}
	for i := range out {
		out[i] = v
	}
}

func fillInt[T int32 | int64 | uint8](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	v := T(c.Ints[0])
	out := unsafe.Slice((*T)(p[0]), n)
	for i := range out {
		out[i] = v
	}
}

func fillBool(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	v := truth(c.Ints[0] != 0)
	out := unsafe.Slice((*uint8)(p[0]), n)
	for i := range out {
		out[i] = v
	}
}

func arangeFloat[T float](t *task, _ *workspace, lo, hi int) {
	v := &t.c.Out[0]
	start, step := t.c.Floats[0], t.c.Floats[1]
	for i := lo; i < hi; i++ {
		*(*T)(at(v, v.Offset+i*v.Stride[0])) = T(start + float64(float64(i)*step))
	}
}

func arangeInt[T int32 | int64 | uint8](t *task, _ *workspace, lo, hi int) {
	v := &t.c.Out[0]
	start, step := t.c.Ints[0], t.c.Ints[1]
	for i := lo; i < hi; i++ {
		*(*T)(at(v, v.Offset+i*v.Stride[0])) = T(start + i*step)
	}
}

func arangeKernel(d *Device, c *backend.Call) {
	out := &c.Out[0]
	if out.NDim != 1 {
		d.fault(c, "output of shape %v: want one dim", out.Shape[:out.NDim])
	}
	var f body
	switch out.DType {
	case dtype.Float32:
		f = arangeFloat[float32]
	case dtype.Float64:
		f = arangeFloat[float64]
	case dtype.Int32:
		f = arangeInt[int32]
	case dtype.Int64:
		f = arangeInt[int64]
	case dtype.Uint8:
		f = arangeInt[uint8]
	default:
		d.fault(c, "no kernel for %s", out.DType)
	}
	t := d.begin(c)
	t.do(out.Numel(), elementGrain, f)
	t.end()
}
