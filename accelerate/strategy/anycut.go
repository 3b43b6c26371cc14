// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/internal/parallel"
	"github.com/lockstep-ml/lockstep/tensor"
)

// CutGradient is what a rank has of a gradient.
type CutGradient struct {
	Grad *tensor.Tensor // nil: nothing
	// Grain is how many elements no cut separates: all cuts lie at multiples of it.
	Grain int
}

// NormOfAnyCut is the L2 norm of gradients that ranks have parts of, with the same bits however they are cut between
// grains. Each element counts on one rank of the groups alone. It is collective.
//
// The sum of a grain's squares is taken for three multiples of quanta, each 2²⁰ times finer than the one before, and a
// rest below 2⁻⁶⁰ of the largest sum, which is dropped. Up to 2³³ multiples of a quantum have an exact sum in float64,
// in any order (Demmel and Nguyen, Fast Reproducible Floating-Point Summation, 2013). [Norm] needs less memory, where
// cuts lie at multiples of [Cell].
func NormOfAnyCut(ctx context.Context, c *tensor.Ctx, grads []CutGradient, groups ...*comm.Group) (float64, error) {
	var squares []float64
	if err := tensor.Try(func() { squares = grainSquares(c.NoGrad(), grads) }); err != nil {
		return 0, err
	}
	largest := []float64{0}
	for _, x := range squares {
		largest[0] = max(largest[0], x)
	}
	if err := overGroups(ctx, groups, largest, comm.Max); err != nil {
		return 0, err
	}
	if x := largest[0]; x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return math.Sqrt(x), nil
	}
	sums := quantaOf(largest[0]).multiplesIn(squares)
	if err := overGroups(ctx, groups, sums[:], comm.Sum); err != nil {
		return 0, err
	}
	return math.Sqrt(sums[2] + sums[1] + sums[0]), nil
}

// overGroups combines numbers of all ranks.
func overGroups(ctx context.Context, groups []*comm.Group, x []float64, op comm.ReduceOp) error {
	for _, g := range groups {
		if g == nil {
			continue
		}
		if err := g.AllReduce(comm.Of(x), op, comm.Label("norms of gradients")).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// grainSquares are the sums of squares of all grains.
func grainSquares(c *tensor.Ctx, grads []CutGradient) (all []float64) {
	pool := parallel.New(c.Device().Workers())
	defer pool.Close()
	for _, g := range grads {
		if g.Grad == nil {
			continue
		}
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			t := g.Grad
			if t.DType() != tensor.Float64 {
				t = tensor.Cast(c, t, tensor.Float32)
			}
			mem, ok := tensor.HostBytes(c, tensor.Contiguous(c, t))
			if !ok {
				mem = tensor.ReadBytes(c, tensor.Contiguous(c, t))
			}
			own := make([]float64, (t.Numel()+g.Grain-1)/g.Grain)
			if t.DType() == tensor.Float64 {
				eachGrain(pool, own, dtype.Elements[float64](mem), g.Grain, squaresOf)
			} else {
				eachGrain(pool, own, dtype.Elements[float32](mem), g.Grain,
					func(x []float32) float64 { return vecmath.Dot(x, x) })
			}
			all = append(all, own...)
			return nil
		})
	}
	return all
}

// eachGrain sets out to f of each grain of x.
func eachGrain[E any](pool *parallel.Pool, out []float64, x []E, grain int, f func([]E) float64) {
	const elements = 1 << 14 // that a worker takes at a time
	pool.ForChunks(len(out), 1+elements/grain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			out[i] = f(x[i*grain : min((i+1)*grain, len(x))])
		}
	})
}

func squaresOf(x []float64) (s float64) {
	for _, x := range x {
		s += float64(x * x) // rounded, on every architecture
	}
	return s
}

// quanta round numbers of at most a size to multiples of three quanta: adding one, and subtracting it, rounds to a
// multiple of its last place.
type quanta [3]float64

// quantaOf are those for numbers up to largest.
func quantaOf(largest float64) (q quanta) {
	_, exponent := math.Frexp(largest)
	for i := range q {
		q[i] = math.Ldexp(1.5, 52+exponent-20*(i+1))
	}
	return q
}

// multiplesIn sums the multiples of each quantum.
func (q quanta) multiplesIn(numbers []float64) (sums [3]float64) {
	for _, x := range numbers {
		for i, quantum := range q {
			multiple := x + quantum - quantum
			sums[i] += multiple
			x -= multiple
		}
	}
	return sums
}
