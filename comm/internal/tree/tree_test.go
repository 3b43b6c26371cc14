// SPDX-License-Identifier: Apache-2.0

package tree_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/internal/tree"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// inputs of magnitudes that make the order of additions show.
func inputs(n, count int) [][]byte {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(count)))
	list := make([][]byte, n)
	for r := range list {
		x := make([]float32, count)
		for i := range x {
			x[i] = float32((rng.Float64() - 0.5) * math.Pow(10, float64(rng.IntN(7))))
		}
		list[r] = bytesOf(x)
	}
	return list
}

func TestEqualsTheSpecificationForEveryNumberOfRanks(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		var c tree.Combiner
		for n := 1; n <= 33; n++ {
			in := inputs(n, 5000) // more than one block
			got := make([]byte, len(in[0]))
			c.Combine(got, in, dtype.Float32, comm.Sum, false)
			require.Equal(t, commtest.Combine(in, dtype.Float32, comm.Sum), got, "n = %d", n)
		}
	})
}

// The control: adding rank by rank gives other bits, or the data could not tell.
func TestFastOrderDiffers(t *testing.T) {
	var c tree.Combiner
	in := inputs(5, 1000)
	want, got := make([]byte, 4000), make([]byte, 4000)
	c.Combine(want, in, dtype.Float32, comm.Sum, false)
	c.Combine(got, in, dtype.Float32, comm.Sum, true)
	require.NotEqual(t, want, got)
}

func TestInPlaceOnAnyInput(t *testing.T) {
	var c tree.Combiner
	for n := 1; n <= 7; n++ {
		want := commtest.Combine(inputs(n, 3000), dtype.Float32, comm.Sum)
		for at := range n {
			in := inputs(n, 3000)
			c.Combine(in[at], in, dtype.Float32, comm.Sum, false)
			require.Equal(t, want, in[at], "n = %d, in place of %d", n, at)
		}
	}
}

// A partial result of a subtree, combined with others and rounded at the end, is the whole tree's.
func TestPartialResultsAreNotRounded(t *testing.T) {
	for _, d := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32} {
		var c tree.Combiner
		in := make([][]byte, 8)
		for r, x := range inputs(8, 400) {
			if in[r] = x; d.IsHalf() {
				in[r] = make([]byte, 800)
				// the two upper bytes of a float32 are a bfloat16; as binary16 patterns they serve as well
				for i := range 400 {
					copy(in[r][2*i:], x[4*i+2:4*i+4])
					in[r][2*i+1] &^= 0x40 // no infinities and NaNs
				}
			}
		}
		acc := tree.Accumulator(d)
		var partials [2][]byte
		for half := range partials {
			partials[half] = make([]byte, 400*acc.Size())
			c.Partial(partials[half], in[4*half:4*half+4], d, comm.Sum, false)
		}
		whole, got := make([]byte, len(partials[0])), make([]byte, len(in[0]))
		c.Combine(whole, partials[:], acc, comm.Sum, false)
		tree.Finish(got, whole, d)
		require.Equal(t, commtest.Combine(in, d, comm.Sum), got, fmt.Sprint(d))
	}
}

func TestLengthsThatDifferPanic(t *testing.T) {
	var c tree.Combiner
	require.PanicsWithValue(t, "tree: inputs of 8 and 4 bytes", func() {
		c.Combine(make([]byte, 8), [][]byte{make([]byte, 8), make([]byte, 4)}, dtype.Float32, comm.Sum, false)
	})
	require.PanicsWithValue(t, "tree: dst has 4 bytes: want 8", func() {
		c.Combine(make([]byte, 4), [][]byte{make([]byte, 8)}, dtype.Float32, comm.Sum, false)
	})
}
