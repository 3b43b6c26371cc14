// SPDX-License-Identifier: Apache-2.0

package accumulation

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// The gradients of a micro-batch: one vector per parameter, nil that it does not reach.
type grads [][]float32

const (
	width     = 3
	numParams = 3
)

// gradsOf makes the gradients of a micro-batch: numbers of many sizes, whose float32 sum depends on
// the order. Parameter 1 is reached by every third one, parameter 2 by none.
func gradsOf(m int) grads {
	g := grads{make([]float32, width), nil, nil}
	if m%3 == 1 {
		g[1] = make([]float32, width)
	}
	for i := range width {
		h := uint32(m*7919+i*104729+1) * 2654435761
		x := float32(h>>8) * float32([]float64{1e-9, 1e-6, 1e-3, 1}[h>>4&3])
		g[0][i] = x
		if g[1] != nil {
			g[1][i] = -1.7 * x
		}
	}
	return g
}

func newParams(c *tensor.Ctx) []tensor.Named {
	var ps []tensor.Named
	for i := range numParams {
		ps = append(ps, tensor.Named{Name: fmt.Sprint(i),
			Tensor: tensor.Zeros(c.NoGrad(), tensor.Float32, width).SetRequiresGrad(true)})
	}
	return ps
}

// backward makes g the gradients of a backward pass: those of Σ ⟨g, p⟩.
func backward(c *tensor.Ctx, params []tensor.Named, g grads) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var roots []*tensor.Tensor
		for i, p := range params {
			if g[i] != nil {
				roots = append(roots, tensor.Sum(c, tensor.Mul(c, p.Tensor, tensor.FromSlice(c, g[i], width)), nil,
					false))
			}
		}
		tensor.Backward(c, roots, nil, nil)
		return nil
	})
}

// window runs the micro-batches that present lists and returns the gradients, nil where there is
// none.
func window(c *tensor.Ctx, a *Accumulator, present []int) grads {
	a.Reset()
	for _, m := range present {
		a.Begin(m)
		backward(c, a.params, gradsOf(m))
	}
	a.Finish()
	out := make(grads, len(a.params))
	for i, p := range a.params {
		if g := p.Grad(); g != nil {
			out[i] = tensor.ToSlice[float32](c, g)
		}
	}
	return out
}

// reference adds the micro-batches of [from, from+n), which make e groups, as the design says:
// within a group in order, the groups as a binary tree over the nominal window.
func reference(count, ranks int, present []int) grads {
	here := map[int]bool{}
	for _, l := range present {
		here[l] = true
	}
	// E, straight from its definition.
	e := 1
	for try := 1; try <= ranks; try *= 2 {
		if count%try == 0 {
			e = try
		}
	}
	out := make(grads, numParams)
	for p := range out {
		var tree func(first, groups int) []float32
		tree = func(first, groups int) []float32 {
			if groups > 1 {
				return plus(tree(first, groups/2), tree(first+groups/2, groups/2))
			}
			var sum []float32
			for l := first * (count / e); l < (first+1)*(count/e); l++ {
				if here[l] {
					sum = plus(sum, gradsOf(l)[p])
				}
			}
			return sum
		}
		out[p] = tree(0, e)
	}
	return out
}

// plus adds two gradients; nil is none, which is not the same as zeros.
func plus(x, y []float32) []float32 {
	switch {
	case x == nil:
		return y
	case y == nil:
		return x
	}
	sum := make([]float32, len(x))
	for i := range x {
		sum[i] = x[i] + y[i]
	}
	return sum
}

func upTo(from, to int) []int {
	var ls []int
	for l := from; l < to; l++ {
		ls = append(ls, l)
	}
	return ls
}

// Every window size, every number of deterministic ranks and every tail gives the bits of
// the tree; one accumulator serves all tails, as it does at the end of epochs.
func TestAccumulatorTree(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	for _, count := range []int{1, 2, 3, 4, 5, 6, 8, 12, 16, 20} {
		for _, ranks := range []int{1, 2, 4, 8, 16} {
			a := New(c.NoGrad(), newParams(c), count, ranks)
			for n := 1; n <= count; n++ {
				require.Equal(t, reference(count, ranks, upTo(0, n)), window(c, a, upTo(0, n)),
					"M=%d ranks=%d: %d micro-batches", count, ranks, n)
			}
			require.Equal(t, reference(count, ranks, upTo(0, count)), window(c, a, upTo(0, count)),
				"a full window after a tail")
		}
	}
}

// The order matters at all: the tree's bits are not those of a plain sum.
func TestAccumulatorTreeIsNotSerial(t *testing.T) {
	require.NotEqual(t, reference(16, 1, upTo(0, 16))[0], reference(16, 8, upTo(0, 16))[0])
}

