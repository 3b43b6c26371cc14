// SPDX-License-Identifier: Apache-2.0

package preference_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/models/preference"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// model has dropout everywhere.
func model(t *testing.T) *gpt2.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 13, 8, 8, 1, 2
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0.3, 0.3, 0.3
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	return m
}

func samples() []chat.PreferenceSample {
	return []chat.PreferenceSample{
		{Chosen: []int32{1, 2, 3, 4}, Rejected: []int32{1, 2, 5}, ChosenStart: 2, RejectedStart: 2},
		{Chosen: []int32{6, 7}, Rejected: []int32{6, 8, 9, 10, 11}, ChosenStart: 1, RejectedStart: 1, Margin: 0.25},
		{Chosen: []int32{3, 3, 3}, Rejected: []int32{3, 3, 12}, ChosenStart: 1, RejectedStart: 1},
	}
}

// step is a step on a batch in training mode: the loss for each pair, the figures and the logits.
func step(t *testing.T, m models.Model, f func(*nn.Ctx, models.Model, *data.Batch) (models.Output, float64, error),
	list []chat.PreferenceSample) (loss float64, figures map[string]float64, logits []float32) {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).WithRandom(3, 0), nil, true)
	b, err := chat.CollatePairs(0)(c.Ctx, list)
	require.NoError(t, err)
	defer b.Free()
	b.Size = len(list)
	figures = map[string]float64{}
	_, err = c.TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
		out, count, err := f(c, m, b)
		if err != nil {
			return nil, err
		}
		logits = tensor.ToSlice[float32](c.Ctx, out.Logits)
		if out.Loss == nil {
			return nil, nil
		}
		require.Equal(t, float64(len(list)), count)
		loss = tensor.Item(c.Ctx, out.Loss) / count
		for name, sum := range out.Figures {
			figures[name] = tensor.Item(c.Ctx, sum) / count
		}
		return nil, nil
	})
	require.NoError(t, err)
	return loss, figures, logits
}

// Before its training a model has the rewards of its reference, since neither has dropout, whatever the model has. A
// control: a reference with dropout has others, and so has a model that keeps its own.
func TestTheReferenceHasNoDropout(t *testing.T) {
	m := model(t)
	twin, err := nn.Clone(m, tensor.CPU())
	require.NoError(t, err)
	d := &preference.DPO{Beta: 0.5, Reference: preference.Frozen(twin)}
	loss, figures, logits := step(t, m, d.Step, samples())
	require.InDelta(t, math.Ln2, loss, 1e-7)
	require.Zero(t, figures["rewards/chosen"])
	require.Zero(t, figures["rewards/margins"])
	require.Negative(t, figures["logps/chosen"])

	dropping := *d
	dropping.Reference = func(c *nn.Ctx, _ models.Model) (*nn.Ctx, models.Model, error) {
		c = nn.NewCtx(c.Ctx, nil, true)
		return c, twin, nil
	}
	other, _, _ := step(t, m, dropping.Step, samples())
	require.Greater(t, math.Abs(other-loss), 1e-4)
	dropping = *d
	dropping.Dropout = true
	other, _, _ = step(t, m, dropping.Step, samples())
	require.Greater(t, math.Abs(other-loss), 1e-4)

	_, _, of := step(t, m, preference.LogProbs(nil), samples())
	require.Equal(t, logits, of)
}

// A model whose adapter is left out, a frozen copy, a frozen copy of the adapter, and log-probabilities that were
// computed before are the same reference.
func TestReferencesAreTheSame(t *testing.T) {
	m := model(t)
	twin, err := nn.Clone(m, tensor.CPU())
	require.NoError(t, err)
	a, err := lora.New(m, lora.Config{R: 2, Init: lora.InitRandom, TargetModules: lora.AllLinear, Dropout: 0.5})
	require.NoError(t, err)
	d := &preference.DPO{Beta: 0.5, Reference: preference.WithoutAdapter(a)}
	loss, figures, _ := step(t, m, d.Step, samples())
	require.Greater(t, math.Abs(loss-math.Ln2), 1e-3)
	d.Reference = preference.Frozen(twin)
	again, others, _ := step(t, m, d.Step, samples())
	require.Equal(t, loss, again)
	require.Equal(t, figures, others)

	_, _, logits := step(t, m, preference.LogProbs(preference.WithoutAdapter(a)), samples())
	list := samples()
	for i := range list {
		list[i].Reference = (*[2]float32)(logits[2*i:])
	}
	d.Reference = nil
	again, _, _ = step(t, m, d.Step, list)
	require.Equal(t, loss, again)

	whole, err := lora.New(model(t), lora.Config{TargetModules: lora.AllLinear, ModulesToSave: []string{"ln_f"}})
	require.NoError(t, err)
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, true)
	_, _, err = preference.WithoutAdapter(whole)(c, m)
	require.ErrorContains(t, err, "want an adapter without them, or a second model")
}

