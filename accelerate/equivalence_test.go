// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

const (
	equivalenceSteps = 20
	samplesPerStep   = 16
)

// tinyConfig is a GPT-2 without dropout.
func tinyConfig() gpt2.Config {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 67, 24, 32, 2, 4
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	return cfg
}

// ragged is sample number i: 2 to 24 tokens. Samples of one micro-batch have similar
// lengths, so that micro-batches differ much in their number of tokens.
func ragged(i int) []int32 {
	n := 2 + 7*(i/4%4) + i%3*i%2
	s := make([]int32, min(n, 24))
	for j := range s {
		s[j] = int32((i*31 + j*j*(i%7+1) + 3) % 67)
	}
	return s
}

// trainRagged takes the steps with micro-batches of the given size and returns the
// weights. seedCount is the number that a micro-batch's loss sum is divided by, given the micro-batch's
// terms and the window's.
func trainRagged(t *testing.T, batch int, seedCount func(microBatch, window float64) float64) []tensor.Named {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = batch, samplesPerStep/batch
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	m, err := gpt2.New(nn.NewInit(acc.Device(), 3), tinyConfig())
	require.NoError(t, err)
	decay := nn.DecayNames(m)
	newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		groups := []*optim.Group{{LR: 1e-3, WeightDecay: 0.01}, {LR: 1e-3}}
		for _, p := range params {
			g := groups[1]
			if decay[p.Name] {
				g = groups[0]
			}
			g.Params = append(g.Params, p)
		}
		return optim.DefaultAdamW().New(c, groups), nil
	}
	require.NoError(t, acc.Prepare(t.Context(), m, newOptimizer))
	collate := data.CausalLM(0)
	for s := range equivalenceSteps {
		var microBatches []*data.Batch
		var count float64
		for l := range samplesPerStep / batch {
			var samples [][]int32
			for i := range batch {
				samples = append(samples, ragged(s*samplesPerStep+l*batch+i))
			}
			b, err := collate(acc.Ctx(), samples)
			require.NoError(t, err)
			count += b.Count
			microBatches = append(microBatches, b)
		}
		acc.ZeroGrad()
		for l, b := range microBatches {
			acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor {
				acc.Backward(c, m.Forward(c, b).Loss, seedCount(b.Count, count), l, false)
				return nil
			})
		}
		require.NoError(t, acc.Reduce(t.Context()))
		clip(t, acc, 1)
		require.NoError(t, acc.Step(t.Context()))
	}
	return nn.NamedParameters(m)
}

// distance is ‖x−y‖₂/‖y‖₂ over all parameters, and in the tensor where it is largest.
func distance(t *testing.T, xs, ys []tensor.Named) (overall, worst float64, worstName string) {
	require.Len(t, ys, len(xs))
	var d, n float64
	for i, x := range xs {
		require.Equal(t, x.Name, ys[i].Name)
		a, b := values(x), values(ys[i])
		var di, ni float64
		for j := range a {
			di += (a[j] - b[j]) * (a[j] - b[j])
			ni += b[j] * b[j]
		}
		if r := math.Sqrt(di / ni); r > worst {
			worst, worstName = r, x.Name
		}
		d, n = d+di, n+ni
	}
	return math.Sqrt(d / n), worst, worstName
}

// values are a parameter's elements, without the keys' third of an attention bias: a
// constant added to all keys changes no softmax, so that its true gradient is zero, and
// Adam, which divides a gradient by its own size, makes full steps out of the rounding
// errors that are left. Their signs are noise.
func values(p tensor.Named) []float64 {
	c := tensor.NewCtx(p.Device()).NoGrad()
	x := tensor.ToSlice[float64](c, tensor.Cast(c, p.Tensor, tensor.Float64))
	if strings.HasSuffix(p.Name, "attn.c_attn.bias") {
		n := len(x) / 3
		return append(x[:n:n], x[2*n:]...)
	}
	return x
}

// Sixteen samples in one batch and in four accumulated ones train the same model, though
// the sequences are ragged; the mean of the micro-batches' means, the classical mistake,
// does not pass the same measure.
func TestAccumulationEquivalence(t *testing.T) {
	if testing.Short() {
		t.Skip("one rank: not under the race detector")
	}
	byWindow := func(_, window float64) float64 { return window }
	whole := trainRagged(t, 16, byWindow)
	overall, worst, name := distance(t, trainRagged(t, 4, byWindow), whole)
	t.Logf("4×4: ‖Δ‖/‖w‖ = %.2g, largest %.2g in %s", overall, worst, name)
	require.Less(t, overall, 1e-6)
	require.Less(t, worst, 1e-5, name)

	meanOfMeans := func(microBatch, _ float64) float64 { return microBatch * samplesPerStep / 4 }
	overall, worst, name = distance(t, trainRagged(t, 4, meanOfMeans), whole)
	t.Logf("mean of means: ‖Δ‖/‖w‖ = %.2g, largest %.2g in %s", overall, worst, name)
	require.Greater(t, overall, 1e-3)
	require.Greater(t, worst, 1e-2)
}
