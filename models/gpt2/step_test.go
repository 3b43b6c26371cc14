// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// rig trains a model by AdamW on one batch.
type rig struct {
	m    *gpt2.Model
	c    *tensor.Ctx
	tree *nn.Tree
	opt  *optim.Optimizer
	ids  []int64
	rows int
	step int64

	recompute bool
	logits    bool // compute the logits as a whole, too
}

func newRig(t testing.TB, dev *tensor.Device, cfg gpt2.Config, rows, length int) *rig {
	r := &rig{m: newModel(t, dev, cfg), c: tensor.NewCtx(dev), ids: tokens(rows, length, cfg.VocabSize), rows: rows}
	r.tree = nn.Walk(r.m)
	group := &optim.Group{LR: 1e-3, WeightDecay: 0.01}
	group.Params = r.tree.Parameters()
	r.opt = optim.DefaultAdamW().New(r.c, []*optim.Group{group})
	return r
}

// train takes one step and returns the loss.
func (r *rig) train() (loss float64) {
	c := nn.NewCtx(r.c.WithRandom(3, r.step*int64(r.rows)), r.tree, true)
	if r.recompute {
		c = c.WithRecompute(r.m.RecomputeUnits())
	}
	if !r.logits {
		c = c.WithLossOnly()
	}
	r.step++
	r.opt.ZeroGrad()
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		b := batch(c.Ctx, r.ids, r.rows, true)
		out := r.m.Forward(c, b)
		loss = tensor.Item(c.Ctx, out.Loss) / float64(b.Count)
		seed := tensor.Full(c.Ctx, tensor.Float32, 1/float64(b.Count))
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, []*tensor.Tensor{seed}, nil)
		return nil
	})
	optim.ClipGradNorm(r.c, r.opt.Params(), 1)
	r.opt.Step(r.c)
	return loss
}

// digest identifies the bits of all weights and gradients.
func (r *rig) digest() string {
	h := sha256.New()
	for _, p := range r.tree.Parameters() {
		h.Write(tensor.ReadBytes(r.c, p.Tensor))
		h.Write(tensor.ReadBytes(r.c, p.Grad()))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// stepConfig is large enough that the kernels divide the work.
func stepConfig() gpt2.Config {
	cfg := smallConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NHead = 509, 48, 96, 4
	return cfg
}

func digest(t *testing.T, workers, steps int, recompute bool) string {
	dev := tensor.NewCPU(workers)
	defer dev.Close()
	r := newRig(t, dev, stepConfig(), 3, 48)
	r.recompute = recompute
	for range steps {
		r.train()
	}
	return r.digest()
}

// A training step, dropout and clipping included, gives the same bits with any number of
// workers, twice, and with gradient checkpointing, under each kernel variant.
func TestStepBits(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		want := digest(t, 1, 2, false)
		require.Equal(t, want, digest(t, 1, 2, false), "the same again")
		for _, workers := range []int{2, 3, 8} {
			require.Equal(t, want, digest(t, workers, 2, false), "%d workers", workers)
		}
		require.Equal(t, want, digest(t, 2, 2, true), "gradient checkpointing")
		require.NotEqual(t, want, digest(t, 1, 1, false))
	})
}

// Without logits the loss has the same bits; the gradients have other roundings, tied or not.
func TestLossOnly(t *testing.T) {
	for _, tied := range []bool{true, false} {
		grads := func(logits bool) (float64, map[string][]float32, *gpt2.Model) {
			cfg := stepConfig()
			cfg.TieWordEmbeddings = tied
			r := newRig(t, tensor.CPU(), cfg, 3, 48)
			r.logits = logits
			hooks := map[string]int{}
			for _, p := range r.tree.Parameters() {
				p.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { hooks[p.Name]++ })
			}
			loss := r.train()
			out := map[string][]float32{}
			for _, p := range r.tree.Parameters() {
				out[p.Name] = tensor.ToSlice[float32](r.c, p.Grad())
				require.Equal(t, 1, hooks[p.Name], p.Name)
			}
			return loss, out, r.m
		}
		wantLoss, want, _ := grads(true)
		loss, got, m := grads(false)
		require.Equal(t, wantLoss, loss)
		for name, g := range want {
			require.InDeltaSlice(t, g, got[name], 1e-6, name)
		}
		c := evaluation().WithLossOnly()
		ids := tokens(2, 5, 61)
		out := m.Forward(c, batch(c.Ctx, ids, 2, true))
		require.Nil(t, out.Logits)
		require.Equal(t, tensor.ReadBytes(c.Ctx, m.Forward(evaluation(), batch(c.Ctx, ids, 2, true)).Loss),
			tensor.ReadBytes(c.Ctx, out.Loss))
		require.NotNil(t, m.Forward(c, batch(c.Ctx, ids, 2, false)).Logits,
			"without labels the logits are all there is")
	}
}

// A step without logits needs less memory where they are larger than the head's gradient.
func TestLossOnlyMemory(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's
	}
	peak := func(logits bool) int64 {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		cfg := smallConfig()
		cfg.VocabSize, cfg.NPositions = 60_000, 1024
		r := newRig(t, dev, cfg, 1, 1024)
		r.logits = logits
		r.train()
		return dev.MemStats().Peak - dev.MemStats().InUse
	}
	with, without := peak(true), peak(false)
	t.Logf("peak beyond what a step leaves: %d MiB with logits, %d MiB without", with>>20, without>>20)
	require.Less(t, without, with/2)
}

// A model learns one batch by heart.
func TestStepLearns(t *testing.T) {
	cfg := smallConfig()
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	r := newRig(t, tensor.CPU(), cfg, 2, 16)
	r.opt.Groups()[0].LR = 1e-2
	first := r.train()
	for range 80 {
		r.train()
	}
	require.Less(t, r.train(), 0.1)
	require.Greater(t, first, 3.0)
}

// Gradients are there only from backward to ZeroGrad, and take the place of activations. Gradient checkpointing needs
// less memory, and no step leaves any behind.
func TestStepMemory(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's
	}
	peak := func(recompute bool) int64 {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		cfg := stepConfig()
		cfg.NLayer = 6
		r := newRig(t, dev, cfg, 12, 48)
		r.recompute = recompute
		r.opt.State() // it is made when it is first needed
		before, gradients := dev.MemStats().InUse, int64(4*nn.NumParameters(r.m))
		for range 3 {
			r.train()
			require.Equal(t, before+gradients, dev.MemStats().InUse)
			r.opt.ZeroGrad()
			require.Equal(t, before, dev.MemStats().InUse)
		}
		return dev.MemStats().Peak - before
	}
	plain, checkpointed := peak(false), peak(true)
	t.Logf("peak beyond weights and optimizer state: %d KiB, %d KiB with checkpointing", plain>>10, checkpointed>>10)
	require.Less(t, checkpointed, plain*2/3)
}

// The garbage of a step is that of its graph: bounded, and the same for any batch.
func TestStepAllocations(t *testing.T) {
	allocs := func(rows, length int) float64 {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		r := newRig(t, dev, smallConfig(), rows, length)
		r.train()
		return testing.AllocsPerRun(10, func() { r.train() })
	}
	small, large := allocs(1, 4), allocs(8, 16)
	t.Logf("%v allocations per step, %v with 32 times the tokens", small, large)
	require.Less(t, large, 1400.0)
	require.InDelta(t, small, large, 50)
}