// The losses of log-ratios, by their formulas.
func TestLosses(t *testing.T) {
	m := model(t)
	list := samples()
	_, _, logits := step(t, m, preference.LogProbs(nil), list)
	lengths := [][2]float64{{2, 1}, {1, 4}, {2, 2}}
	for i := range list {
		list[i].Reference = &[2]float32{-1.5 * float32(i), -2}
	}
	logSigmoid := func(x float64) float64 { return -math.Log1p(math.Exp(-x)) }
	for _, d := range []preference.DPO{{Beta: 0.3}, {Beta: 0.3, LabelSmoothing: 0.2},
		{Beta: 0.3, Loss: preference.Hinge}, {Beta: 0.3, Loss: preference.IPO},
		{Beta: 0.3, Loss: preference.Robust, LabelSmoothing: 0.2}} {
		want, right := 0.0, 0.0
		for i, s := range list {
			var ratio [2]float64
			for k := range ratio {
				ratio[k] = float64(logits[2*i+k]) - float64(s.Reference[k])
			}
			delta, e := ratio[0]-ratio[1], d.LabelSmoothing
			if delta > 0 {
				right++
			}
			switch d.Loss {
			case preference.Hinge:
				want += max(0, 1-d.Beta*delta)
			case preference.IPO:
				off := ratio[0]/lengths[i][0] - ratio[1]/lengths[i][1] - 1/(2*d.Beta)
				want += off * off
			case preference.Robust:
				want += (-(1-e)*logSigmoid(d.Beta*delta) + e*logSigmoid(-d.Beta*delta)) / (1 - 2*e)
			default:
				want += -(1-e)*logSigmoid(d.Beta*delta) - e*logSigmoid(-d.Beta*delta)
			}
		}
		loss, figures, _ := step(t, m, d.Step, list)
		require.InEpsilon(t, want/3, loss, 1e-5, "%+v", d)
		require.InDelta(t, right/3, figures["rewards/accuracies"], 1e-6)
	}
}

// A model that scores texts learns by the difference, less the margin, and keeps its scores around 0.
func TestReward(t *testing.T) {
	pad := 0
	m, err := gpt2.ClassifierOn(nn.NewInit(tensor.CPU(), 2), model(t), gpt2.ClassifierConfig{
		ID2Label: models.Labels("score"), PadTokenID: &pad})
	require.NoError(t, err)
	list := samples()
	_, _, scores := step(t, m, (&preference.Reward{}).Step, list)
	want := 0.0
	for i, s := range list {
		chosen, rejected := float64(scores[2*i]), float64(scores[2*i+1])
		want += math.Log1p(math.Exp(-(chosen - rejected - s.Margin))) + 0.5*(chosen+rejected)*(chosen+rejected)
	}
	loss, figures, _ := step(t, m, (&preference.Reward{CenterCoefficient: 0.5}).Step, list)
	require.InEpsilon(t, want/3, loss, 1e-5)
	require.Len(t, figures, len(preference.RewardFigures()))
	dropped, _, _ := step(t, m, (&preference.Reward{CenterCoefficient: 0.5, Dropout: true}).Step, list)
	require.NotEqual(t, loss, dropped)
}

func TestMisuse(t *testing.T) {
	for want, d := range map[string]preference.DPO{
		"loss type \"kto\": want one of":                       {Beta: 1, Loss: "kto"},
		"beta 0: want a positive number":                       {},
		"label smoothing 0.5: want a number from 0":            {Beta: 1, LabelSmoothing: 0.5},
		"label smoothing 0.1 with the loss hinge: want 0":      {Beta: 1, Loss: preference.Hinge, LabelSmoothing: 0.1},
		"has no reference_logps, but input_ids, margin, shift": {Beta: 1},
	} {
		c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, true)
		b, err := chat.CollatePairs(0)(c.Ctx, samples())
		require.NoError(t, err)
		b.Size = 3
		delete(b.Tensors, data.AttentionMask)
		_, _, err = d.Step(c, model(t), b)
		require.ErrorContains(t, err, want)
		_, _, err = (&preference.Reward{}).Step(c, model(t), b)
		require.ErrorContains(t, err, "want one score for each, of a classifier")
		b.Tensors[data.InputIDs] = tensor.Zeros(c.Ctx, tensor.Int64, 3, 4)
		d = preference.DPO{Beta: 1}
		_, _, err = d.Step(c, model(t), b)
		require.ErrorContains(t, err, "input_ids has shape [3 4]: want [3 2 T]")
	}
}
