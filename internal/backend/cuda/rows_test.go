// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// The conformance suite has short rows and few indices; what kernels do with more of them is compared with the CPU
// here.

// array is a contiguous operand that begins skip elements after the start of its buffer.
type array struct {
	dt    dtype.DType
	shape []int
	x     []float64
	skip  int
}

func numel(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// drawn is an operand of numbers of [lo, hi), integers for integer dtypes.
func drawn(r *rand.Rand, dt dtype.DType, lo, hi float64, shape ...int) array {
	a := array{dt: dt, shape: shape, x: make([]float64, numel(shape))}
	for i := range a.x {
		if a.x[i] = lo + float64(r.Float64()*(hi-lo)); !dt.IsFloat() {
			a.x[i] = math.Floor(a.x[i])
		}
	}
	return a
}

func blank(dt dtype.DType, shape ...int) array {
	return array{dt: dt, shape: shape, x: make([]float64, numel(shape))}
}

func encode(dt dtype.DType, x []float64) []byte {
	b := make([]byte, len(x)*dt.Size())
	for i, v := range x {
		switch at := b[i*dt.Size():]; dt {
		case dtype.Float32:
			binary.LittleEndian.PutUint32(at, math.Float32bits(float32(v)))
		case dtype.Float64:
			binary.LittleEndian.PutUint64(at, math.Float64bits(v))
		case dtype.BFloat16:
			binary.LittleEndian.PutUint16(at, uint16(dtype.ToBF16(float32(v))))
		case dtype.Float16:
			binary.LittleEndian.PutUint16(at, uint16(dtype.ToF16(float32(v))))
		case dtype.Int32:
			binary.LittleEndian.PutUint32(at, uint32(int32(v)))
		case dtype.Bool:
			at[0] = uint8(v)
		case dtype.Int64:
			binary.LittleEndian.PutUint64(at, uint64(int64(v)))
		}
	}
	return b
}

func decode(dt dtype.DType, b []byte) []float64 {
	x := make([]float64, len(b)/dt.Size())
	for i := range x {
		switch at := b[i*dt.Size():]; dt {
		case dtype.Float32:
			x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		case dtype.Int32:
			x[i] = float64(int32(binary.LittleEndian.Uint32(at)))
		case dtype.Float64:
			x[i] = math.Float64frombits(binary.LittleEndian.Uint64(at))
		case dtype.BFloat16:
			x[i] = float64(dtype.BF16(binary.LittleEndian.Uint16(at)).Float32())
		case dtype.Float16:
			x[i] = float64(dtype.F16(binary.LittleEndian.Uint16(at)).Float32())
		case dtype.Int64:
			x[i] = float64(int64(binary.LittleEndian.Uint64(at)))
		}
	}
	return x
}

// tester is what the comparisons need of a test.
type tester interface {
	require.TestingT
	Helper()
}

// calculated launches an op on a device and returns the outputs' numbers. Outputs begin with the numbers that they
// have.
func calculated(t tester, b backend.Backend, c backend.Call, outs, ins []array) [][]float64 {
	t.Helper()
	s := b.NewStream()
	upload := func(a array) backend.View {
		v := backend.View{DType: a.dt, NDim: len(a.shape), Offset: a.skip}
		n := 1
		for k := len(a.shape) - 1; k >= 0; k-- {
			v.Shape[k], v.Stride[k] = a.shape[k], n
			n *= a.shape[k]
		}
		buf, err := s.Alloc((a.skip + n) * a.dt.Size())
		require.NoError(t, err)
		v.Buf = buf
		s.Write(buf, a.skip*a.dt.Size(), encode(a.dt, a.x))
		return v
	}
	c.NIn, c.NOut = len(ins), len(outs)
	for i, a := range ins {
		c.In[i] = upload(a)
	}
	for i, a := range outs {
		c.Out[i] = upload(a)
	}
	s.Launch(&c)
	var results [][]float64
	for i, a := range outs {
		raw := make([]byte, len(a.x)*a.dt.Size())
		s.Read(raw, c.Out[i].Buf, a.skip*a.dt.Size())
		results = append(results, decode(a.dt, raw))
	}
	for i := range ins {
		b.Free(c.In[i].Buf)
	}
	for i := range outs {
		b.Free(c.Out[i].Buf)
	}
	return results
}

var precision = map[dtype.DType]float64{dtype.Float32: 2e-5, dtype.Float64: 1e-11, dtype.BFloat16: 1.0 / 64,
	dtype.Float16: 1.0 / 512, dtype.Int64: 0}

// requireCPU compares an op with the CPU's: to a tolerance, or bit for bit.
func requireCPU(t tester, d *Device, c backend.Call, outs, ins []array, exact bool) {
	t.Helper()
	host := cpu.New(1)
	defer func() { require.NoError(t, host.Close()) }()
	want, got := calculated(t, host, c, outs, ins), calculated(t, d, c, outs, ins)
	for k := range outs {
		for i, w := range want[k] {
			g := got[k][i]
			if exact && g != w || math.Abs(g-w) > precision[outs[k].dt]*max(1, math.Abs(w)) || g != g {
				require.Failf(t, "not the CPU's", "%s %s %v: output %d, element %d: %v: want %v", c.Op, outs[k].dt,
					ins[0].shape, k, i, g, w)
			}
		}
	}
}

// What is no number on the CPU is none here, and rows that have nothing but −∞ are as there.
func TestRowsOfSpecialNumbers(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	for _, op := range []backend.Op{backend.OpSoftmax, backend.OpLogSoftmax, backend.OpCrossEntropy} {
		requireSpecial(t, d, op)
	}
}

// requireSpecial compares an op on rows with −∞, ∞, NaN and very different numbers with the CPU's.
func requireSpecial(t tester, d *Device, op backend.Op) {
	t.Helper()
	host := cpu.New(1)
	defer func() { require.NoError(t, host.Close()) }()
	inf, r := math.Inf(1), rand.New(rand.NewPCG(1, 1))
	const rows = 8
	for _, cols := range []int{5, 300, 1201} {
		x := blank(dtype.Float32, rows, cols)
		for i := range x.x {
			x.x[i] = float64(i%7) / 3
		}
		for j := range cols {
			x.x[j] = -inf
			if j%2 == 1 {
				x.x[cols+j] = -inf
			}
			x.x[5*cols+j], x.x[6*cols+j] = 600*r.Float64()-300, 600*r.Float64()-900
		}
		x.x[2*cols+3], x.x[3*cols+2], x.x[4*cols+4], x.x[7*cols+cols/2] = math.NaN(), inf, 3e38, 200
		outs, ins := []array{blank(dtype.Float32, rows, cols)}, []array{x}
		if op == backend.OpCrossEntropy {
			outs = []array{blank(dtype.Float32, rows), blank(dtype.Float32, rows), outs[0]}
			ins = append(ins, drawn(r, dtype.Int32, 0, float64(cols), rows))
		}
		c := backend.Call{Op: op, Ints: [8]int{-100}}
		if op != backend.OpCrossEntropy {
			c.Ints = [8]int{}
		}
		want, got := calculated(t, host, c, outs, ins), calculated(t, d, c, outs, ins)
		for k := range want {
			for i, w := range want[k] {
				g := got[k][i]
				same := w == g || w != w && g != g || math.Abs(w-g) < 1e-5*max(1, math.Abs(w))
				require.True(t, same, "%s of %d columns, output %d, element %d: %v: want %v", op, cols, k, i, g, w)
			}
		}
	}
}

// rowCase are the operands of an op for rows × cols of a dtype.
type rowCase struct {
	op        backend.Op
	outs, ins []array
	floats    [8]float64
	ints      [8]int
}

func rowCases(dt dtype.DType, rows, cols, skip int) []rowCase {
	r := rand.New(rand.NewPCG(uint64(cols), uint64(dt)))
	stat := statistic(dt)
	matrix := func(lo, hi float64) array {
		a := drawn(r, dt, lo, hi, rows, cols)
		a.skip = skip
		return a
	}
	column := func(lo, hi float64) array {
		a := drawn(r, dt, lo, hi, cols)
		a.skip = skip
		return a
	}
	perRow := func(lo, hi float64) array { return drawn(r, stat, lo, hi, rows) }
	y := blank(dt, rows, cols)
	y.skip = skip
	targets := drawn(r, dtype.Int64, 0, float64(cols), rows)
	return []rowCase{
		{op: backend.OpSoftmax, outs: []array{y}, ins: []array{matrix(-4, 4)}},
		{op: backend.OpSoftmaxGrad, outs: []array{y}, ins: []array{matrix(0, 1), matrix(-0.01, 0.01)}},
		{op: backend.OpLogSoftmax, outs: []array{y}, ins: []array{matrix(-4, 4)}},
		{op: backend.OpLogSoftmaxGrad, outs: []array{y}, ins: []array{matrix(-9, -8), matrix(-0.01, 0.01)}},
		{op: backend.OpCrossEntropy, outs: []array{blank(stat, rows), blank(stat, rows), y},
			ins: []array{matrix(-4, 4), targets}, ints: [8]int{-100}},
		{op: backend.OpCrossEntropyGrad, outs: []array{y},
			ins: []array{matrix(-4, 4), targets, perRow(8, 9), perRow(-1, 1)}, ints: [8]int{-100}},
		{op: backend.OpLayerNorm, outs: []array{y, blank(stat, rows), blank(stat, rows)},
			ins: []array{matrix(-1, 3), column(-1, 1), column(-1, 1)}, floats: [8]float64{1e-5}},
		{op: backend.OpLayerNormGrad, outs: []array{y, blank(dt, cols), blank(dt, cols)},
			ins: []array{matrix(-1, 1), perRow(-0.1, 0.1), perRow(1, 2), matrix(-1, 1), column(-1, 1)}},
		{op: backend.OpRMSNorm, outs: []array{y, blank(stat, rows)}, ins: []array{matrix(-1, 1), column(-1, 1)},
			floats: [8]float64{1e-5}},
		{op: backend.OpRMSNormGrad, outs: []array{y, blank(dt, cols)},
			ins: []array{matrix(-1, 1), perRow(1, 2), matrix(-1, 1), column(-1, 1)}},
	}
}

func (r *rowCase) call() backend.Call { return backend.Call{Op: r.op, Floats: r.floats, Ints: r.ints} }

// Rows of a warp, of blocks of 128, 256, 512 and 1024 threads, and of more than fits shared memory.
func TestLongRows(t *testing.T) {
	d := fakeDevice(t, fake.Options{CheckRaces: true})
	for _, c := range []struct {
		dt         dtype.DType
		rows, cols int
		up         int // to this op
	}{
		{dtype.Float32, 130, 40, 99}, {dtype.Float32, 3, 1201, 99}, {dtype.BFloat16, 3, 2500, 99},
		{dtype.Float32, 2, 5001, 99}, {dtype.Float64, 2, 2500, 99}, {dtype.Float32, 2, 20003, 6},
		{dtype.Float16, 1, 70001, 6},
	} {
		for _, r := range rowCases(c.dt, c.rows, c.cols, 0)[:min(c.up, 10)] {
			requireCPU(t, d, r.call(), r.outs, r.ins, false)
		}
	}
}

// The order of a sum depends only on the shape: neither on where a row lies nor on the device's size.
func TestRowsHaveTheSameBitsAtAnyAddress(t *testing.T) {
	one, other := fakeDevice(t, fake.Options{}), fakeDevice(t, fake.Options{SMs: 1, Seed: 9})
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		for _, cols := range []int{77, 1040} {
			aligned, shifted := rowCases(dt, 5, cols, 0), rowCases(dt, 5, cols, 1)
			for i, r := range aligned {
				require.Equal(t, calculated(t, one, r.call(), r.outs, r.ins),
					calculated(t, other, r.call(), shifted[i].outs, shifted[i].ins), "%s %s %d", r.op, dt, cols)
			}
		}
	}
}

