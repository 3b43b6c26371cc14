// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/tensor"
)

// timed is the median time of one f in seconds. Several run before the host waits, as in a training step.
func (s *settings) timed(d *tensor.Device, f func()) (seconds float64, err error) {
	const queued = 5
	var times []float64
	err = tensor.Try(func() {
		for i := range s.steps {
			d.Sync()
			start := time.Now()
			for range queued {
				f()
			}
			d.Sync()
			if i >= s.steps/3 {
				times = append(times, time.Since(start).Seconds()/queued)
			}
		}
	})
	return stats.Median(times), err
}

// precision is the dtype that the settings ask for.
func (s *settings) precision() tensor.DType {
	if s.float32 {
		return tensor.Float32
	}
	return tensor.BFloat16
}

// products measures square matrix products.
func products(s *settings, _ []string) error {
	d, err := s.open()
	if err != nil {
		return err
	}
	defer d.Close()
	c := tensor.NewCtx(d).NoGrad()
	n := float64(s.size)
	if fault := tensor.Try(func() {
		x := tensor.Normal(c, s.precision(), 1, 0, 1, s.size, s.size)
		y := tensor.Normal(c, s.precision(), 2, 0, 1, s.size, s.size)
		var seconds float64
		seconds, err = s.timed(d, func() {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { tensor.MatMul(c, x, y); return nil })
		})
		if err == nil {
			result(s.row, 2*n*n*n/seconds/1e12, "TFLOP/s")
		}
	}); fault != nil {
		return fault
	}
	return err
}

// attention measures causal attention of GPT-2's heads, forward, and forward with backward. Work that the mask makes
// needless is not counted.
func attention(s *settings, _ []string) error {
	d, err := s.open()
	if err != nil {
		return err
	}
	defer d.Close()
	c := tensor.NewCtx(d).WithRandom(7, 0)
	head := s.width / s.heads
	flops := 4 * float64(s.batch*s.heads*head) * float64(s.block) * float64(s.block+1) / 2
	o := tensor.AttentionOptions{Causal: true, Dropout: s.dropout}
	if fault := tensor.Try(func() {
		var heads [3]*tensor.Tensor
		for i := range heads {
			heads[i] = tensor.Normal(c, s.precision(), uint64(i), 0, 1, s.batch, s.heads, s.block, head)
		}
		pass := func(c *tensor.Ctx) *tensor.Tensor {
			out, _ := tensor.Attention(c, heads[0], heads[1], heads[2], o)
			return out
		}
		var forward, both float64
		forward, err = s.timed(d, func() {
			c.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor { pass(c); return nil })
		})
		if err != nil {
			return
		}
		result(s.row+"_forward", flops/forward/1e12, "TFLOP/s")
		for _, x := range heads {
			x.SetRequiresGrad(true)
		}
		ones := tensor.Full(c, s.precision(), 1, s.batch, s.heads, s.block, head)
		both, err = s.timed(d, func() {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				tensor.Backward(c, []*tensor.Tensor{pass(c)}, []*tensor.Tensor{ones}, heads[:])
				return nil
			})
		})
		if err == nil {
			result(s.row+"_with_backward", 3.5*flops/both/1e12, "TFLOP/s")
		}
	}); fault != nil {
		return fault
	}
	return err
}
