// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/flatten"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/tensor"
)

// numbers are of very different sizes, so that the order of additions shows.
func numbers(c *tensor.Ctx, seed uint64, n int) *tensor.Tensor {
	r := rand.New(rand.NewPCG(seed, 7))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(7)-3)))
	}
	return tensor.FromSlice(c, x, n)
}

// squares adds up what ranks make of their shards, in the order of the elements; own is rank 0's part.
func squares(c *tensor.Ctx, x *tensor.Tensor, ranks, cell int) (all, own float64) {
	p := flatten.New([]int{x.Numel()}, ranks, cell)
	for r := range ranks {
		mine := p.Within(0, r)
		if mine.Len() == 0 {
			continue
		}
		shard := tensor.Slice(c, x, 0, mine.Start, mine.Stop)
		for _, part := range tensor.ToSlice[float64](c, tensor.SumSquares(c, shard)) {
			all += part
			if r == 0 {
				own += part
			}
		}
	}
	return all, own
}

// Shards that are cut at cells of 4,096 elements give the norm the bits of one rank. Others do not, and the norm of one
// rank's shard is another number.
func TestCellsKeepTheNorm(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	c := tensor.NewCtx(dev).NoGrad()
	var differ int
	for seed := range uint64(4) {
		x := numbers(c, seed, 100_003)
		whole, _ := squares(c, x, 1, strategy.Cell)
		for _, ranks := range []int{2, 3, 4, 5, 8} {
			got, own := squares(c, x, ranks, strategy.Cell)
			require.Equal(t, whole, got, "%d ranks", ranks)
			require.NotEqual(t, whole, own)
			if control, _ := squares(c, x, ranks, 1000); control != whole {
				differ++
			}
		}
	}
	require.Positive(t, differ, "cells of 1,000 must show")
}

// What the owner of a shard adds up has the bits of one rank where ranks have micro-batches round robin. With
// contiguous leaves, of which each rank's next comes in a round, it has not.
func TestLeavesInTurnsKeepTheSum(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	c := tensor.NewCtx(dev).NoGrad()
	for _, of := range []struct{ microBatches, ranks int }{{8, 2}, {8, 4}, {24, 2}, {24, 3}, {24, 4}, {12, 6}} {
		sum := func(microBatch func(round, rank int) int) string {
			s := accumulation.NewShard(c, of.microBatches, 8)
			for i := range of.microBatches {
				s.Add(i, numbers(c, uint64(microBatch(i/of.ranks, i%of.ranks)), 1000))
			}
			return string(tensor.ReadBytes(c, s.Total()))
		}
		one := accumulation.NewShard(c, of.microBatches, 8)
		for i := range of.microBatches {
			one.Add(i, numbers(c, uint64(i), 1000))
		}
		want := string(tensor.ReadBytes(c, one.Total()))
		what := fmt.Sprint(of)
		require.Equal(t, want, sum(func(round, rank int) int { return round*of.ranks + rank }), what)
		require.NotEqual(t, want, sum(func(round, rank int) int { return rank*of.microBatches/of.ranks + round }), what)
	}
}
