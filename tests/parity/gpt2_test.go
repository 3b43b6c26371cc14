// SPDX-License-Identifier: Apache-2.0

// Package parity compares whole models and training runs with numbers that PyTorch and
// transformers computed; the scripts that made them stand beside the numbers.
package parity

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

const tiny = "../../models/gpt2/testdata/tiny"

// golden reads arrays of a golden file as tensors.
type golden struct {
	t *testing.T
	r *safetensors.Reader
	c *tensor.Ctx
}

func openGolden(t *testing.T, c *tensor.Ctx, name string) golden {
	r, err := safetensors.Open(vfs.OS, name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return golden{t, r, c}
}

func (g golden) tensor(name string) *tensor.Tensor {
	e, ok := g.r.Lookup(name)
	require.True(g.t, ok, name)
	raw, err := g.r.ReadTensor(name)
	require.NoError(g.t, err)
	return tensor.FromBytes(g.c, raw, e.DType, e.Shape...)
}

func loadTiny(t *testing.T) *gpt2.Model {
	m, err := models.LoadPretrained(tensor.CPU(), tiny)
	require.NoError(t, err)
	return m.(*gpt2.Model)
}

func lmBatch(ids, labels *tensor.Tensor) *data.Batch {
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: ids, data.Labels: labels}, Size: ids.Size(0)}
}

func TestGPT2Logits(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	g, m := openGolden(t, c, filepath.Join(tiny, "golden.safetensors")), loadTiny(t)
	ids := g.tensor("ids")
	nc := nn.NewCtx(c, nil, false)
	out := m.Forward(nc, lmBatch(ids, ids))
	got, want := tensor.ToSlice[float32](c, out.Logits), tensor.ToSlice[float32](c, g.tensor("logits"))
	require.InDeltaSlice(t, want, got, 1e-4)

	var meta goldenMeta
	readJSON(t, filepath.Join(tiny, "golden.json"), &meta)
	require.InDelta(t, meta.Loss, tensor.Item(c, out.Loss)/float64(3*39), 1e-5)
	labels := g.tensor("labels")
	count := 0
	for i, l := range tensor.ToSlice[int64](c, labels) {
		if i%40 > 0 && l != tensor.IgnoreIndex {
			count++
		}
	}
	masked := m.Forward(nc, lmBatch(ids, labels))
	require.InDelta(t, meta.LossMasked, tensor.Item(c, masked.Loss)/float64(count), 1e-5)
}

// TestGPT2Positions compares tokens whose positions are given: a row that counts, one that is padded on the left, and
// one whose positions restart.
func TestGPT2Positions(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	g, m := openGolden(t, c, "../../models/gpt2/testdata/positions.safetensors"), loadTiny(t)
	b := lmBatch(g.tensor("ids"), g.tensor("labels"))
	b.Tensors[data.AttentionMask], b.Tensors[data.PositionIDs] = g.tensor("mask"), g.tensor("position_ids")
	out := m.Forward(nn.NewCtx(c, nil, false), b)
	got, want := tensor.ToSlice[float32](c, out.Logits), g.floats("logits")
	mask, vocabulary := tensor.ToSlice[int64](c, g.tensor("mask")), m.VocabSize()
	for i, visible := range mask {
		if visible == 1 { // what padding itself computes is nobody's
			require.InDeltaSlice(t, want[i*vocabulary:(i+1)*vocabulary], got[i*vocabulary:(i+1)*vocabulary], 1e-4, i)
		}
	}
	require.InDelta(t, tensor.Item(c, g.tensor("loss")), tensor.Item(c, out.Loss)/(8+4+8), 1e-4)
	delete(b.Tensors, data.PositionIDs)
	counted := tensor.Item(c, m.Forward(nn.NewCtx(c, nil, false), b).Loss) / (8 + 4 + 8)
	require.Greater(t, math.Abs(counted-tensor.Item(c, out.Loss)/(8+4+8)), 1e-3, "positions matter")
}

// TestGPT2LabelSmoothing compares smoothed losses and gradients with those of transformers' LabelSmoother: with logits,
// without them, and added up over two micro-batches.
func TestGPT2LabelSmoothing(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	g, m := openGolden(t, c, "../../models/gpt2/testdata/smoothing.safetensors"), loadTiny(t)
	ids, labels := g.tensor("ids"), g.tensor("labels")
	const count = 8 + 5 + 2
	for name, rows := range map[string][][2]int{
		"logits": {{0, 4}}, "loss only": {{0, 4}}, "accumulated": {{0, 1}, {1, 4}},
	} {
		smoothing := &nn.Smoothing{Factor: 0.15}
		nc := nn.NewCtx(c, nil, false).WithLabelSmoothing(smoothing)
		if name != "logits" {
			nc = nc.WithLossOnly()
		}
		total := 0.0
		for _, r := range rows {
			part := func(t *tensor.Tensor) *tensor.Tensor { return tensor.Slice(c.NoGrad(), t, 0, r[0], r[1]) }
			loss := m.Forward(nc, lmBatch(part(ids), part(labels))).Loss
			total += tensor.Item(c, loss)
			tensor.Backward(c, []*tensor.Tensor{tensor.Affine(c, loss, 1.0/count, 0)}, nil, nil)
		}
		require.True(t, smoothing.Used)
		require.InDelta(t, tensor.Item(c, g.tensor("loss")), total/count, 2e-6, name)
		require.InDelta(t, tensor.Item(c, g.tensor("accumulated")), total/count, 2e-6, name)
		for _, p := range nn.NamedParameters(m) {
			if p.Name != "lm_head.weight" {
				require.InDeltaSlice(t, g.floats("grad."+p.Name), tensor.ToSlice[float32](c, p.Grad()), 2e-6,
					"%s: %s", name, p.Name)
			}
			p.ZeroGrad()
		}
	}
}

