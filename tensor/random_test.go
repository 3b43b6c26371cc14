// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// dropped is a dropout of ones: what it draws.
func dropped(c *tensor.Ctx, shape ...int) []float64 {
	return values(c, tensor.Dropout(c, tensor.Ones(c, tensor.Float32, shape...), 0.5))
}

// weights are what Attention with dropout gives each value.
func weights(c *tensor.Ctx, batch int) []float64 {
	zeros, ones := tensor.Zeros(c, tensor.Float32, batch, 2, 5, 4), tensor.Ones(c, tensor.Float32, batch, 2, 5, 4)
	out, _ := tensor.Attention(c, zeros, zeros, ones, tensor.AttentionOptions{Dropout: 0.5})
	return values(c, out)
}

func TestDrawsBelongToPositionsInTheStream(t *testing.T) {
	c := newCtx(t)
	for name, draw := range map[string]func(c *tensor.Ctx, batch int) []float64{
		"Dropout":   func(c *tensor.Ctx, batch int) []float64 { return dropped(c, batch, 3, 7) },
		"Attention": weights,
	} {
		at := func(position int64, batch int) []float64 { return draw(c.WithRandom(1, position).Sub("h.0"), batch) }
		require.Equal(t, at(8, 4), append(at(8, 2), at(10, 2)...), name)
		require.NotEqual(t, at(8, 2), at(10, 2), name)
	}
}

func TestDrawsBelongToSeedPathAndOrdinal(t *testing.T) {
	c := newCtx(t)
	base := func() *tensor.Ctx { return c.WithRandom(1, 0) }
	want := dropped(base(), 64)
	require.Equal(t, want, dropped(base(), 64))
	require.Equal(t, want, dropped(base().NoGrad(), 64), "the gradient mode does not matter")

	seen := map[string][]float64{
		"another seed":    dropped(c.WithRandom(2, 0), 64),
		"a part":          dropped(base().Sub("h.0"), 64),
		"another part":    dropped(base().Sub("h.1"), 64),
		"a part's part":   dropped(base().Sub("h.0").Sub("attn"), 64),
		"the second draw": func() []float64 { r := base(); dropped(r, 64); return dropped(r, 64) }(),
		"the part again":  func() []float64 { r := base(); r.Sub("h.0"); return dropped(r.Sub("h.0"), 64) }(),
	}
	for a, x := range seen {
		require.NotEqual(t, want, x, a)
		for b, y := range seen {
			require.True(t, a == b || !equal(x, y), "%s and %s draw the same", a, b)
		}
	}
}

func equal(x, y []float64) bool {
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

// TestDrawsOfPartsDoNotDependOnWhatOthersDo: a module that draws more inside does not
// shift the draws of those after it.
func TestPartsDrawApart(t *testing.T) {
	c := newCtx(t)
	after := func(inside int) []float64 {
		r := c.WithRandom(1, 0)
		part := r.Sub("h.0")
		for range inside {
			dropped(part, 3)
		}
		return dropped(r.Sub("h.1"), 64)
	}
	require.Equal(t, after(0), after(5))
}

func TestDropoutKeepsTheMean(t *testing.T) {
	c := newCtx(t).WithRandom(3, 0)
	const n, p = 100_000, 0.2
	x := tensor.Ones(c, tensor.Float32, 10, n/10).SetRequiresGrad(true)
	y := tensor.Dropout(c, x, p)
	kept, sum := 0, 0.0
	for _, v := range values(c, y) {
		if v != 0 {
			require.Equal(t, float64(float32(1/(1-p))), v)
			kept++
		}
		sum += v
	}
	deviation := math.Sqrt(p * (1 - p) / n)
	require.InDelta(t, 1-p, float64(kept)/n, 5*deviation)
	require.InDelta(t, 1, sum/n, 5*deviation/(1-p))
	backward(c, total(c, y))
	require.Equal(t, values(c, y), gradOf(c, x), "the gradient is the same mask")
}

func TestUniformAndNormalMoments(t *testing.T) {
	c := newCtx(t)
	const n = 100_000
	moments := func(v []float64) (mean, variance float64) {
		for _, x := range v {
			mean += x / n
		}
		for _, x := range v {
			variance += (x - mean) * (x - mean) / n
		}
		return mean, variance
	}
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64} {
		u := values(c, tensor.Uniform(c, dt, 5, -1, 3, n))
		for _, x := range u {
			require.True(t, x >= -1 && x < 3)
		}
		mean, variance := moments(u)
		require.InDelta(t, 1, mean, 0.02)
		require.InDelta(t, 16.0/12, variance, 0.02)
		mean, variance = moments(values(c, tensor.Normal(c, dt, 5, 2, 0.5, n)))
		require.InDelta(t, 2, mean, 0.01)
		require.InDelta(t, 0.25, variance, 0.01)
	}
}
