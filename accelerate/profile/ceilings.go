// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"time"

	"github.com/lockstep-ml/lockstep/tensor"
)

// ceilings are what a device was measured to reach just before a profile: what shares in its table are of.
type ceilings struct {
	// per second: of a float32 product of 1024×1024 matrices, or of 256×256 where that would take a twentieth of a
	// second
	FLOPs float64
	Bytes float64 // per second, read and written: of a copy of 64 MiB
}

// measureCeilings measures, on c's device with its workers, the best of five runs each.
func measureCeilings(c *tensor.Ctx) (best ceilings) {
	const elements = 16 << 20
	best.FLOPs = productRate(c, 256)
	if flops := 2.0 * 1024 * 1024 * 1024; flops/best.FLOPs < 0.05 {
		best.FLOPs = productRate(c, 1024)
	}
	c.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		from, to := tensor.Full(c, tensor.Float32, 1, elements), tensor.Full(c, tensor.Float32, 0, elements)
		best.Bytes = 2 * 4 * elements / fastest(c, func(c *tensor.Ctx) { tensor.CopyInto(c, to, from) })
		return nil
	})
	return best
}

// productRate is the number of operations per second of a product of n×n matrices.
func productRate(c *tensor.Ctx, n int) (rate float64) {
	c.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		// with digits, since some processors multiply round numbers faster: they take less power
		values := make([]float32, n*n)
		for i := range values {
			values[i] = 0.5 + float32(i*7919%1009)/2018
		}
		x := tensor.FromSlice(c, values, n, n)
		rate = 2 * float64(n*n*n) / fastest(c, func(c *tensor.Ctx) { tensor.MatMul(c, x, x) })
		return nil
	})
	return rate
}

// fastest is the shortest time of f in seconds, of five runs behind one that warms up.
func fastest(c *tensor.Ctx, f func(c *tensor.Ctx)) (seconds float64) {
	for range 6 {
		start := time.Now()
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { f(c); c.Sync(); return nil })
		if s := time.Since(start).Seconds(); seconds == 0 || s < seconds {
			seconds = s
		}
	}
	return seconds
}

// share is the part of a total's time that the device would need at its ceilings: the larger of computing and moving
// (Williams et al. 2009, "Roofline"). What lies in caches is moved faster than memory allows, so that it may be above
// 1.
func (c ceilings) share(t *total) float64 {
	if t.time <= 0 {
		return 0
	}
	return max(t.flops/c.FLOPs, t.bytes/c.Bytes) / t.time.Seconds()
}
