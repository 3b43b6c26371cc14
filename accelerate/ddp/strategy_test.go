// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/strategy/strategytest"
)

func TestStrategy(t *testing.T) {
	strategytest.Run(t, strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) {
		j.BucketBytes = 1 << 14
		return NewStrategy(j, nil)
	}})
	_, err := NewStrategy(strategy.Job{}, nil)
	require.ErrorContains(t, err, "ddp: the job has no ranks that sum losses (strategy.Peers.Loss): want several")
}
