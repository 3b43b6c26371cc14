// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// With a hysteresis of 2 the first overflow since the scale grew skips its step only, as in DeepSpeed's
// DynamicLossScaler; the state of a checkpoint goes on where it was.
func TestHysteresisOfTheLossScale(t *testing.T) {
	course := func(hysteresis int, resumeAt int) (scales []float64) {
		a := args.Default("out")
		a.FP16, a.FP16InitialScale, a.FP16GrowthInterval, a.FP16Hysteresis = true, 1024, 3, hysteresis
		s := newScaler(a)
		for i, overflow := range []bool{true, true, true, false, false, false, true, false, true} {
			if i == resumeAt {
				next := newScaler(a)
				require.NoError(t, next.Restore(*s))
				s = next
			}
			s.update(overflow)
			scales = append(scales, s.Scale)
		}
		require.EqualValues(t, 5, s.Skipped)
		return scales
	}
	require.Equal(t, []float64{512, 256, 128, 128, 128, 256, 128, 128, 64}, course(1, -1))
	want := []float64{1024, 512, 256, 256, 256, 512, 512, 512, 256}
	for at := range want {
		require.Equal(t, want, course(2, at))
	}
}
