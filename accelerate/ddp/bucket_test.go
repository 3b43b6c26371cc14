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
		params = append(params, b.List)
	}
	return params
}

func TestPlanSizes(t *testing.T) {
	const kib = 256 // elements
	params := sized(100*kib, 300*kib, 700*kib, 9000*kib, 9000*kib, 9000*kib, 40000*kib, 100*kib)
	var sizes []int
	for _, b := range plan(params, []int{0, 1, 2, 3, 4, 5, 6, 7}, FirstBucketBytes, BucketBytes) {
		sizes = append(sizes, b.Bytes()>>10)
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
