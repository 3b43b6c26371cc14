// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// llama is a block as Llama's, between layers of the styles that it has none of.
type llama struct {
	In     *nn.Linear             `nn:"in"` // rowwise_split_input
	Norm   *nn.RMSNorm            `nn:"norm"`
	Attn   *nn.MultiheadAttention `nn:"attn"`
	GateUp *nn.Linear             `nn:"gate_up"` // packed_colwise
	Up     *nn.Linear             `nn:"up"`
	Down   *nn.Linear             `nn:"down"`
	Head   *nn.Linear             `nn:"head"` // colwise_gather_output
}

var llamaPlan = map[string]string{"in": "rowwise_split_input", "attn.q_proj": "colwise", "attn.k_proj": "colwise",
	"attn.v_proj": "colwise", "attn.o_proj": "rowwise", "gate_up": "packed_colwise", "up": "colwise", "down": "rowwise",
	"head": "colwise_gather_output"}

const llamaWidth, llamaInner = 32, 1200

func newLlama(heads, kvHeads int) *llama {
	in := nn.NewInit(tensor.CPU(), 1)
	linear := func(name string, from, to int) *nn.Linear {
		return nn.NewLinear(in.Sub(name), nn.LinearConfig{In: from, Out: to})
	}
	return &llama{In: linear("in", 8, llamaWidth),
		Norm: nn.NewRMSNorm(in.Sub("norm"), nn.RMSNormConfig{Dim: llamaWidth}),
		Attn: nn.NewMultiheadAttention(in.Sub("attn"), nn.AttentionConfig{Width: llamaWidth, Heads: heads,
			KVHeads: kvHeads, HeadDim: 4, Causal: true}),
		GateUp: linear("gate_up", llamaWidth, 2*llamaInner), Up: linear("up", llamaWidth, llamaInner),
		Down: linear("down", llamaInner, llamaWidth), Head: linear("head", llamaWidth, 12)}
}

func (m *llama) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		x = m.In.Forward(c, x)
		cos, sin := nn.RoPE{Dim: 4}.Tables(c, tensor.Arange(c.Ctx, tensor.Int32, 0, 1, x.Size(1)))
		x = tensor.Add(c.Ctx, x, m.Attn.Forward(c, m.Norm.Forward(c, x), nn.AttentionInput{Cos: cos, Sin: sin}))
		h := m.Norm.Forward(c, x)
		packed := m.GateUp.Forward(c, h)
		halves := tensor.Split(c.Ctx, packed, 2, packed.Size(2)/2, packed.Size(2)/2)
		h = tensor.Mul(c.Ctx, tensor.Mul(c.Ctx, tensor.SiLU(c.Ctx, halves[0]), halves[1]), m.Up.Forward(c, h))
		return m.Head.Forward(c, tensor.Add(c.Ctx, x, m.Down.Forward(c, h)))
	}, x)
}

// hash is that of output, gradients and norm.
func hash(t *testing.T, ranks, parts int) string {
	hashes, mu := map[string]bool{}, sync.Mutex{}
	require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
		c, m := tensor.NewCtx(tensor.CPU()), newLlama(8, 4)
		plan, err := tp.ParsePlan(llamaPlan)
		if err != nil {
			return err
		}
		d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: parts})
		if err != nil {
			return err
		}
		h := sha256.New()
		x := tensor.Normal(c.NoGrad(), tensor.Float32, 5, 0, 1, 3, 5, 8).SetRequiresGrad(true)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y := m.Forward(nn.NewCtx(c, d.Tree(), true), x)
			h.Write(tensor.ReadBytes(c, y))
			tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{tensor.Tanh(c.NoGrad(), y)}, nil)
			return nil
		})
		norm, err := d.Norm(context.Background(), c)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%x", norm)
		h.Write(tensor.ReadBytes(c, x.Grad()))
		for _, p := range d.Tree().Parameters() {
			grad := p.Grad()
			if at, _ := d.Placement(p.Name); !at.WholeBox() {
				if grad, err = d.Whole(context.Background(), c, p.Name, grad); err != nil {
					return err
				}
			}
			fmt.Fprint(h, p.Name, grad.Shape())
			h.Write(tensor.ReadBytes(c, grad))
		}
		mu.Lock()
		defer mu.Unlock()
		hashes[fmt.Sprintf("%x", h.Sum(nil))] = true
		return nil
	}))
	require.Len(t, hashes, 1)
	for h := range hashes {
		return h
	}
	return ""
}

// A layer of gate and up that is colwise would give the first ranks gates and the last ones none: it is refused when
// its outputs are cut, and in a rehearsal.
func TestFusedMatricesAreNotColwise(t *testing.T) {
	text := maps.Clone(llamaPlan)
	text["gate_up"] = "colwise"
	plan, err := tp.ParsePlan(text)
	require.NoError(t, err)
	m := newLlama(8, 4)
	err = plan.Rehearse(m, tp.Size{Ranks: 2, Parts: 4}, func(c *nn.Ctx, m nn.Module) {
		m.(*llama).Forward(c, tensor.Empty(c.Ctx, tensor.Float32, 3, 5, 8))
	})
	require.ErrorContains(t, err, "gate_up (colwise)")
	require.ErrorContains(t, err, "tensor.Split")
	require.ErrorContains(t, err, "want packed_colwise for a layer of two matrices, such as gate and up")
	err = local.Run(2, comm.Options{}, func(g *comm.Group) error {
		c, m := tensor.NewCtx(tensor.CPU()).NoGrad(), newLlama(8, 4)
		d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: 4})
		if err != nil {
			return err
		}
		return tensor.Try(func() {
			m.Forward(nn.NewCtx(c, d.Tree(), false), tensor.Full(c, tensor.Float32, 1, 3, 5, 8))
		})
	})
	require.ErrorContains(t, err, "want packed_colwise")
}

// Every style keeps the bits: grouped queries with rotary positions, a gated MLP, gathered outputs and split inputs.
func TestStylesKeepTheBits(t *testing.T) {
	one := hash(t, 1, 4)
	require.Equal(t, one, hash(t, 2, 4))
	require.Equal(t, one, hash(t, 4, 4))
	require.NotEqual(t, one, hash(t, 2, 2), "a control: other parts")
}
