// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device is the first of a machine.
func device(t *testing.T, o fake.Options) cuda.Device {
	t.Helper()
	d, err := fake.New(o).Open(0)
	require.NoError(t, err)
	return d
}

func stream(t *testing.T, d cuda.Device) cuda.Stream {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func alloc(t *testing.T, d cuda.Device, n int) cuda.Ptr {
	t.Helper()
	p, err := d.Alloc(n)
	require.NoError(t, err)
	return p
}

func pinned(t *testing.T, d cuda.Device, n int) []byte {
	t.Helper()
	b, err := d.AllocHost(n)
	require.NoError(t, err)
	return b
}

// hold keeps a stream back until the function that it returns is called.
func hold(s cuda.Stream) func() {
	gate := make(chan struct{})
	s.(interface{ Hold(<-chan struct{}) }).Hold(gate)
	return func() { close(gate) }
}

// Copies want pinned memory, and are done late: what they will overwrite is garbage until then.
func TestCopies(t *testing.T) {
	d := device(t, fake.Options{Delay: time.Millisecond})
	s := stream(t, d)
	p, src, dst := alloc(t, d, 64), pinned(t, d, 64), pinned(t, d, 64)
	require.ErrorContains(t, s.CopyToDevice(p, make([]byte, 64)), "the host memory is not pinned")
	require.ErrorContains(t, s.CopyToHost(make([]byte, 64), p), "the host memory is not pinned")
	copy(src, bytes.Repeat([]byte{7}, 64))
	release := hold(s)
	clear(dst)
	require.NoError(t, s.CopyToDevice(p, src))
	require.NoError(t, s.Fill(p+8, 9, 8))
	require.NoError(t, s.CopyToHost(dst, p))
	require.NotZero(t, dst[0])
	require.NotEqual(t, byte(7), dst[0])
	release()
	require.NoError(t, s.Sync())
	want := bytes.Repeat([]byte{7}, 64)
	copy(want[8:], bytes.Repeat([]byte{9}, 8))
	require.Equal(t, want, dst)
}

// Memory that a copy still reads must stay unchanged, and must not go. The error comes later, and stays.
func TestMemoryUnderACopy(t *testing.T) {
	d := device(t, fake.Options{})
	s := stream(t, d)
	p, src := alloc(t, d, 8), pinned(t, d, 8)
	release := hold(s)
	require.NoError(t, s.CopyToDevice(p, src))
	src[3]++
	release()
	require.ErrorContains(t, s.Sync(), "was changed before the copy was done")
	_, err := d.Alloc(8)
	require.ErrorContains(t, err, "was changed before the copy was done", "the context is lost")
	require.ErrorContains(t, s.Fill(p, 0, 8), "CUDA_ERROR_ILLEGAL_ADDRESS (700)")

	d = device(t, fake.Options{})
	s = stream(t, d)
	p = alloc(t, d, 8)
	require.NoError(t, s.Fill(p+4, 0, 8), "an error of the device is not the call's")
	require.ErrorContains(t, s.Sync(), "cuMemsetD8Async")
}

// An event stands for the point where it was recorded last before the wait.
func TestEvents(t *testing.T) {
	d := device(t, fake.Options{})
	one, two := stream(t, d), stream(t, d)
	e, err := d.NewEvent()
	require.NoError(t, err)
	done, err := e.Done()
	require.NoError(t, err)
	require.True(t, done, "it was never recorded")
	p, dst := alloc(t, d, 1), pinned(t, d, 1)
	require.NoError(t, one.Fill(p, 1, 1))
	require.NoError(t, one.Record(e))
	require.NoError(t, two.Wait(e))
	release := hold(one)
	require.NoError(t, one.Fill(p, 2, 1))
	require.NoError(t, one.Record(e)) // two waits for the first
	require.NoError(t, two.CopyToHost(dst, p))
	require.NoError(t, two.Sync())
	require.Equal(t, byte(1), dst[0])
	done, err = e.Done()
	require.NoError(t, err)
	require.False(t, done)
	release()
	require.NoError(t, e.Sync())
}

func TestWhatIsNotGivenBack(t *testing.T) {
	d := device(t, fake.Options{Memory: 1000})
	_, err := d.Alloc(2000)
	require.EqualError(t, err, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)")
	p := alloc(t, d, 600)
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.Equal(t, [2]int64{400, 1000}, [2]int64{free, total})
	require.ErrorContains(t, d.Free(p+1), "is not an allocation")
	pinned(t, d, 5)
	require.EqualError(t, d.Close(), "fake: 1 pieces of device memory were not given back\n"+
		"fake: 1 pieces of pinned memory were not given back")
}

// square is a product of n × n matrices of float32.
func square(n int) cuda.Product {
	m := cuda.Matrix{Type: cuda.R32F, Rows: n, Cols: n, LD: n, Batch: 1}
	return cuda.Product{Compute: cuda.Compute32F, A: m, B: m, C: m, D: m, Alpha: 1, Epilogue: cuda.EpilogueNone,
		Align: 256}
}

// What cuBLASLt refuses is refused with its status.
func TestProductsThatAreRefused(t *testing.T) {
	d := device(t, fake.Options{})
	b, err := d.Blas()
	require.NoError(t, err)
	for name, k := range map[string]struct {
		change func(*cuda.Product)
		status int
	}{
		"sizes":          {func(p *cuda.Product) { p.B.Rows, p.B.LD = 9, 9 }, 7},
		"none":           {func(p *cuda.Product) { p.A.Rows, p.C.Rows, p.D.Rows = 0, 0, 0 }, 7},
		"ld":             {func(p *cuda.Product) { p.A.LD = 7 }, 7},
		"batch":          {func(p *cuda.Product) { p.A.Batch = 2 }, 7},
		"types":          {func(p *cuda.Product) { p.B.Type = cuda.R16F }, 15},
		"float64":        {func(p *cuda.Product) { p.Compute = cuda.Compute64F }, 15},
		"ld of aux":      {func(p *cuda.Product) { p.Epilogue, p.AuxLD = cuda.EpilogueGELUAux, 12 }, 15},
		"short aux":      {func(p *cuda.Product) { p.Epilogue, p.AuxLD = cuda.EpilogueGELUAux, 0 }, 15},
		"type of a bias": {func(p *cuda.Product) { p.Epilogue, p.BiasType = cuda.EpilogueBias, cuda.R16F }, 15},
		"an epilogue":    {func(p *cuda.Product) { p.Epilogue = 3 }, 7},
	} {
		p := square(8)
		k.change(&p)
		_, err := b.Workspace(p)
		e, ok := err.(*cuda.Error)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, k.status, e.Code, "%s: %v", name, err)
	}
}

