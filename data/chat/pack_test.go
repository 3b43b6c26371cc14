// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/stretchr/testify/require"
)

// text is a sample of n tokens id.
func text(id int32, n int) chat.Sample {
	return chat.Sample{IDs: slices.Repeat([]int32{id}, n), Learned: slices.Repeat([]bool{true}, n)}
}

// Rows are those of TRL's pack_dataset: testdata/pack.py.
func TestPackIsThatOfTRL(t *testing.T) {
	var golden struct {
		Cases []struct {
			Strategy chat.PackingStrategy
			Length   int
			Lengths  []int
			Rows     [][2][]int // the numbers of the texts in a row, and their lengths
		}
	}
	raw, err := os.ReadFile("testdata/pack.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.Len(t, golden.Cases, 9)
	for _, c := range golden.Cases {
		var samples []chat.Sample
		for i, n := range c.Lengths {
			samples = append(samples, text(int32(i), n))
		}
		rows, err := chat.Pack(samples, c.Length, c.Strategy)
		require.NoError(t, err)
		require.Len(t, rows, len(c.Rows))
		for i, row := range rows {
			var ids []int32
			for k, id := range c.Rows[i][0] {
				ids = append(ids, slices.Repeat([]int32{int32(id)}, c.Rows[i][1][k])...)
			}
			require.Equal(t, ids, row.IDs, "%s, row %d", c.Strategy, i)
			require.Equal(t, c.Rows[i][1], row.Lengths)
			require.Len(t, row.Learned, len(ids))
		}
	}
}

func TestPack(t *testing.T) {
	long := chat.Sample{IDs: []int32{1, 2, 3, 4, 5}, Learned: []bool{false, false, false, true, true}, Cut: 1}
	for _, c := range []struct {
		strategy chat.PackingStrategy
		want     []chat.Sample
	}{
		{chat.BestFit, []chat.Sample{
			{IDs: []int32{1, 2, 3, 4}, Learned: []bool{false, false, false, true}, Cut: 2, Lengths: []int{4}},
			{IDs: []int32{7, 7}, Learned: []bool{true, true}, Lengths: []int{2}}}},
		{chat.BestFitSplit, []chat.Sample{
			{IDs: []int32{1, 2, 3, 4}, Learned: []bool{false, false, false, true}, Lengths: []int{4}},
			{IDs: []int32{7, 7, 5}, Learned: []bool{true, true, true}, Cut: 1, Lengths: []int{2, 1}}}},
		{chat.Wrapped, []chat.Sample{
			{IDs: []int32{1, 2, 3, 4}, Learned: []bool{false, false, false, true}, Lengths: []int{4}},
			{IDs: []int32{5, 7, 7}, Learned: []bool{true, true, true}, Cut: 1, Lengths: []int{1, 2}}}},
	} {
		rows, err := chat.Pack([]chat.Sample{long, text(7, 2), {}}, 4, c.strategy)
		require.NoError(t, err)
		require.Equal(t, c.want, rows, c.strategy)
		_, err = chat.Pack(rows, 4, c.strategy)
		require.ErrorContains(t, err, "want samples that are not packed yet")
	}
	require.Equal(t, []int32{1, 2, 3, 4, 5}, long.IDs, "samples do not change")
	_, err := chat.Pack(nil, 1, chat.BestFit)
	require.ErrorContains(t, err, "rows of 1 tokens: want at least 2")
	_, err = chat.Pack(nil, 4, "ffd")
	require.ErrorContains(t, err, `packing strategy "ffd": want one of ["bfd" "bfd_split" "wrapped"]`)
}

// Labels stay in their text, and padding is a separate text.
func TestCollatePacked(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	first := chat.Sample{IDs: []int32{1, 2, 3, 4, 5}, Learned: slices.Repeat([]bool{true}, 5), Lengths: []int{2, 3}}
	second := chat.Sample{IDs: []int32{6, 7, 8}, Learned: []bool{true, false, true}, Lengths: []int{3}}
	b, err := chat.Collate(9)(c, []chat.Sample{first, second})
	require.NoError(t, err)
	require.EqualValues(t, 4, b.Count)
	for name, want := range map[string][]int64{
		data.InputIDs:      {1, 2, 3, 4, 5, 6, 7, 8, 9, 9},
		data.ShiftLabels:   {2, -100, 4, 5, -100, -100, 8, -100, -100, -100},
		data.SegmentIDs:    {0, 0, 1, 1, 1, 0, 0, 0, 1, 1},
		data.PositionIDs:   {0, 1, 0, 1, 2, 0, 1, 2, 0, 1},
		data.AttentionMask: {1, 1, 1, 1, 1, 1, 1, 1, 0, 0},
	} {
		require.Equal(t, want, tensor.ToSlice[int64](c, b.Tensors[name]), name)
	}
}
