// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// nothing is a link that does nothing: with it a chain is not known as AdamW's, and its links run one after the other.
type nothing struct{}

func (nothing) State(tensor.Named) []optim.StateTensor                                     { return nil }
func (nothing) Apply(*tensor.Ctx, tensor.Named, *optim.Group, *optim.Slot, *tensor.Tensor) {}

// TestAdamWIsItsChain holds that AdamW's one pass has the bits of its links, for every dtype, with and without decay.
func TestAdamWIsItsChain(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, k := range []struct {
		dt   tensor.DType
		half optim.HalfUpdate
	}{{tensor.Float32, optim.HalfKahan}, {tensor.Float64, optim.HalfKahan}, {tensor.BFloat16, optim.HalfPlain},
		{tensor.BFloat16, optim.HalfKahan}, {tensor.BFloat16, optim.HalfStochastic},
		{tensor.Float16, optim.HalfStochastic}} {
		for _, decay := range []float64{0, 0.1} {
			for _, n := range []int{1, 37, 140_000} { // the last in two pieces, of a half type
				dt, name := k.dt, fmt.Sprint(k, " ", decay, " ", n)
				wave := func(k float64) *tensor.Tensor {
					x := make([]float64, n)
					for i := range x {
						x[i] = math.Sin(k + float64(i))
					}
					return tensor.Cast(c, tensor.FromSlice(c, x, n), dt)
				}
				make := func(chain func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer) (tensor.Named,
					*optim.Optimizer) {
					p := tensor.Named{Name: "p", Tensor: wave(0).SetRequiresGrad(true)}
					return p, chain(c, []*optim.Group{{Params: []tensor.Named{p}, LR: 0.01, WeightDecay: decay}})
				}
				p, fused := make(func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
					return optim.AdamW{Beta1: 0.9, Beta2: 0.99, Eps: 1e-6}.New(c, g)
				})
				q, links := make(func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
					return optim.New(c, "adamw", g, optim.DecoupledDecay{},
						optim.ScaleByAdam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-6}, nothing{})
				})
				fused.SetHalfUpdate(k.half, 7)
				links.SetHalfUpdate(k.half, 7)
				for step := range 3 {
					g := tensor.Cast(c, wave(float64(step+1)), p.GradDType())
					p.SwapGrad(g, true)
					q.SwapGrad(g, true)
					fused.Step(c)
					links.Step(c)
				}
				require.Equal(t, tensor.ReadBytes(c, q.Tensor), tensor.ReadBytes(c, p.Tensor), name)
				a, b := fused.State(), links.State()
				for k := range a.Tensors {
					require.Equal(t, tensor.ReadBytes(c, b.Tensors[k]), tensor.ReadBytes(c, a.Tensors[k]), "%s %s",
						name, k)
				}
			}
		}
	}
}
