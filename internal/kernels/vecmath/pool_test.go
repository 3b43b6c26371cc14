// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// The first of equal numbers wins, and of NaNs, in place and with later elements of the same array as well.
func TestLarger(t *testing.T) {
	nan := float32(math.NaN())
	numbers := []float32{nan, float32(math.Inf(1)), 1, 0, float32(math.Copysign(0, -1)), -1, float32(math.Inf(-1))}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{0, 1, 15, 16, 17, 100} {
			const shift = 3
			x, place := make([]float32, n+shift), make([]uint32, n+shift)
			for i := range x {
				x[i], place[i] = numbers[r.IntN(len(numbers))], uint32(i)
			}
			want := make([]uint32, n)
			for i := range want {
				want[i] = uint32(i)
				if a, b := x[i], x[i+shift]; b > a || b != b && a == a {
					want[i] = uint32(i + shift)
				}
			}
			got := append([]float32(nil), x...)
			Larger(got[:n], place[:n], got[:n], place[:n], got[shift:], place[shift:])
			require.Equal(t, want, place[:n])
			for i, p := range want {
				require.Equal(t, math.Float32bits(x[p]), math.Float32bits(got[i]), "element %d of %d", i, n)
			}
		}
	})
}
