// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Incomplete reports whether this rank's model lacks parts of its parameters: ranks that gather them failed, and each
// was left with its own shard, and NaN elsewhere. Writing the parameters, as models.LoadWeights does, makes it whole
// again. It serves package trainer.
func (a *Accelerator) Incomplete() bool {
	if a.GathersParameters() {
		return a.Group() != nil && a.Group().Err() != nil
	}
	if a.torn == nil {
		return false
	}
	c := a.ctx.NoGrad()
	torn := slices.ContainsFunc(a.torn.Parameters(), func(p tensor.Named) bool {
		has := false
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			has = math.IsNaN(tensor.Item(c, tensor.Sum(c, p.Tensor, nil, false)))
			return nil
		})
		return has
	})
	if !torn {
		a.torn = nil
	}
	return torn
}
