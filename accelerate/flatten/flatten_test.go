// SPDX-License-Identifier: Apache-2.0

package flatten

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// sized are parameters of the given numbers of elements, negative ones of float64.
func sized(numels ...int) (list []tensor.Named) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, n := range numels {
		dt := tensor.Float32
		if n < 0 {
			n, dt = -n, tensor.Float64
		}
		list = append(list, tensor.Named{Tensor: tensor.Zeros(c, dt, n).SetRequiresGrad(true)})
	}
	return list
}

func TestBuckets(t *testing.T) {
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
			var lists [][]int
			for _, b := range Buckets(params, k.order, k.first, k.limit) {
				lists = append(lists, b.List)
				size := 0
				for _, i := range b.List {
					require.Equal(t, b.DType, params[i].DType())
					size += Bytes(params[i])
				}
				require.Equal(t, size, b.Bytes())
			}
			require.Equal(t, k.want, lists)
		})
	}
}

// What lies in a vector is there once, aligned; what the ranks own of a tensor is all of it, cut at cells.
func TestLayout(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, cell := range []int{Alignment, 64} {
		for _, ranks := range []int{1, 2, 3} {
			sizes := []int{3, 16, 0, 200, 5, 64, 1}
			l := New(sizes, ranks, cell)
			require.Zero(t, l.Shard%cell)
			vector := tensor.Zeros(c, tensor.Float32, l.Numel())
			for i, n := range sizes {
				view := l.View(c, vector, i, n)
				tensor.CopyInto(c, view, tensor.Affine(c, tensor.Ones(c, tensor.Float32, n), 0, float64(i+1)))
				require.Zero(t, l.offsets[i]%Alignment)
			}
			total := 0
			for _, x := range tensor.ToSlice[float32](c, vector) {
				if x != 0 {
					total++
				}
			}
			require.Equal(t, 289, total, "no two lie in one place")
			for i, n := range sizes {
				next := 0
				for rank := range ranks {
					own := l.Within(i, rank)
					local := l.Local(c, l.Own(c, vector, rank), i, rank)
					if own.Len() == 0 {
						require.Nil(t, local)
						continue
					}
					require.Equal(t, next, own.Start)
					require.True(t, own.Start%cell == 0, "cut inside of a cell")
					require.Equal(t, own.Len(), local.Numel())
					for _, x := range tensor.ToSlice[float32](c, local) {
						require.Equal(t, float32(i+1), x)
					}
					next = own.Stop
				}
				require.Equal(t, n, next)
			}
		}
	}
}

func TestFill(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	place := tensor.Ones(c, tensor.Float32, 2)
	Fill(c, place, place)
	require.Equal(t, []float32{1, 1}, tensor.ToSlice[float32](c, place))
	Fill(c, place, tensor.FromSlice(c, []float32{2, 3}, 2))
	require.Equal(t, []float32{2, 3}, tensor.ToSlice[float32](c, place))
	Fill(c, place, nil)
	for _, x := range tensor.ToSlice[float32](c, place) {
		require.True(t, x == 0 && math.Signbit(float64(x)), "−0 changes no sum")
	}
}

// A vector lies in the given memory where the device computes there.
func TestVector(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	memory := make([]byte, 64)
	v, host := Vector(c, memory, tensor.Float32, 16)
	require.True(t, host)
	tensor.FillInto(c, v, 1)
	require.NotEqual(t, make([]byte, 64), memory)
	v, host = Vector(c, nil, tensor.Float32, 16)
	require.False(t, host)
	require.Equal(t, make([]float32, 16), tensor.ToSlice[float32](c, v))
	v, host = Vector(tensor.NewCtx(tensor.NewMeta()).NoGrad(), memory, tensor.Float32, 16)
	require.False(t, host)
	require.Equal(t, 16, v.Numel())
}
