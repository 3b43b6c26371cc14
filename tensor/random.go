// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// Dropout zeroes each element with probability p and divides the others by 1−p (Srivastava et al. 2014). Dim 0 counts
// samples: the dropped elements of a sample depend on the context's random stream and on the sample's position in the
// training stream, not on its batch.
func Dropout(c *Ctx, x *Tensor, p float64) *Tensor {
	x.check(c, "Dropout")
	c.wantFloat("Dropout", x)
	if !(p >= 0 && p < 1) {
		c.fail("Dropout", []*Tensor{x}, "p = %g: want a probability in [0, 1)", p)
	}
	if p == 0 {
		return x
	}
	if x.part > 0 {
		c.fail("Dropout", []*Tensor{x}, "a colwise layer made the features of dim %d, a rank's part of all, for which "+
			"every rank would draw the same: want dropout behind the rowwise layer, or colwise_gather_output", x.part-1)
	}
	a := floats(p)
	a.ints[0], a.key = int(c.pos), c.nextKey("dropout")
	x = Contiguous(c, x)
	y := c.emptyLike("Dropout", x)
	c.launchAttrs(backend.OpDropout, &a, y, x)
	c.record("Dropout", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
		g := b.materialize("Dropout", b.Grad(0))
		dx := b.emptyLike("Dropout", g)
		b.launchAttrs(backend.OpDropout, &a, dx, g) // the same draws again
		b.Set(0, dx)
	})
	return y
}
