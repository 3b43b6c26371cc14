// SPDX-License-Identifier: Apache-2.0

package gemm

import "unsafe"

// placedGeneric computes 4×(4·blocks) elements of C = A·B, or C = D + A·B, with element (i,p) of A at a[i·ars + p·acs].
func placedGeneric[T element](k int, a *T, ars, acs int, b *T, bstride int, c *T, cstride int, d *T, dstride,
	blocks int) {
	left := unsafe.Slice(a, 3*ars+(k-1)*acs+1)
	right := unsafe.Slice(b, (blocks*k-1)*bstride+4)
	tile := unsafe.Slice(c, 3*cstride+4*blocks)
	var added []T
	if d != nil {
		added = unsafe.Slice(d, 3*dstride+4*blocks)
	}
	for block := range blocks {
		for i := range 4 {
			var s0, s1, s2, s3 T
			at, row := i*ars, block*k*bstride
			for range k {
				x, y := left[at], right[row:row+4:row+4]
				s0 += T(x * y[0])
				s1 += T(x * y[1])
				s2 += T(x * y[2])
				s3 += T(x * y[3])
				at += acs
				row += bstride
			}
			var from []T
			if added != nil {
				from = added[i*dstride+4*block:]
			}
			store4(tile[i*cstride+4*block:], from, s0, s1, s2, s3)
		}
	}
}
