// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
)

func TestRunEndsAllRanks(t *testing.T) {
	a := rankArgs(4)
	wait := func(acc *accelerate.Accelerator) error { return acc.Barrier(context.Background()) }
	boom := fmt.Errorf("rank 2 had enough")
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		if acc.Rank() == 2 {
			return boom
		}
		return wait(acc)
	}, accelerate.WithLogger(quiet))
	require.Equal(t, boom, err)
	require.PanicsWithValue(t, "rank 3", func() {
		_ = accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
			if acc.Rank() == 3 {
				panic("rank 3")
			}
			return wait(acc)
		}, accelerate.WithLogger(quiet))
	})
	one := rankArgs(1)
	require.PanicsWithValue(t, "alone", func() {
		_ = accelerate.Run(t.Context(), one, func(*accelerate.Accelerator) error { panic("alone") })
	})
	require.Equal(t, boom, accelerate.Run(t.Context(), one, func(*accelerate.Accelerator) error { return boom }))
	var ranks [4]bool
	require.NoError(t, accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		ranks[acc.Rank()] = true
		return wait(acc)
	}, accelerate.WithLogger(quiet)))
	require.Equal(t, [4]bool{true, true, true, true}, ranks)
}
