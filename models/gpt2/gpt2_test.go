// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// smallConfig is a GPT-2 with dropout.
func smallConfig() gpt2.Config {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 61, 16, 24, 2, 3
	return cfg
}

func newModel(t testing.TB, dev *tensor.Device, cfg gpt2.Config) *gpt2.Model {
	m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
	require.NoError(t, err)
	return m
}

// tokens are b sequences of n tokens below vocab.
func tokens(b, n, vocab int) []int64 {
	ids := make([]int64, b*n)
	for i := range ids {
		ids[i] = int64(i*i*7+i*3+i/n) % int64(vocab)
	}
	return ids
}

// batch is input_ids of the given rows, with labels if asked for.
func batch(c *tensor.Ctx, ids []int64, rows int, labels bool) *data.Batch {
	x := tensor.FromSlice(c, ids, rows, len(ids)/rows)
	b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: x}, Size: rows, Count: float64(len(ids) - rows)}
	if labels {
		b.Tensors[data.Labels] = x
	}
	return b
}

func evaluation() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nil, false) }

func TestParameters(t *testing.T) {
	cfg := smallConfig()
	m := newModel(t, tensor.CPU(), cfg)
	var names []string
	for _, p := range nn.NamedParameters(m) {
		names = append(names, p.Name)
	}
	block := func(i string) []string {
		var ns []string
		for _, n := range []string{"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"} {
			ns = append(ns, "transformer.h."+i+"."+n+".weight", "transformer.h."+i+"."+n+".bias")
		}
		return ns
	}
	want := append([]string{"transformer.wte.weight", "transformer.wpe.weight"}, block("0")...)
	want = append(append(want, block("1")...), "transformer.ln_f.weight", "transformer.ln_f.bias")
	require.Equal(t, want, names)
	require.Equal(t, map[string]string{"lm_head.weight": "transformer.wte.weight"}, nn.Walk(m).Aliases())
	require.Len(t, m.RecomputeUnits(), 2)

	cfg.TieWordEmbeddings = false
	untied := newModel(t, tensor.CPU(), cfg)
	require.Equal(t, nn.NumParameters(m)+cfg.VocabSize*cfg.NEmbd, nn.NumParameters(untied))
	require.Empty(t, nn.Walk(untied).Aliases())
	require.Equal(t, m.FLOPsPerToken(8), untied.FLOPsPerToken(8), "the head's product costs the same")
	require.Equal(t, models.NonEmbeddingParameters(m)+cfg.VocabSize*cfg.NEmbd, models.NonEmbeddingParameters(untied),
		"a separate head is no embedding")
	matrices := cfg.VocabSize*cfg.NEmbd + nn.NumParameters(m) - (cfg.VocabSize+cfg.NPositions)*cfg.NEmbd
	require.EqualValues(t, 6*matrices+12*2*8*24, m.FLOPsPerToken(8))
	inner := 40
	cfg.NInner = &inner
	wide := newModel(t, tensor.CPU(), cfg)
	require.EqualValues(t, 6*(nn.NumParameters(wide)-(cfg.VocabSize+cfg.NPositions)*cfg.NEmbd)+12*2*8*24,
		wide.FLOPsPerToken(8))
}

// The deviations are GPT-2's: 0.02, and less where a projection ends in the residual stream.
func TestInitialisation(t *testing.T) {
	cfg := smallConfig()
	cfg.NEmbd, cfg.VocabSize = 96, 300
	c := tensor.NewCtx(tensor.CPU())
	for _, p := range nn.NamedParameters(newModel(t, tensor.CPU(), cfg)) {
		var square float64
		xs := tensor.ToSlice[float32](c, p.Tensor)
		for _, x := range xs {
			square += float64(x) * float64(x)
		}
		std := math.Sqrt(square / float64(len(xs)))
		switch {
		case strings.HasSuffix(p.Name, ".bias"):
			require.Zero(t, std, p.Name)
		case strings.Contains(p.Name, "ln_"):
			require.Equal(t, 1.0, std, p.Name)
		case strings.HasSuffix(p.Name, "c_proj.weight"):
			require.InEpsilon(t, 0.02/2, std, 0.04, p.Name)
		default:
			require.InEpsilon(t, 0.02, std, 0.04, p.Name)
		}
	}
}

func TestForwardWithoutLabels(t *testing.T) {
	c := evaluation()
	m := newModel(t, tensor.CPU(), smallConfig())
	ids := tokens(2, 5, 61)
	out := m.Forward(c, batch(c.Ctx, ids, 2, false))
	require.Nil(t, out.Loss)
	require.Equal(t, []int{2, 5, 61}, out.Logits.Shape())
	with := m.Forward(c, batch(c.Ctx, ids, 2, true))
	require.Equal(t, tensor.ReadBytes(c.Ctx, out.Logits), tensor.ReadBytes(c.Ctx, with.Logits))
	require.InEpsilon(t, 8*math.Log(61), tensor.Item(c.Ctx, with.Loss), 0.05,
		"the sum over 8 predictions of a model that knows nothing")
}

