// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

// NewAdamW is Adam with decoupled weight decay (Loshchilov & Hutter 2019), as
// torch.optim.AdamW.
func NewAdamW(c *tensor.Ctx, groups []*Group, beta1, beta2, eps float64) *Optimizer {
	return New(c, "adamw", groups, DecoupledDecay{}, ScaleByAdam{beta1, beta2, eps})
}

// NewAdam is Adam (Kingma & Ba 2015) with L2 decay, as torch.optim.Adam.
func NewAdam(c *tensor.Ctx, groups []*Group, beta1, beta2, eps float64) *Optimizer {
	return New(c, "adam", groups, L2{}, ScaleByAdam{beta1, beta2, eps})
}

// NewSGD is stochastic gradient descent with L2 decay and, if momentum is not 0,
// momentum, as torch.optim.SGD.
func NewSGD(c *tensor.Ctx, groups []*Group, momentum, dampening float64, nesterov bool) *Optimizer {
	if momentum == 0 {
		return New(c, "sgd", groups, L2{})
	}
	return New(c, "sgd", groups, L2{}, Momentum{momentum, dampening, nesterov})
}
