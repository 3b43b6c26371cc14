// SPDX-License-Identifier: Apache-2.0

package localsgd_test

import (
	"testing"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/localsgd"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/strategy/strategytest"
)

// Until the ranks step on their own they have the bits of the strategy that comes first.
func TestStepsBeforeTheFirstOnOnesOwn(t *testing.T) {
	strategytest.Run(t, strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) {
		return localsgd.New(j, localsgd.Options{Every: 1, After: 100}, func() (strategy.Strategy, error) {
			return ddp.NewStrategy(j, nil)
		})
	}})
}
