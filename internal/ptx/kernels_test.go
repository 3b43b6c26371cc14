// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// device is a memory with the usual moves of a test.
type device struct {
	testing.TB
	*Memory
}

func newDevice(t testing.TB) device { return device{t, NewMemory(1 << 30)} }

// put allocates and writes a slice of fixed-size values.
func (d device) put(values any) uint64 {
	d.Helper()
	var b bytes.Buffer
	require.NoError(d, binary.Write(&b, binary.LittleEndian, values))
	addr, err := d.Alloc(b.Len())
	require.NoError(d, err)
	require.NoError(d, d.Write(addr, b.Bytes()))
	return addr
}

func (d device) alloc(n int) uint64 {
	d.Helper()
	addr, err := d.Alloc(n)
	require.NoError(d, err)
	return addr
}

// get reads into a slice of fixed-size values; all bytes must be defined.
func (d device) get(addr uint64, values any) {
	d.Helper()
	b := make([]byte, binary.Size(values))
	require.NoError(d, d.Read(b, addr))
	defined, err := d.Defined(addr, len(b))
	require.NoError(d, err)
	require.True(d, defined, "the kernel has not written all results")
	require.NoError(d, binary.Read(bytes.NewReader(b), binary.LittleEndian, values))
}

// pack lays arguments out as the kernel's parameter block.
func pack(t testing.TB, k *Kernel, args ...any) []byte {
	t.Helper()
	require.Len(t, args, len(k.Params()), k.Name())
	block := make([]byte, k.ParamBytes())
	for i, p := range k.Params() {
		var b bytes.Buffer
		require.NoError(t, binary.Write(&b, binary.LittleEndian, args[i]))
		require.Equal(t, p.Size, b.Len(), "argument %d of %s", i, k.Name())
		copy(block[p.Offset:], b.Bytes())
	}
	return block
}

func parseFile(t testing.TB, name string) *Module {
	t.Helper()
	src, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	m, err := Parse(string(src))
	require.NoError(t, err)
	return m
}

func kernelOf(t testing.TB, file, name string) *Kernel {
	t.Helper()
	k, err := parseFile(t, file).Kernel(name)
	require.NoError(t, err)
	return k
}

func launch(t testing.TB, k *Kernel, m device, l Launch, args ...any) Stats {
	t.Helper()
	if l.Grid == ([3]uint32{}) {
		l.Grid = [3]uint32{1, 1, 1}
	}
	for i := range 3 {
		l.Grid[i], l.Block[i] = max(l.Grid[i], 1), max(l.Block[i], 1)
	}
	stats, err := k.Run(m.Memory, l, pack(t, k, args...))
	require.NoError(t, err)
	return stats
}

