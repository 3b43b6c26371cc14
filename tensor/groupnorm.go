// SPDX-License-Identifier: Apache-2.0

package tensor

// GroupNorm normalises x [N,C,...] to mean 0 and variance 1 over each of the given number of groups of neighbouring
// channels of each sample, then scales by weight and shifts by bias, both of shape [C] or nil (Wu & He 2018): what
// torch.nn.functional.group_norm does. The variance is the biased one; eps is added to it.
func GroupNorm(c *Ctx, x *Tensor, groups int, weight, bias *Tensor, eps float64) *Tensor {
	const name = "GroupNorm"
	c.autocast(name, &x, &weight, &bias)
	x, weight, bias = c.batch(name, x, weight, bias)
	n, channels := x.shape[0], x.shape[1]
	if groups < 1 || channels%groups != 0 {
		c.fail(name, []*Tensor{x}, "%d groups: want a positive number that divides the %d channels", groups, channels)
	}
	width := channels / groups
	column := []int{channels}
	for _, s := range x.Shape()[2:] {
		width *= s
		column = append(column, 1)
	}
	y := Reshape(c, LayerNorm(c, Reshape(c, x, n*groups, width), nil, nil, eps), x.Shape()...)
	if weight == nil {
		return y
	}
	return Add(c, Mul(c, y, Reshape(c, weight, column...)), Reshape(c, bias, column...))
}
