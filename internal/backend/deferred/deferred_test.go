// SPDX-License-Identifier: Apache-2.0

package deferred_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Backend { return deferred.New(2) })
}

// vector allocates a float32 vector.
func vector(t *testing.T, s backend.Stream, n int) backend.View {
	b, err := s.Alloc(4 * n)
	require.NoError(t, err)
	v := backend.View{Buf: b, DType: dtype.Float32, NDim: 1}
	v.Shape[0], v.Stride[0] = n, 1
	return v
}

func TestMemoryIsPoisoned(t *testing.T) {
	d := deferred.New(1)
	defer d.Close()
	s := d.NewStream()
	for range 3 {
		v := vector(t, s, 100)
		raw := make([]byte, 400)
		s.Read(raw, v.Buf, 0)
		for _, b := range raw {
			require.EqualValues(t, 0xFF, b)
		}
		s.Launch(&backend.Call{Op: backend.OpFill, NOut: 1, Out: [4]backend.View{v}})
		d.Free(v.Buf)
	}
}

// A stream that waits for an event of another one that is held back does nothing meanwhile, its caller continues, and
// memory stays until the work is done.
func TestWorkIsDeferred(t *testing.T) {
	d := deferred.New(1)
	defer d.Close()
	s := d.NewStream()
	gate := make(gate)
	x, y := vector(t, s, 100), vector(t, s, 100)
	s.Wait(gate)
	s.Launch(&backend.Call{Op: backend.OpFill, NOut: 1, Out: [4]backend.View{x}, Floats: [8]float64{3}})
	s.Launch(&backend.Call{Op: backend.OpNeg, NOut: 1, NIn: 1, Out: [4]backend.View{y}, In: [8]backend.View{x}})
	d.Free(x.Buf)
	event := s.Record()
	require.False(t, event.Done())
	require.EqualValues(t, 400, d.Stats().InUse)
	require.Panics(t, func() { d.Free(x.Buf) })
	require.Panics(t, func() { s.Launch(&backend.Call{Op: backend.OpFill, NOut: 1, Out: [4]backend.View{x}}) },
		"a freed operand")
	close(gate)
	raw := make([]byte, 4)
	s.Read(raw, y.Buf, 0)
	require.Equal(t, math.Float32bits(-3), uint32(raw[0])|uint32(raw[1])<<8|uint32(raw[2])<<16|uint32(raw[3])<<24)
	require.True(t, event.Done())
}

// gate is an event that the test opens.
type gate chan struct{}

func (g gate) Sync()      { <-g }
func (g gate) Done() bool { return false }

// Sync waits for every stream, and what is read by another stream afterwards is what was written.
func TestSync(t *testing.T) {
	d := deferred.New(1)
	defer d.Close()
	s, other := d.NewStream(), d.NewStream()
	gate := make(gate)
	x := vector(t, s, 1)
	s.Wait(gate)
	s.Write(x.Buf, 0, []byte{1, 2, 3, 4})
	synced := make(chan struct{})
	go func() { d.Sync(); close(synced) }()
	select {
	case <-synced:
		require.Fail(t, "a stream is held back")
	case <-time.After(20 * time.Millisecond):
	}
	close(gate)
	<-synced
	raw := make([]byte, 4)
	other.Read(raw, x.Buf, 0)
	require.Equal(t, []byte{1, 2, 3, 4}, raw)
}

// Memory belongs to a stream: another one that writes to it without having waited for an event of the first finds NaNs,
// since earlier work of the first may still use the memory. With the event all is well.
func TestUseBeforeTheOwnerIsSeen(t *testing.T) {
	for _, waits := range []bool{false, true} {
		d := deferred.New(1)
		one, two := d.NewStream(), d.NewStream()
		gate := make(gate)
		one.Wait(gate)
		x := vector(t, one, 1)
		if waits {
			two.Wait(one.Record())
		}
		two.Write(x.Buf, 0, []byte{1, 2, 3, 4})
		written := two.Record()
		if !waits {
			written.Sync()
		}
		close(gate)
		one.Sync()
		written.Sync()
		raw := make([]byte, 4)
		one.Read(raw, x.Buf, 0)
		require.Equal(t, waits, raw[0] == 1, "%v", raw)
		require.NoError(t, d.Close())
	}
}

// Memory that is freed under queued work is poisoned after the work of the streams that use it, and streams that never
// used it are not waited for.
func TestFreeWaitsForUsersAlone(t *testing.T) {
	d := deferred.New(1)
	defer d.Close()
	one, two, idle := d.NewStream(), d.NewStream(), d.NewStream()
	hold, late := make(gate), make(gate)
	idle.Wait(hold)
	defer close(hold)
	x, y := vector(t, one, 1), vector(t, two, 1)
	raw := make([]byte, 4)
	one.Write(x.Buf, 0, []byte{0, 0, 128, 63}) // 1
	two.Wait(one.Record())
	two.Wait(late)
	two.Launch(&backend.Call{Op: backend.OpNeg, NOut: 1, NIn: 1, Out: [4]backend.View{y}, In: [8]backend.View{x}})
	d.Free(x.Buf)
	require.Panics(t, func() { two.Read(raw, x.Buf, 0) }, "a freed buffer")
	one.Sync()
	z := vector(t, one, 1) // must not be x's memory, which two will read
	one.Write(z.Buf, 0, []byte{9, 9, 9, 9})
	one.Sync()
	close(late)
	two.Read(raw, y.Buf, 0)
	require.Equal(t, []byte{0, 0, 128, 191}, raw)
}
