// SPDX-License-Identifier: Apache-2.0

package localsgd

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// mean makes tensors the means over the ranks: the sum in the group's tree, in float32 (float64 of float64 tensors),
// divided by the number of ranks and rounded to the tensor's dtype. All ranks get the same bits.
func (s *Strategy) mean(ctx context.Context, list []*tensor.Tensor, label string) error {
	c := s.job.Ctx.NoGrad()
	narrow, wide, err := flatten(c, list)
	if err != nil {
		return err
	}
	if err := meanOf(ctx, s.job.Peers.Data, narrow, label); err != nil {
		return err
	}
	if len(wide) > 0 {
		if err := meanOf(ctx, s.job.Peers.Data, wide, label); err != nil {
			return err
		}
	}
	return tensor.Try(func() {
		for _, t := range list {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				n := t.Numel()
				var mean *tensor.Tensor
				if t.DType() == tensor.Float64 {
					mean, wide = tensor.FromSlice(c, wide[:n], t.Shape()...), wide[n:]
				} else {
					mean, narrow = tensor.FromSlice(c, narrow[:n], t.Shape()...), narrow[n:]
				}
				tensor.CopyInto(c, t, tensor.Cast(c, mean, t.DType()))
				return nil
			})
		}
	})
}

// flatten copies tensors to the host: float64 ones as they are, others as float32.
func flatten(c *tensor.Ctx, list []*tensor.Tensor) (narrow []float32, wide []float64, err error) {
	err = tensor.Try(func() {
		for _, t := range list {
			if t.DType() == tensor.Float64 {
				wide = append(wide, tensor.ToSlice[float64](c, t)...)
				continue
			}
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				narrow = append(narrow, tensor.ToSlice[float32](c, tensor.Cast(c, t, tensor.Float32))...)
				return nil
			})
		}
	})
	return narrow, wide, err
}

// meanOf makes numbers the means over the ranks.
func meanOf[T float32 | float64](ctx context.Context, g *comm.Group, x []T, label string) error {
	if err := g.AllReduce(comm.Of(x), comm.Sum, comm.Label(label)).Wait(ctx); err != nil {
		return fmt.Errorf("localsgd: %s: %w", label, err)
	}
	for i := range x {
		x[i] /= T(g.Size())
	}
	return nil
}
