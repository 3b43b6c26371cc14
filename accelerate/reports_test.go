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
	got, err := decodeReports(nil, raw, 2)
	require.NoError(t, err)
	vector := sentTensor{tensor.Float32, 1, [tensor.MaxDims]int{3}, tensor.ReadBytes(c, a)}
	matrix := sentTensor{tensor.Int64, 2, [tensor.MaxDims]int{1, 1}, tensor.ReadBytes(c, b)}
	require.Equal(t, []sentReport{{2, 0, []sentTensor{vector}}, {300, 1, []sentTensor{matrix, vector}}}, got)
	s.spare = make([][][]*tensor.Tensor, 2)
	stats := s.upload(&got[1])
	require.Equal(t, []int64{300}, tensor.ToSlice[int64](c, stats[0]))
	require.Equal(t, []int{1, 1}, stats[0].Shape())
	s.spare[1] = [][]*tensor.Tensor{stats}
	got[1].stats[1].data = make([]byte, 12)
	require.Same(t, stats[1], s.upload(&got[1])[1], "memory is used again")
	require.Equal(t, []float32{0, 0, 0}, tensor.ToSlice[float32](c, stats[1]))
	got, err = decodeReports(got[:0], raw, 2)
	require.NoError(t, err)
	require.Equal(t, []sentReport{{2, 0, []sentTensor{vector}}, {300, 1, []sentTensor{matrix, vector}}}, got)

	_, err = decodeReports(nil, raw, 1)
	require.ErrorContains(t, err, "got 1, want at most 0")
	whole := map[int]bool{0: true, len(raw): true, len(encodeOne(c, a)): true}
	for n := range len(raw) {
		if _, err := decodeReports(nil, raw[:n], 2); whole[n] {
			require.NoError(t, err, n)
		} else {
			require.Error(t, err, n)
		}
	}
}

// encodeOne is the first report of TestReportsTravel.
func encodeOne(c *tensor.Ctx, a *tensor.Tensor) []byte {
	return (&statistics{c: c, reports: []report{{2, 0, []*tensor.Tensor{a}}}}).encode()
}
