package profile

import (
	"time"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Ceilings are what a device was measured to reach just before a profile: what shares in its table are of.
type Ceilings struct {
	FLOPs float64 // per second: of a float32 product of 1024×1024 matrices
	Bytes float64 // per second, read and written: of a copy of 64 MiB
}

// MeasureCeilings measures, on c's device with its workers, the best of five runs each.
func MeasureCeilings(c *tensor.Ctx) (best Ceilings) {
	const n, elements = 1024, 16 << 20
	c.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		fastest := func(f func(c *tensor.Ctx)) float64 {
			seconds := 0.0
			for range 6 { // the first warms up
				start := time.Now()
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { f(c); c.Sync(); return nil })
				if s := time.Since(start).Seconds(); seconds == 0 || s < seconds {
					seconds = s
				}
			}
			return seconds
		}
		x := tensor.Full(c, tensor.Float32, 1, n, n)
		best.FLOPs = 2 * n * n * n / fastest(func(c *tensor.Ctx) { tensor.MatMul(c, x, x) })
		from, to := tensor.Full(c, tensor.Float32, 1, elements), tensor.Full(c, tensor.Float32, 0, elements)
		best.Bytes = 2 * 4 * elements / fastest(func(c *tensor.Ctx) { tensor.CopyInto(c, to, from) })
		return nil
	})
	return best
}

// share is the part of a total's time that the device would need at its ceilings: the larger of computing and moving (Williams et al. 2009,
// "Roofline"). What lies in caches is moved faster than memory allows, so that it may be above 1.
func (c Ceilings) share(t *total) float64 {
	if t.time <= 0 {
		return 0
	}
	return max(t.flops/c.FLOPs, t.bytes/c.Bytes) / t.time.Seconds()
}