// Products count columns first; operands must be there, and defined.
func TestProducts(t *testing.T) {
	d := device(t, fake.Options{})
	s := stream(t, d)
	b, err := d.Blas()
	require.NoError(t, err)
	at := map[string]cuda.Ptr{}
	for _, name := range []string{"a", "b", "d", "bias", "space"} {
		at[name] = alloc(t, d, 1024)
	}
	host := pinned(t, d, 16)
	put := func(p cuda.Ptr, x ...float32) {
		for i, v := range x {
			binary.LittleEndian.PutUint32(host[4*i:], math.Float32bits(v))
		}
		require.NoError(t, s.CopyToDevice(p, host[:4*len(x)]))
		require.NoError(t, s.Sync())
	}
	put(at["a"], 1, 2, 3, 4) // columns (1,2) and (3,4)
	put(at["b"], 5, 6, 7, 8)
	put(at["bias"], 100, 200) // one a row
	p := square(2)
	p.Epilogue, p.BiasType = cuda.EpilogueBias, cuda.R32F
	o := cuda.Operands{A: at["a"], B: at["b"], C: at["d"], D: at["d"], Bias: at["bias"]}
	for _, k := range []struct {
		transA bool
		want   []float32
	}{{false, []float32{123, 234, 131, 246}}, {true, []float32{117, 239, 123, 253}}} {
		p.TransA = k.transA
		require.NoError(t, b.MatMul(s, p, o, at["space"]))
		require.NoError(t, s.CopyToHost(host, at["d"]))
		require.NoError(t, s.Sync())
		for i, want := range k.want {
			require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(host[4*i:])), "%d", i)
		}
	}
	o.A += 4
	require.ErrorContains(t, b.MatMul(s, p, o, at["space"]), "no multiple of 256")
	o.A = alloc(t, d, 1024) // nobody wrote it
	require.NoError(t, b.MatMul(s, p, o, at["space"]))
	require.ErrorContains(t, s.Sync(), "are undefined")
}
