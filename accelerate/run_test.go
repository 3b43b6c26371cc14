// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"fmt"
	"sync/atomic"
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

// Ranks know their places, and a barrier lets none pass before all have come.
func TestPlacesAndBarrier(t *testing.T) {
	var came atomic.Int64
	var places [3][4]int
	require.NoError(t, accelerate.Run(t.Context(), rankArgs(3), func(acc *accelerate.Accelerator) error {
		places[acc.Rank()] = [4]int{acc.Rank(), acc.WorldSize(), acc.LocalRank(), acc.LocalWorldSize()}
		for round := int64(1); round <= 20; round++ {
			came.Add(1)
			if err := acc.Barrier(t.Context()); err != nil {
				return err
			}
			if n := came.Load(); n < 3*round {
				return fmt.Errorf("rank %d passed barrier %d after %d of %d ranks", acc.Rank(), round, n, 3*round)
			}
		}
		return nil
	}, accelerate.WithLogger(quiet)))
	require.Equal(t, [3][4]int{{0, 3, 0, 3}, {1, 3, 1, 3}, {2, 3, 2, 3}}, places)
}

// A rank waits ddp_timeout for the others, and then says for what it waited.
func TestRanksWaitDDPTimeout(t *testing.T) {
	a := rankArgs(2)
	a.DDPTimeout = 1
	over := make(chan struct{})
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		if acc.Rank() == 1 {
			<-over
			return nil
		}
		defer close(over)
		return acc.Barrier(t.Context())
	}, accelerate.WithLogger(quiet))
	require.ErrorContains(t, err, "1s")
}
