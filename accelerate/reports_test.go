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
	require.Equal(t, []sentReport{
		{2, 0, []sentTensor{{tensor.Float32, []int{3}, tensor.ReadBytes(c, a)}}},
		{300, 1, []sentTensor{{tensor.Int64, []int{1, 1}, tensor.ReadBytes(c, b)}, {tensor.Float32, []int{3}, tensor.ReadBytes(c, a)}}},
	}, got)
	require.Equal(t, []int64{300}, tensor.ToSlice[int64](c, got[1].upload(c)[0]))

	_, err = decodeReports(nil, raw, 1)
	require.ErrorContains(t, err, "1 where at most 0 was to be")
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
