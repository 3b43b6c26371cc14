// SPDX-License-Identifier: Apache-2.0

package gemm

import "unsafe"

// genericTiling is the portable kernel's: small tiles, since Go keeps only a few accumulators in registers.
var genericTiling = tiling{mr: 4, nr: 4, mb: 512, tm: 64, ka: kc, nb: 128, kb: 2 * kc, skinny: 16, narrow: 3}

var (
	generic32 = engine[float32]{tiling: genericTiling, micro: microGeneric[float32], strided: stridedGeneric[float32],
		pack: packGeneric[float32], transpose: transposeGeneric[float32]}
	generic64 = engine[float64]{tiling: genericTiling, micro: microGeneric[float64], strided: stridedGeneric[float64],
		pack: packGeneric[float64], transpose: transposeGeneric[float64]}
)

// microGeneric is engine.micro in portable Go for blocks of at most 4×4, and the oracle of the others. Multiplication
// and addition are rounded one by one on every architecture: the conversion of a product to its own type forbids
// fusing.
func microGeneric[T element](rows, k int, a, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int) {
	panelA := unsafe.Slice(a, k*rows)
	rowsB := unsafe.Slice(b, (blocks*k-1)*bstride+4)
	tile := unsafe.Slice(c, (rows-1)*cstride+4*blocks)
	var added []T
	if d != nil {
		added = unsafe.Slice(d, (rows-1)*dstride+4*blocks)
	}
	for block := range blocks {
		row := func(i int) (c, d []T) {
			if added != nil {
				d = added[i*dstride+4*block:]
			}
			return tile[i*cstride+4*block:], d
		}
		i := 0
		for ; i+2 <= rows; i += 2 {
			c0, d0 := row(i)
			c1, d1 := row(i + 1)
			dot2x4(panelA[i:], rows, k, rowsB[block*k*bstride:], bstride, c0, c1, d0, d1)
		}
		if i < rows {
			c0, d0 := row(i)
			dot1x4(panelA[i:], rows, k, rowsB[block*k*bstride:], bstride, c0, d0)
		}
	}
}

// dot2x4 computes two rows of a tile: 8 sums are what fits into registers on amd64 beside the operands.
func dot2x4[T element](a []T, rows, k int, b []T, bstride int, c0, c1, d0, d1 []T) {
	var s00, s01, s02, s03, s10, s11, s12, s13 T
	for p := range k {
		x := a[p*rows : p*rows+2 : p*rows+2]
		y := b[p*bstride : p*bstride+4 : p*bstride+4]
		x0, x1 := x[0], x[1]
		y0, y1, y2, y3 := y[0], y[1], y[2], y[3]
		s00 += T(x0 * y0)
		s01 += T(x0 * y1)
		s02 += T(x0 * y2)
		s03 += T(x0 * y3)
		s10 += T(x1 * y0)
		s11 += T(x1 * y1)
		s12 += T(x1 * y2)
		s13 += T(x1 * y3)
	}
	store4(c0, d0, s00, s01, s02, s03)
	store4(c1, d1, s10, s11, s12, s13)
}

// dot1x4 computes one row of a tile.
func dot1x4[T element](a []T, rows, k int, b []T, bstride int, c, d []T) {
	var s0, s1, s2, s3 T
	for p := range k {
		x := a[p*rows]
		y := b[p*bstride : p*bstride+4 : p*bstride+4]
		s0 += T(x * y[0])
		s1 += T(x * y[1])
		s2 += T(x * y[2])
		s3 += T(x * y[3])
	}
	store4(c, d, s0, s1, s2, s3)
}

// store4 writes four sums, and what d has for them, to c.
func store4[T element](c, d []T, s0, s1, s2, s3 T) {
	if d != nil {
		d = d[:4:4]
		s0, s1, s2, s3 = d[0]+s0, d[1]+s1, d[2]+s2, d[3]+s3
	}
	c = c[:4:4]
	c[0], c[1], c[2], c[3] = s0, s1, s2, s3
}

// stridedGeneric is engine.strided in portable Go for tiles of at most 4×4, and the oracle of the others.
func stridedGeneric[T element](rows, k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep,
	cstep int, _, _ uintptr) {
	rowsA := unsafe.Slice(a, (count-1)*astep+(rows-1)*ars+(k-1)*acs+1)
	rowsB := unsafe.Slice(b, (count-1)*bstep+(k-1)*brs+4)
	rowsC := unsafe.Slice(c, (count-1)*cstep+(rows-1)*crs+4)
	for tile := range count {
		x, y, z := rowsA[tile*astep:], rowsB[tile*bstep:], rowsC[tile*cstep:]
		for i := 0; i < rows; i += 2 { // an odd last one as both
			j := min(i+1, rows-1)
			strided2x4(x[i*ars:], x[j*ars:], acs, k, y, brs, z[i*crs:], z[j*crs:], add != 0)
		}
	}
}

// strided2x4 computes two rows of a tile, or the same one as both.
func strided2x4[T element](x0, x1 []T, acs, k int, b []T, brs int, c0, c1 []T, add bool) {
	c0, c1 = c0[:4:4], c1[:4:4]
	var s00, s01, s02, s03, s10, s11, s12, s13 T
	if add {
		s00, s01, s02, s03 = c0[0], c0[1], c0[2], c0[3]
		s10, s11, s12, s13 = c1[0], c1[1], c1[2], c1[3]
	}
	for p := range k {
		v0, v1 := x0[p*acs], x1[p*acs]
		y := b[p*brs : p*brs+4 : p*brs+4]
		y0, y1, y2, y3 := y[0], y[1], y[2], y[3]
		s00 += T(v0 * y0)
		s01 += T(v0 * y1)
		s02 += T(v0 * y2)
		s03 += T(v0 * y3)
		s10 += T(v1 * y0)
		s11 += T(v1 * y1)
		s12 += T(v1 * y2)
		s13 += T(v1 * y3)
	}
	c0[0], c0[1], c0[2], c0[3] = s00, s01, s02, s03
	c1[0], c1[1], c1[2], c1[3] = s10, s11, s12, s13
}
