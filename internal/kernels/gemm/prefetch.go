// SPDX-License-Identifier: Apache-2.0

package gemm

import "unsafe"

// A kernel for a strided A prefetches prefetchBytes, two cache lines of 64, with each turn of productsPerTurn products:
// little by little, since prefetching a whole tile at once takes up all the misses that a first-level cache can have
// under way.
const (
	prefetchBytes   = 128
	productsPerTurn = 4
)

// Prefetch lists memory that is needed after a product, which [InPlace] prefetches while it computes: it comes to the
// second-level cache in the order of the list. Memory is neither read nor written, and it may have been freed.
// The zero value lists nothing, as nil does.
type Prefetch struct {
	runs []run
	done int // runs that have been prefetched
}

// run is a number of pieces of prefetchBytes that lie step bytes apart, from at on.
type run struct {
	at, step uintptr
	pieces   int
}

// Reset empties the list.
func (a *Prefetch) Reset() { a.runs, a.done = a.runs[:0], 0 }

// Rows adds rows of width bytes, stride bytes apart.
func (a *Prefetch) Rows(at unsafe.Pointer, rows, stride, width int) {
	if stride == width || rows == 1 {
		a.runs = append(a.runs, run{uintptr(at), prefetchBytes, ceilDiv(rows*width, prefetchBytes)})
		return
	}
	for i := 0; i < width; i += prefetchBytes {
		a.runs = append(a.runs, run{uintptr(at) + uintptr(i), uintptr(stride), rows})
	}
}

// take hands out what to prefetch with the next of so many tiles of k products each: count tiles, and a kernel's next
// and step for them. Where there is nothing to prefetch, they name memory that is in the cache.
func (a *Prefetch) take(tiles, k int, cached unsafe.Pointer) (count int, next, step uintptr) {
	each := k / productsPerTurn
	if a == nil || a.done == len(a.runs) || each == 0 {
		return tiles, uintptr(cached), 0
	}
	r := &a.runs[a.done]
	next, step = r.at, r.step
	count = min(tiles, ceilDiv(r.pieces, each))
	r.at += uintptr(count*each) * step
	r.pieces -= count * each
	if r.pieces <= 0 {
		a.done++
	}
	return count, next, step
}
