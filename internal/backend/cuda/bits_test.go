// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// open opens the first device of a fake machine.
func open(t *testing.T, o fake.Options) *cuda.Device {
	t.Helper()
	if o.Delay == 0 {
		o.Delay = 100 * time.Microsecond
	}
	d, err := cuda.Open(cuda.TestDriver(o), 0)
	require.NoError(t, err)
	return d
}

var (
	floating = []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16}
	signed   = append([]dtype.DType{dtype.Int32, dtype.Int64}, floating...)
	numeric  = append([]dtype.DType{dtype.Uint8}, signed...)
)

// exact are ops of IEEE arithmetic in the CPU's order, whose bits are the CPU's.
var exact = []struct {
	op        backend.Op
	outs, ins int
	dtypes    []dtype.DType
	floats    []float64
	ints      []int
	out       dtype.DType // of the first output; Invalid: the input's
}{
	{op: backend.OpNeg, ins: 1, dtypes: signed}, {op: backend.OpAbs, ins: 1, dtypes: signed},
	{op: backend.OpSqrt, ins: 1, dtypes: floating}, {op: backend.OpReLU, ins: 1, dtypes: floating},
	{op: backend.OpLeakyReLU, ins: 1, dtypes: floating, floats: []float64{0.3}},
	{op: backend.OpAffine, ins: 1, dtypes: signed, floats: []float64{-1.7, 0.1}, ints: []int{-3, 1 << 20}},
	{op: backend.OpPowScalar, ins: 1, dtypes: floating, floats: []float64{2}},
	{op: backend.OpPowScalar, ins: 1, dtypes: floating, floats: []float64{3}},
	{op: backend.OpTanhGrad, ins: 2, dtypes: floating}, {op: backend.OpSigmoidGrad, ins: 2, dtypes: floating},
	{op: backend.OpReLUGrad, ins: 2, dtypes: floating},
	{op: backend.OpLeakyReLUGrad, ins: 2, dtypes: floating, floats: []float64{0.3}},
	{op: backend.OpAdd, ins: 2, dtypes: numeric}, {op: backend.OpSub, ins: 2, dtypes: numeric},
	{op: backend.OpMul, ins: 2, dtypes: numeric}, {op: backend.OpDiv, ins: 2, dtypes: floating},
	{op: backend.OpMaximum, ins: 2, dtypes: numeric}, {op: backend.OpMinimum, ins: 2, dtypes: numeric},
	{op: backend.OpAxpby, ins: 2, dtypes: floating, floats: []float64{0.3, -1.7}},
	{op: backend.OpEq, ins: 2, dtypes: numeric, out: dtype.Bool},
	{op: backend.OpNe, ins: 2, dtypes: numeric, out: dtype.Bool},
	{op: backend.OpLt, ins: 2, dtypes: numeric, out: dtype.Bool},
	{op: backend.OpLe, ins: 2, dtypes: numeric, out: dtype.Bool},
	{op: backend.OpGt, ins: 2, dtypes: numeric, out: dtype.Bool},
	{op: backend.OpGe, ins: 2, dtypes: numeric, out: dtype.Bool},
	{op: backend.OpCumSum, ins: 1, dtypes: signed}, {op: backend.OpCumSum, ins: 1, dtypes: signed, ints: []int{1}},
	{op: backend.OpDropout, ins: 1, dtypes: floating, floats: []float64{0.3}, ints: []int{5_000_000_000}},
	{op: backend.OpUniform, dtypes: floating, floats: []float64{-1.1, 3.3}, ints: []int{5_000_000_000}},
	{op: backend.OpNormal, dtypes: floating, floats: []float64{0.1, 2.3}, ints: []int{5_000_000_000}},
	{op: backend.OpStochasticRound, ins: 1, dtypes: floating[:1], ints: []int{7, 77}, out: dtype.BFloat16},
	{op: backend.OpStochasticRound, ins: 1, dtypes: floating[:1], ints: []int{7, 77}, out: dtype.Float16},
	{op: backend.OpAdamMoments, outs: 3, ins: 1, dtypes: floating, floats: []float64{0.9, 0.99, 1e-3, 0.271, 0.0297}},
	{op: backend.OpAdamW, outs: 3, ins: 1, dtypes: floating,
		floats: []float64{0.9, 0.99, 1e-3, 0.271, 0.0297, 0.05, 0.4, 0.7}},
}

