// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// ulps is the distance of a result from the exact value in units of the last place of float32.
func ulps(got float32, want float64) float64 {
	near := float32(want)
	if got == near || got != got && want != want {
		return 0
	}
	unit := float64(math.Nextafter32(near, float32(math.Inf(1)))) - float64(near)
	return math.Abs(float64(got)-want) / unit
}

func TestFloat32FunctionsAreAccurate(t *testing.T) {
	cases := []struct {
		name   string
		lo, hi float64
		got    func(x float64) float64
		want   func(x float64) float64
		ulps   float64
	}{
		{"exp", -105, 89, exp, math.Exp, 0.6},
		{"erf", -5, 5, erf, math.Erf, 1},
		{"erf near zero", -0.6, 0.6, erf, math.Erf, 1},
	}
	const steps = 200_000
	for _, c := range cases {
		worst, where := 0.0, 0.0
		for i := range steps + 1 {
			x := float64(float32(c.lo + (c.hi-c.lo)*float64(i)/steps))
			if d := ulps(float32(c.got(x)), c.want(x)); !(d <= worst) {
				worst, where = d, x
			}
		}
		require.LessOrEqual(t, worst, c.ulps, "%s at %v", c.name, where)
	}
}

func TestFloat32FunctionsOnSpecialValues(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	f := func(x float64) float32 { return float32(x) }
	require.Equal(t, f(inf), f(exp(inf)))
	require.Equal(t, f(inf), f(exp(89)))
	require.Equal(t, f(0), f(exp(-inf)))
	require.Equal(t, f(1), f(exp(0)))
	require.Equal(t, f(1), f(erf(100)))
	require.Equal(t, f(-1), f(erf(-100)))
	require.Equal(t, math.Float32bits(f(math.Copysign(0, -1))), math.Float32bits(f(erf(math.Copysign(0, -1)))))
	for name, g := range map[string]func(float64) float64{"exp": exp, "erf": erf} {
		require.True(t, math.IsNaN(g(nan)), name)
	}
}
