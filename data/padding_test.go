// SPDX-License-Identifier: Apache-2.0

package data_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestWithPadding(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	texts := data.Slice[data.LabelledTokens]{{[]int32{5, 6}, 1}, {[]int32{7, 8, 9}, tensor.IgnoreIndex},
		{[]int32{4, 3, 2}, 0}, {nil, 2}}
	src := data.NewSource(texts, data.WithPadding(40))
	b, err := src.Batch(c, []int64{0, 1, 3})
	require.NoError(t, err)
	require.EqualValues(t, 2, b.Count)
	require.Equal(t, []int{3, 3}, b.Tensors[data.InputIDs].Shape())
	require.Equal(t, []int64{5, 6, 40, 7, 8, 9, 40, 40, 40}, tensor.ToSlice[int64](c, b.Tensors[data.InputIDs]))
	require.Equal(t, []int64{1, 1, 0, 1, 1, 1, 0, 0, 0}, tensor.ToSlice[int64](c, b.Tensors[data.AttentionMask]))
	require.Equal(t, []int64{1, tensor.IgnoreIndex, 2}, tensor.ToSlice[int64](c, b.Tensors[data.Labels]))

	b, err = src.Batch(c, []int64{2, 1})
	require.NoError(t, err)
	require.Nil(t, b.Tensors[data.AttentionMask], "nothing is padded")
	b, err = src.Batch(c, []int64{3, 0})
	require.NoError(t, err)
	require.NotNil(t, b.Tensors[data.AttentionMask], "an empty text is all padding")

	_, err = src.Batch(c, []int64{3})
	require.ErrorContains(t, err, "all texts are empty")
	lengths, err := data.Lengths(src, "length")
	require.NoError(t, err)
	require.Equal(t, []int{2, 3, 3, 0}, lengths, "group_by_length knows them")
}