// special are numbers at the borders of types and of roundings.
var special = []float64{0, math.Copysign(0, -1), 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), 0.5, -0.5, 1.5, 2.5,
	255.5, 256, -1.5, 65504, 65519, 65520, -65520, 1 << 31, -(1 << 31), -(1<<31 + 1), 1<<31 - 1, 1 << 62,
	1 << 63, -(1 << 63),
	1e-45, 3e-45, 1e-40, -1e-40, 3e38, -3e38, 1e300, 6e-8, 2.98e-8, 2.99e-8, 6.1e-5, 6.09e-5, 1.00390625, 1.01171875}

// bytesOf makes n numbers of a dtype: first the special ones, then random ones of several magnitudes.
func bytesOf(r *rand.Rand, dt dtype.DType, n int) []byte {
	var b []byte
	for i := range n {
		x := (r.Float64()*2 - 1) * math.Ldexp(1, r.IntN(24)-12)
		if i < 4*len(special) {
			x = special[r.IntN(len(special))]
		}
		switch dt {
		case dtype.Float32:
			b = binary.NativeEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case dtype.Float64:
			b = binary.NativeEndian.AppendUint64(b, math.Float64bits(x))
		case dtype.BFloat16:
			b = binary.NativeEndian.AppendUint16(b, uint16(dtype.ToBF16(float32(x))))
		case dtype.Float16:
			b = binary.NativeEndian.AppendUint16(b, uint16(dtype.ToF16(float32(x))))
		case dtype.Int32:
			b = binary.NativeEndian.AppendUint32(b, uint32(r.Uint64()>>r.IntN(64)))
		case dtype.Int64:
			b = binary.NativeEndian.AppendUint64(b, r.Uint64()>>r.IntN(64)*uint64(1-2*r.Int64N(2)))
		case dtype.Uint8:
			b = append(b, uint8(r.IntN(256)))
		default:
			b = append(b, uint8(r.IntN(2)))
		}
	}
	return b
}

// canonical gives every NaN the same bits.
func canonical(b []byte, dt dtype.DType) []byte {
	for i := 0; i < len(b); i += dt.Size() {
		switch dt {
		case dtype.Float32:
			if x := math.Float32frombits(binary.NativeEndian.Uint32(b[i:])); x != x {
				binary.NativeEndian.PutUint32(b[i:], 0x7fc00000)
			}
		case dtype.Float64:
			if x := math.Float64frombits(binary.NativeEndian.Uint64(b[i:])); x != x {
				binary.NativeEndian.PutUint64(b[i:], 0x7ff8000000000000)
			}
		case dtype.BFloat16:
			if x := dtype.BF16(binary.NativeEndian.Uint16(b[i:])).Float32(); x != x {
				binary.NativeEndian.PutUint16(b[i:], 0x7fc0)
			}
		case dtype.Float16:
			if x := dtype.F16(binary.NativeEndian.Uint16(b[i:])).Float32(); x != x {
				binary.NativeEndian.PutUint16(b[i:], 0x7e00)
			}
		}
	}
	return b
}

// operand is a view and the contents of its buffer.
type operand struct {
	backend.View
	bytes []byte
}

// vector is a contiguous operand of n numbers, with special ones among them.
func vector(r *rand.Rand, dt dtype.DType, n int) operand { return array(r, dt, []int{n}, []int{1}) }

// array is an operand of a shape and strides.
func array(r *rand.Rand, dt dtype.DType, shape, stride []int) operand {
	o := operand{View: backend.View{DType: dt, NDim: len(shape)}}
	n := 1
	for d, size := range shape {
		o.Shape[d], o.Stride[d] = size, stride[d]
		n += (size - 1) * stride[d]
	}
	o.bytes = bytesOf(r, dt, n)
	return o
}

// plain is an operand of the same view without special numbers.
func plain(r *rand.Rand, o operand) operand {
	specials := 4 * len(special)
	o.bytes = bytesOf(r, o.DType, specials+len(o.bytes)/o.DType.Size())[specials*o.DType.Size():]
	return o
}

// pair is a device of the fake and the CPU.
type pair struct {
	t       *testing.T
	devices [2]backend.Backend
	streams [2]backend.Stream
}

