// SPDX-License-Identifier: Apache-2.0

package winograd

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// Products of transforms are the correlation of 4×4 pixels with a 3×3 kernel, turned or not, and transposes are its
// gradient.
func TestTransformsCorrelate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	d, g, dy := random(r, 16), random(r, 9), random(r, 4)
	v, u, m, y := make([]float32, 16), make([]float32, 16), make([]float32, 16), make([]float32, 4)
	Input.Apply(1, v, Square{4, 1}, d, Square{4, 1})
	Kernel.Apply(1, u, Square{4, 1}, g, Square{3, 1})
	for _, turned := range []bool{false, true} {
		for p := range m {
			m[p] = v[p] * u[p]
			if turned {
				m[p] = v[p] * u[Flipped(p)]
			}
		}
		Output.Apply(1, y, Square{2, 1}, m, Square{4, 1})
		for i, got := range y {
			var want float64
			for k, w := range g {
				if turned {
					w = g[8-k]
				}
				want += float64(w) * float64(d[(i/2+k/3)*4+i%2+k%3])
			}
			require.InDelta(t, want, got, 1e-5, "result %d, turned: %t", i, turned)
		}
	}
	OutputGrad.Apply(1, m, Square{4, 1}, dy, Square{2, 1})
	for p := range m {
		m[p] *= v[p]
	}
	dg := make([]float32, 9)
	KernelGrad.Apply(1, dg, Square{3, 1}, m, Square{4, 1})
	for k, got := range dg {
		var want float64
		for i, s := range dy {
			want += float64(s) * float64(d[(i/2+k/3)*4+i%2+k%3])
		}
		require.InDelta(t, want, got, 1e-5, "gradient %d", k)
	}
}

// All variants have the bits of the generic one, for any number of elements, and write nothing else.
func TestVariantsAgree(t *testing.T) {
	all := map[string]*Transform{"input": &Input, "output": &Output, "output grad": &OutputGrad, "kernel": &Kernel,
		"kernel grad": &KernelGrad}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for name, f := range all {
			for _, n := range []int{0, 1, 7, 8, 16, 17, 48, 61} {
				r := rand.New(rand.NewPCG(3, uint64(n)))
				from, to := Square{5*n + 3, n + 1}, Square{4*n + 1, n}
				src := random(r, 3*(from.Row+from.Col)+n)
				want := random(r, 3*(to.Row+to.Col)+n)
				got := append([]float32(nil), want...)
				f.generic(n, want, to, src, from)
				f.Apply(n, got, to, src, from)
				require.Equal(t, want, got, "%s of %d", name, n)
			}
		}
	})
}

func TestApplyRefuses(t *testing.T) {
	require.PanicsWithValue(t, fmt.Sprintf("winograd: 4×4 vectors of 2 elements %+v in 10 to 2×2 %+v in 8",
		Square{8, 2}, Square{4, 2}), func() {
		Output.Apply(2, make([]float32, 8), Square{4, 2}, make([]float32, 10), Square{8, 2})
	})
}
