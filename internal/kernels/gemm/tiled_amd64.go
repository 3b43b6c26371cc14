// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

// amx is avx512 with tiles for what is large.
var amx = func() engine[float32] {
	e := avx512
	e.tiles = tiles[float32]{rows: 64, cols: 64, products: 32,
		floats: pieces[float32, float32]{3, 768, kc, microTiles3, splitRowsAMX, splitLanesAMX, packAVX512},
		bfloat16s: pieces[float32, uint16]{1, 1024, 2 * kc, microTiles1, pairRowsAMX, pairLanesAMX,
			packGeneric[uint16]},
	}
	return e
}()

// tileShapes configures the eight tiles as LDTILECFG needs it: all have 16 rows of 64 bytes.
var tileShapes = func() [8]uint64 {
	const (
		palette = 1
		columns = 0x0040_0040_0040_0040 // bytes of four tiles' rows, 16 bits each
		rows    = 0x1010_1010_1010_1010 // of eight tiles, 8 bits each
	)
	return [8]uint64{0: palette, 2: columns, 3: columns, 6: rows}
}()

func microTiles1(rows, steps int, a, b, c *float32, cstride int, d *float32, dstride, cols int, sums *float32) {
	tiles1AMX(&tileShapes[0], rows, steps, a, b, c, cstride, d, dstride, cols, sums)
}

func microTiles3(rows, steps int, a, b, c *float32, cstride int, d *float32, dstride, cols int, sums *float32) {
	tiles3AMX(&tileShapes[0], rows, steps, a, b, c, cstride, d, dstride, cols, sums)
}
