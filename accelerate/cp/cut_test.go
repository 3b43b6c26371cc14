// SPDX-License-Identifier: Apache-2.0

package cp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Ranks have pairs of an early and a late chunk; those of fewer ranks have the chunks of several, in the same order.
func TestLayout(t *testing.T) {
	own := func(chunks, size, rank int) []int {
		l, err := cp.NewLayout(chunks, size, rank)
		require.NoError(t, err)
		return l.Own()
	}
	require.Equal(t, []int{0, 3}, own(0, 2, 0))
	require.Equal(t, []int{1, 2}, own(0, 2, 1))
	require.Equal(t, []int{2, 5}, own(8, 4, 2))
	require.Equal(t, []int{2, 5, 3, 4}, own(8, 2, 1))
	require.Equal(t, []int{0, 7, 1, 6, 2, 5, 3, 4}, own(8, 1, 0))
	require.Equal(t, []int{0}, own(0, 1, 0))

	for want, l := range map[string][2]int{
		"cp: cp_size 3: want a power of two, so that the sums of the ranks form a tree":              {6, 3},
		"cp: cp_chunks 4 with cp_size 4: want a power of two that is at least 8, two for each rank":  {4, 4},
		"cp: cp_chunks 12 with cp_size 2: want a power of two that is at least 4, two for each rank": {12, 2},
		"cp: cp_chunks -4 with cp_size 2: want a power of two that is at least 4, two for each rank": {-4, 2},
		"cp: rank 0 of 0: want one in [0, 1)":                                                        {4, 0},
	} {
		_, err := cp.NewLayout(l[0], l[1], 0)
		require.EqualError(t, err, want)
	}
}

// Labels are shifted before the cut, positions and masks travel with the tokens, and padding counts nowhere.
func TestCut(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	ids := tensor.FromSlice(c, []int64{1, 2, 3, 4, 5, 6, 7}, 1, 7)
	mask := tensor.FromSlice(c, []int32{1, 1, 1, 1, 1, 1, 0}, 1, 7)
	b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: ids, data.Labels: ids, data.AttentionMask: mask},
		Count: 6, Size: 1, Position: 40}
	cut := func(rank int) []*data.Batch {
		l, err := cp.NewLayout(4, 2, rank)
		require.NoError(t, err)
		chunks, err := cp.Cut(c, b, l)
		require.NoError(t, err)
		require.Len(t, chunks, 2)
		return chunks
	}
	first, second := cut(0), cut(1)
	ints := func(b *data.Batch, name string) []int64 { return tensor.ToSlice[int64](c, b.Tensors[name]) }
	require.Equal(t, []int64{2, 3}, ints(first[0], data.ShiftLabels)) // 3 is in the next chunk, of the other rank
	require.Equal(t, []int64{4, 5}, ints(second[0], data.ShiftLabels))
	require.Equal(t, []int64{6, 7}, ints(second[1], data.ShiftLabels))
	require.Equal(t, []int64{tensor.IgnoreIndex, tensor.IgnoreIndex}, ints(first[1], data.ShiftLabels))
	require.Equal(t, []int64{7, 0}, ints(first[1], data.InputIDs))
	require.Equal(t, []int32{6, 0}, tensor.ToSlice[int32](c, first[1].Tensors[data.PositionIDs]))
	require.Equal(t, []int32{4, 5}, tensor.ToSlice[int32](c, second[1].Tensors[data.PositionIDs]))
	require.Equal(t, []int32{0, 0}, tensor.ToSlice[int32](c, first[1].Tensors[data.AttentionMask]))
	require.NotContains(t, first[0].Tensors, data.Labels)
	require.Equal(t, []float64{6, 0, 0, 0},
		[]float64{first[0].Count, second[0].Count, second[1].Count, first[1].Count})
	require.EqualValues(t, 40, second[1].Position)

	// positions of several documents in a row are not counted anew
	b.Tensors[data.PositionIDs] = tensor.FromSlice(c, []int32{0, 1, 2, 0, 1, 0, 1}, 1, 7)
	require.Equal(t, []int32{2, 0}, tensor.ToSlice[int32](c, cut(1)[0].Tensors[data.PositionIDs]))
}

// What cannot be cut is refused by name.
func TestCutRefuses(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	zeros := func(shape ...int) *tensor.Tensor { return tensor.Zeros(c, tensor.Int64, shape...) }
	for want, tensors := range map[string]map[string]*tensor.Tensor{
		"cp: the batch has inputs: want input_ids of shape [batch, tokens], whose tokens can be divided among " +
			"ranks": {data.Inputs: zeros(2, 8)},
		"cp: cannot divide the tokens of attention_mask of shape [2 1 8 8] and labels of shape [2]: want shape " +
			"[2 8], that of input_ids (cp_size 1 has no such limit)": {
			data.InputIDs: zeros(2, 8), data.Labels: zeros(2), data.AttentionMask: zeros(2, 1, 8, 8)},
		"cp: the batch has labels and shift_labels: want one of them": {
			data.InputIDs: zeros(2, 8), data.Labels: zeros(2, 8), data.ShiftLabels: zeros(2, 8)},
	} {
		l, err := cp.NewLayout(4, 2, 0)
		require.NoError(t, err)
		_, err = cp.Cut(c, &data.Batch{Tensors: tensors}, l)
		require.EqualError(t, err, want)
	}
}
