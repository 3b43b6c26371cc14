// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/args"
)

// The scale is that of torch's GradScaler and of DeepSpeed's DynamicLossScaler after every step, DeepSpeed's error
// included, and a checkpoint after any step goes on where the scale was: see testdata/loss_scales.py.
func TestLossScales(t *testing.T) {
	text, err := os.ReadFile("testdata/loss_scales.json")
	require.NoError(t, err)
	var golden struct {
		Cases []struct {
			Scaler             args.LossScaler
			Initial, Least     float64
			Window, Hysteresis int
			Consecutive        bool
			Overflows          string
			Powers             []int
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	seen := map[args.LossScaler]int{}
	failed := 0
	for i, c := range golden.Cases {
		seen[c.Scaler]++
		a := args.Default("out")
		a.FP16, a.FP16LossScaler, a.FP16InitialScale, a.FP16GrowthInterval = true, c.Scaler, c.Initial, c.Window
		a.FP16ConsecutiveHysteresis = c.Consecutive
		a.FP16Hysteresis, a.FP16MinScale = max(c.Hysteresis, 1), c.Least
		if c.Scaler == args.LossScalerTorch {
			a.FP16MinScale = 1.0 / (1 << 32) // there is no smallest one
		}
		for _, resumed := range []bool{false, true} {
			s := precision.NewScaler(planOf(a).scaling)
			var got []int
			for step, o := range c.Overflows {
				if resumed {
					next := precision.NewScaler(planOf(a).scaling)
					require.NoError(t, next.Restore(*s))
					s = next
				}
				overflow, scale := o == '1', s.Scale
				s.Update(overflow)
				if err := s.Check(overflow, scale); err != nil {
					require.Len(t, c.Powers, step, "the error of DeepSpeed")
					failed++
					break
				}
				got = append(got, int(math.Log2(s.Scale)))
			}
			require.Equal(t, c.Powers, got, fmt.Sprintf("case %d: %+v", i, c))
		}
	}
	require.Greater(t, min(seen[args.LossScalerTorch], seen[args.LossScalerDeepSpeed], failed), 20)
}