func openPair(t *testing.T) *pair {
	p := &pair{t: t, devices: [2]backend.Backend{cpu.New(1), open(t, fake.Options{Seed: 1})}}
	for i, d := range p.devices {
		p.streams[i] = d.NewStream()
		t.Cleanup(func() { require.NoError(t, d.Close()) })
	}
	return p
}

// outputs launches a call on a device, and returns the contents of the outputs' buffers.
func (p *pair) outputs(on int, c backend.Call, outs, ins []operand) [][]byte {
	var buffers []backend.Buffer
	place := func(o operand) backend.View {
		b, err := p.streams[on].Alloc(len(o.bytes))
		require.NoError(p.t, err)
		p.streams[on].Write(b, 0, o.bytes)
		buffers = append(buffers, b)
		o.Buf = b
		return o.View
	}
	for i, o := range outs {
		c.Out[i] = place(o)
	}
	for i, o := range ins {
		c.In[i] = place(o)
	}
	c.NOut, c.NIn = len(outs), len(ins)
	p.streams[on].Launch(&c)
	var results [][]byte
	for i, o := range outs {
		b := make([]byte, len(o.bytes))
		p.streams[on].Read(b, c.Out[i].Buf, 0)
		results = append(results, canonical(b, o.DType))
	}
	for _, b := range buffers {
		p.devices[on].Free(b)
	}
	return results
}

// same compares all bits of the outputs' buffers.
func (p *pair) same(name string, c backend.Call, outs, ins []operand) {
	p.t.Helper()
	want, got := p.outputs(0, c, outs, ins), p.outputs(1, c, outs, ins)
	for k, w := range want {
		size := outs[k].DType.Size()
		for i := 0; i < len(w); i += size {
			if string(w[i:i+size]) != string(got[k][i:i+size]) {
				require.Failf(p.t, "other bits", "%s: output %d, element %d of its buffer: %x: want %x", name, k,
					i/size, got[k][i:i+size], w[i:i+size])
			}
		}
	}
}

func TestBitsAreTheCPUs(t *testing.T) {
	p, r := openPair(t), rand.New(rand.NewPCG(1, 2))
	const n = 1003
	for _, e := range exact {
		for _, dt := range e.dtypes {
			c := backend.Call{Op: e.op, Key: 11}
			copy(c.Floats[:], e.floats)
			copy(c.Ints[:], e.ints)
			var outs, ins []operand
			for range e.ins {
				ins = append(ins, vector(r, dt, n))
			}
			for range max(1, e.outs) {
				out := dt
				if e.out != dtype.Invalid {
					out = e.out
				}
				outs = append(outs, vector(r, out, n))
			}
			p.same(fmt.Sprintf("%s of %s", e.op, dt), c, outs, ins)
		}
	}
	for _, half := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		for _, ins := range [][2]dtype.DType{{dtype.Float32, half}, {half, dtype.Float32}, {half, half}} {
			p.same(fmt.Sprintf("add of %s and %s", ins[0], ins[1]), backend.Call{Op: backend.OpAdd},
				[]operand{vector(r, dtype.Float32, n)}, []operand{vector(r, ins[0], n), vector(r, ins[1], n)})
		}
	}
	for _, from := range dtype.All() {
		for _, to := range dtype.All() {
			p.same(fmt.Sprintf("%s to %s", from, to), backend.Call{Op: backend.OpCopy}, []operand{vector(r, to, n)},
				[]operand{vector(r, from, n)})
		}
	}
}

