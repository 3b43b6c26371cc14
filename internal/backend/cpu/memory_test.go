// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/hostmemory"
)

func TestSizeClasses(t *testing.T) {
	last := -1
	for n := range 1 << 20 {
		class, size := classOf(n)
		require.True(t, size >= n && size%alignment == 0, "%d bytes: size %d", n, size)
		if n > alignment*classesPer {
			require.LessOrEqual(t, size-n, n/classesPer, "%d bytes: size %d", n, size)
		}
		require.True(t, class == last || class > last, "%d bytes: class %d after %d", n, class, last)
		again, same := classOf(size)
		require.True(t, again == class && same == size, "%d bytes", n)
		last = class
	}
	class, _ := classOf(1<<62 - 1)
	require.Less(t, class, numClasses)
}

func TestAllocation(t *testing.T) {
	d := New(1)
	defer d.Close()
	for _, n := range []int{0, 1, 1000, largeBytes - 1, largeBytes, slabBytes + 1} {
		b, err := d.Alloc(n)
		require.NoError(t, err)
		require.Zero(t, uintptr(b.(*buffer).ptr)%alignment)
		d.Free(b)
		require.PanicsWithValue(t, fmt.Sprintf("cpu: buffer of %d bytes freed twice", n), func() { d.Free(b) })
		again, err := d.Alloc(n)
		require.NoError(t, err)
		require.Same(t, b, again, "the block just freed comes first")
		d.Free(again)
	}
	_, err := d.Alloc(1 << 60)
	require.ErrorContains(t, err, "1152921504606846976 bytes (0 in use")
	other := New(1)
	defer other.Close()
	b, err := other.Alloc(8)
	require.NoError(t, err)
	require.Panics(t, func() { d.Free(b) }, "a buffer of another device")
}

// What large blocks of one size gave back serves others; sizes that come and go do not pile up; Trim gives back what is
// idle.
func TestReservedStaysBounded(t *testing.T) {
	d := New(1)
	defer d.Close()
	var blocks []backend.Buffer
	for range 8 {
		b, err := d.Alloc(2 << 20)
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	reserved := d.Stats().Reserved
	for _, b := range blocks {
		d.Free(b)
	}
	for _, n := range []int{3 << 20, 16 << 20, 2<<20 - 300_000} {
		b, err := d.Alloc(n)
		require.NoError(t, err)
		require.Equal(t, reserved, d.Stats().Reserved)
		d.Free(b)
	}
	for n := 16 << 20; n < 64<<20; n += 2 << 20 {
		b, err := d.Alloc(n)
		require.NoError(t, err)
		d.Free(b)
	}
	require.Equal(t, d.Stats().Peak, d.Stats().Reserved)
	b, err := d.Alloc(100)
	require.NoError(t, err)
	d.Trim()
	require.EqualValues(t, slabBytes, d.Stats().Reserved)
	d.Free(b)
}

// Scratch that kernels keep does not lie between large blocks.
func TestLastingScratchLiesApart(t *testing.T) {
	d := New(1)
	defer d.Close()
	first, err := d.Alloc(4 << 20)
	require.NoError(t, err)
	ws := d.workspace()
	ws.reserve(2 << 20)
	second, err := d.Alloc(4 << 20)
	require.NoError(t, err)
	require.EqualValues(t, 8<<20, d.Stats().InUse)
	d.Free(first)
	d.Free(second)
	both, err := d.Alloc(8 << 20)
	require.NoError(t, err)
	require.EqualValues(t, 10<<20, d.Stats().Reserved)
	d.Free(both)
	ws.reserve(3 << 20)
	d.putWorkspace(ws)
}

func TestPoison(t *testing.T) {
	d := New(1)
	defer d.Close()
	d.SetPoison(true)
	b, err := d.Alloc(100)
	require.NoError(t, err)
	ptr := b.(*buffer).ptr
	require.EqualValues(t, 0xFF, *(*byte)(ptr))
	d.NewStream().Write(b, 0, make([]byte, 100))
	d.Free(b)
	for _, x := range unsafe.Slice((*byte)(ptr), 100) {
		require.EqualValues(t, 0xFF, x)
	}
	c := &backend.Call{Op: backend.OpFill, NOut: 1}
	c.Out[0].Buf, c.Out[0].DType = b, 1
	require.PanicsWithError(t, "cpu: fill: output 0: a buffer that was freed", func() { d.NewStream().Launch(c) })
}

func TestConcurrentAllocation(t *testing.T) {
	d := New(1)
	defer d.Close()
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			s := d.NewStream()
			got := make([]byte, 64)
			for i := range 300 {
				b, err := d.Alloc(64 * (1 + i%5))
				if err != nil {
					panic(err)
				}
				want := []byte{byte(g), byte(i)}
				s.Write(b, 7, want)
				s.Read(got[:2], b, 7)
				if got[0] != want[0] || got[1] != want[1] {
					panic("memory shared by two owners")
				}
				d.Free(b)
			}
		})
	}
	wait.Wait()
	require.Zero(t, d.Stats().InUse)
}

// Ranks that share a device have ever different numbers of blocks of each size at the same time. A size that has none
// left takes a larger free block, so that memory follows what was in use at once, not the sum of what was in use of
// each size.
func TestSmallBlocksOfOtherSizesAreUsedAgain(t *testing.T) {
	m := &memory{name: "test"}
	defer m.close()
	r := rand.New(rand.NewPCG(3, 1))
	for range 4000 { // steps
		var live []*buffer
		for range 100 {
			b, err := m.alloc(int(64*math.Exp2(10*r.Float64())), forTensor)
			require.NoError(t, err)
			live = append(live, b)
		}
		for _, b := range live {
			m.release(b)
		}
	}
	require.Less(t, m.lasting.taken-int64(len(m.slab)), 2*m.stats.Peak)
}

// What tensors hold is limited, by what the host has unless somebody says otherwise; the kernels' own memory is not.
func TestMemoryLimit(t *testing.T) {
	d := New(1)
	defer func() { require.NoError(t, d.Close()) }()
	if host, _ := hostmemory.Limit(); host > 0 {
		require.Less(t, d.mem.limit, int64(host))
		require.Greater(t, d.mem.limit, int64(host/2))
	}
	d.SetMemoryLimit(3 << 20)
	a, err := d.Alloc(2 << 20)
	require.NoError(t, err)
	_, err = d.Alloc(1<<20 + 1)
	var short *backend.OutOfMemoryError
	require.ErrorAs(t, err, &short)
	require.Equal(t, 1<<20+1, short.Bytes)
	require.ErrorContains(t, err, "cpu: out of memory: cannot allocate 1048577 bytes (2097152 in use")
	d.Free(d.scratch(4 << 20))
	d.Free(a)
	a, err = d.Alloc(3 << 20)
	require.NoError(t, err)
	d.SetMemoryLimit(0)
	b, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	d.Free(a)
	d.Free(b)
}
