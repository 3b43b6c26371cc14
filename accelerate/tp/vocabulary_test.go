// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// tokens is a language model of an embedding and a head alone.
type tokens struct {
	Embed *nn.Embedding `nn:"embed"`
	Head  *nn.LMHead    `nn:"head"`
}

func (m *tokens) loss(c *nn.Ctx, ids, labels *tensor.Tensor, logits logitsLoss, logProbs bool) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		h := tensor.Tanh(c.Ctx, m.Embed.Forward(c, ids))
		switch {
		case logits == nil && logProbs:
			logs := m.Head.LogProbs(c, h, labels)
			return tensor.Affine(c.Ctx, tensor.Sum(c.Ctx, logs, nil, false), -1, 0)
		case logits == nil:
			return m.Head.LossSum(c, h, labels)
		}
		return logits(c, m.Head.Forward(c, h))
	}, ids)
}

// logitsLoss is a loss of logits.
type logitsLoss func(c *nn.Ctx, z *tensor.Tensor) *tensor.Tensor

// vocabularyCase is a head on ranks.
type vocabularyCase struct {
	size    int // of the vocabulary
	tied    bool
	ids     []int64
	labels  []int64
	lower   tensor.DType
	smooth  float64                                // of the loss without logits
	through func(labels *tensor.Tensor) logitsLoss // nil: there are no logits
	// logProbs is a loss of log-probabilities.
	logProbs bool
}

const tokensWidth = 24

// outcome is loss and whole gradients.
type outcome struct {
	loss  float64
	grads map[string][]float64
}

func (v vocabularyCase) rank(g *comm.Group, parts int) (o outcome, err error) {
	c, in := tensor.NewCtx(tensor.CPU()), nn.NewInit(tensor.CPU(), 1)
	m := &tokens{Embed: nn.NewEmbedding(in.Sub("embed"), nn.EmbeddingConfig{Rows: v.size, Dim: tokensWidth})}
	m.Head = &nn.LMHead{Weight: m.Embed.Weight}
	if !v.tied {
		m.Head.Weight = in.Sub("head").Normal("weight", 1, v.size, tokensWidth)
	}
	d, err := tp.Divide(c, m, tp.Config{Group: g, Parts: parts, Plan: tp.Plan{"embed": {Style: tp.EmbeddingRowwise},
		"head": {Style: tp.ColwiseGatherOutput}}})
	if err != nil {
		return o, err
	}
	o.grads = map[string][]float64{}
	ids, labels := tensor.FromSlice(c, v.ids, 1, len(v.ids)), tensor.FromSlice(c, v.labels, 1, len(v.labels))
	if err = tensor.Try(func() {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			var through logitsLoss
			if v.through != nil {
				through = v.through(labels)
			}
			nc := nn.NewCtx(c.Autocast(v.lower), d.Tree(), true)
			if v.smooth > 0 {
				nc = nc.WithLabelSmoothing(&nn.Smoothing{Factor: v.smooth})
			}
			loss := m.loss(nc, ids, labels, through, v.logProbs)
			o.loss = tensor.Item(c, loss)
			tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
			return nil
		})
	}); err != nil {
		g.Abort(err)
		return o, err
	}
	for _, p := range d.Tree().Parameters() {
		grad := p.Grad()
		if parts > 1 {
			if grad, err = d.Whole(context.Background(), c, p.Name, grad); err != nil {
				return o, err
			}
		}
		o.grads[p.Name] = tensor.ToSlice[float64](c, tensor.Cast(c, grad, tensor.Float64))
	}
	return o, nil
}

// run returns the outcome, which is that of all ranks.
func (v vocabularyCase) run(t *testing.T, ranks, parts int) outcome {
	outcomes, mu := make([]outcome, ranks), sync.Mutex{}
	require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
		o, err := v.rank(g, parts)
		mu.Lock()
		defer mu.Unlock()
		outcomes[g.Rank()] = o
		return err
	}))
	for _, o := range outcomes {
		require.Equal(t, outcomes[0], o)
	}
	return outcomes[0]
}

