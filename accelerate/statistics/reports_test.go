// SPDX-License-Identifier: Apache-2.0

package statistics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Reports that a rank sends arrive; bytes that are none are an error and no panic.
func TestReportsTravel(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	a, b := tensor.FromSlice(c, []float32{1, 2, 3}, 3), tensor.FromSlice(c, []int64{300}, 1, 1)
	s := &Reports{c: c, reports: []report{{2, 0, []*tensor.Tensor{a}}, {300, 1, []*tensor.Tensor{b, a}}}}
	raw := s.encode()
	got, err := ranks.DecodeRows(nil, raw, 2)
	require.NoError(t, err)
	vector := ranks.Array{DType: tensor.Float32, Shape: []int{3}, Data: tensor.ReadBytes(c, a)}
	matrix := ranks.Array{DType: tensor.Int64, Shape: []int{1, 1}, Data: tensor.ReadBytes(c, b)}
	sent := []ranks.Row{{Index: 2, Arrays: []ranks.Array{vector}},
		{Index: 300, Arrays: []ranks.Array{matrix, vector}, Module: 1}}
	require.Equal(t, sent, got)
	s.spare = make([][][]*tensor.Tensor, 2)
	stats := s.upload(&got[1])
	require.Equal(t, []int64{300}, tensor.ToSlice[int64](c, stats[0]))
	require.Equal(t, []int{1, 1}, stats[0].Shape())
	s.spare[1] = [][]*tensor.Tensor{stats}
	got[1].Arrays[1].Data = make([]byte, 12)
	require.Same(t, stats[1], s.upload(&got[1])[1], "memory is used again")
	require.Equal(t, []float32{0, 0, 0}, tensor.ToSlice[float32](c, stats[1]))
	allocs := testing.AllocsPerRun(5, func() { got, err = ranks.DecodeRows(got[:0], raw, 2) })
	require.NoError(t, err)
	require.Equal(t, sent, got)
	require.LessOrEqual(t, allocs, 1.0, "memory is used again")

	_, err = ranks.DecodeRows(nil, raw, 1)
	require.ErrorContains(t, err, "want at most 0")
	whole := map[int]bool{0: true, len(raw): true, len(ranks.AppendRow(nil, sent[0])): true}
	for n := range len(raw) {
		if _, err := ranks.DecodeRows(nil, raw[:n], 2); whole[n] {
			require.NoError(t, err, n)
		} else {
			require.Error(t, err, n)
		}
	}
}
