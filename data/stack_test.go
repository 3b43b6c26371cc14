// SPDX-License-Identifier: Apache-2.0

package data

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

type everything struct {
	InputIDs   []int32
	F32        float32
	F64        [2]float64
	Image      [2][]uint8
	Flag       bool
	XValue     int8
	HTTPCode   uint16
	Weights    []float32
	Label      int
	Renamed    float32 `data:"other"`
	Left       string  `data:"-"`
	unexported func()
}

func TestStack(t *testing.T) {
	c := newCtx()
	_ = everything{}.unexported
	b, err := Stack(c, []everything{
		{InputIDs: []int32{1, 2, 3}, F32: 0.5, F64: [2]float64{1, 2}, Image: [2][]uint8{{1}, {2}}, Flag: true,
			XValue: -8, HTTPCode: 404, Weights: []float32{1, 2}, Label: 7, Renamed: 9},
		{InputIDs: []int32{4, 5, 6}, F32: 1.5, F64: [2]float64{3, 4}, Image: [2][]uint8{{3}, {255}}, XValue: 8,
			HTTPCode: 200, Weights: []float32{3, 4}, Label: tensor.IgnoreIndex},
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, b.Count, "one label is ignored")
	require.Len(t, b.Tensors, 10)
	check := func(name string, dtype tensor.DType, shape ...int) *tensor.Tensor {
		x := b.Tensors[name]
		require.NotNil(t, x, name)
		require.Equal(t, dtype, x.DType(), name)
		require.Equal(t, shape, x.Shape(), name)
		return x
	}
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6}, tensor.ToSlice[int64](c, check("input_ids", tensor.Int64, 2, 3)))
	require.Equal(t, []float32{0.5, 1.5}, tensor.ToSlice[float32](c, check("f32", tensor.Float32, 2)))
	require.Equal(t, []float64{1, 2, 3, 4}, tensor.ToSlice[float64](c, check("f64", tensor.Float64, 2, 2)))
	require.Equal(t, []uint8{1, 2, 3, 255}, tensor.ToSlice[uint8](c, check("image", tensor.Uint8, 2, 2, 1)))
	require.Equal(t, []bool{true, false}, tensor.ToSlice[bool](c, check("flag", tensor.Bool, 2)))
	require.Equal(t, []int64{-8, 8}, tensor.ToSlice[int64](c, check("x_value", tensor.Int64, 2)))
	require.Equal(t, []int64{404, 200}, tensor.ToSlice[int64](c, check("http_code", tensor.Int64, 2)))
	require.Equal(t, []float32{1, 2, 3, 4}, tensor.ToSlice[float32](c, check("weights", tensor.Float32, 2, 2)))
	require.Equal(t, []int64{7, tensor.IgnoreIndex}, tensor.ToSlice[int64](c, check("labels", tensor.Int64, 2)))
	check("other", tensor.Float32, 2)
}

func TestStackCounts(t *testing.T) {
	c := newCtx()
	regression, err := Stack(c, []*struct{ Labels [3]float32 }{{}, {}})
	require.NoError(t, err)
	require.EqualValues(t, 6, regression.Count)
	plain, err := Stack(c, []struct{ Inputs []float64 }{{Inputs: []float64{}}, {}})
	require.NoError(t, err)
	require.EqualValues(t, 2, plain.Count)
	require.Equal(t, []int{2, 0}, plain.Tensors[Inputs].Shape())
	require.Equal(t, tensor.Float64, plain.Tensors[Inputs].DType())
}

func TestStackRefuses(t *testing.T) {
	c := newCtx()
	refuse := func(err error, want string) {
		t.Helper()
		require.ErrorContains(t, err, want)
	}
	_, err := Stack(c, []int{1})
	refuse(err, "samples are int: want a struct")
	_, err = Stack(c, []struct{ name string }{{"x"}})
	refuse(err, "has no exported field")
	_, err = Stack(c, []struct{ Name string }{{"x"}})
	refuse(err, "name of sample 0 of the batch: a string cannot be stacked")
	_, err = Stack(c, []struct{ Names []string }{{[]string{}}})
	refuse(err, "a string cannot be stacked")
	_, err = Stack(c, []struct{ Label, Labels int }{{1, 2}})
	refuse(err, `two fields for "labels"`)
	_, err = Stack(c, []struct{ X []float32 }{{[]float32{1}}, {[]float32{1, 2}}})
	refuse(err, "x of sample 1 of the batch has shape [2], earlier ones have [1]")
	_, err = Stack(c, []struct{ X [][]float32 }{{[][]float32{{1}, {1, 2}}}})
	refuse(err, "ragged")
	_, err = Stack(c, []*number{{}, nil})
	refuse(err, "sample 1 of the batch is nil")
}

func TestCausalLM(t *testing.T) {
	c := newCtx()
	b, err := CausalLM(9)(c, [][]int32{{1, 2, 3}, {4, 5, 6}})
	require.NoError(t, err)
	require.EqualValues(t, 4, b.Count)
	require.Len(t, b.Tensors, 2, "no mask without padding")
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6}, tensor.ToSlice[int64](c, b.Tensors[InputIDs]))
	require.Equal(t, []int64{2, 3, -100, 5, 6, -100}, tensor.ToSlice[int64](c, b.Tensors[ShiftLabels]))
	require.Equal(t, []int{2, 3}, b.Tensors[ShiftLabels].Shape())

	for _, samples := range [][][]int32{{{1, 2, 3}, {4}, {}}, {{}, {1, 2, 3}, {4}}} {
		b, err = CausalLM(9)(c, samples)
		require.NoError(t, err)
		require.EqualValues(t, 2, b.Count)
		want := map[int]struct{ ids, labels, mask []int64 }{
			3: {[]int64{1, 2, 3}, []int64{2, 3, -100}, []int64{1, 1, 1}},
			1: {[]int64{4, 9, 9}, []int64{-100, -100, -100}, []int64{1, 0, 0}},
			0: {[]int64{9, 9, 9}, []int64{-100, -100, -100}, []int64{0, 0, 0}},
		}
		for i, s := range samples {
			row := func(name string) []int64 { return tensor.ToSlice[int64](c, b.Tensors[name])[3*i : 3*i+3] }
			require.Equal(t, want[len(s)].ids, row(InputIDs))
			require.Equal(t, want[len(s)].labels, row(ShiftLabels))
			require.Equal(t, want[len(s)].mask, row(AttentionMask))
		}
	}
	_, err = CausalLM(9)(c, [][]int32{{}, {}})
	require.ErrorContains(t, err, "sequences without a token: want at least one token")
}
