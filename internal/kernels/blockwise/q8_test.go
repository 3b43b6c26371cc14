// SPDX-License-Identifier: Apache-2.0

package blockwise

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// blocksQ8 are n columns of k numbers with every byte among them, and what they stand for.
func blocksQ8(r *rand.Rand, n, k int) (w []uint8, numbers []float64) {
	for i := range n * k / Q8Block {
		scale := dtype.ToF16(float32(r.NormFloat64()))
		w = binary.LittleEndian.AppendUint16(w, uint16(scale))
		for j := range Q8Block {
			q := int8(37*(Q8Block*i+j) + 128)
			w, numbers = append(w, uint8(q)), append(numbers, float64(scale.Float32())*float64(q))
		}
	}
	return w, numbers
}

// Products of 1 to 8 rows are those of the numbers that blocks stand for, to the rounding of float32, in all kernels.
// How many rows there are changes no bit, nor do strides.
func TestProductsOfBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, shape := range [][2]int{{1, 32}, {5, 64}, {2*tileQ8 + 3, 288}} {
		n, k := shape[0], shape[1]
		w, numbers := blocksQ8(r, n, k)
		x := make([]float32, RowsQ8*(k+3))
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
			var all []float32
			for rows := RowsQ8; rows > 0; rows-- {
				packed, y := make([]float32, rows*k), make([]float32, rows*(n+1))
				PackQ8(packed, x, rows, k, k+3)
				MultiplyQ8(y, n+1, packed, rows, k, w, 0, min(n, 4))
				MultiplyQ8(y, n+1, packed, rows, k, w, min(n, 4), n)
				if all == nil {
					all = y
				}
				require.Equal(t, all[:len(y)], y, "%v: %d rows of %d×%d", v, rows, n, k)
			}
			for i := range RowsQ8 {
				for j := range n {
					want, sum := 0., 0.
					for p := range k {
						product := float64(x[i*(k+3)+p]) * numbers[j*k+p]
						want, sum = want+product, sum+math.Abs(product)
					}
					require.InDelta(t, want, all[i*(n+1)+j], 1e-6*sum, "%v: (%d, %d) of %d×%d", v, i, j, n, k)
				}
				require.Zero(t, all[i*(n+1)+n])
			}
		})
	}
}

// Whole numbers have exact products and sums in any order.
func TestProductsOfBlocksAreExact(t *testing.T) {
	const n, k = 3, 96
	w := make([]uint8, 0, n*k/Q8Block*Q8Bytes)
	x := make([]float32, RowsQ8*k)
	for i := range x {
		x[i] = float32(i%7 - 3)
	}
	for i := range n * k {
		if i%Q8Block == 0 {
			w = binary.LittleEndian.AppendUint16(w, uint16(dtype.ToF16(float32(1+i%3))))
		}
		w = append(w, uint8(int8(i%11-5)))
	}
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		for rows := 1; rows <= RowsQ8; rows++ {
			packed, y, want := make([]float32, rows*k), make([]float32, rows*n), make([]float32, rows*n)
			PackQ8(packed, x, rows, k, k)
			MultiplyQ8(y, n, packed, rows, k, w, 0, n)
			for i := range rows {
				for j := range n {
					for p := range k {
						scale := float32(1 + (j*k+p)/Q8Block*Q8Block%3)
						want[i*n+j] += x[i*k+p] * scale * float32((j*k+p)%11-5)
					}
				}
			}
			require.Equal(t, want, y, "%v: %d rows", v, rows)
		}
	})
}

func BenchmarkMultiplyQ8(b *testing.B) {
	const n, k = 1536, 576
	w, _ := blocksQ8(rand.New(rand.NewPCG(3, 4)), n, k)
	for _, rows := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			packed, y := make([]float32, rows*k), make([]float32, rows*n)
			b.SetBytes(int64(len(w)))
			for b.Loop() {
				MultiplyQ8(y, n, packed, rows, k, w, 0, n)
			}
		})
	}
}