func normals(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func bf16(v float32) uint16     { return uint16(toBF16(math.Float32bits(v))) }
func fromBF16(b uint16) float32 { return f32(uint32(b) << 16) }
func f16(v float32) uint16      { return uint16(formatF16.encode(float64(v), nearest2)) }
func fromF16(b uint16) float32  { return float32(formatF16.decode(uint32(b))) }
func each[A, B any](l []A, f func(A) B) []B {
	out := make([]B, len(l))
	for i, v := range l {
		out[i] = f(v)
	}
	return out
}

func TestLayerNorm(t *testing.T) {
	k := kernelOf(t, "rows.ptx", "layer_norm")
	const rows, n = 3, 200
	x, w, b := normals(rows*n, 1), normals(n, 2), normals(n, 3)
	for _, l := range []Launch{{Block: [3]uint32{64}}, {Block: [3]uint32{256}, Seed: 7}, {Block: [3]uint32{1024},
		Seed: 8, Workers: 2}} {
		d := newDevice(t)
		y, stats := d.alloc(4*rows*n), d.alloc(8*rows)
		l.Grid[0], l.CheckRaces = rows, l.Workers == 0
		launch(t, k, d, l, d.put(x), d.put(w), d.put(b), y, stats, int32(n), float32(1e-5))
		got := make([]float32, rows*n)
		d.get(y, got)
		for r := range rows {
			mean, q := 0.0, 0.0
			for _, v := range x[r*n : r*n+n] {
				mean += float64(v) / n
			}
			for _, v := range x[r*n : r*n+n] {
				q += (float64(v) - mean) * (float64(v) - mean) / n
			}
			for i, v := range x[r*n : r*n+n] {
				want := (float64(v)-mean)/math.Sqrt(q+1e-5)*float64(w[i]) + float64(b[i])
				require.InDelta(t, want, got[r*n+i], 1e-6)
			}
		}
	}
}

func TestSoftmax(t *testing.T) {
	k := kernelOf(t, "rows.ptx", "softmax_f16")
	const rows, n = 2, 100
	x := each(normals(rows*n, 4), f16)
	d := newDevice(t)
	y := d.alloc(2 * rows * n)
	launch(t, k, d, Launch{Grid: [3]uint32{rows}, Block: [3]uint32{64}, Seed: 3, CheckRaces: true},
		d.put(x), y, int32(n))
	got := make([]uint16, rows*n)
	d.get(y, got)
	for r := range rows {
		sum := 0.0
		for _, v := range x[r*n : r*n+n] {
			sum += math.Exp(float64(fromF16(v)))
		}
		for i, v := range x[r*n : r*n+n] {
			require.InEpsilon(t, math.Exp(float64(fromF16(v)))/sum, float64(fromF16(got[r*n+i])), 1e-3)
		}
	}
}

func TestCrossEntropy(t *testing.T) {
	k := kernelOf(t, "rows.ptx", "cross_entropy")
	const rows, n = 4, 300
	x := each(normals(rows*n, 5), bf16)
	targets := []int64{7, 299, -1, 0}
	d := newDevice(t)
	loss, grad, fault := d.put(make([]float32, rows)), d.put(make([]uint16, rows*n)), d.put([]uint64{0})
	launch(t, k, d, Launch{Grid: [3]uint32{rows}, Block: [3]uint32{128}, Seed: 3}, d.put(x), d.put(targets), loss, grad,
		fault, int32(n), float32(0.5))
	losses, grads, faults := make([]float32, rows), make([]uint16, rows*n), make([]int64, 1)
	d.get(loss, losses)
	d.get(grad, grads)
	d.get(fault, faults)
	require.Equal(t, int64(0), faults[0], "target -1 is noted as 0")
	for r, target := range targets {
		if target < 0 {
			continue
		}
		sum := 0.0
		for _, v := range x[r*n : r*n+n] {
			sum += math.Exp(float64(fromBF16(v)))
		}
		require.InEpsilon(t, math.Log(sum)-float64(fromBF16(x[r*n+int(target)])), float64(losses[r]), 1e-5)
		for i, v := range x[r*n : r*n+n] {
			want := math.Exp(float64(fromBF16(v))) / sum
			if int64(i) == target {
				want--
			}
			require.InDelta(t, want*0.5, float64(fromBF16(grads[r*n+i])), 1e-4+math.Abs(want)*0.004)
		}
	}
}

// TestAdamW compares bits: the kernel uses nothing but IEEE arithmetic.
func TestAdamW(t *testing.T) {
	k := kernelOf(t, "adamw.ptx", "adamw")
	require.Equal(t, 256, k.MaxThreads())
	d := newDevice(t)
	type entry struct {
		W, M, V, G, Half uint64
		N                int64
		Decay            float32
		_                uint32
	}
	type chunk struct{ Tensor, Piece int32 }
	type state struct{ w, m, v, g []float32 }
	var entries []entry
	var chunks []chunk
	var states []state
	for i, n := range []int{5, 1024, 2100} {
		s := state{normals(n, 1), normals(n, 2), each(normals(n, 3), func(v float32) float32 { return v * v }),
			normals(n, 4)}
		states = append(states, s)
		e := entry{d.put(s.w), d.put(s.m), d.put(s.v), d.put(s.g), 0, int64(n), 0.01 * float32(i), 0}
		if i > 0 {
			e.Half = d.alloc(2 * n)
		}
		entries = append(entries, e)
		for p := range (n + 1023) / 1024 {
			chunks = append(chunks, chunk{int32(i), int32(p)})
		}
	}
	lr, b1, b2, eps, c1, c2 := float32(1e-3), float32(0.9), float32(0.999), float32(1e-8), float32(0.19),
		float32(0.0019)
	launch(t, k, d, Launch{Grid: [3]uint32{uint32(len(chunks))}, Block: [3]uint32{256}, CheckRaces: true},
		d.put(entries),
		d.put(chunks), []float32{lr, b1, b2, eps, c1, c2})
	for i, s := range states {
		got, half := make([]float32, len(s.w)), make([]uint16, len(s.w))
		d.get(entries[i].W, got)
		if i > 0 {
			d.get(entries[i].Half, half)
		}
		for j, w := range s.w {
			g := s.g[j]
			m := float32(b1*s.m[j]) + float32((1-b1)*g)
			v := float32(b2*s.v[j]) + float32((1-b2)*float32(g*g))
			w -= float32(float32(lr*entries[i].Decay) * w)
			w -= float32(lr * ((m / c1) / (float32(math.Sqrt(float64(v/c2))) + eps)))
			require.Equal(t, math.Float32bits(w), math.Float32bits(got[j]), "%d %d", i, j)
			if i > 0 {
				require.Equal(t, bf16(w), half[j])
			}
		}
	}
}

func TestUnary(t *testing.T) {
	functions := []func(float64) float64{math.Exp, math.Log, math.Tanh, math.Erf, math.Sin, math.Cos, math.Sqrt,
		func(v float64) float64 { return 1 / v }, func(v float64) float64 { return 1 / math.Sqrt(v) },
		func(v float64) float64 { return math.Pow(v, 1.7) }, math.Floor, math.RoundToEven, math.Log1p, math.Expm1,
		func(v float64) float64 { return v / float64(float32(3.3)) },
		func(v float64) float64 { return math.Mod(v, float64(float32(0.7))) }}
	x := []float32{0, 1e-6, 0.1, 0.5, 1, 1.5, 2.5, 3.75, 10, 12345.678, 1e6, 3e20, -0.1, -1, -2.5, -7, -30, -1e5,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), math.SmallestNonzeroFloat32, 1e-39}
	k := kernelOf(t, "math.ptx", "unary")
	for i, f := range functions {
		d := newDevice(t)
		y := d.alloc(4 * len(x))
		launch(t, k, d, Launch{Block: [3]uint32{32}}, d.put(x), y, int32(len(x)), int32(i))
		got := make([]float32, len(x))
		d.get(y, got)
		for j, v := range x {
			want := float32(f(float64(v)))
			if want != want || math.IsInf(float64(want), 0) || want == 0 {
				require.Equal(t, want != want, got[j] != got[j], "function %d of %g is %g", i, v, got[j])
				require.True(t, want != want || got[j] == want, "function %d of %g is %g: want %g", i, v, got[j], want)
				continue
			}
			tolerance := 3e-6*math.Abs(float64(want)) + 1e-44
			require.InDelta(t, want, got[j], tolerance, "function %d of %g", i, v)
		}
	}
	wide := append(each(x[:len(x)-2], func(v float32) float64 { return float64(v) }), 1e300, 5e-324, 1e-310)
	k = kernelOf(t, "math.ptx", "unary64")
	for i, f := range functions[:10] {
		d := newDevice(t)
		y := d.alloc(8 * len(wide))
		if i == 1 { // math.Log is wrong for subnormals on amd64
			f = func(v float64) float64 {
				m, e := math.Frexp(v)
				return math.Log(m) + float64(e)*math.Ln2
			}
		}
		launch(t, k, d, Launch{Block: [3]uint32{32}}, d.put(wide), y, int32(len(wide)), int32(i))
		got := make([]float64, len(wide))
		d.get(y, got)
		for j, v := range wide {
			want := f(v)
			if want != want || math.IsInf(want, 0) || want == 0 {
				require.Equal(t, want != want, got[j] != got[j], "function %d of %g is %g", i, v, got[j])
				require.True(t, want != want || got[j] == want, "function %d of %g is %g: want %g", i, v, got[j], want)
				continue
			}
			require.InDelta(t, want, got[j], 1e-14*math.Abs(want)+2e-16, "function %d of %g", i, v)
		}
	}
}

