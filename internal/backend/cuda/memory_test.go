// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// fakeDevice opens a device of a fake machine.
func fakeDevice(t *testing.T, o fake.Options) *Device {
	t.Helper()
	if o.Delay == 0 {
		o.Delay = 100 * time.Microsecond
	}
	d, err := Open(TestDriver(o), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// fakeAlone skips a test on a real device, with the reason.
func fakeAlone(t *testing.T, because string) {
	t.Helper()
	if TestDriver(fake.Options{}).Version() != "fake" {
		t.Skip("for the fake: " + because)
	}
}

// newStream is a stream with its parts in view.
func newStream(d *Device) *stream { return d.NewStream().(*stream) }

func get(t *testing.T, s *stream, n int) *buffer {
	t.Helper()
	b, err := s.Alloc(n)
	require.NoError(t, err)
	return b.(*buffer)
}

// hold keeps the stream's later work back until the function that it returns is called.
func hold(t *testing.T, s *stream) func() {
	t.Helper()
	q, ok := s.q.q.(interface{ Hold(<-chan struct{}) })
	if !ok {
		t.Skip("for the fake: it alone can hold a stream back")
	}
	gate := make(chan struct{})
	q.Hold(gate)
	return func() { close(gate) }
}

// double queues out = x·2 without a kernel: as a product.
func double(s *stream, out, x, two *buffer) {
	view := func(b *buffer) backend.View {
		return backend.View{Buf: b, DType: dtype.Float32, NDim: 2, Shape: [6]int{1, 1}, Stride: [6]int{1, 1}}
	}
	s.Launch(&backend.Call{Op: backend.OpMatMul, NOut: 1, NIn: 2, Out: [4]backend.View{view(out)},
		In: [8]backend.View{view(x), view(two)}})
}

var one32, two32, four32 = []byte{0, 0, 128, 63}, []byte{0, 0, 0, 64}, []byte{0, 0, 128, 64}

func read(s *stream, b *buffer) []byte {
	raw := make([]byte, b.n)
	s.Read(raw, b, 0)
	return raw
}

// random requests and frees, as the seed says; see is called after each.
func requests(t *testing.T, d *Device, seed uint64, see func(s *stream, live []*buffer)) {
	r := rand.New(rand.NewPCG(seed, 1))
	s := newStream(d)
	var live []*buffer
	for range 400 {
		if len(live) > 0 && r.IntN(5) < 2 {
			i := r.IntN(len(live))
			d.Free(live[i])
			live = slices.Delete(live, i, i+1)
		} else {
			live = append(live, get(t, s, []int{0, 1, r.IntN(1000), r.IntN(60_000), 1<<20 + r.IntN(3<<20)}[r.IntN(5)]))
		}
		see(s, live)
		if d.Stats().InUse > 100<<20 {
			for _, b := range live {
				d.Free(b)
			}
			live = nil
		}
	}
	for _, b := range live {
		d.Free(b)
	}
	see(s, nil)
}

func TestTheSameRequestsGetTheSameAddresses(t *testing.T) {
	fakeAlone(t, "where a driver's memory begins is its own affair")
	var first []cuda.Ptr
	for round := range 2 {
		var at []cuda.Ptr
		requests(t, fakeDevice(t, fake.Options{Seed: uint64(round), Memory: 1 << 30}), 3,
			func(_ *stream, live []*buffer) {
				if len(live) > 0 {
					at = append(at, live[len(live)-1].at)
				}
			})
		if round == 0 {
			first = at
		}
		require.Equal(t, first, at)
	}
}

// Blocks lie in their segments without gaps or overlaps, no two neighbours are free, and what is free is listed.
func TestPool(t *testing.T) {
	requests(t, fakeDevice(t, fake.Options{Memory: 1 << 30}), 5, func(s *stream, live []*buffer) {
		var used, listed, reserved int
		for _, l := range s.pool.free {
			require.True(t, slices.IsSortedFunc(l, before))
			for _, b := range l {
				listed += b.n
			}
		}
		free := 0
		for _, seg := range s.pool.all {
			end := 0
			for b := seg.first; b != nil; b = b.above {
				require.Equal(t, end, b.at)
				require.Zero(t, b.n%grain)
				if b.free {
					free += b.n
					require.True(t, b.above == nil || !b.above.free, "neighbours are free")
				} else {
					used += b.n
				}
				end += b.n
			}
			require.Equal(t, seg.n, end)
			reserved += seg.n
		}
		require.Equal(t, free, listed)
		require.Equal(t, s.d.Stats().Reserved, int64(reserved))
		for _, b := range live {
			require.GreaterOrEqual(t, b.block.n, b.n)
			used -= b.block.n
		}
		require.Zero(t, used)
	})
}

// A buffer's memory is used again at once by its stream, and by no other.
func TestMemoryBelongsToItsStream(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	s, other := newStream(d), newStream(d)
	x := get(t, s, 1000)
	d.Free(x)
	require.NotEqual(t, x.at, get(t, other, 1000).at)
	require.Equal(t, x.at, get(t, s, 1000).at)
}

// The collector ends some events and buffers after their device: nothing asks the driver for what went with it.
func TestWhatOutlivesItsDevice(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	one, two := newStream(d), newStream(d)
	kept, shared := one.Record().(*event), get(t, one, 4)
	two.Write(shared, 0, two32)
	require.NoError(t, d.Close())
	d.giveEvent(kept.e)
	d.Free(shared)
}

// Memory that another stream uses is not given out before that is done.
func TestMemoryOfSeveralStreams(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	one, two := newStream(d), newStream(d)
	x, factor, y := get(t, one, 4), get(t, two, 4), get(t, two, 4)
	one.Write(x, 0, two32)
	two.Write(factor, 0, two32)
	two.Wait(one.Record())
	release := hold(t, two)
	double(two, y, x, factor)
	d.Free(x)
	z := get(t, one, 4) // there is other memory
	require.NotEqual(t, x.at, z.at)
	one.Write(z, 0, one32)
	one.Sync()
	var all []*buffer
	for again := false; !again; { // until there is none
		b := get(t, one, 4)
		again = b.at == x.at
		all = append(all, b)
	}
	one.Write(all[len(all)-1], 0, one32) // waits for two, which is held back
	release()
	require.Equal(t, four32, read(two, y))
	require.Equal(t, one32, read(one, all[len(all)-1]))
	require.EqualValues(t, 2, d.DeviceAllocs(), "a segment a stream")
}

func TestOutOfMemory(t *testing.T) {
	fakeAlone(t, "its memory is small")
	d := fakeDevice(t, fake.Options{Memory: 64 << 20})
	one, two := newStream(d), newStream(d)
	a, b := get(t, one, 20<<20), get(t, one, 20<<20)
	small := get(t, one, 1000)
	_, err := two.Alloc(30 << 20)
	require.EqualError(t, err, "cuda:0: out of memory: cannot allocate 30.0 MiB (31457280 bytes): 40.0 MiB are in use "+
		"by tensors (2 of 20.0 MiB, 1 of 1000 bytes), 2.0 MiB more are cached; the device has 22.0 MiB free of "+
		"64.0 MiB: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)")
	var short *backend.OutOfMemoryError
	require.ErrorAs(t, err, &short)
	require.Equal(t, 30<<20, short.Bytes)
	require.EqualValues(t, 40<<20+1000, d.Stats().InUse)
	d.Free(a)
	c := get(t, two, 30<<20) // what the other stream had cached
	require.EqualValues(t, 52<<20, d.Stats().Reserved)
	for _, x := range []*buffer{b, c, small} {
		d.Free(x)
	}
	get(t, two, 60<<20)
	_, err = one.Alloc(-1)
	require.ErrorContains(t, err, "cannot allocate -1 bytes")
}

// A loop of the same requests takes nothing from the driver after its first round.
func TestASteadyLoopAllocatesNothing(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	one, two := newStream(d), newStream(d)
	var after int64
	for round := range 10 {
		factor, x, y := get(t, one, 4), get(t, one, 4), get(t, two, 2<<20)
		one.Write(factor, 0, two32)
		one.Write(x, 0, two32)
		two.Wait(one.Record())
		double(two, y, x, factor)
		for _, b := range []*buffer{factor, x, y} {
			d.Free(b)
		}
		if round == 1 {
			after = d.DeviceAllocs()
		}
	}
	require.Equal(t, after, d.DeviceAllocs())
}

func TestWritesAndReads(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	s := newStream(d)
	const n = 9<<20 + 5
	b := get(t, s, n+3)
	src := make([]byte, n)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	want := bytes.Clone(src)
	s.Write(b, 3, src)
	clear(src) // the host's bytes are free again
	for i := range 1000 {
		s.Write(b, 3+i, want[i:i+1]) // many small ones
	}
	waits := d.HostWaits()
	got := make([]byte, n)
	s.Read(got, b, 3)
	require.Equal(t, waits+1, d.HostWaits())
	require.True(t, bytes.Equal(want, got))
	require.Panics(t, func() { s.Read(got, b, 4) }, "beyond the end")
	d.Free(b)
	require.Panics(t, func() { s.Write(b, 0, got[:1]) }, "freed")
}

// A write returns although the stream is held back.
func TestWritesDoNotWait(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	s := newStream(d)
	b := get(t, s, 1<<20)
	waits := d.HostWaits()
	release := hold(t, s)
	s.Write(b, 0, bytes.Repeat([]byte{3}, 1<<20))
	require.Equal(t, waits, d.HostWaits())
	release()
	require.Equal(t, bytes.Repeat([]byte{3}, 1<<20), read(s, b))
}

// A buffer of one device is refused by another.
func TestSeveralDevices(t *testing.T) {
	machine := fake.New(fake.Options{Devices: 2})
	zero, err := Open(machine, 0)
	require.NoError(t, err)
	one, err := Open(machine, 1)
	require.NoError(t, err)
	require.Equal(t, "cuda:1", one.Name())
	a, b := newStream(zero), newStream(one)
	x := get(t, a, 4)
	require.PanicsWithError(t, "cuda:1: invalid: a buffer of another device", func() { b.Write(x, 0, one32) })
	release := hold(t, a)
	a.Write(x, 0, two32)
	b.Wait(a.Record()) // the other device waits, not the host
	y := get(t, b, 4)
	b.Write(y, 0, one32)
	done := b.Record()
	require.False(t, done.Done())
	release()
	done.Sync()
	require.Equal(t, two32, read(a, x))
	require.NoError(t, zero.Close())
	require.NoError(t, one.Close())
	_, err = Open(machine, 2)
	require.ErrorContains(t, err, "cuda:2: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101): device 2 of 2")
}
