// SPDX-License-Identifier: Apache-2.0

package cp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// custom is a program's model, with rotated queries and keys and grouped heads. Nothing in it is about ranks.
type custom struct {
	Embed *nn.Embedding          `nn:"embed"`
	Attn  *nn.MultiheadAttention `nn:"attn"`
	Norm  *nn.RMSNorm            `nn:"norm"`
	Head  *nn.LMHead             `nn:"head"`
}

func newCustom(in *nn.Init, cfg nn.AttentionConfig) *custom {
	cfg.Width, cfg.Heads, cfg.KVHeads, cfg.NoQKVBias = 24, 6, 2, true
	return &custom{
		Embed: nn.NewEmbedding(in.Sub("embed"), nn.EmbeddingConfig{Rows: vocabulary, Dim: 24}),
		Attn:  nn.NewMultiheadAttention(in.Sub("attn"), cfg), Norm: nn.NewRMSNorm(in.Sub("norm"),
			nn.RMSNormConfig{Dim: 24}), Head: &nn.LMHead{Weight: in.Sub("head").Normal("weight", 0.02, vocabulary, 24)},
	}
}

func (m *custom) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.CausalLM(c, m, m.Head, b, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		x := m.Embed.Forward(c, ids)
		cos, sin := nn.RoPE{Dim: 4}.Tables(c, c.TokenPositions(ids, 0))
		in := nn.AttentionInput{Mask: models.AttentionMask(c, b), Cos: cos, Sin: sin}
		return m.Norm.Forward(c, tensor.Add(c.Ctx, x, m.Attn.Forward(c, x, in)))
	})
}

// gradients are the loss and the gradients of one backward pass, in the order of the parameters. 0 ranks stands for
// one process without chunks.
func (r run) gradients(t *testing.T, ranks int) (loss float64, grads [][]float32) {
	t.Helper()
	body := func(g *comm.Group) error {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
		tree := nn.Walk(m)
		b := r.batch(c.NoGrad(), 0)
		_, err := r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			if ranks == 0 {
				sum := m.Forward(c, b).Loss
				loss = tensor.Item(c.Ctx, sum)
				tensor.Backward(c.Ctx, []*tensor.Tensor{sum}, nil, nil)
				return nil, nil
			}
			p, err := cp.New(cp.Config{Group: g, Chunks: r.chunks, Method: r.method, Params: tree.Parameters()})
			if err != nil {
				return nil, err
			}
			sum, err := p.ForwardBackward(t.Context(), c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
				return plainLoss(0, m, c, b)
			}, 1, cp.Accumulate)
			if g == nil || g.Rank() == 0 {
				loss = sum.Loss
			}
			return nil, err
		})
		if err != nil || g != nil && g.Rank() > 0 {
			return err
		}
		for _, p := range tree.Parameters() {
			grads = append(grads, tensor.ToSlice[float32](c.NoGrad(), p.Grad()))
		}
		return nil
	}
	if ranks < 2 {
		require.NoError(t, body(nil))
	} else {
		require.NoError(t, local.Run(ranks, comm.Options{}, body))
	}
	return loss, grads
}

// Losses and gradients are those of the whole sequence, for every method and for models of all kinds: causal or not,
// with a window, with padding, with texts that share rows, and of a length that does not divide.
func TestGradientsOfTheWholeSequence(t *testing.T) {
	of := func(cfg nn.AttentionConfig) run {
		return run{model: func(in *nn.Init) models.Model { return newCustom(in, cfg) }}
	}
	for name, r := range map[string]run{
		"GPT-2":        {},
		"segments":     {segments: true},
		"causal":       of(nn.AttentionConfig{Causal: true}),
		"both ways":    of(nn.AttentionConfig{}),
		"window":       of(nn.AttentionConfig{Causal: true, Window: 5}),
		"wide window":  of(nn.AttentionConfig{Window: 5}),
		"scaled heads": of(nn.AttentionConfig{Causal: true, HeadDim: 4, Scale: 0.3, QKNorm: true}),
	} {
		for _, method := range []*cp.Method{cp.Gather, cp.Ulysses, cp.Ring} {
			for _, length := range []int{24, 17, 3} {
				r.method, r.length, r.mask, r.chunks, r.noDropout = method, length, length == 17, 4, true
				t.Run(fmt.Sprintf("%s %v %d", name, method, length), func(t *testing.T) {
					loss, want := r.gradients(t, 0)
					for _, ranks := range []int{1, 2} {
						got, grads := r.gradients(t, ranks)
						require.InEpsilon(t, loss, got, 1e-6)
						for i := range want {
							require.InDeltaSlice(t, want[i], grads[i], 3e-5, "parameter %d on %d ranks", i, ranks)
						}
					}
				})
			}
		}
	}
}
