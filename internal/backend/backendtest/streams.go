// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func alloc(t *testing.T, s backend.Stream, n int) backend.Buffer {
	t.Helper()
	buf, err := s.Alloc(n)
	require.NoError(t, err)
	require.Equal(t, n, buf.Bytes())
	return buf
}

func testMemory(t *testing.T, b backend.Backend) {
	require.NotEmpty(t, b.Name())
	s := b.NewStream()
	var bufs []backend.Buffer
	total := int64(0)
	for _, n := range []int{0, 1, 63, 64, 65, 1000, 4096, 1 << 20, 3<<20 + 1} {
		buf := alloc(t, s, n)
		fill := bytes.Repeat([]byte{byte(len(bufs) + 1)}, n)
		s.Write(buf, 0, fill)
		bufs, total = append(bufs, buf), total+int64(n)
	}
	for i, buf := range bufs { // no two overlap
		got := make([]byte, buf.Bytes())
		s.Read(got, buf, 0)
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, buf.Bytes()), got)
	}
	part := []byte{9, 9, 9}
	s.Write(bufs[5], 500, part)
	clear(part) // the host's bytes are free again
	got := make([]byte, 5)
	s.Read(got, bufs[5], 499)
	require.Equal(t, []byte{6, 9, 9, 9, 6}, got)

	stats := b.Stats()
	require.Equal(t, total, stats.InUse)
	require.Equal(t, total, stats.Peak)
	require.GreaterOrEqual(t, stats.Reserved, total)
	require.Equal(t, int64(len(bufs)), stats.Allocs)
	for _, buf := range bufs {
		b.Free(buf)
	}
	s.Sync()
	require.Zero(t, b.Stats().InUse)
	require.Equal(t, total, b.Stats().Peak)
	require.Panics(t, func() { b.Free(bufs[3]); s.Sync() }, "freeing twice")
	_, err := s.Alloc(-1)
	require.Error(t, err)
	testReuse(t, b, s)
}

// testReuse holds that a loop with the same allocations needs no more memory after its first round.
func testReuse(t *testing.T, b backend.Backend, s backend.Stream) {
	var after int64
	for round := range 20 {
		var bufs []backend.Buffer
		for _, n := range []int{100, 5000, 70000, 1 << 20, 3 << 20, 2_000_001} {
			bufs = append(bufs, alloc(t, s, n))
		}
		for _, buf := range bufs {
			b.Free(buf)
		}
		s.Sync()
		if round == 0 {
			after = b.Stats().Reserved
		}
	}
	require.Equal(t, after, b.Stats().Reserved)
}

// vector is a float32 operand on the device.
func vector(t *testing.T, s backend.Stream, n int) backend.View {
	v := backend.View{Buf: alloc(t, s, 4*n), DType: dtype.Float32, NDim: 1}
	v.Shape[0], v.Stride[0] = n, 1
	return v
}

func fill(s backend.Stream, v backend.View, x float64) {
	s.Launch(&backend.Call{Op: backend.OpFill, NOut: 1, Out: [4]backend.View{v}, Floats: [8]float64{x}})
}

func affine(s backend.Stream, out, in backend.View, a, b float64) {
	s.Launch(&backend.Call{Op: backend.OpAffine, NOut: 1, NIn: 1, Out: [4]backend.View{out}, In: [8]backend.View{in},
		Floats: [8]float64{a, b}})
}

// read is the vector's one value.
func read(t *testing.T, s backend.Stream, v backend.View) float64 {
	t.Helper()
	raw := make([]byte, v.Buf.Bytes())
	s.Read(raw, v.Buf, 0)
	x := get(raw, dtype.Float32)
	for i := 0; i < len(raw); i += 4 {
		if y := get(raw[i:], dtype.Float32); y != x {
			require.Failf(t, "not one value", "element 0 is %v, element %d %v", x, i/4, y)
		}
	}
	return x
}

