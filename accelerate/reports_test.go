// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Reports that a rank sends arrive; bytes that are none are an error and no panic.
func TestReportsTravel(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	a, b := tensor.FromSlice(c, []float32{1, 2, 3}, 3), tensor.FromSlice(c, []int64{300}, 1, 1)
	s := &statistics{c: c, reports: []report{{2, 0, []*tensor.Tensor{a}}, {300, 1, []*tensor.Tensor{b, a}}}}
	raw := s.encode()
	got, err := decodeRows(nil, raw, 2)
	require.NoError(t, err)
	vector := Array{tensor.Float32, []int{3}, tensor.ReadBytes(c, a)}
	matrix := Array{tensor.Int64, []int{1, 1}, tensor.ReadBytes(c, b)}
	sent := []Row{{2, []Array{vector}, 0}, {300, []Array{matrix, vector}, 1}}
	require.Equal(t, sent, got)
	s.spare = make([][][]*tensor.Tensor, 2)
	stats := s.upload(&got[1])
	require.Equal(t, []int64{300}, tensor.ToSlice[int64](c, stats[0]))
	require.Equal(t, []int{1, 1}, stats[0].Shape())
	s.spare[1] = [][]*tensor.Tensor{stats}
	got[1].Arrays[1].Data = make([]byte, 12)
	require.Same(t, stats[1], s.upload(&got[1])[1], "memory is used again")
	require.Equal(t, []float32{0, 0, 0}, tensor.ToSlice[float32](c, stats[1]))
	allocs := testing.AllocsPerRun(5, func() { got, err = decodeRows(got[:0], raw, 2) })
	require.NoError(t, err)
	require.Equal(t, sent, got)
	require.LessOrEqual(t, allocs, 1.0, "memory is used again")

	_, err = decodeRows(nil, raw, 1)
	require.ErrorContains(t, err, "got 1, want at most 0")
	whole := map[int]bool{0: true, len(raw): true, len(appendRow(nil, sent[0])): true}
	for n := range len(raw) {
		if _, err := decodeRows(nil, raw[:n], 2); whole[n] {
			require.NoError(t, err, n)
		} else {
			require.Error(t, err, n)
		}
	}
}

// FuzzDecodeRows: what another rank sends is refused, or it holds rows that travel on as they are.
func FuzzDecodeRows(f *testing.F) {
	rows := []Row{
		{Index: 3, Arrays: []Array{{tensor.Float32, []int{2, 1}, make([]byte, 8)},
			{tensor.Float64, []int{1}, make([]byte, 8)}}},
		{Index: -4, Arrays: []Array{{tensor.Bool, []int{}, []byte{1}}}},
		{Index: 5, Arrays: []Array{{tensor.Int64, []int{2, 0, 3}, []byte{}}}},
	}
	var raw []byte
	for _, r := range rows {
		raw = appendRow(raw, r)
	}
	f.Add(raw)
	huge := 1 << 62
	for _, a := range []Array{
		{tensor.Uint8, []int{huge, huge}, nil}, {tensor.Float32, []int{huge}, nil},
		{tensor.Float32, []int{2}, make([]byte, 4)},
		{tensor.DType(77), []int{0}, nil}, {tensor.Invalid, nil, nil},
		{tensor.Uint8, make([]int, tensor.MaxDims+1), nil},
	} {
		bad := appendRow(nil, Row{Arrays: []Array{a}})
		_, err := decodeRows(nil, bad, 1)
		require.Error(f, err, "%v", a)
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := decodeRows(nil, raw, 1)
		if err != nil {
			return
		}
		var sent []byte
		for _, r := range list {
			sent = appendRow(sent, r)
		}
		again, err := decodeRows(nil, sent, 1)
		require.NoError(t, err)
		require.Equal(t, list, again)
	})
}