// Labels that were shifted before are those that the model would make of labels: loss and gradients have the same bits,
// with the logits and without.
func TestShiftLabels(t *testing.T) {
	for _, lossOnly := range []bool{true, false} {
		run := func(name string, labels []int64) (loss []byte, grads [][]byte) {
			c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false)
			if lossOnly {
				c = c.WithLossOnly()
			}
			m := newModel(t, tensor.CPU(), smallConfig())
			c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
				b := batch(c.Ctx, tokens(2, 5, 61), 2, false)
				b.Tensors[name] = tensor.FromSlice(c.Ctx, labels, 2, 5)
				out := m.Forward(c, b)
				loss = tensor.ReadBytes(c.Ctx, out.Loss)
				tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil)
				return nil
			})
			for _, p := range nn.NamedParameters(m) {
				grads = append(grads, tensor.ReadBytes(c.Ctx, p.Grad()))
			}
			return loss, grads
		}
		const none = tensor.IgnoreIndex
		loss, grads := run(data.Labels, []int64{3, 1, 4, none, 5, 9, 2, 6, 5, none})
		shiftedLoss, shiftedGrads := run(data.ShiftLabels, []int64{1, 4, none, 5, none, 2, 6, 5, none, none})
		require.Equal(t, loss, shiftedLoss)
		require.Equal(t, grads, shiftedGrads)
		copied, _ := run(data.ShiftLabels, []int64{3, 1, 4, none, 5, 9, 2, 6, 5, none})
		require.NotEqual(t, loss, copied, "they are not shifted again")
	}
	c := evaluation()
	b := batch(c.Ctx, tokens(2, 5, 61), 2, true)
	b.Tensors[data.ShiftLabels] = b.Tensors[data.Labels]
	require.EqualError(t, tensor.Try(func() { newModel(t, tensor.CPU(), smallConfig()).Forward(c, b) }),
		"models.CausalLM: the batch has labels and shift_labels: want shift_labels, which are shifted, or labels, "+
			"which the model shifts")
}

// What comes later, and what the mask hides, changes nothing.
func TestForwardIsCausalAndMasked(t *testing.T) {
	c := evaluation()
	m := newModel(t, tensor.CPU(), smallConfig())
	logits := func(ids []int64, mask []int64) []float32 {
		b := batch(c.Ctx, ids, 2, false)
		if mask != nil {
			b.Tensors[data.AttentionMask] = tensor.FromSlice(c.Ctx, mask, 2, len(mask)/2)
		}
		return tensor.ToSlice[float32](c.Ctx, m.Forward(c, b).Logits)
	}
	ids := tokens(2, 6, 61)
	all := logits(ids, nil)
	changed := append([]int64(nil), ids...)
	changed[4], changed[5] = 60, 59 // the end of row 0
	other := logits(changed, nil)
	require.Equal(t, all[:4*61], other[:4*61])
	require.NotEqual(t, all[4*61:6*61], other[4*61:6*61])
	require.Equal(t, all[6*61:], other[6*61:])

	require.Equal(t, all, logits(ids, []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}))
	hidden := []int64{1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	masked := logits(ids, hidden)
	require.Equal(t, all[:2*61], masked[:2*61])
	require.NotEqual(t, all[3*61:], masked[3*61:])
	changed = append([]int64(nil), ids...)
	changed[2] = 60 // under the mask
	require.Equal(t, masked[3*61:], logits(changed, hidden)[3*61:])
}

