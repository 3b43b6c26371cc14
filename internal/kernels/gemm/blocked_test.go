// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPieces: pieces cover each element of C once, none is larger than there is room for, and no worker's share of them
// is much larger than another's.
func TestPieces(t *testing.T) {
	e := engine32()
	for _, size := range [][3]int{{1024, 256, 1024}, {256, 256, 1024}, {256, 768, 1024}, {1024, 1024, 256},
		{128, 768, 3072}, {4096, 3072, 768}, {200, 40, 5000}, {13, 33, 4000}} {
		for workers := 1; workers <= 9; workers++ {
			for _, l := range []layout{packed, inRows, copiedColumns} {
				j := &job[float32]{product: product[float32]{engine: e,
					problem: problem[float32]{m: size[0], n: size[1], k: size[2]}}, layout: l}
				j.cut(workers, j.blockedCut())
				rows, cols := j.largest()
				count, covered, most := j.down*j.across, 0, 0
				for w := range workers {
					share := 0
					for number := w * count / workers; number < (w+1)*count/workers; number++ {
						i0, i1, j0, j1 := j.piece(number)
						require.LessOrEqual(t, i1-i0, rows)
						require.LessOrEqual(t, j1-j0, cols)
						share += (i1 - i0) * (j1 - j0)
					}
					covered, most = covered+share, max(most, share)
				}
				require.Equal(t, j.m*j.n, covered)
				if size[0] >= 1024 && workers <= 4 {
					require.Less(t, float64(most*workers), 1.1*float64(covered), "%v, %d workers, layout %d: %d×%d",
						size, workers, l, j.down, j.across)
				}
			}
		}
	}
}