// Copies that turn rows into columns go by tiles, others by units of several elements.
func TestCopiesOfAnyLayout(t *testing.T) {
	p, r := openPair(t), rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		name           string
		shape, in, out []int
	}{
		{"turned", []int{40, 70}, []int{1, 40}, []int{70, 1}},
		{"turned back", []int{40, 70}, []int{70, 1}, []int{1, 40}},
		{"turned with gaps", []int{33, 16}, []int{1, 35}, []int{20, 1}},
		{"planes", []int{3, 40, 50}, []int{2000, 1, 40}, []int{2000, 50, 1}},
		{"planes in between", []int{40, 3, 50}, []int{1, 2000, 40}, []int{150, 50, 1}},
		{"repeated", []int{40, 3, 50}, []int{0, 1, 3}, []int{150, 50, 1}},
		{"heads", []int{2, 5, 3, 16}, []int{240, 16, 80, 1}, []int{240, 48, 16, 1}},
		{"pairs", []int{2, 5, 3, 6}, []int{90, 6, 30, 1}, []int{90, 18, 6, 1}},
		{"reversed", []int{2, 3, 4, 5, 6, 2}, []int{1, 2, 6, 24, 120, 720}, []int{1440, 480, 120, 24, 4, 2}},
	} {
		for _, dt := range []dtype.DType{dtype.Uint8, dtype.BFloat16, dtype.Float32, dtype.Int64} {
			p.same(fmt.Sprint(dt, c.name), backend.Call{Op: backend.OpCopy}, []operand{array(r, dt, c.shape, c.out)},
				[]operand{array(r, dt, c.shape, c.in)})
		}
	}
}

// The largest of all, and enough of them that they are sorted outside of shared memory.
func TestLargeTopK(t *testing.T) {
	p, r := openPair(t), rand.New(rand.NewPCG(5, 6))
	const rows, cols, k = 2, 2600, 2100
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Int64} {
		outs := []operand{array(r, dt, []int{rows, k}, []int{k, 1}), array(r, dtype.Int64, []int{rows, k}, []int{k, 1})}
		p.same(dt.String(), backend.Call{Op: backend.OpTopK}, outs,
			[]operand{array(r, dt, []int{rows, cols}, []int{cols, 1})})
	}
}

// Extremes have no order, sums of integers neither: they are the CPU's whatever the shape is cut into.
func TestReductionsOfAnyShape(t *testing.T) {
	p, r := openPair(t), rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct{ shape, in, gone []int }{
		{[]int{20000}, []int{1}, []int{0}},
		{[]int{3, 300}, []int{300, 1}, []int{1}},
		{[]int{300, 3}, []int{1, 300}, []int{1}},
		{[]int{700, 5}, []int{5, 1}, []int{0}},
		{[]int{5, 40, 3, 20}, []int{2400, 60, 20, 1}, []int{1, 3}},
		{[]int{5, 40, 3, 20}, []int{1, 5, 200, 600}, []int{0, 1}},
	} {
		var out, stride []int
		n := 1
		for d, size := range c.shape {
			for _, g := range c.gone {
				if g == d {
					size = 1
				}
			}
			out = append(out, size)
		}
		for d := len(out) - 1; d >= 0; d-- {
			stride = append([]int{n}, stride...)
			n *= out[d]
		}
		for _, op := range []backend.Op{backend.OpMax, backend.OpMin, backend.OpSum, backend.OpArgMax,
			backend.OpArgMin} {
			for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Int32, dtype.Int64} {
				to, call := dt, backend.Call{Op: op}
				switch {
				case op == backend.OpSum && dt.IsFloat():
					continue
				case op == backend.OpArgMax || op == backend.OpArgMin:
					if to, call.Ints[0] = dtype.Int64, c.gone[0]; len(c.gone) > 1 {
						continue
					}
				}
				result, x := array(r, to, out, stride), array(r, dt, c.shape, c.in)
				p.same(fmt.Sprint(op, dt, c), call, []operand{result}, []operand{x})
				p.same(fmt.Sprint(op, dt, c), call, []operand{result}, []operand{plain(r, x)})
			}
		}
	}
}

// A sum of a half type that stays float32 has the bits of that of its numbers in float32.
func TestWideSums(t *testing.T) {
	p, r := openPair(t), rand.New(rand.NewPCG(9, 10))
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		for _, shape := range [][]int{{300, 5}, {20, 5}} {
			half := plain(r, array(r, dt, shape, []int{5, 1}))
			single := array(r, dtype.Float32, shape, []int{5, 1})
			sums := array(r, dtype.Float32, []int{1, 5}, []int{5, 1})
			copied := p.outputs(1, backend.Call{Op: backend.OpCopy}, []operand{single}, []operand{half})
			single.bytes = copied[0]
			want := p.outputs(1, backend.Call{Op: backend.OpSum}, []operand{sums}, []operand{single})
			require.Equal(t, want, p.outputs(1, backend.Call{Op: backend.OpSum}, []operand{sums}, []operand{half}))
		}
	}
}
