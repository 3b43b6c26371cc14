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

func (nothing) State(tensor.Named) []optim.StateTensor                                           { return nil }
func (nothing) Apply(*tensor.Ctx, tensor.Named, *optim.Group, *optim.Slot, *tensor.Tensor) {}

// TestAdamWIsItsChain holds that AdamW's one pass has the bits of its links, for every dtype, with and without decay.
func TestAdamWIsItsChain(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		for _, decay := range []float64{0, 0.1} {
			for _, n := range []int{1, 37, 40000} {
				name := fmt.Sprint(dt, " ", decay, " ", n)
				wave := func(k float64) *tensor.Tensor {
					x := make([]float64, n)
					for i := range x {
						x[i] = math.Sin(k + float64(i))
					}
					return tensor.Cast(c, tensor.FromSlice(c, x, n), dt)
				}
				make := func(chain func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer) (tensor.Named, *optim.Optimizer) {
					p := tensor.Named{Name: "p", Tensor: wave(0).SetRequiresGrad(true)}
					return p, chain(c, []*optim.Group{{Params: []tensor.Named{p}, LR: 0.01, WeightDecay: decay}})
				}
				p, fused := make(func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
					return optim.AdamW{Beta1: 0.9, Beta2: 0.99, Eps: 1e-6}.New(c, g)
				})
				q, links := make(func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
					return optim.New(c, "adamw", g, optim.DecoupledDecay{}, optim.ScaleByAdam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-6}, nothing{})
				})
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
					require.Equal(t, tensor.ReadBytes(c, b.Tensors[k]), tensor.ReadBytes(c, a.Tensors[k]), "%s %s", name, k)
				}
			}
		}
	}
}
