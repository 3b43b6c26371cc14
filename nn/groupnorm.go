// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// GroupNorm normalises groups of neighbouring channels of each sample (Wu & He 2018), as torch.nn.GroupNorm: Weight and
// Bias [C]. The result for a sample is the same in training and evaluation, and independent of the batch. As in
// HuggingFace's Trainer, its weight decays.
type GroupNorm struct {
	Weight *Parameter `nn:"weight"` // nil, with Bias: none
	Bias   *Parameter `nn:"bias"`
	Groups int
	Eps    float64
}

// GroupNormConfig is the size of a GroupNorm. Fields that are not set have the defaults of torch.nn.GroupNorm.
type GroupNormConfig struct {
	Groups, Channels int
	Eps              float64 // 0 means 1e-5
}

// NewGroupNorm makes a GroupNorm with torch.nn.GroupNorm's initialisation. It panics unless Groups divides Channels.
func NewGroupNorm(in *Init, cfg GroupNormConfig) *GroupNorm {
	groups, channels := cfg.Groups, cfg.Channels
	wantPositive(in, "NewGroupNorm", size{"Channels", channels})
	if groups < 1 || channels%groups != 0 {
		panic(&tensor.Error{Op: "nn.NewGroupNorm", Msg: fmt.Sprintf(
			"%d groups of %d channels: want a positive number that divides them", groups, channels)})
	}
	return &GroupNorm{Weight: in.Full("weight", 1, channels), Bias: in.Full("bias", 0, channels),
		Groups: groups, Eps: or(cfg.Eps, 1e-5)}
}

// Forward keeps x's shape [N, C, ...].
func (l *GroupNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.GroupNorm(c.Ctx, x, l.Groups, c.Param(l.Weight), c.Param(l.Bias), l.Eps)
	}, x)
}
