// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// BatchNorm normalises each channel over the batch and all positions (Ioffe & Szegedy
// 2015), as torch.nn.BatchNorm1d, BatchNorm2d and BatchNorm3d: Weight and Bias [C];
// RunningMean and RunningVar [C], which evaluation uses; NumBatchesTracked, an int64.
//
// In training it uses the statistics of the current micro-batch and reports them. The
// running statistics are updated when they are tracked, which an Accelerator does at the
// end of the optimizer step; see Ctx.Report. As in HuggingFace's Trainer, weight decay
// applies to its weight.
type BatchNorm struct {
	Weight *Parameter `nn:"weight"` // nil, with Bias: none
	Bias   *Parameter `nn:"bias"`
	// nil, together with the next two: evaluation uses the batch's statistics, too
	RunningMean       *Buffer `nn:"running_mean"`
	RunningVar        *Buffer `nn:"running_var"` // unbiased
	NumBatchesTracked *Buffer `nn:"num_batches_tracked"`
	Eps               float64
	Momentum          float64 // the weight of the newest statistics in the running ones
}

// BatchNormConfig is the size of a BatchNorm. Fields that are not set have the defaults of torch.nn.BatchNorm2d.
type BatchNormConfig struct {
	Channels int
	Eps      float64 // 0 means 1e-5
	Momentum float64 // 0 means 0.1
}

// NewBatchNorm makes a BatchNorm with torch.nn.BatchNorm2d's initialisation. It panics unless Channels is positive.
func NewBatchNorm(in *Init, cfg BatchNormConfig) *BatchNorm {
	wantPositive(in, "NewBatchNorm", size{"Channels", cfg.Channels})
	n, stat := cfg.Channels, tensor.Float32
	if in.dtype == tensor.Float64 {
		stat = in.dtype
	}
	return &BatchNorm{
		Weight: in.Full("weight", 1, n), Bias: in.Full("bias", 0, n),
		RunningMean: in.Buffer(stat, 0, n), RunningVar: in.Buffer(stat, 1, n),
		NumBatchesTracked: in.Buffer(tensor.Int64, 0),
		Eps:               or(cfg.Eps, 1e-5), Momentum: or(cfg.Momentum, 0.1),
	}
}

// Forward keeps x's shape [N, C, ...]. In training it needs more than one value per channel.
func (l *BatchNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, l.forward, x)
}

func (l *BatchNorm) forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	if !c.Training && l.RunningMean != nil {
		return tensor.BatchNormWith(c.Ctx, x, l.RunningMean.Tensor, l.RunningVar.Tensor, c.Param(l.Weight),
			c.Param(l.Bias), l.Eps)
	}
	y, mean, variance := tensor.BatchNorm(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), l.Eps)
	n := x.Numel() / max(x.Size(1), 1)
	if c.Training && n < 2 {
		panic(&tensor.Error{Op: "nn.BatchNorm", Msg: fmt.Sprintf(
			"training with %d values per channel, of shape %v: want more than one, which have a variance", n,
			x.Shape()), Where: c.Path()})
	}
	if c.Training && l.RunningMean != nil {
		c.Report(l, mean, tensor.Affine(c.Ctx, variance, float64(n)/float64(n-1), 0))
	}
	return y
}

// Track moves the running statistics towards a micro-batch's mean and unbiased variance.
func (l *BatchNorm) Track(c *tensor.Ctx, stats []*tensor.Tensor) {
	for i, running := range []*Buffer{l.RunningMean, l.RunningVar} {
		tensor.AxpbyInto(c, running.Tensor, 1-l.Momentum, running.Tensor, l.Momentum, stats[i])
	}
	tensor.AddInto(c, l.NumBatchesTracked.Tensor, tensor.Ones(c, tensor.Int64))
}