func TestHalves(t *testing.T) {
	x := []float32{0, 1, -1.5, 0.1, 65504, 65520, 1e-7, 3e-8, float32(math.Inf(1)), float32(math.NaN()), 1e38, 3.4e38,
		2049, 257}
	k := kernelOf(t, "math.ptx", "halves")
	d := newDevice(t)
	h, b, y := d.alloc(2*len(x)), d.alloc(2*len(x)), d.alloc(4*len(x))
	launch(t, k, d, Launch{Block: [3]uint32{32}}, d.put(x), h, b, y, int32(len(x)))
	hs, bs, ys := make([]uint16, len(x)), make([]uint16, len(x)), make([]float32, len(x))
	d.get(h, hs)
	d.get(b, bs)
	d.get(y, ys)
	require.Equal(t, []uint16{0, 0x3c00, 0xbe00, 0x2e66, 0x7bff, 0x7c00, 0x0002, 0x0001, 0x7c00, 0x7fff, 0x7c00, 0x7c00,
		0x6800, 0x5c04}, hs)
	require.Equal(t, []uint16{0, 0x3f80, 0xbfc0, 0x3dcd, 0x4780, 0x4780, 0x33d7, 0x3301, 0x7f80, 0x7fff, 0x7e96, 0x7f80,
		0x4500, 0x4380}, bs)
	for i, v := range x {
		if v-v != 0 || v > 1000 && v != 2049 {
			continue
		}
		want := float32(0)
		for _, u := range []float32{v, x[len(x)-1-i]} {
			want += dtype.ToF16(fromF16(f16(u))*fromF16(f16(u)) + fromF16(f16(u))).Float32()
			b := fromBF16(bf16(u))
			want += dtype.ToBF16(b*b + b).Float32()
		}
		h, b := fromF16(hs[i]), fromBF16(bs[i])
		want += dtype.ToF16(h+h).Float32() + dtype.ToBF16(b*b).Float32()
		if want-want == 0 {
			require.InEpsilon(t, want+1, ys[i]+1, 1e-6, "%g", v)
		}
	}
}

