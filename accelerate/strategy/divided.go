// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Divided is a model whose matrices are divided among ranks that see the same samples (tensor parallelism), or whose
// sums one rank forms in parts. A strategy gets the parts as parameters, under the parameters' names, and cuts and
// places those: it need not know how the model is divided.
type Divided struct {
	Group *comm.Group // of the ranks that share the model; nil: one rank
	Of    map[string]Part
}

// Part is what a rank has of a parameter before a strategy cuts it.
type Part struct {
	tensor.Placement
	// Grain is how many elements of the parameter no cut separates, whichever ranks share it: a divisor of Cell. So a
	// strategy may cut the part at multiples of Cell.
	Grain int
	// Parted is true if sums over the parameter are formed in parts, on one rank too.
	Parted bool
	// Counts is true on one of the ranks of the group that have the same elements, for sums over the model.
	Counts bool
}

// Place is what this rank has of a parameter before the strategy cuts it: all, unless the model is divided.
func (j *Job) Place(p tensor.Named) tensor.Placement {
	if d := j.Divided; d != nil {
		return d.Of[p.Name].Placement
	}
	return p.Placed().Placement
}

// Norm is the L2 norm of the gradients of the whole model, with the same bits however it is divided, cut and staged:
// that of [Norm], or of [NormOfAnyCut] if it is divided. params are those that any of the ranks trains; own gives this
// rank's part of the gradient of parameter i of them, nil if it has none or another one counts it, and at which of its
// elements on this rank (Place) that begins, a multiple of Cell. The groups are those over which ranks have different
// parts, beside Divided.Group. It is collective.
func (j *Job) Norm(ctx context.Context, params []tensor.Named, own func(i int) (g *tensor.Tensor, first int),
	groups ...*comm.Group) (float64, error) {
	c := j.Ctx.NoGrad()
	if j.Divided == nil {
		return Norm(ctx, c, params, own, groups...)
	}
	var mine []CutGradient
	for i, p := range params {
		if part := j.Divided.Of[p.Name]; part.Counts {
			g, _ := own(i)
			mine = append(mine, CutGradient{Grad: g, Grain: part.Grain})
		}
	}
	return NormOfAnyCut(ctx, c, mine, append(groups, j.Divided.Group)...)
}
