// SPDX-License-Identifier: Apache-2.0

package optimtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// last ends a chain and does nothing: an optimizer has no fused pass for such a chain, and runs its links one by one.
type last struct{}

func (last) Traits() optim.Traits                                                       { return optim.Traits{} }
func (last) State(tensor.Named) []optim.StateTensor                                     { return nil }
func (last) Apply(*tensor.Ctx, tensor.Named, *optim.Group, *optim.Slot, *tensor.Tensor) {}

// fusedPass holds that an optimizer's one pass has the bits of its links, for every dtype, with and without decay and
// factor.
func fusedPass(t *testing.T, k Case) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	chain := k.New(c, nil).Chain()
	if !slices.ContainsFunc(chain, func(t optim.Transform) bool { return t.Traits().Fused != nil }) {
		return // the links are all that there is
	}
	for _, kind := range []struct {
		dt   tensor.DType
		half optim.HalfUpdate
	}{{tensor.Float32, optim.HalfKahan}, {tensor.Float64, optim.HalfKahan}, {tensor.BFloat16, optim.HalfPlain},
		{tensor.BFloat16, optim.HalfKahan}, {tensor.BFloat16, optim.HalfStochastic},
		{tensor.Float16, optim.HalfStochastic}} {
		for _, n := range []int{1, 37, 140_000} { // the last in two pieces, of a half type
			for _, decay := range []float64{0, 0.1} {
				random := func(dt tensor.DType, seed int) *tensor.Tensor {
					return tensor.Cast(c, tensor.Normal(c, tensor.Float32, uint64(seed), 0, 1, n), dt)
				}
				create := func(make func(*tensor.Ctx, []*optim.Group) *optim.Optimizer) (tensor.Named,
					*optim.Optimizer) {
					p := tensor.Named{Name: "p", Tensor: random(kind.dt, 0).SetRequiresGrad(true)}
					opt := make(c, []*optim.Group{{Params: []tensor.Named{p}, LR: 0.01, WeightDecay: decay}})
					opt.SetHalfUpdate(kind.half, 7)
					return p, opt
				}
				p, fused := create(k.New)
				q, links := create(func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
					return optim.New(c, fused.Name(), g, append(fused.Chain(), last{})...)
				})
				for step, factor := range []float64{1, 0.3, 1} {
					g := random(p.GradDType(), step+1)
					p.SwapGrad(g, true)
					q.SwapGrad(g, true)
					fused.ScaleGrads(factor)
					links.ScaleGrads(factor)
					fused.Step(c)
					links.Step(c)
				}
				what := fmt.Sprint(kind, " ", n, " ", decay)
				require.Equal(t, tensor.ReadBytes(c, q.Tensor), tensor.ReadBytes(c, p.Tensor), what)
				a, b := fused.State(), links.State()
				for name := range a.Tensors {
					require.Equal(t, tensor.ReadBytes(c, b.Tensors[name]), tensor.ReadBytes(c, a.Tensors[name]),
						"%s %s", what, name)
				}
			}
		}
	}
}