func philoxReference(key, at uint64) [4]uint32 {
	c := [4]uint32{uint32(at), uint32(at >> 32), 0, 0}
	k0, k1 := uint32(key), uint32(key>>32)
	for range 10 {
		p0, p1 := uint64(0xD2511F53)*uint64(c[0]), uint64(0xCD9E8D57)*uint64(c[2])
		c = [4]uint32{uint32(p1>>32) ^ c[1] ^ k0, uint32(p1), uint32(p0>>32) ^ c[3] ^ k1, uint32(p0)}
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return c
}

func TestPhilox(t *testing.T) {
	k := kernelOf(t, "math.ptx", "philox")
	const n = 100
	d := newDevice(t)
	out := d.alloc(16 * n)
	key, first := uint64(0x123456789abcdef0), uint64(1<<32-5)
	launch(t, k, d, Launch{Grid: [3]uint32{2}, Block: [3]uint32{64}}, out, key, first, int32(n))
	got := make([][4]uint32, n)
	d.get(out, got)
	for i := range n {
		require.Equal(t, philoxReference(key, first+uint64(i)), got[i])
	}
}

func TestCalls(t *testing.T) {
	k := kernelOf(t, "math.ptx", "calls")
	x := make([]int32, 50)
	for i := range x {
		x[i] = int32(i + 1)
	}
	d := newDevice(t)
	y, z := d.alloc(4*len(x)), d.alloc(4*len(x))
	launch(t, k, d, Launch{Block: [3]uint32{64}}, d.put(x), y, z, int32(len(x)))
	got, weights := make([]int32, len(x)), make([]float32, len(x))
	d.get(y, got)
	d.get(z, weights)
	for i, v := range x {
		var local [16]int32
		for j := range local {
			local[j] = int32(j) * v
		}
		a := int32(0)
		for c := int64(v); c != 1; a++ {
			if c&1 == 1 {
				c = 3*c + 1
			} else {
				c /= 2
			}
		}
		local[a&15] += []int32{3, 1, 4, 1}[a&3]
		s := int32(0)
		for j := range int32(16) {
			s = s*31 + local[(j*7+a)&15]
		}
		require.Equal(t, s+a, got[i], "x = %d", v)
		require.Equal(t, float32(math.Ldexp(0.5, -int(v&3))), weights[i])
	}
}

func TestHistogram(t *testing.T) {
	k := kernelOf(t, "math.ptx", "histogram")
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]byte, 5000)
	want := make([]uint32, 256)
	for i := range x {
		x[i] = byte(10 + r.IntN(200))
		want[x[i]]++
	}
	d := newDevice(t)
	bins, extremes, total := d.put(make([]uint32, 256)), d.put([]int32{1000, -1}), d.put([]uint64{0})
	for _, l := range []Launch{{CheckRaces: true}, {Workers: 2, Seed: 9}} {
		l.Grid[0], l.Block[0] = 4, 128
		require.NoError(t, d.Write(bins, make([]byte, 1024)))
		require.NoError(t, d.Write(total, make([]byte, 8)))
		launch(t, k, d, l, d.put(x), bins, extremes, total, int32(len(x)))
		got, ends, sum := make([]uint32, 256), make([]int32, 2), make([]uint64, 1)
		d.get(bins, got)
		d.get(extremes, ends)
		d.get(total, sum)
		require.Equal(t, want, got)
		require.Equal(t, []int32{int32(slices.Min(x)), int32(slices.Max(x))}, ends)
		require.Equal(t, uint64(len(x)), sum[0])
	}
}

