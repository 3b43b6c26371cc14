// SPDX-License-Identifier: Apache-2.0

package strategytest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
)

// counting counts the calls that a strategy which is local does not need.
type counting struct {
	*ddp.Strategy
	local bool
	calls *atomic.Int64
}

func (c counting) Local() bool { return c.local }

func (c counting) Norm(ctx context.Context) (float64, error) {
	c.calls.Add(1)
	return c.Strategy.Norm(ctx)
}

func (c counting) Stepped(ctx context.Context, changed bool) error {
	c.calls.Add(1)
	return c.Strategy.Stepped(ctx, changed)
}

// A Local that is true, but should not be, is found: the training calls neither Norm nor Stepped then.
func TestLocalStrategiesAreTakenAtTheirWord(t *testing.T) {
	for local, want := range map[bool]int64{true: 0, false: 2 * 2 * windows} {
		var calls atomic.Int64
		train(t, 2, strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) {
			d, err := ddp.NewStrategy(j, nil)
			return counting{d, local, &calls}, err
		}})
		require.Equal(t, want, calls.Load(), "local: %v", local)
	}
}