// bitsOf is a digest of what an op makes of rows of a warp and of a block, of either alignment.
func bitsOf(t tester, d *Device, op backend.Op, dt dtype.DType) string {
	t.Helper()
	h := sha256.New()
	for _, c := range []struct{ cols, skip int }{{47, 1}, {1203, 0}, {1300, 1}, {2600, 0}} {
		for _, r := range rowCases(dt, 2, c.cols, c.skip) {
			if r.op != op {
				continue
			}
			for k, x := range calculated(t, d, r.call(), r.outs, r.ins) {
				h.Write(encode(r.outs[k].dt, x))
			}
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// recordedBits are digests of the ops in float32 and bfloat16. One changes only where an order of sums or a rounding is
// meant to change. Those of norms and softmax's gradient, which need nothing but IEEE arithmetic, are a device's too.
var recordedBits = map[backend.Op][2]string{
	backend.OpSoftmax:          {"041d49f840113be3", "9e82bdc75c7dfcb0"},
	backend.OpSoftmaxGrad:      {"bd5ea3efb83df4aa", "0d9a99f0e0fbc17b"},
	backend.OpLogSoftmax:       {"8adc543b3b1fed0b", "0f0011e693774045"},
	backend.OpLogSoftmaxGrad:   {"b61403d25bdc0efd", "ed7d7df5f7441566"},
	backend.OpCrossEntropy:     {"5e34aab23b8a97f0", "f9ebadf971184ff5"},
	backend.OpCrossEntropyGrad: {"efd22cbe3c7d367f", "e4fb32ca85020701"},
	backend.OpLayerNorm:        {"71bc257c5ee36c02", "b07d7e6037196674"},
	backend.OpLayerNormGrad:    {"7e60305642100d27", "61addbd5925d0ff5"},
	backend.OpRMSNorm:          {"d2390ba25131f4db", "b59f5fc8c8915af1"},
	backend.OpRMSNormGrad:      {"7daf7e46c191d794", "a9e2f3aed88a1dfa"},
}

// approximate are the ops whose bits the processor's own exponential function decides, too.
var approximate = map[backend.Op]bool{backend.OpSoftmax: true, backend.OpLogSoftmax: true,
	backend.OpLogSoftmaxGrad: true, backend.OpCrossEntropy: true, backend.OpCrossEntropyGrad: true}

func requireBits(t tester, d *Device, op backend.Op, dt dtype.DType) {
	t.Helper()
	if approximate[op] && (runtime.GOARCH != "amd64" || TestDriver(fake.Options{}).Version() != "fake") {
		return
	}
	want := recordedBits[op][0]
	if dt == dtype.BFloat16 {
		want = recordedBits[op][1]
	}
	require.Equal(t, want, bitsOf(t, d, op, dt), "%s %s: other bits than were recorded", op, dt)
}

func TestRowsHaveTheRecordedBits(t *testing.T) {
	d := fakeDevice(t, fake.Options{Workers: 2})
	for op := range recordedBits {
		requireBits(t, d, op, dtype.Float32)
		requireBits(t, d, op, dtype.BFloat16)
	}
}

// The gradients of a norm's parameters are the same whether they are made with dx, by one kernel or two, or alone.
func TestParamGradsHaveTheSameBits(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	for _, cols := range []int{130, 4000} {
		for _, r := range rowCases(dtype.Float32, 67, cols, 0) {
			alone, ins := backend.OpLayerNormParamGrad, 4
			switch r.op {
			case backend.OpLayerNormGrad:
			case backend.OpRMSNormGrad:
				alone, ins = backend.OpRMSNormParamGrad, 3
			default:
				continue
			}
			together := calculated(t, d, r.call(), r.outs, r.ins)
			require.Equal(t, together[1:], calculated(t, d, backend.Call{Op: alone}, r.outs[1:], r.ins[:ins]),
				"%s of %d columns", r.op, cols)
			require.Equal(t, together[0], calculated(t, d, r.call(), r.outs[:1], r.ins)[0], "%s of %d columns", r.op,
				cols)
		}
	}
}

// A norm that writes a half type has the bits of one that is rounded afterwards, and a gradient that reads one those of
// a gradient that reads a copy in float32, whatever the addresses are multiples of. So it is with additions before and
// after.
func TestNormsOfHalfTypesHaveTheSameBits(t *testing.T) {
	host := cpu.New(1)
	defer func() { require.NoError(t, host.Close()) }()
	for _, d := range []backend.Backend{host, fakeDevice(t, fake.Options{CheckRaces: true})} {
		for _, half := range halfTypes {
			for _, cols := range []int{47, 130, 1300, 4002} {
				for _, r := range rowCases(dtype.Float32, 3, cols, cols%2) {
					switch r.op {
					case backend.OpLayerNorm:
						requireSameRounded(t, d, r, half)
						requireSameParts(t, d, r, 0, half)
					case backend.OpRMSNorm:
						requireSameRounded(t, d, r, half)
					case backend.OpLayerNormGrad:
						requireSameWidened(t, d, r, 3, half)
						requireSameParts(t, d, r, 3, half)
						requireSameAdded(t, d, r, 3, half)
					case backend.OpRMSNormGrad:
						requireSameWidened(t, d, r, 2, half)
						requireSameAdded(t, d, r, 2, half)
					}
				}
			}
		}
	}
}

// requireSameRounded compares an op that writes a half type with the rounding of what it writes in float32.
func requireSameRounded(t *testing.T, d backend.Backend, r rowCase, half dtype.DType) {
	t.Helper()
	want := calculated(t, d, r.call(), r.outs, r.ins)
	narrow := slices.Clone(r.outs)
	narrow[0].dt = half
	want[0] = decode(half, encode(half, want[0]))
	require.Equal(t, want, calculated(t, d, r.call(), narrow, r.ins), "%s %s", r.op, half)
}

// requireSameWidened compares gradients, with and without those of parameters, of a dy of a half type and of float32.
func requireSameWidened(t *testing.T, d backend.Backend, r rowCase, dy int, half dtype.DType) {
	t.Helper()
	narrow, wide := slices.Clone(r.ins), slices.Clone(r.ins)
	narrow[dy].dt = half
	wide[dy].x = decode(half, encode(half, r.ins[dy].x))
	for _, outs := range [][]array{r.outs, r.outs[:1]} {
		require.Equal(t, calculated(t, d, r.call(), outs, wide), calculated(t, d, r.call(), outs, narrow), "%s %s",
			r.op, half)
	}
	alone := backend.Call{Op: r.op + 1} // OpLayerNormParamGrad, OpRMSNormParamGrad
	require.Equal(t, calculated(t, d, alone, r.outs[1:], wide[:dy+1]),
		calculated(t, d, alone, r.outs[1:], narrow[:dy+1]), "%s %s", alone.Op, half)
}

// requireSameParts compares an op of rows that are a sum, which is formed before, with the op that forms it. dy, or the
// result if dy is 0, is of a half type.
func requireSameParts(t *testing.T, d backend.Backend, r rowCase, dy int, half dtype.DType) {
	t.Helper()
	part := drawn(rand.New(rand.NewPCG(7, 7)), half, -1, 1, r.ins[0].shape...)
	part.skip = r.ins[0].skip
	sum := blank(dtype.Float32, r.ins[0].shape...)
	whole, parts := slices.Clone(r.ins), slices.Clone(r.ins)
	whole[0].x = calculated(t, d, backend.Call{Op: backend.OpAdd}, []array{sum}, []array{r.ins[0], part})[0]
	outs := slices.Clone(r.outs)
	if dy == 0 {
		outs[0].dt = half
	} else {
		whole[dy].dt, parts[dy].dt = half, half
	}
	c := r.call()
	c.Ints[1] = 1
	require.Equal(t, calculated(t, d, r.call(), outs, whole), calculated(t, d, c, outs, append(parts, part)), "%s %s",
		r.op, half)
}

// requireSameAdded compares gradients that are added to others, and rounded, afterwards with the op that does both.
func requireSameAdded(t *testing.T, d backend.Backend, r rowCase, dy int, half dtype.DType) {
	t.Helper()
	more := drawn(rand.New(rand.NewPCG(8, 8)), dtype.Float32, -1, 1, r.ins[0].shape...)
	more.skip = r.ins[0].skip
	dx, low := blank(dtype.Float32, r.ins[0].shape...), blank(half, r.ins[0].shape...)
	low.skip = more.skip
	ins := slices.Clone(r.ins)
	ins[dy].dt = half
	c := r.call()
	c.Ints = [8]int{1, 0, 1}
	for _, outs := range [][]array{r.outs, r.outs[:1]} {
		want := calculated(t, d, r.call(), outs, ins)
		dx.x = want[0]
		want[0] = calculated(t, d, backend.Call{Op: backend.OpAdd}, []array{blank(dtype.Float32, dx.shape...)},
			[]array{more, dx})[0]
		want = append(want, decode(half, encode(half, want[0])))
		require.Equal(t, want, calculated(t, d, c, append(slices.Clone(outs), low), append(slices.Clone(ins), more)),
			"%s %s", r.op, half)
	}
}

// Several tiles of the sort, and ids of one, two and three digits.
func TestEmbeddingGradAddsInOrder(t *testing.T) {
	d := fakeDevice(t, fake.Options{CheckRaces: true})
	for i, vocabulary := range []int{3, 300, 70000} {
		dt, r := []dtype.DType{dtype.Float32, dtype.BFloat16}[i%2], rand.New(rand.NewPCG(uint64(vocabulary), 1))
		ids, dy := drawn(r, dtype.Int32, 0, float64(vocabulary), 5000), drawn(r, dt, -1, 1, 5000, 1)
		table := drawn(r, dt, -1, 1, vocabulary, 1)
		requireCPU(t, d, backend.Call{Op: backend.OpEmbeddingGrad, Ints: [8]int{i % 2}}, []array{table},
			[]array{ids, dy}, true)
		table, ids.x[7] = drawn(r, dt, -1, 1, vocabulary-1, 1), float64(vocabulary-1)
		requireCPU(t, d, backend.Call{Op: backend.OpEmbeddingGrad, Ints: [8]int{1 - i%2, 1}}, []array{table},
			[]array{ids, dy}, true)
	}
}

// One long line, lines that are sorted, and lines that are not.
func TestScatterAddAddsInOrder(t *testing.T) {
	d := fakeDevice(t, fake.Options{CheckRaces: true})
	for _, c := range []struct {
		data, index []int
		dim         int
	}{{[]int{300}, []int{5000}, 0}, {[]int{70, 5}, []int{300, 4}, 0}, {[]int{5, 70}, []int{5, 60}, 1}} {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Int64} {
			r := rand.New(rand.NewPCG(uint64(c.dim), uint64(dt)))
			requireCPU(t, d, backend.Call{Op: backend.OpScatterAdd, Ints: [8]int{c.dim}},
				[]array{drawn(r, dt, -9, 9, c.data...)}, []array{drawn(r, dt, -9, 9, c.index...),
					drawn(r, dtype.Int64, 0, float64(c.data[c.dim]), c.index...)}, true)
		}
	}
}

// The first bad index is named, wherever it lies, and later work of the stream continues.
func TestFaultsNameTheFirstBadIndex(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	for _, op := range []backend.Op{backend.OpEmbedding, backend.OpEmbeddingGrad} {
		ids, table, rows := blank(dtype.Int64, 3000), blank(dtype.Float32, 7, 2), blank(dtype.Float32, 3000, 2)
		for i := 1234; i < 3000; i += 100 {
			ids.x[i] = float64(i)
		}
		outs, ins := []array{rows}, []array{table, ids}
		if op == backend.OpEmbeddingGrad {
			outs, ins = []array{table}, []array{ids, rows}
		}
		want := fmt.Sprintf("cuda:0: %s: index 1234 at element 1234 is out of range [0, 7)", op)
		func() {
			defer func() { require.EqualError(t, recover().(error), want) }()
			calculated(t, d, backend.Call{Op: op}, outs, ins)
		}()
		clear(ids.x)
		calculated(t, d, backend.Call{Op: op}, outs, ins)
	}
}

// Targets are indices, too.
func TestBadTargets(t *testing.T) { requireBadTargets(t, fakeDevice(t, fake.Options{})) }

// requireBadTargets requires a cross entropy's fault to name the first bad target.
func requireBadTargets(t tester, d *Device) {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 5))
	x := drawn(r, dtype.Float32, -1, 1, 9, 6)
	for _, dt := range []dtype.DType{dtype.Int32, dtype.Int64} {
		for _, bad := range []float64{-1, 6} {
			targets := drawn(r, dt, 0, 6, 9)
			targets.x[1], targets.x[4], targets.x[5], targets.x[8] = -100, bad, 5, bad
			c := backend.Call{Op: backend.OpCrossEntropy, Ints: [8]int{-100}}
			outs := []array{blank(dtype.Float32, 9), blank(dtype.Float32, 9), blank(dtype.Float32, 9, 6)}
			err := caught(func() error { calculated(t, d, c, outs, []array{x, targets}); return nil })
			require.EqualError(t, err, fmt.Sprintf(
				"cuda:0: cross_entropy: index %v at element 4 is out of range [0, 6)", bad))
		}
	}
}