func TestSort(t *testing.T) {
	k := kernelOf(t, "math.ptx", "sort")
	r := rand.New(rand.NewPCG(1, 3))
	keys := make([]int64, 200)
	for i := range keys {
		keys[i] = int64(r.IntN(50)) - 25
	}
	order := make([]int32, len(keys))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return int(keys[a] - keys[b]) })
	d := newDevice(t)
	at, to := d.put(keys), d.alloc(4*len(keys))
	launch(t, k, d, Launch{Block: [3]uint32{256}, SharedBytes: 256 * 12, Seed: 5}, at, to, int32(len(keys)))
	got := make([]int32, len(keys))
	d.get(to, got)
	require.Equal(t, order, got)
	slices.Sort(keys)
	sorted := make([]int64, len(keys))
	d.get(at, sorted)
	require.Equal(t, keys, sorted)
}

func TestFlash(t *testing.T) {
	k := kernelOf(t, "flash.ptx", "flash")
	const heads, n, size = 2, 100, 64
	q, key, v := each(normals(heads*n*size, 1), bf16), each(normals(heads*n*size, 2), bf16),
		each(normals(heads*n*size, 3), bf16)
	d := newDevice(t)
	out, lse := d.alloc(2*heads*n*size), d.alloc(4*heads*n)
	launch(t, k, d, Launch{Grid: [3]uint32{2, heads}, Block: [3]uint32{128}, Seed: 1, CheckRaces: true}, d.put(q),
		d.put(key), d.put(v), out, lse, int32(n), float32(0.125))
	got, logs := make([]uint16, heads*n*size), make([]float32, heads*n)
	d.get(out, got)
	d.get(lse, logs)
	for h := range heads {
		at := func(l []uint16, row, col int) float64 { return float64(fromBF16(l[(h*n+row)*size+col])) }
		for row := range n {
			p, sum := make([]float64, row+1), 0.0
			for col := range p {
				for e := range size {
					p[col] += at(q, row, e) * at(key, col, e) * 0.125
				}
				p[col] = math.Exp(p[col])
				sum += p[col]
			}
			require.InDelta(t, math.Log(sum), logs[h*n+row], 1e-5)
			for e := range size {
				want := 0.0
				for col := range p {
					want += p[col] / sum * at(v, col, e)
				}
				require.InDelta(t, want, at(got, row, e), 0.01)
			}
		}
	}
}