// Leaves may be absent anywhere.
func TestAccumulatorGaps(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	const count, ranks = 16, 8
	a := New(c.NoGrad(), newParams(c), count, ranks)
	for _, present := range [][]int{{15}, {0, 15}, {1}, {3, 4}, {2, 3, 4, 9}, {0, 5, 6, 7, 8, 11, 12}, upTo(8, 16),
		nil} {
		require.Equal(t, reference(count, ranks, present), window(c, a, present), "%v", present)
	}
}

// Ranks that each own a contiguous part of the window get subtrees whose sums, added at
// distance 1, 2, 4, are what one rank gets.
func TestAccumulatorRanks(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	const count, deterministic = 24, 8
	want := reference(count, deterministic, upTo(0, count))
	for _, ranks := range []int{1, 2, 4, 8} {
		var parts []grads
		for r := range ranks {
			a := New(c.NoGrad(), newParams(c), count, deterministic)
			parts = append(parts, window(c, a, upTo(r*count/ranks, (r+1)*count/ranks)))
		}
		for distance := 1; distance < ranks; distance *= 2 {
			for r := 0; r < ranks; r += 2 * distance {
				for p := range parts[r] {
					parts[r][p] = plus(parts[r][p], parts[r+distance][p])
				}
			}
		}
		require.Equal(t, want, parts[0], "%d ranks", ranks)
	}
}

func TestAccumulatorGroups(t *testing.T) {
	for _, k := range []struct{ count, ranks, e, q int }{
		{1, 8, 1, 1}, {2, 8, 2, 1}, {3, 8, 1, 3}, {4, 8, 4, 1}, {6, 8, 2, 3}, {8, 8, 8, 1}, {12, 8, 4, 3},
		{16, 8, 8, 2}, {16, 1, 1, 16}, {16, 2, 2, 8}, {16, 64, 16, 1}, {24, 8, 8, 3}, {7, 64, 1, 7}, {40, 4, 4, 10},
	} {
		require.Equal(t, k.e, Groups(k.count, k.ranks), "E of %d micro-batches, %d ranks", k.count, k.ranks)
		require.Equal(t, k.q, New(nil, nil, k.count, k.ranks).q, "q of %d micro-batches, %d ranks", k.count,
			k.ranks)
	}
}

// At most log2(E)+1 gradients of a parameter are alive, in every window; parameters that
// get a gradient only now and then do not pile up buffers.
func TestAccumulatorLiveGradients(t *testing.T) {
	for _, k := range []struct{ count, ranks, sets int }{{1, 8, 1}, {3, 8, 1}, {2, 8, 2}, {4, 8, 3}, {8, 8, 4},
		{16, 8, 4}, {16, 16, 5}, {12, 8, 3}, {16, 1, 1}} {
		dev := tensor.NewCPU(1)
		c := tensor.NewCtx(dev)
		const n = 1 << 12
		p := tensor.Named{Name: "p", Tensor: tensor.Zeros(c.NoGrad(), tensor.Float32, n).SetRequiresGrad(true)}
		a := New(c.NoGrad(), []tensor.Named{p}, k.count, k.ranks)
		before, most := dev.MemStats().InUse, int64(0)
		for w := range 6 {
			a.Reset()
			for m := range k.count {
				a.Begin(m)
				if w%2 == 1 { // a window that does not reach the parameter
					continue
				}
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, p.Tensor, nil, false)}, nil, nil)
					return nil
				})
				most = max(most, dev.MemStats().InUse-before)
			}
			a.Finish()
			if w%2 == 1 {
				require.Nil(t, p.Grad())
			}
			most = max(most, dev.MemStats().InUse-before)
		}
		require.EqualValues(t, k.sets*n*4, most, "M=%d ranks=%d", k.count, k.ranks)
		require.NoError(t, dev.Close())
	}
}

// A window that was broken off leaves nothing behind.
func TestAccumulatorReset(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	a := New(c.NoGrad(), newParams(c), 8, 8)
	want := window(c, a, upTo(0, 8))
	for n := range 7 {
		a.Reset()
		for m := range n {
			a.Begin(m)
			backward(c, a.params, gradsOf(m+1))
		}
		require.Equal(t, want, window(c, a, upTo(0, 8)), "after %d micro-batches", n)
	}
}

func TestAccumulatorRefusesDisorder(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	a := New(c.NoGrad(), newParams(c), 8, 4)
	a.Begin(5)
	for _, m := range []int{3, -1, 8} {
		require.EqualError(t, tensor.Try(func() { a.Begin(m) }), fmt.Sprintf(
			"accelerate.Backward: micro-batch %d: want one in [4, 8): micro-batches ascend, and Reduce ends a window",
			m))
	}
	a.Begin(4) // of the same group
	a.Finish()
	a.Begin(0)
}