// Images that are worked on in several groups.
func TestConvolutionsInGroups(t *testing.T) {
	was := convScratch
	defer func() { convScratch = was }()
	convScratch = 3 << 10
	d := withoutDnn(t, fake.Options{CheckRaces: true})
	r := rand.New(rand.NewPCG(1, 2))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		x, w, y := drawn(r, dt, -1, 1, 7, 2, 6, 5), drawn(r, dt, -1, 1, 3, 2, 3, 3), drawn(r, dt, -1, 1, 7, 3, 6, 5)
		ints := [8]int{1, 1, 1, 1, 1, 1}
		requireCPU(t, d, backend.Call{Op: backend.OpConv2D, Ints: ints}, []array{y},
			[]array{x, w, drawn(r, dt, -1, 1, 3)}, false)
		requireCPU(t, d, backend.Call{Op: backend.OpConv2DGrad, Ints: ints}, []array{x}, []array{y, w}, false)
		requireCPU(t, d, backend.Call{Op: backend.OpConv2DParamGrad, Ints: ints}, []array{w}, []array{x, y}, false)
	}
}

// Tables of x's own half type.
func TestRoPEOfHalfTables(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		r := rand.New(rand.NewPCG(3, uint64(dt)))
		table := []int{2, 5, 3}
		requireCPU(t, d, backend.Call{Op: backend.OpRoPE}, []array{blank(dt, 2, 2, 5, 8)},
			[]array{drawn(r, dt, -1, 1, 2, 2, 5, 8), drawn(r, dt, -1, 1, table...), drawn(r, dt, -1, 1, table...)},
			false)
	}
}
