// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// sized are parameters of the given numbers of elements, negative ones of float64.
func sized(numels ...int) []tensor.Named {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	var list []tensor.Named
	for i, n := range numels {
		dt := tensor.Float32
		if n < 0 {
			n, dt = -n, tensor.Float64
		}
		list = append(list, tensor.Named{Name: fmt.Sprintf("p%d", i),
			Tensor: tensor.Zeros(c, dt, n).SetRequiresGrad(true)})
	}
	return list
}

// contents are the parameters of each bucket.
func contents(list []*bucket) (params [][]int) {
	for _, b := range list {
		params = append(params, b.params)
	}
	return params
}

func TestPlan(t *testing.T) {
	for _, k := range []struct {
		name         string
		numels       []int
		order        []int
		first, limit int // in bytes
		want         [][]int
	}{
		{"nothing", nil, nil, 64, 256, nil},
		{"all in one", []int{16, 16, 16}, []int{2, 1, 0}, 1024, 1024, [][]int{{2, 1, 0}}},
		{"the first closes early", []int{16, 16, 16, 16, 16}, []int{0, 1, 2, 3, 4}, 64, 192,
			[][]int{{0}, {1, 2, 3}, {4}}},
		{"the first may pass its size, not the limit", []int{8, 32, 48}, []int{0, 1, 2}, 128, 256,
			[][]int{{0, 1}, {2}}},
		{"a small one before a large one", []int{8, 64}, []int{0, 1}, 128, 256, [][]int{{0}, {1}}},
		{"an oversized parameter stands alone", []int{16, 16, 500, 16, 16}, []int{0, 1, 2, 3, 4}, 64, 256,
			[][]int{{0}, {1}, {2}, {3, 4}}},
		{"an oversized parameter first", []int{500, 16, 16}, []int{0, 1, 2}, 64, 256, [][]int{{0}, {1, 2}}},
		{"dtypes apart", []int{16, -8, 16, -8}, []int{0, 1, 2, 3}, 1024, 1024, [][]int{{0, 2}, {1, 3}}},
		{"each dtype begins early", []int{16, -8, 16, -8}, []int{0, 1, 2, 3}, 64, 1024, [][]int{{0}, {1}, {2}, {3}}},
		{"in the order in which they are complete", []int{16, -8, -8, 16}, []int{0, 1, 2, 3}, 1024, 1024,
			[][]int{{1, 2}, {0, 3}}},
	} {
		t.Run(k.name, func(t *testing.T) {
			params := sized(k.numels...)
			list := plan(params, k.order, k.first, k.limit)
			require.Equal(t, k.want, contents(list))
			at := 0
			for _, b := range list {
				require.Equal(t, at, b.offset)
				require.Zero(t, b.bytes%alignment)
				size := 0
				for _, i := range b.params {
					require.Equal(t, b.dtype, params[i].DType())
					size += align(params[i].Bytes())
				}
				require.Equal(t, size, b.bytes)
				at += b.bytes
			}
		})
	}
}

func TestPlanSizes(t *testing.T) {
	const kib = 256 // elements
	params := sized(100*kib, 300*kib, 700*kib, 9000*kib, 9000*kib, 9000*kib, 40000*kib, 100*kib)
	var sizes []int
	for _, b := range plan(params, []int{0, 1, 2, 3, 4, 5, 6, 7}, FirstBucketBytes, BucketBytes) {
		sizes = append(sizes, b.bytes>>10)
	}
	require.Equal(t, []int{1100, 18000, 9000, 40000, 100}, sizes)
}

func TestLayout(t *testing.T) {
	params := sized(3, 4, -4)
	require.Equal(t, layout(params, []int{0, 1}), layout(sized(3, 4), []int{0, 1}))
	for _, other := range [][]int{{1, 0}, {0}, {0, 2}, {0, 1, 2}} {
		require.NotEqual(t, layout(params, []int{0, 1}), layout(params, other))
	}
	list := plan(params, []int{2, 1, 0}, 1<<20, 1<<20)
	require.Equal(t, "bucket 0 (p2)", list[0].label)
	require.Equal(t, "bucket 1 (p1 … p0)", list[1].label)
}

func TestCheckOrder(t *testing.T) {
	require.NoError(t, checkOrder([]int{2, 0, 1}, 3))
	require.EqualError(t, checkOrder([]int{0, 1}, 3), "ddp: order of 2 parameters: want 3")
	require.EqualError(t, checkOrder([]int{0, 1, 1}, 3), "ddp: order [0 1 1] of parameters is not a permutation of 3")
	require.EqualError(t, checkOrder([]int{0, 1, -1}, 3), "ddp: order [0 1 -1] of parameters is not a permutation of 3")
}