// The loss over a divided vocabulary has the same bits on any number of ranks with the same parts, and is that of the
// whole one: for vocabularies that do not divide, labels that do not count, and with label smoothing.
func TestVocabularyOnAnyNumberOfRanks(t *testing.T) {
	draw := func(n, below, step int) (list []int64) {
		for i := range n {
			list = append(list, int64((i*i*step+3*i)%below))
		}
		return list
	}
	smoothed := func(labels *tensor.Tensor) logitsLoss {
		return func(c *nn.Ctx, z *tensor.Tensor) *tensor.Tensor {
			return nn.CrossEntropySumWith(c, z, labels, nn.CrossEntropyOptions{LabelSmoothing: 0.1})
		}
	}
	ignored := draw(300, 61, 7)
	for i := 0; i < len(ignored); i += 3 {
		ignored[i] = tensor.IgnoreIndex
	}
	last := []int64{60, 60, 60, 60, 60, 60, 60, 60, 60}
	for name, v := range map[string]vocabularyCase{
		"tied":           {size: 64, tied: true, ids: draw(50, 64, 5), labels: draw(50, 64, 11)},
		"untied":         {size: 64, ids: draw(50, 64, 5), labels: draw(50, 64, 11)},
		"ignored labels": {size: 61, tied: true, ids: draw(300, 61, 5), labels: ignored},
		"empty parts":    {size: 13, tied: true, ids: draw(40, 13, 5), labels: draw(40, 13, 3)},
		"bf16":           {size: 61, ids: draw(70, 61, 5), labels: draw(70, 61, 11), lower: tensor.BFloat16},
		"label smoothing": {size: 61, tied: true, ids: draw(60, 61, 5), labels: ignored[:60],
			through: smoothed},
		"label smoothing without logits": {size: 61, ids: draw(60, 61, 5), labels: ignored[:60], smooth: 0.1},
		"label smoothing, tied and bf16": {size: 13, tied: true, ids: draw(40, 13, 5), labels: draw(40, 13, 3),
			smooth: 0.2, lower: tensor.BFloat16},
		"log-probabilities":        {size: 61, tied: true, ids: draw(60, 61, 5), labels: ignored[:60], logProbs: true},
		"many rows":                {size: 29, tied: true, ids: draw(1000, 29, 5), labels: draw(1000, 29, 11)},
		"labels of the last token": {size: 61, ids: draw(9, 61, 5), labels: last},
	} {
		t.Run(name, func(t *testing.T) {
			one := v.run(t, 1, 8)
			for _, ranks := range []int{2, 4} {
				require.Equal(t, one, v.run(t, ranks, 8), "%d ranks", ranks)
			}
			whole, tolerance := v.run(t, 1, 1), 1e-6
			if v.lower != tensor.Invalid {
				tolerance = 1e-2
			}
			require.InEpsilon(t, whole.loss, one.loss, tolerance)
			if v.logProbs {
				v.logProbs = false
				require.Equal(t, v.run(t, 1, 8).loss, one.loss)
			}
			for name, want := range whole.grads {
				most, largest := 0.0, 0.0
				for i, x := range want {
					most, largest = max(most, math.Abs(x-one.grads[name][i])), max(largest, math.Abs(x))
				}
				require.Less(t, most/largest, 2*tolerance, name)
			}
		})
	}
}

// An id or a label that no rank has a row for is a fault on each, as it is for a whole table.
func TestTokensOutsideTheVocabulary(t *testing.T) {
	for name, v := range map[string]vocabularyCase{
		"id":             {size: 10, ids: []int64{3, 10}, labels: []int64{1, 2}},
		"label":          {size: 10, ids: []int64{3, 4}, labels: []int64{1, 11}},
		"negative label": {size: 10, ids: []int64{3, 4}, labels: []int64{-1, 1}},
	} {
		for _, ranks := range []int{1, 2} {
			err := local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
				_, err := v.rank(g, 2)
				return err
			})
			require.Error(t, err, "%s on %d ranks", name, ranks)
			require.Regexp(t, `index|id|target`, fmt.Sprint(err))
		}
	}
	cut := tp.Plan{"embed": {Style: tp.EmbeddingRowwise}, "head": {Style: tp.ColwiseGatherOutput}}
	in := nn.NewInit(tensor.CPU(), 1)
	m := &tokens{Embed: nn.NewEmbedding(in, nn.EmbeddingConfig{Rows: 5, Dim: 2})}
	m.Head = &nn.LMHead{Weight: m.Embed.Weight}
	_, err := cut.Resolve(nn.Walk(m), tp.Size{Ranks: 4, Parts: 4})
	require.ErrorContains(t, err, "embed has 5 features: they do not divide into 4 parts", "the last rank has none")
}
