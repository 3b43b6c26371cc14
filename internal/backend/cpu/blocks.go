// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
)

// chunkQ8 is how many columns of a product a worker takes at a time.
const chunkQ8 = 64

// MultiplyQ8 computes y [rows,n] = x [rows,k]·wᵀ for w [n,k] in blocks of Q8_0.
func (d *Device) MultiplyQ8(y, x []float32, w []byte, rows, k int) {
	n := len(y) / rows
	packed := x
	if rows > 1 {
		ws := d.workspace()
		defer d.putWorkspace(ws)
		ws.reserve(carved(len(x) * int(unsafe.Sizeof(x[0]))))
		packed = carve[float32](ws, len(x))
		blockwise.PackQ8(packed, x, rows, k, k)
	}
	d.pool.ForChunks(n, chunkQ8, func(lo, hi int) { blockwise.MultiplyQ8(y, n, packed, rows, k, w, lo, hi) })
}

// RowsQ8 is how many rows MultiplyQ8 takes.
func (d *Device) RowsQ8() int { return blockwise.RowsQ8 }

// DequantizeQ8 writes what blocks of Q8_0 stand for.
func (d *Device) DequantizeQ8(dst []float32, w []byte) {
	const many = 64
	blocks := len(dst) / blockwise.Q8Block
	d.pool.ForChunks((blocks+many-1)/many, 4, func(lo, hi int) {
		lo, hi = lo*many, min(hi*many, blocks)
		blockwise.DequantizeQ8(dst[lo*blockwise.Q8Block:hi*blockwise.Q8Block], w[lo*blockwise.Q8Bytes:])
	})
}