// TestOrder: neither the order of warps and blocks nor the number of goroutines shows in results.
func TestOrder(t *testing.T) {
	const n = 130
	var first []byte
	for _, l := range []Launch{{Workers: 1}, {Workers: 4}, {Seed: 1, Workers: 1}, {Seed: 2, Workers: 3}, {Seed: 99}} {
		d := newDevice(t)
		x := d.put(each(normals(2*n*64, 1), bf16))
		out := d.alloc(2*2*n*64 + 4*2*n)
		l.Grid, l.Block = [3]uint32{3, 2}, [3]uint32{128}
		stats := launch(t, kernelOf(t, "flash.ptx", "flash"), d, l, x, x, x, out, out+2*2*n*64, int32(n),
			float32(0.125))
		require.Equal(t, int64(6), stats.Blocks)
		require.Equal(t, int64(6*128), stats.Threads)
		got := make([]byte, 2*2*n*64+4*2*n)
		d.get(out, got)
		if first == nil {
			first = got
		}
		require.True(t, bytes.Equal(first, got), "%+v", l)
	}
}

// TestStreams launches from several goroutines, each with its own memory, while memory comes and goes.
func TestStreams(t *testing.T) {
	d := newDevice(t)
	m := parseFile(t, "math.ptx")
	k, err := m.Kernel("philox")
	require.NoError(t, err)
	require.NoError(t, m.Load(d.Memory))
	variables := d.Used()
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			for i := range 20 {
				n := 50 + g
				out, err := d.Alloc(16 * n)
				assert.NoError(t, err)
				params := make([]byte, k.ParamBytes())
				le.PutUint64(params, out)
				le.PutUint64(params[8:], uint64(g))
				le.PutUint64(params[16:], uint64(i))
				le.PutUint32(params[24:], uint32(n))
				_, err = k.Run(d.Memory, Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}}, params)
				assert.NoError(t, err)
				got := make([]byte, 16*n)
				assert.NoError(t, d.Read(got, out))
				want := philoxReference(uint64(g), uint64(i+n-1))
				assert.Equal(t, want[3], le.Uint32(got[16*n-4:]))
				assert.NoError(t, d.Free(out))
			}
		})
	}
	wait.Wait()
	require.Equal(t, variables, d.Used())
}

// BenchmarkKernels counts the instructions of all threads in a second.
func BenchmarkKernels(b *testing.B) {
	d := newDevice(b)
	x := d.put(normals(64*1024, 1))
	halves := d.put(each(normals(2*128*64, 2), bf16))
	w := d.put(normals(1024, 2))
	out := d.alloc(1 << 20)
	for _, c := range []struct {
		file, name string
		launch     Launch
		args       []any
	}{
		{"rows.ptx", "layer_norm", Launch{Grid: [3]uint32{64, 1, 1}, Block: [3]uint32{256, 1, 1}},
			[]any{x, w, w, out, out + 1<<19, int32(1024), float32(1e-5)}},
		{"math.ptx", "unary", Launch{Grid: [3]uint32{256, 1, 1}, Block: [3]uint32{256, 1, 1}},
			[]any{x, out, int32(64 * 1024), int32(2)}},
		{"math.ptx", "philox", Launch{Grid: [3]uint32{256, 1, 1}, Block: [3]uint32{256, 1, 1}},
			[]any{out, uint64(1), uint64(2), int32(64 * 1024)}},
		{"flash.ptx", "flash", Launch{Grid: [3]uint32{2, 2, 1}, Block: [3]uint32{128, 1, 1}},
			[]any{halves, halves, halves, out, out + 1<<19, int32(128), float32(0.125)}},
		{"math.ptx", "philox small", Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}},
			[]any{out, uint64(1), uint64(2), int32(64)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			k := kernelOf(b, c.file, strings.TrimSuffix(c.name, " small"))
			c.launch.Workers = 1
			total := int64(0)
			for b.Loop() {
				total += launch(b, k, d, c.launch, c.args...).Instructions
			}
			b.ReportMetric(float64(total)/b.Elapsed().Seconds()/1e6, "Minstr/s")
		})
	}
}