func testStreams(t *testing.T, b backend.Backend) {
	const n = 50000
	one, two := b.NewStream(), b.NewStream()
	x, y := vector(t, one, n), vector(t, one, n)

	// A stream works in order, and a call may be used again at once.
	fill(one, x, 1)
	for range 50 {
		affine(one, x, x, 1, 1)
	}
	require.Equal(t, 51.0, read(t, one, x))

	// What one stream did is there for another once the device has been waited for.
	for range 20 {
		affine(one, x, x, 1, 1)
	}
	b.Sync()
	require.Equal(t, 71.0, read(t, two, x))

	// Another stream waits for an event, and the first for the second.
	for round := range 20 {
		fill(one, x, float64(round))
		affine(one, x, x, 2, 0)
		ready := one.Record()
		two.Wait(ready)
		affine(two, y, x, 1, 1)
		done := two.Record()
		one.Wait(done)
		fill(one, x, -1)
		done.Sync()
		require.True(t, done.Done())
		require.True(t, ready.Done())
		require.Equal(t, float64(2*round+1), read(t, two, y))
	}

	// Memory that is freed under work that was launched before stays what it is for that work, on every stream.
	for round := range 20 {
		z, out1, out2 := vector(t, one, n), vector(t, one, n), vector(t, one, n)
		fill(one, z, float64(round))
		two.Wait(one.Record())
		affine(one, out1, z, 1, 1)
		affine(two, out2, z, 1, 2)
		b.Free(z.Buf)
		w := vector(t, one, n) // likely the same memory
		fill(one, w, -7)
		require.Equal(t, float64(round+1), read(t, one, out1))
		require.Equal(t, float64(round+2), read(t, two, out2))
		require.Equal(t, -7.0, read(t, one, w))
		for _, v := range []backend.View{w, out1, out2} {
			b.Free(v.Buf)
		}
	}
	one.Sync()
	two.Sync()
	b.Free(x.Buf)
	b.Free(y.Buf)
}

// faultOf runs f and a wait, and returns the fault that either panics with.
func faultOf(t *testing.T, s backend.Stream, f func()) (fault *backend.Fault) {
	t.Helper()
	defer func() {
		got := recover()
		require.IsType(t, fault, got, "%v", got)
		fault = got.(*backend.Fault)
	}()
	f()
	s.Sync()
	return nil
}

func testFaults(t *testing.T, b backend.Backend) {
	s := b.NewStream()
	table, out, bad := vector(t, s, 12), vector(t, s, 12), vector(t, s, 3)
	ids := backend.View{Buf: alloc(t, s, 12), DType: dtype.Int32, NDim: 1}
	ids.Shape[0], ids.Stride[0] = 3, 1
	for _, v := range []backend.View{table, out, bad} {
		fill(s, v, 1)
	}
	raw := make([]byte, 12)
	put(raw[4:], dtype.Int32, 3)
	put(raw[8:], dtype.Int32, 4)
	s.Write(ids.Buf, 0, raw)
	matrix := func(v backend.View, rows, cols int) backend.View {
		v.NDim = 2
		v.Shape[0], v.Shape[1], v.Stride[0], v.Stride[1] = rows, cols, cols, 1
		return v
	}
	launch := func(op backend.Op, outs, ins []backend.View) func() {
		c := &backend.Call{Op: op, NOut: len(outs), NIn: len(ins)}
		copy(c.Out[:], outs)
		copy(c.In[:], ins)
		return func() { s.Launch(c) }
	}
	v := func(v ...backend.View) []backend.View { return v }
	logits := matrix(table, 3, 4)
	cases := map[string]struct {
		launch func()
		want   string
	}{
		"embedding": {launch(backend.OpEmbedding, v(matrix(out, 3, 3)), v(matrix(table, 4, 3), ids)), "index 4"},
		"embedding_grad": {launch(backend.OpEmbeddingGrad, v(matrix(table, 4, 3)), v(ids, matrix(out, 3, 3))),
			"index 4"},
		"gather":        {launch(backend.OpGather, v(bad), v(bad, ids)), "index 3"},
		"scatter_add":   {launch(backend.OpScatterAdd, v(bad), v(bad, ids)), "index 3"},
		"cross_entropy": {launch(backend.OpCrossEntropy, v(bad), v(logits, ids)), "index 4"},
		"linear": {launch(backend.OpLinear, v(matrix(out, 3, 3)), v(matrix(table, 3, 4), matrix(table, 3, 4))),
			"gives no contiguous"},
		"not":     {launch(backend.OpNot, v(out), v(table)), "float32"},
		"div":     {launch(backend.OpDiv, v(ids), v(ids, ids)), "int32"},
		"invalid": {launch(backend.OpInvalid, v(out), v(table)), ""},
		// beyond the buffer
		"affine": {launch(backend.OpAffine, v(matrix(out, 4, 4)), v(matrix(table, 4, 4))), "48 bytes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			fault := faultOf(t, s, c.launch)
			require.Equal(t, b.Name(), fault.Backend)
			require.Equal(t, name, fault.Op.String())
			require.ErrorContains(t, fault, c.want)
			fill(s, out, 5) // the stream continues
			require.Equal(t, 5.0, read(t, s, out))
		})
	}
	for _, v := range []backend.View{table, out, bad, ids} {
		b.Free(v.Buf)
	}
	s.Sync()
}
