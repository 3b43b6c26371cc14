// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"
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

// between is a colwise and a rowwise layer with something between them.
type between struct {
	Up   *nn.Linear `nn:"up"`
	Down *nn.Linear `nn:"down"`
	Kind string
}

// betweens are what may be between, by Kind.
var betweens = map[string]func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor{}

func (m *between) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Down.Forward(c, betweens[m.Kind](c.Ctx, m.Up.Forward(c, x)))
	}, x)
}

// What a model makes of the features of a colwise layer is that of all of them, or an error: its own views of a fused
// matrix, in a rehearsal too, and ops that need all features of a token.
func TestFeaturesOfAColwiseLayer(t *testing.T) {
	const in, heads, dim = 6, 4, 6
	size := func(y *tensor.Tensor) []int { return []int{y.Size(0), y.Size(1)} }
	cut := func(y *tensor.Tensor, shape ...int) []int { return append(size(y), shape...) }
	for name, k := range map[string]struct {
		fused int // matrices in the colwise layer
		f     func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor
		want  string // "": the bits of one rank
		late  bool   // it comes in a training step
	}{
		"halves of a view": {2, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			y = tensor.Reshape(c, y, cut(y, 2, -1)...)
			return tensor.Mul(c, tensor.Select(c, y, 2, 0), tensor.Select(c, y, 2, 1))
		}, "Slice: want packed_colwise", false},
		"permuted": {3, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			y = tensor.Permute(c, tensor.Reshape(c, y, cut(y, 3, -1, dim)...), 2, 0, 3, 1, 4)
			y = tensor.Mul(c, tensor.Select(c, y, 0, 1), tensor.Select(c, y, 0, 2))
			y = tensor.Transpose(c, y, 1, 2)
			return tensor.Reshape(c, y, y.Size(0), y.Size(1), -1)
		}, "Slice: want packed_colwise", false},
		"cut after an activation": {2, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			n := y.Size(2) / 2
			halves := tensor.Split(c, tensor.GELU(c, y), 2, n, n)
			return tensor.Mul(c, halves[0], halves[1])
		}, "Split: want packed_colwise", false},
		"softmax": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.Softmax(c, tensor.Affine(c, y, 2, 0), -1)
		}, "Softmax: want colwise_gather_output", false},
		"norm": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.RMSNorm(c, y, nil, 1e-6)
		}, "RMSNorm: want colwise_gather_output", false},
		"length": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.Div(c, y, tensor.Sum(c, tensor.Mul(c, y, y), []int{-1}, true))
		}, "Sum: want colwise_gather_output", true},
		"greatest": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.Sub(c, y, tensor.Max(c, y, -1, true))
		}, "Max: want colwise_gather_output", true},
		"place of the greatest": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.Mul(c, y, tensor.Cast(c, tensor.ArgMax(c, y, -1, true), y.DType()))
		}, "ArgMax: want colwise_gather_output", false},
		"greatest ones": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			values, _ := tensor.TopK(c, y, 1, -1, false)
			return tensor.Sub(c, y, values)
		}, "TopK: want colwise_gather_output", false},
		"sums so far": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.CumSum(c, y, 2)
		}, "CumSum: want colwise_gather_output", false},
		"dropout": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			return tensor.Dropout(c, tensor.ReLU(c, y), 0.1)
		}, "Dropout: want dropout behind the rowwise layer", false},
		"heads": {1, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			y = tensor.RMSNorm(c, tensor.Reshape(c, y, cut(y, -1, dim)...), nil, 1e-6)
			return tensor.Flatten(c, tensor.Softmax(c, tensor.SiLU(c, y), -1), 2, 3)
		}, "", false},
		"queries, keys and values of each head": {3, func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			y = tensor.Reshape(c, y, cut(y, -1, 3*dim)...)
			q := tensor.Split(c, y, 3, dim, dim, dim)
			return tensor.Flatten(c, tensor.Add(c, q[0], tensor.Mul(c, q[1], q[2])), 2, 3)
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			betweens[name] = k.f
			plan, err := tp.ParsePlan(map[string]string{"up": "colwise", "down": "rowwise"})
			require.NoError(t, err)
			fresh := func() *between {
				init := nn.NewInit(tensor.CPU(), 1)
				return &between{nn.NewLinear(init.Sub("up"), nn.LinearConfig{In: in, Out: k.fused * heads * dim}),
					nn.NewLinear(init.Sub("down"), nn.LinearConfig{In: heads * dim, Out: in}), name}
			}
			pass := func(ranks int) (out []byte, err error) {
				return out, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
					c, m := tensor.NewCtx(tensor.CPU()), fresh()
					d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: 4})
					if err != nil {
						return err
					}
					x := tensor.Normal(c.NoGrad(), tensor.Float32, 5, 0, 1, 3, 5, in).SetRequiresGrad(true)
					return tensor.Try(func() {
						c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
							y := m.Forward(nn.NewCtx(c, d.Tree(), true), x)
							tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{tensor.Tanh(c.NoGrad(), y)}, nil)
							if g.Rank() == 0 {
								out = append(tensor.ReadBytes(c, y), tensor.ReadBytes(c, x.Grad())...)
							}
							return nil
						})
					})
				})
			}
			one, err := pass(1)
			require.NoError(t, err)
			two, err := pass(2)
			first := plan.Rehearse(fresh(), tp.Size{Ranks: 2, Parts: 4}, func(c *nn.Ctx, m nn.Module) {
				m.(*between).Forward(c, tensor.Empty(c.Ctx, tensor.Float32, 3, 5, in))
			})
			if k.want == "" {
				require.NoError(t, err)
				require.NoError(t, first)
				require.Equal(t, one, two)
				return
			}
			op, want, _ := strings.Cut(k.want, ": ")
			require.ErrorContains(t, err, op)
			require.ErrorContains(t, err, want)
			if k.late {
				require.NoError(t, first)
				return
			}
			require.ErrorContains(t, first, op)
			require.ErrorContains(t, first, want)
		})
	}
}

// Every style keeps the bits: grouped queries with rotary positions, a gated MLP, gathered outputs and split inputs.
func TestStylesKeepTheBits(t *testing.T) {
	one := hash(t, 1, 4)
	require.Equal(t, one, hash(t, 2, 4))
	require.Equal(t, one, hash(t, 4, 4))
	require.NotEqual(t, one, hash(t, 2, 2), "a control: other parts")
}
