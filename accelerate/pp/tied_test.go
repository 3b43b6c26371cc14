// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// pairs adds the rows of each token and of the one before it: it looks up its table twice.
type pairs struct {
	Weight *nn.Parameter `nn:"weight"`
}

func (p *pairs) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, p, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		n := ids.Size(1)
		before := tensor.Concat(c.NoGrad(), 1, tensor.Slice(c.NoGrad(), ids, 1, n-1, n),
			tensor.Slice(c.NoGrad(), ids, 1, 0, n-1))
		table := c.Param(p.Weight)
		return tensor.Add(c.Ctx, tensor.Embedding(c.Ctx, table, ids), tensor.Embedding(c.Ctx, table, before))
	}, ids)
}

// bigrams predicts the next token by pairs, whose table is that of its output, too.
type bigrams struct {
	Pairs *pairs        `nn:"pairs"`
	Norm  *nn.LayerNorm `nn:"norm"`
	Head  *nn.LMHead    `nn:"head"`
}

func newBigrams(in *nn.Init) *bigrams {
	table := in.Normal("pairs.weight", 0.5, vocabulary, 16)
	return &bigrams{&pairs{table}, nn.NewLayerNorm(in, nn.LayerNormConfig{Dim: 16}), &nn.LMHead{Weight: table}}
}

func (m *bigrams) Parts() []nn.Part { return []nn.Part{{m.Pairs}, {m.Norm, m.Head}} }

func (m *bigrams) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	x := nn.RunPart1(c, nn.Part{m.Pairs}, func(ids *tensor.Tensor) *tensor.Tensor { return m.Pairs.Forward(c, ids) },
		c.Received(b.Required(data.InputIDs))[0])
	if !c.Runs(m.Head) {
		return models.Output{Hidden: []*tensor.Tensor{x}}
	}
	loss := nn.RunPart1(c, nn.Part{m.Norm, m.Head}, func(x *tensor.Tensor) *tensor.Tensor {
		return m.Head.LossSum(c, m.Norm.Forward(c, x), nn.NextTokens(c, b.Tensors[data.Labels]))
	}, x)
	return models.Output{Loss: loss}
}

// plainly is a context without dropout or recomputation.
func plainly(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx {
	return nn.NewCtx(c.WithRandom(5, b.Position), tree, training)
}

// bigrams are the gradients of such a model in one process.
func (s settings) bigrams(t *testing.T) map[string][]byte {
	c, m := tensor.NewCtx(tensor.CPU()), newBigrams(nn.NewInit(tensor.CPU(), 7))
	tree, grads := nn.Walk(m), map[string][]byte{}
	sum := accumulation.New(c.NoGrad(), tree.Parameters(), s.micro, 2)
	for i, b := range s.batches(c, 0) {
		plainly(c, tree, b, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			sum.Begin(i)
			tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, b).Loss}, nil, nil)
			return nil
		})
	}
	sum.Finish()
	for _, p := range tree.Parameters() {
		grads[p.Name] = tensor.ReadBytes(c.NoGrad(), p.Grad())
	}
	require.Len(t, grads, 3)
	return grads
}

// A table that is looked up twice, and tied, has the gradients of one process: it adds one lookup after the other, and
// rows of a micro-batch that both have come to sums of their own.
func TestTiedTableWithTwoLookups(t *testing.T) {
	s := settings{micro: 4}
	want := s.bigrams(t)
	require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
		sched, err := schedule.Load("1f1b", schedule.Shape{Ranks: 2, MicroBatches: s.micro})
		if err != nil {
			return err
		}
		dev := tensor.NewCPU(1)
		m := newBigrams(nn.NewInit(dev, 7))
		c, parts := tensor.NewCtx(dev), m.Parts()
		p, err := pp.New(pp.Config{Model: m, Group: g, Schedule: sched, Stages: [][]nn.Part{parts[:1], parts[1:]},
			Forward: forward, Context: plainly, Job: strategy.Job{Ctx: c, Tree: nn.Walk(m),
				Exchange: strategy.Exchange{DeterministicRanks: 2},
				Layout:   samplers.WindowLayout{AccumulationSteps: s.micro, WorldSize: 1}}})
		if err != nil {
			return err
		}
		if _, err := p.Step(context.Background(), s.batches(c, 0), 1); err != nil {
			return err
		}
		for _, q := range p.Params() {
			require.Equal(t, want[q.Name], tensor.ReadBytes(c.NoGrad(), q.Grad()), "rank %d: %s", g.Rank(), q.Name)
		}
		return p.Close(true)
	}))
}
