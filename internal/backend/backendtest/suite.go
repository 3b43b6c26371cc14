// SPDX-License-Identifier: Apache-2.0

// Package backendtest is the conformance suite that every backend passes.
//
// Run launches each op of package backend for every dtype it supports, over contiguous, strided, repeated, empty and
// size-one operands, and compares with a reference that computes in float64, one element at a time, from the contract
// in op.go alone. Memory around the outputs must stay untouched. Streams, events, faults and the allocator have their
// own tests.
//
// It is not a benchmark, and it does not test gradients against finite differences: that is the tensor package's table.
package backendtest

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Run tests a backend. open makes a new device; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) backend.Backend) {
	device := func(t *testing.T) backend.Backend {
		b := open(t)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	t.Run("memory", func(t *testing.T) { testMemory(t, device(t)) })
	t.Run("streams", func(t *testing.T) { testStreams(t, device(t)) })
	t.Run("faults", func(t *testing.T) { testFaults(t, device(t)) })
	b := device(t)
	stream := b.NewStream()
	for op := backend.OpInvalid + 1; op < backend.NumOps; op++ {
		if op == backend.OpClipFactor && !b.Supports(op, dtype.Float64) {
			continue
		}
		runOp(t, b, stream, op)
	}
	if b.Supports(backend.OpClipFactor, dtype.Float64) {
		t.Run("conditional", func(t *testing.T) { testConditional(t, b, stream) })
		t.Run("flag behind a fault", func(t *testing.T) { testFlagBehindFault(t, b, stream) })
	}
	t.Run("lists", func(t *testing.T) { testLists(t, b, stream, listedOps) })
	require.Zero(t, b.Stats().InUse, "memory that the suite freed is still in use")
}

// RunOps tests some ops alone, one by one and in lists: for a backend that has a second way to compute them. The suite
// does not close b.
func RunOps(t *testing.T, b backend.Backend, ops ...backend.Op) {
	stream := b.NewStream()
	var listed []backend.Op
	for _, op := range ops {
		runOp(t, b, stream, op)
		if slices.Contains(listedOps, op) {
			listed = append(listed, op)
		}
	}
	testLists(t, b, stream, listed)
}

func runOp(t *testing.T, b backend.Backend, stream backend.Stream, op backend.Op) {
	t.Run(op.String(), func(t *testing.T) {
		samples := samplesOf(op)
		require.NotEmpty(t, samples, "the suite has no case for %s", op)
		for _, s := range samples {
			if s.numbers && !b.Supports(backend.OpClipFactor, dtype.Float64) {
				continue
			}
			s.check(t, s.run(t, b, stream))
		}
	})
}

// Digest runs every sample of the suite on a device and hashes all outputs, bit for bit. Two devices that must agree
// have equal digests.
func Digest(t *testing.T, b backend.Backend) (sum [sha256.Size]byte) {
	h := sha256.New()
	stream := b.NewStream()
	for op := backend.OpInvalid + 1; op < backend.NumOps; op++ {
		for _, s := range samplesOf(op) {
			for _, out := range s.run(t, b, stream) {
				h.Write(out)
			}
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Check runs the samples of an op that work on a dtype, alone, under conditions and in a list, and returns what was
// wrong with the first that fails. It is for tests of what the suite finds.
func Check(b backend.Backend, op backend.Op, dt dtype.DType) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			err = v
		default:
			panic(v)
		}
	}()
	stream := b.NewStream()
	var list []*launch
	var calls []backend.Call
	for _, s := range samplesOf(op) {
		if s.ins[0].dt != dt {
			continue
		}
		s.check(failing{}, s.run(failing{}, b, stream))
		if slices.Contains(conditionalOps, op) {
			s.checkConditional(failing{}, b, stream)
		}
		if slices.Contains(listedOps, op) {
			r := s.ready(failing{}, stream)
			list, calls = append(list, r), append(calls, r.call)
		}
	}
	backend.LaunchMany(stream, calls)
	for _, r := range list {
		r.s.check(failing{}, r.results(b, stream))
	}
	return nil
}

// tester is what a sample needs of a test.
type tester interface {
	require.TestingT
	Helper()
}

// failing panics with an error where a test would fail.
type failing struct{}

func (failing) Helper()                           {}
func (failing) FailNow()                          {}
func (failing) Errorf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// sample is one launch and what must come of it.
type sample struct {
	name   string
	op     backend.Op
	outs   []*operand
	ins    []*operand
	ints   [8]int
	floats [8]float64
	key    uint64
	want   [][]float64 // per output, in row-major order
	// numbers says that inputs hold what attributes do else, see op.go: Conditional.
	numbers bool
	loose   float64 // the tolerance is multiplied by it; 0 means 1
}

// run launches the sample and returns the bytes of the outputs' buffers.
func (s *sample) run(t tester, b backend.Backend, stream backend.Stream) [][]byte {
	t.Helper()
	r := s.ready(t, stream)
	stream.Launch(&r.call)
	return r.results(b, stream)
}

// launch is a sample whose operands are on a device.
type launch struct {
	s    *sample
	call backend.Call
	bufs []backend.Buffer
}

// ready uploads the operands.
func (s *sample) ready(t tester, stream backend.Stream) *launch {
	t.Helper()
	r := &launch{s: s,
		call: backend.Call{Op: s.op, NOut: len(s.outs), NIn: len(s.ins), Ints: s.ints, Floats: s.floats, Key: s.key}}
	for i, o := range s.ins {
		r.call.In[i] = o.view(r.upload(t, stream, o.bytes))
	}
	for i, o := range s.outs {
		if o.alias > 0 {
			r.call.Out[i] = r.call.In[o.alias-1]
			continue
		}
		r.call.Out[i] = o.view(r.upload(t, stream, o.bytes))
	}
	return r
}

func (r *launch) upload(t tester, stream backend.Stream, data []byte) backend.Buffer {
	t.Helper()
	buf, err := stream.Alloc(len(data))
	require.NoError(t, err)
	stream.Write(buf, 0, data)
	r.bufs = append(r.bufs, buf)
	return buf
}

// results are the bytes of the outputs' buffers. The memory is freed.
func (r *launch) results(b backend.Backend, stream backend.Stream) [][]byte {
	results := make([][]byte, len(r.s.outs))
	for i, o := range r.s.outs {
		results[i] = make([]byte, len(o.bytes))
		stream.Read(results[i], r.call.Out[i].Buf, 0)
	}
	for _, buf := range r.bufs {
		b.Free(buf)
	}
	return results
}

// tolerance is the relative error that an output may have, by dtype: some roundings in the dtype that the op computes
// in, and one of the output.
var tolerance = map[dtype.DType]float64{
	dtype.Float32: 2e-6, dtype.Float64: 1e-12, dtype.BFloat16: 1.0 / (1 << 8), dtype.Float16: 1.0 / (1 << 10),
}

// check compares the outputs with what is wanted, and the memory around them with what it was.
func (s *sample) check(t tester, results [][]byte) {
	t.Helper()
	for k, o := range s.outs {
		tol := tolerance[o.dt]
		if s.loose > 0 {
			tol *= s.loose
		}
		require.Len(t, s.want[k], o.numel(), "%s %s: output %d", s.op, s.name, k)
		got := results[k]
		before := slices.Clone(o.bytes)
		for i, want := range s.want[k] {
			at, size := o.where(i), o.dt.Size()
			x := get(got[at:], o.dt)
			if !near(x, want, tol) {
				require.Failf(t, "wrong result", "%s %s: output %d, element %v: %v: want %v (to %v)", s.op, s.name, k,
					unravel(i, o.shape), x, want, tol)
			}
			copy(before[at:at+size], got[at:])
		}
		require.Equal(t, before, got, "%s %s: output %d: memory outside the view was written", s.op, s.name, k)
	}
}

// near compares relatively, near zero absolutely; NaN equals NaN.
func near(x, want, tol float64) bool {
	if x == want || x != x && want != want {
		return true
	}
	return math.Abs(x-want) <= tol*max(1, math.Abs(want)) && !math.IsInf(want, 0)
}

// gen makes operands for the samples of an op. The numbers depend only on the op.
type gen struct {
	op  backend.Op
	rng *rand.Rand
	out []*sample
}

// makers are the sample makers by op.
var makers = map[backend.Op]func(*gen){}

// samplesOf makes the samples of an op once per process; they are never written to.
func samplesOf(op backend.Op) []*sample {
	made.Lock()
	defer made.Unlock()
	if f := makers[op]; f != nil && made.samples[op] == nil {
		g := &gen{op: op, rng: rand.New(rand.NewPCG(uint64(op), 7))}
		f(g)
		made.samples[op] = g.out
	}
	return made.samples[op]
}

// some is all of the dtypes, or in a short run those with separate code: float64 and float16 share that of float32 and
// bfloat16.
func (g *gen) some(dtypes []dtype.DType) []dtype.DType {
	if !testing.Short() {
		return dtypes
	}
	return slices.DeleteFunc(slices.Clone(dtypes), func(dt dtype.DType) bool {
		return dt == dtype.Float64 || dt == dtype.Float16
	})
}

var made struct {
	sync.Mutex
	samples [backend.NumOps][]*sample
}

// floating lists the dtypes that carry gradients.
var floating = []dtype.DType{dtype.Float64, dtype.BFloat16, dtype.Float16, dtype.Float32}

// halves are those whose numbers are computed with in float32.
var halves = []dtype.DType{dtype.BFloat16, dtype.Float16}

// statistic is the dtype of saved statistics of an op on dt.
func statistic(dt dtype.DType) dtype.DType {
	if dt == dtype.Float64 {
		return dt
	}
	return dtype.Float32
}

// random makes an operand with numbers of [lo, hi]; integers for integer dtypes, 0 and 1 for bool.
func (g *gen) random(dt dtype.DType, l layout, lo, hi float64, shape ...int) *operand {
	return newOperand(dt, l, shape, func(int) float64 {
		switch {
		case dt == dtype.Bool:
			return float64(g.rng.IntN(2))
		case dt == dtype.Uint8:
			return float64(int(max(0, lo)) + g.rng.IntN(int(hi-max(0, lo))+1))
		case !dt.IsFloat():
			return float64(int(lo) + g.rng.IntN(int(hi-lo)+1))
		}
		return lo + g.rng.Float64()*(hi-lo)
	})
}

// numbers makes a contiguous operand of given numbers.
func numbers(dt dtype.DType, shape []int, x []float64) *operand {
	return newOperand(dt, rowMajor, shape, func(i int) float64 { return x[i] })
}

// output makes an operand of unwritten memory.
func output(dt dtype.DType, l layout, shape ...int) *operand {
	o := newOperand(dt, l, shape, func(int) float64 { return 0 })
	for i := range o.bytes {
		o.bytes[i] = 0xA5
	}
	o.elements = nil
	return o
}

func (g *gen) add(s *sample, name string, args ...any) {
	s.op, s.name = g.op, fmt.Sprintf(name, args...)
	g.out = append(g.out, s)
}
