// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	makers[backend.OpClipFactor] = clipFactorSamples
	affine := makers[backend.OpAffine]
	makers[backend.OpAffine] = func(g *gen) {
		affine(g)
		for _, s := range g.out {
			if s.ins[0].dt.IsFloat() { // again, by a number in memory
				told := *s
				told.ins = append(told.ins[:1:1], newOperand(dtype.Float64, shifted, []int{1}, func(int) float64 {
					return s.floats[0]
				}))
				told.floats[0], told.numbers = 9, true
				g.add(&told, "%s, a number in memory", s.name)
			}
		}
	}
}

// shifted begins behind other numbers.
var shifted = layout{"shifted", func(shape []int) ([]int, int, int) {
	stride, total := strides(shape, 1, 0)
	return stride, 3, total + 5
}}

// clipFactorSamples are norms below and above the limit, without one, none at all, and such as are not finite, with and
// without losses.
func clipFactorSamples(g *gen) {
	inf, nan := math.Inf(1), math.NaN()
	add := func(squares, losses []float64, limit, scale float64) {
		norm, loss := 0.0, 0.0
		for _, x := range squares {
			norm += x
		}
		for _, x := range losses {
			loss += x
		}
		norm = math.Sqrt(norm) / scale
		finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
		clip := 1.0
		if limit > 0 && limit/(norm+1e-6) < 1 && finite(norm) {
			clip = limit / (norm + 1e-6)
		}
		want := []float64{norm, clip / scale, 0, 0}
		if finite(norm) && finite(loss) {
			want[2] = 1
		}
		if clip/scale != 1 {
			want[3] = 1
		}
		s := &sample{ins: []*operand{numbers(dtype.Float64, []int{len(squares)}, squares)},
			outs: []*operand{output(dtype.Float64, rowMajor, 4)}, want: [][]float64{want}}
		if losses != nil {
			s.ins = append(s.ins, numbers(dtype.Float64, []int{len(losses)}, losses))
		}
		s.floats[0], s.floats[1] = limit, scale
		g.add(s, "%v of %d squares, %v, scale %v", norm, len(squares), losses, scale)
	}
	many := make([]float64, 2500)
	for i := range many {
		many[i] = math.Ldexp(g.rng.Float64(), g.rng.IntN(40)-20) // their order shows in the last bits
	}
	for _, losses := range [][]float64{nil, {2}, {1, -3, 5}, {1, nan}, {inf, -inf}, {-inf, 1}} {
		for _, squares := range [][]float64{{}, {9, 16}, {0.0625}, many, {1, inf}, {nan}} {
			for _, limit := range []float64{0, 0.5, 5, 1e9} {
				add(squares, losses, limit, 1)
			}
		}
	}
	add([]float64{1 << 32}, []float64{1}, 0.25, 1<<16)
	add([]float64{1 << 32}, []float64{1}, 4, 1<<16)
}

// conditionalOps may have a flag, and listedOps are launched many at a time.
var (
	conditionalOps = []backend.Op{backend.OpCopy, backend.OpFill, backend.OpAdd, backend.OpAffine, backend.OpAxpby,
		backend.OpStochasticRound, backend.OpAdamMoments, backend.OpAdamW}
	listedOps = []backend.Op{backend.OpSumSq, backend.OpAdamW, backend.OpFill, backend.OpCopy}
)

// checkConditional launches a sample with a flag that is 0, after which nothing is written, and one that is not.
func (s *sample) checkConditional(t tester, b backend.Backend, stream backend.Stream) {
	for _, flag := range []float64{0, 1} {
		r := s.ready(t, stream)
		data := binary.LittleEndian.AppendUint64(nil, math.Float64bits(1-flag)) // beside it
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(flag))
		r.call.If = backend.Flag{Buf: r.upload(t, stream, data), Offset: 1}
		stream.Launch(&r.call)
		got := r.results(b, stream)
		if flag != 0 {
			s.check(t, got)
			continue
		}
		for i, o := range s.outs {
			before := o.bytes
			if o.alias > 0 {
				before = s.ins[o.alias-1].bytes
			}
			require.True(t, bytes.Equal(before, got[i]), "%s %s: output %d was written", s.op, s.name, i)
		}
	}
}

// testConditional launches the samples of all ops that may be conditional with a flag that is 0, after which nothing is
// written, and one that is not.
func testConditional(t *testing.T, b backend.Backend, stream backend.Stream) {
	for _, op := range conditionalOps {
		for _, s := range samplesOf(op) {
			s.checkConditional(t, b, stream)
		}
	}
	r := samplesOf(backend.OpMatMul)[0].ready(t, stream)
	flag := make([]byte, 8)
	r.call.If = backend.Flag{Buf: r.upload(t, stream, flag)}
	require.Panics(t, func() {
		stream.Launch(&r.call)
		stream.Sync()
	}, "an op that is never conditional")
	r.results(b, stream)
}

// testFlagBehindFault launches a clip factor behind a kernel that faults, on a device that finds out later.
func testFlagBehindFault(t *testing.T, b backend.Backend, stream backend.Stream) {
	good := samplesOf(backend.OpClipFactor)
	at := slices.IndexFunc(good, func(s *sample) bool { return s.want[0][2] == 1 })
	r := good[at].ready(t, stream)
	bad := samplesOf(backend.OpNot)[0].ready(t, stream)
	bad.call.In[0].DType = dtype.Float32
	later := true
	func() {
		defer func() { later = recover() == nil }()
		stream.Launch(&bad.call)
	}()
	stream.Launch(&r.call)
	if later {
		require.Panics(t, stream.Sync)
	}
	got := r.results(b, stream)[0]
	require.Equal(t, !later, get(got[16:], dtype.Float64) == 1, "the flag")
	bad.results(b, stream)
	good[at].check(t, good[at].run(t, b, stream)) // nobody minds any more
}

// testLists launches samples together, with the bits of each alone.
func testLists(t *testing.T, b backend.Backend, stream backend.Stream, ops []backend.Op) {
	for _, op := range ops {
		var want [][][]byte
		var list []*launch
		var calls []backend.Call
		for _, s := range samplesOf(op) {
			if s.numbers && !b.Supports(backend.OpClipFactor, dtype.Float64) {
				continue
			}
			want = append(want, s.run(t, b, stream))
			r := s.ready(t, stream)
			list, calls = append(list, r), append(calls, r.call)
		}
		backend.LaunchMany(stream, calls)
		clear(calls) // read before it returned
		for i, r := range list {
			require.Equal(t, want[i], r.results(b, stream), "%s %s", op, r.s.name)
		}
	}
	backend.LaunchMany(stream, nil)
}
