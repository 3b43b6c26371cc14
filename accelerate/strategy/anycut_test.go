// SPDX-License-Identifier: Apache-2.0

package strategy_test

import (
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/tensor"
)

const grain = 32

// gradient is numbers of many magnitudes.
func gradient(n int, widest int) []float32 {
	rnd, x := rand.New(rand.NewPCG(1, 2)), make([]float32, n)
	for i := range x {
		x[i] = float32(math.Ldexp(rnd.NormFloat64(), -rnd.IntN(widest+1)))
	}
	return x
}

// exact is the norm of numbers, rounded once.
func exact(x []float32) float64 {
	sum := new(big.Float).SetPrec(700)
	for _, x := range x {
		y := new(big.Float).SetFloat64(float64(x) * float64(x))
		sum.Add(sum, y)
	}
	norm, _ := new(big.Float).Sqrt(sum).Float64()
	return norm
}

func norm(t *testing.T, parts ...[]float32) float64 {
	c := tensor.NewCtx(tensor.CPU())
	var list []strategy.CutGradient
	for _, x := range parts {
		list = append(list, strategy.CutGradient{Grad: tensor.FromSlice(c, x, len(x)), Grain: grain},
			strategy.CutGradient{})
	}
	x, err := strategy.NormOfAnyCut(context.Background(), c, list)
	require.NoError(t, err)
	return x
}

func TestNormOfAnyCutIsExact(t *testing.T) {
	for _, c := range []struct{ n, widest int }{{1, 0}, {7, 3}, {1000, 0}, {200_003, 10}, {200_003, 100}} {
		x := gradient(c.n, c.widest)
		require.InEpsilon(t, exact(x), norm(t, x), 1e-15, "%d elements", c.n)
	}
	for _, x := range []float32{0, math.SmallestNonzeroFloat32, math.MaxFloat32, -3} {
		require.Equal(t, math.Abs(float64(x)), norm(t, []float32{x, 0}))
	}
	require.Zero(t, norm(t))
	require.Equal(t, math.Inf(1), norm(t, []float32{1, float32(math.Inf(-1))}))
	require.True(t, math.IsNaN(norm(t, []float32{float32(math.Inf(1)), float32(math.NaN()), 1})))
}

// Cuts at multiples of the grain, in any order and on any rank, have the same bits. A plain sum differs.
func TestNormOfAnyCutHasTheSameBits(t *testing.T) {
	x := gradient(100_001, 20)
	want := norm(t, x)
	plain := func(x []float32) (s float64) {
		for _, x := range x {
			s += float64(x) * float64(x)
		}
		return s
	}
	rnd, differs := rand.New(rand.NewPCG(3, 4)), 0
	for range 20 {
		i, j := rnd.IntN(len(x)/grain)*grain, rnd.IntN(len(x)/grain)*grain
		i, j = min(i, j), max(i, j)
		require.Equal(t, want, norm(t, x[:i], x[i:j], x[j:]))
		require.Equal(t, want, norm(t, x[j:], x[:i], x[i:j]))
		if math.Sqrt(plain(x[j:])+plain(x[:i])+plain(x[i:j])) != math.Sqrt(plain(x)) {
			differs++
		}
	}
	require.NotZero(t, differs)
	require.NoError(t, local.Run(3, comm.Options{}, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		cuts := []int{0, grain, 2000 * grain, len(x)}
		mine := x[cuts[g.Rank()]:cuts[g.Rank()+1]]
		got, err := strategy.NormOfAnyCut(context.Background(), c,
			[]strategy.CutGradient{{Grad: tensor.FromSlice(c, mine, len(mine)), Grain: grain}}, nil, g)
		require.Equal(t, want, got)
		return err
	}))
}

func TestNormOfAnyCutOfOtherDTypes(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	x := tensor.FromSlice(c, gradient(300, 2), 20, 15)
	for _, g := range []*tensor.Tensor{tensor.Cast(c, x, tensor.BFloat16), tensor.Transpose(c, x, 0, 1),
		tensor.Mul(c, tensor.Cast(c, x, tensor.Float64), tensor.Scalar(c, tensor.Float64, 1e60))} {
		got, err := strategy.NormOfAnyCut(context.Background(), c, []strategy.CutGradient{{Grad: g, Grain: 7}})
		require.NoError(t, err)
		wide := tensor.ToSlice[float64](c, tensor.Cast(c, g, tensor.Float64))
		want := 0.0
		for _, x := range wide {
			want = math.Hypot(want, x)
		}
		require.InEpsilon(t, want, got, 1e-14)
	}
}