type goldenMeta struct {
	Loss       float64   `json:"loss"`
	LossMasked float64   `json:"loss_masked"`
	Losses     []float64 `json:"losses"`
	Decayed    []string  `json:"decayed"`
}

func readJSON(t *testing.T, name string, v any) {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, v))
}

// TestGPT2TenAdamWSteps trains on ten fixed batches and compares losses and final weights
// with PyTorch's: ‖Δ‖/‖w‖ over all parameters and for each tensor.
func TestGPT2TenAdamWSteps(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	g, m := openGolden(t, c, filepath.Join(tiny, "golden.safetensors")), loadTiny(t)
	var meta goldenMeta
	readJSON(t, filepath.Join(tiny, "golden.json"), &meta)

	decay := nn.DecayNames(m)
	require.Len(t, decay, len(meta.Decayed))
	groups := []*optim.Group{{LR: 1e-3, WeightDecay: 0.01}, {LR: 1e-3}}
	for _, p := range nn.NamedParameters(m) {
		i := 1
		if decay[p.Name] {
			require.Contains(t, meta.Decayed, p.Name)
			i = 0
		}
		groups[i].Params = append(groups[i].Params, p)
	}
	opt := optim.DefaultAdamW().New(c, groups)
	steps := g.tensor("steps/ids")
	for s, want := range meta.Losses {
		ids := tensor.Select(c, steps, 0, s)
		opt.ZeroGrad()
		nn.NewCtx(c, nil, true).Scope(func(nc *nn.Ctx) []*tensor.Tensor {
			out := m.Forward(nc, lmBatch(ids, ids))
			n := float64(ids.Size(0) * (ids.Size(1) - 1))
			require.InDelta(t, want, tensor.Item(nc.Ctx, out.Loss)/n, 1e-4, "step %d", s)
			seed := tensor.Full(nc.Ctx, tensor.Float32, 1/n)
			tensor.Backward(nc.Ctx, []*tensor.Tensor{out.Loss}, []*tensor.Tensor{seed}, nil)
			return nil
		})
		if s == 0 {
			compareGradients(t, c, g, m)
		}
		opt.Step(c)
	}
	var d, n distance
	for _, p := range nn.NamedParameters(m) {
		got, want := tensor.ToSlice[float32](c, p.Tensor), tensor.ToSlice[float32](c, g.tensor("final/"+p.Name))
		got, want = withoutKeyBias(p.Name, got), withoutKeyBias(p.Name, want)
		var di, ni distance
		for i := range got {
			di.add(float64(got[i]) - float64(want[i]))
			ni.add(float64(want[i]))
		}
		require.Less(t, di.norm()/ni.norm(), 1e-4, p.Name)
		d, n = d+di, n+ni
	}
	t.Logf("‖Δ‖/‖w‖ = %.3g", d.norm()/n.norm())
	require.Less(t, d.norm()/n.norm(), 1e-5)
}

type distance float64

func (d *distance) add(x float64) { *d += distance(x * x) }
func (d distance) norm() float64  { return math.Sqrt(float64(d)) }

// withoutKeyBias leaves out the keys' third of an attention bias. A constant added to all
// keys changes no softmax, so its true gradient is zero, and Adam divides rounding
// errors by their own size: the sign of each update is noise.
func withoutKeyBias(name string, x []float32) []float32 {
	if !strings.HasSuffix(name, "attn.c_attn.bias") {
		return x
	}
	n := len(x) / 3
	return append(append([]float32(nil), x[:n]...), x[2*n:]...)
}

// compareGradients checks the first step's gradients one by one.
func compareGradients(t *testing.T, c *tensor.Ctx, g golden, m nn.Module) {
	for _, p := range nn.NamedParameters(m) {
		want := tensor.ToSlice[float32](c, g.tensor("grad/"+p.Name))
		got := tensor.ToSlice[float32](c, p.Grad())
		var scale float64
		for _, w := range want {
			scale = max(scale, math.Abs(float64(w)))
		}
		require.InDeltaSlice(t, want, got, 1e-5*scale+1e-7, p.Name)
	}
}