// The embedding of positions takes them from the batch, or from the context; otherwise it counts.
func TestPositions(t *testing.T) {
	c := evaluation()
	cfg := smallConfig()
	cfg.InitializerRange = 0.2
	m := newModel(t, tensor.CPU(), cfg)
	const v = 61
	logits := func(ids []int64, positions, mask []int64) []float32 {
		b := batch(c.Ctx, ids, 1, false)
		if positions != nil {
			b.Tensors[data.PositionIDs] = tensor.FromSlice(c.Ctx, positions, 1, len(positions))
		}
		if mask != nil {
			b.Tensors[data.AttentionMask] = tensor.FromSlice(c.Ctx, mask, 1, len(mask))
		}
		return tensor.ToSlice[float32](c.Ctx, m.Forward(c, b).Logits)
	}
	ids := tokens(1, 5, v)
	counted := logits(ids, nil, nil)
	require.Equal(t, counted, logits(ids, []int64{0, 1, 2, 3, 4}, nil))
	later := logits(ids, []int64{3, 4, 5, 6, 7}, nil)
	require.NotEqual(t, counted, later)
	padded := logits(append([]int64{0, 0}, ids...), []int64{0, 0, 0, 1, 2, 3, 4}, []int64{0, 0, 1, 1, 1, 1, 1})
	require.InDeltaSlice(t, counted, padded[2*v:], 2e-5, "padding on the left takes no positions")

	require.Len(t, logits(tokens(1, 20, v), []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, nil),
		20*v, "a row of two documents may be longer than n_positions")
	require.ErrorContains(t, tensor.Try(func() { logits(ids, []int64{12, 13, 14, 15, 16}, nil) }), "16")
	require.ErrorContains(t, tensor.Try(func() { logits(ids, []int64{0, 1}, nil) }),
		"positions of shape [1 2] for tokens of shape [1 5]")

	cache := m.NewCache(c, 1)
	defer cache.Free()
	for i, id := range ids {
		at := c.WithPositions(tensor.FromSlice(c.Ctx, []int32{int32(i) + 3}, 1, 1))
		y := m.Next(at, tensor.FromSlice(c.Ctx, []int64{id}, 1, 1), cache)
		require.InDeltaSlice(t, later[i*v:(i+1)*v], tensor.ToSlice[float32](c.Ctx, y), 2e-5, "token %d", i)
	}
}

func TestForwardRefuses(t *testing.T) {
	c := evaluation()
	m := newModel(t, tensor.CPU(), smallConfig())
	forward := func(ids []int64, rows int) error {
		return tensor.Try(func() { m.Forward(c, batch(c.Ctx, ids, rows, true)) })
	}
	require.EqualError(t, forward(tokens(2, 17, 61), 2),
		"gpt2.Forward: 17 tokens after 0: want at most n_positions = 16 in all (in transformer)")
	require.NoError(t, forward(tokens(2, 16, 61), 2))
	require.ErrorContains(t, forward([]int64{1, 61}, 1), "61")
	flat := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: tensor.FromSlice(c.Ctx, tokens(1, 5, 61), 5)}}
	require.EqualError(t, tensor.Try(func() { m.Forward(c, flat) }),
		"gpt2.Forward: input_ids of shape [5]: want [batch, tokens] (in transformer)")
	require.EqualError(t, tensor.Try(func() { m.Forward(c, &data.Batch{}) }),
		"data.Batch: the batch has no input_ids: it has nothing")
}

// Each activation and the unscaled scores make a difference, and nothing else does.
func TestConfigSwitches(t *testing.T) {
	c := evaluation()
	seen := map[string]string{}
	for name, change := range map[string]func(*gpt2.Config){
		"default": func(*gpt2.Config) {}, "gelu": func(c *gpt2.Config) { c.ActivationFunction = "gelu" },
		"relu": func(c *gpt2.Config) { c.ActivationFunction = "relu" }, "silu": func(c *gpt2.Config) {
			c.ActivationFunction = "silu"
		},
		"unscaled": func(c *gpt2.Config) { c.ScaleAttnWeights = false }, "inner": func(c *gpt2.Config) {
			n := 40
			c.NInner = &n
		},
		"untied": func(c *gpt2.Config) { c.TieWordEmbeddings = false }, "eps": func(c *gpt2.Config) {
			c.LayerNormEpsilon = 0.1
		},
	} {
		cfg := smallConfig()
		cfg.InitializerRange = 0.2
		change(&cfg)
		m := newModel(t, tensor.CPU(), cfg)
		bits := string(tensor.ReadBytes(c.Ctx, m.Forward(c, batch(c.Ctx, tokens(1, 6, 61), 1, false)).Logits))
		require.NotContains(t, seen, bits, "%s and %s compute the same", name, seen[bits])
		seen[bits] = name
	}
}

// A clone on another device computes the same and shares nothing.
func TestClone(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	m := newModel(t, tensor.CPU(), smallConfig())
	n, err := nn.Clone(m, dev)
	require.NoError(t, err)
	require.Same(t, n.Transformer.WTE.Weight, n.LMHead.Weight, "tied stay tied")
	require.Equal(t, m.Cfg, n.Cfg)
	require.NotSame(t, m.Cfg.EosTokenID, n.Cfg.EosTokenID)
	logits := func(m *gpt2.Model, dev *tensor.Device) []byte {
		c := nn.NewCtx(tensor.NewCtx(dev).NoGrad(), nil, false)
		return tensor.ReadBytes(c.Ctx, m.Forward(c, batch(c.Ctx, tokens(2, 5, 61), 2, false)).Logits)
	}
	want := logits(m, tensor.CPU())
	require.Equal(t, want, logits(n, dev))
	for _, p := range nn.NamedParameters(m) {
		tensor.FillInto(tensor.NewCtx(tensor.CPU()).NoGrad(), p.Tensor, 0)
	}
	require.Equal(t, want, logits(n, dev))
}
