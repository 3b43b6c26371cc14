// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"testing"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/strategy/strategytest"
)

func TestStrategy(t *testing.T) {
	strategytest.Run(t, strategytest.Suite{New: func(j strategy.Job) (strategy.Strategy, error) {
		return NewStrategy(j, Options{BucketBytes: 1 << 14})
	}})
}
