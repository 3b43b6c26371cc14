// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// prefetched are the pieces that a list hands out for so many tiles at a time, by their distance from base.
func prefetched(a *Prefetch, base unsafe.Pointer, tiles, k int) (pieces []int) {
	for {
		count, next, step := a.take(tiles, k, base)
		if step == 0 {
			return pieces
		}
		for i := range count * (k / productsPerTurn) {
			pieces = append(pieces, int(next+uintptr(i)*step-uintptr(base)))
		}
	}
}

func TestPrefetchIsHandedOutInOrder(t *testing.T) {
	base := unsafe.Pointer(new([64]byte))
	var a Prefetch
	a.Rows(base, 4, 192, 192) // together
	require.Equal(t, []int{0, 128, 256, 384, 512, 640}, prefetched(&a, base, 1, 8))
	a.Reset()
	a.Rows(base, 4, 1000, 256) // one piece of each row, then the next
	a.Rows(base, 0, 1000, 256)
	require.Equal(t, []int{0, 1000, 2000, 3000, 128, 1128, 2128, 3128}, prefetched(&a, base, 9, 8))
	a.Reset()
	a.Rows(base, 1, 1000, 300) // no more tiles than it takes: the last may go beyond
	require.Equal(t, []int{0, 128, 256, 384}, prefetched(&a, base, 9, 8))
}

func TestPrefetchOfNothing(t *testing.T) {
	idle := unsafe.Pointer(new(byte))
	for _, a := range []*Prefetch{nil, {}} {
		count, next, step := a.take(5, 64, idle)
		require.Equal(t, [3]uintptr{5, uintptr(idle), 0}, [3]uintptr{uintptr(count), next, step})
	}
	var a Prefetch
	a.Rows(idle, 1, 64, 64)
	count, _, step := a.take(5, productsPerTurn-1, idle)
	require.Equal(t, 5, count)
	require.Zero(t, step, "a kernel without a whole turn prefetches nothing")
}

// What is prefetched changes no result, wherever it lies.
func TestPrefetchChangesNothing(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		e := engine32()
		x := newInPlaceExample[float32](61, 69, 70, false, true)
		var a Prefetch
		a.Rows(unsafe.Pointer(&x.b[0]), 7, 4096, 130)
		a.Rows(nil, 100, 1<<40, 64)
		c := append([]float32(nil), x.c...)
		inPlace(e, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Panels[float32]{x.b, x.n + 1, e.nr}, InRows(c, x.ldc),
			x.add, &a)
		require.Equal(t, x.result(e, false), c)
	})
}
