// SPDX-License-Identifier: Apache-2.0

package gemm

import "unsafe"

// A kernel for a strided A asks for askedBytes of memory, two cache lines of 64, with each turn of productsPerTurn
// products: little by little, since requests for a whole tile at once take up all the misses that a first-level cache
// can have under way.
const (
	askedBytes      = 128
	productsPerTurn = 4
)

// Ahead lists memory that is needed after a product, for [InPlace] to ask for while it computes: it comes to the
// second-level cache in the order of the list. It only says what is worth having; memory is neither read nor written,
// and it may have been freed. The zero value lists nothing, as nil does.
type Ahead struct {
	runs []run
	done int // runs that have been asked for
}

// run is a number of pieces of askedBytes that lie step bytes apart, from at on.
type run struct {
	at, step uintptr
	pieces   int
}

// Reset empties the list.
func (a *Ahead) Reset() { a.runs, a.done = a.runs[:0], 0 }

// Rows adds rows of width bytes, stride bytes apart.
func (a *Ahead) Rows(at unsafe.Pointer, rows, stride, width int) {
	if stride == width || rows == 1 {
		a.runs = append(a.runs, run{uintptr(at), askedBytes, ceilDiv(rows*width, askedBytes)})
		return
	}
	for i := 0; i < width; i += askedBytes {
		a.runs = append(a.runs, run{uintptr(at) + uintptr(i), uintptr(stride), rows})
	}
}

// take hands out what to ask for with the next of so many tiles of k products each: count tiles, and a kernel's next
// and step for them. Where there is nothing to ask for, they name memory that is in the cache.
func (a *Ahead) take(tiles, k int, cached unsafe.Pointer) (count int, next, step uintptr) {
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
