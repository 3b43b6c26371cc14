// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// sizes are those of a GPT-2 whose memory is measured: s tokens of b samples, h features.
var sizes = struct{ s, b, h, vocabulary int }{s: 32, b: 2, h: 160, vocabulary: 300}

// A rank holds 16/t bytes of each divided parameter, with its gradient and the moments of AdamW, and what a layer keeps
// of its forward pass is 2 + 8/t numbers for each token and feature: the inputs of its norms whole; queries, keys and
// values, the output of attention, and the inputs of the activation divided (docs/three-dimensions.md).
func TestMemoryOfARank(t *testing.T) {
	const layers = 2
	h := float64(sizes.h)
	divided := layers*(12*h*h+7*h) + float64(sizes.vocabulary)*h // c_attn and c_fc have biases that are divided too
	whole := layers*6*h + (float64(sizes.s)+2)*h
	layer := 4 * float64(sizes.s*sizes.b) * h
	for _, ranks := range []int{1, 2, 4} {
		n := float64(ranks)
		require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
			state, few, err := memoryOf(g, layers)
			if err != nil {
				return err
			}
			_, more, err := memoryOf(g, 2*layers)
			assert.InEpsilon(t, 16*(divided/n+whole), state, 0.02, "%d ranks", ranks)
			assert.InEpsilon(t, layer*(2+8/n), (more-few)/layers, 0.02, "%d ranks", ranks)
			return err
		}))
	}
}

// memoryOf is what a rank holds after a step, and what a forward pass keeps.
func memoryOf(g *comm.Group, layers int) (state, kept float64, err error) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = sizes.vocabulary, sizes.s, sizes.h, layers, 4
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
	if err != nil {
		return 0, 0, err
	}
	plan, err := tp.ParsePlan(m.TPPlan())
	if err != nil {
		return 0, 0, err
	}
	c := tensor.NewCtx(dev)
	d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: 4})
	if err != nil {
		return 0, 0, err
	}
	opt := optim.DefaultAdamW().New(c, []*optim.Group{{LR: 1e-3, Params: d.Tree().Parameters()}})
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		b := m.ExampleBatch(c, sizes.b, sizes.s)
		before := dev.MemStats().InUse
		loss := m.Forward(nn.NewCtx(c, d.Tree(), true).WithLossOnly(), b).Loss
		kept = float64(dev.MemStats().InUse - before)
		tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
		return nil
	})
	opt.Step(c)
	return float64(dev.MemStats().InUse), kept, nil
}

// What lookups add to the gradient of a divided table goes there at once, without a table of its own.
func TestLookupsTakeNoTable(t *testing.T) {
	const rows, width = 4096, 64
	for _, ranks := range []int{1, 2} {
		require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
			dev := tensor.NewCPU(1)
			defer dev.Close()
			m, c := nn.NewEmbedding(nn.NewInit(dev, 1), nn.EmbeddingConfig{Rows: rows, Dim: width}), tensor.NewCtx(dev)
			d, err := tp.Divide(c, &table{m}, tp.Config{Group: g, Parts: 2,
				Plan: tp.Plan{"embed": {Style: tp.EmbeddingRowwise}}})
			if err != nil {
				return err
			}
			stats := dev.MemStats() // Divide had a part and the whole: in use again, so that a new peak is seen
			ballast := tensor.Empty(c, tensor.Uint8, int(stats.Peak-stats.InUse))
			for range 2 {
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					ids := tensor.FromSlice(c, []int64{1, 4000, 7, 1}, 1, 4)
					y := m.Forward(nn.NewCtx(c, d.Tree(), true), ids)
					tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, y, []int{0, 1, 2}, false)}, nil, nil)
					return nil
				})
			}
			assert.InEpsilon(t, m.Weight.Bytes(), dev.MemStats().Peak-stats.Peak, 0.02, "%d ranks: the gradient", ranks)
			ballast.Free()
			return nil
		}))
	}
}

// table is a model of an embedding alone.
type table struct {
	Embed *nn.Embedding `nn:"embed"`
}
