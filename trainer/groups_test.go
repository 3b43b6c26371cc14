// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// groupRates is SGD in two groups: the line's slope at the rate a, its intercept at the rate b.
func groupRates(m *line, a, b float64) trainer.Option {
	return trainer.WithOptimizer(func(c *tensor.Ctx, _ []*optim.Group) *optim.Optimizer {
		return optim.SGD{}.New(c, []*optim.Group{
			{Params: []tensor.Named{{Name: "a", Tensor: m.A.Tensor}}, LR: a},
			{Params: []tensor.Named{{Name: "b", Tensor: m.B.Tensor}}, LR: b},
		})
	})
}

// A step of SGD without clipping moves a parameter by its gradient times its group's rate, so that
// halving one group's rate halves that group's first step and leaves the other's.
func TestParameterGroupsKeepTheirLearningRates(t *testing.T) {
	data := trainer.WithTrainData(columnsOf(points(64)).rows(0, 64))
	moved := func(a, b float64) (float64, float64) {
		m := newLine(0, 0)
		_, err := newTrainer(vfs.NewMem(), m,
			lineArgs(func(x *args.TrainingArguments) { x.MaxSteps, x.MaxGradNorm = 1, 0 }), data,
			groupRates(m, a, b)).Train()
		require.NoError(t, err)
		slope, intercept := m.values(t)
		return float64(slope), float64(intercept)
	}
	a1, b1 := moved(0.25, 0.25)
	a2, b2 := moved(0.125, 0.25)
	require.NotZero(t, a1)
	require.Equal(t, a1/2, a2)
	require.Equal(t, b1, b2)

	disk, set := vfs.NewMem(), func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 6 }
	whole := newLine(0, 0)
	_, err := newTrainer(disk, whole, lineArgs(set), data, groupRates(whole, 0.01, 0.1)).Train()
	require.NoError(t, err)
	var saved struct {
		LastLR  float64   `json:"last_lr"`
		BaseLRs []float64 `json:"base_lrs"`
	}
	ck, err := (&checkpoint.Store{Dir: out, FS: disk, Log: quiet}).Open(ctx, "checkpoint-12")
	require.NoError(t, err)
	require.NoError(t, ck.ReadJSON("scheduler.json", &saved))
	require.Equal(t, []float64{0.01, 0.1}, saved.BaseLRs)
	require.InDelta(t, 0.005, saved.LastLR, 1e-12)

	log := &messages{}
	for rate, told := range map[float64]bool{0.1: false, 0.2: true} {
		resumed := newLine(0, 0)
		_,
			err = newTrainer(disk, resumed, lineArgs(set, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = "out/checkpoint-12"
		}), data,
			groupRates(resumed, 0.01, rate), trainer.WithLogger(slog.New(slog.NewTextHandler(log, nil)))).Train()
		require.NoError(t, err)
		require.Equal(t, !told, reflect.DeepEqual(weights(whole), weights(resumed)))
	}
	require.Contains(t, log.String(), "changed learning rates")

	for _, rate := range []float64{0, -1, math.NaN()} {
		m := newLine(0, 0)
		_, err = newTrainer(vfs.NewMem(), m, lineArgs(), data, groupRates(m, 0.1, rate)).Train()
		requireOneError(t, err, "parameter group 1", "learning rate")
	}
}

// Before the optimizer's step a callback sees the gradients as backward left them, and the factor that clips them.
func TestPreOptimizerStepSeesGradientsAndTheirClipFactor(t *testing.T) {
	m := newLine(0, 0)
	steps := 0
	_,
		err := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
		a.MaxGradNorm, a.MaxSteps = 0.25, 3
	}),
		trainer.WithTrainData(columnsOf(points(64)).rows(0, 64)),
		on(callbacks.PreOptimizerStep, func(e *callbacks.Event) error {
			steps++
			require.True(t, math.IsNaN(e.Step.GradNorm), "nobody has waited for the device")
			require.NoError(t, e.Await())
			c := tensor.NewCtx(tensor.CPU()).NoGrad()
			var sum float64
			for _, p := range []*nn.Parameter{m.A, m.B} {
				g := float64(tensor.Item(c, p.Grad()))
				sum += g * g
			}
			require.InEpsilon(t, e.Step.GradNorm, math.Sqrt(sum), 1e-6)
			require.InEpsilon(t, 0.25, e.Step.GradNorm*e.Step.ClipFactor, 1e-4)
			return nil
		})).Train()
	require.NoError(t, err)
	require.Equal(t, 3, steps)
}

// param_groups and layerwise_lr_decay multiply what a step of SGD changes, and weight_decay adds its share.
func TestParamGroups(t *testing.T) {
	moved := func(decay float64, groups map[string]any) map[string][]float32 {
		m := newGPT2(t, 0)
		a := lineArgs(func(a *args.TrainingArguments) {
			a.MaxSteps, a.MaxGradNorm, a.Optim, a.LearningRate = 1, 0, args.OptimSGD, 0.5
			a.ParamGroups, a.LayerwiseLRDecay = groups, decay
		})
		read := func() map[string][]float32 {
			all, c := map[string][]float32{}, tensor.NewCtx(tensor.CPU())
			for _, p := range nn.NamedParameters(m) {
				all[p.Name] = tensor.ToSlice[float32](c, p.Tensor)
			}
			return all
		}
		before := read()
		_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(texts(8))).Train()
		require.NoError(t, err)
		after := read()
		for name, x := range after {
			for i := range x {
				x[i] -= before[name][i]
			}
		}
		return after
	}
	plain := moved(1, nil)
	layered := moved(0.5, nil)
	ruled := moved(0.5, map[string]any{`^transformer\.wte`: "lr=4", `h\.1\.`: "lr_factor=6"})
	for name, x := range plain {
		factor, own := float32(1), float32(1)
		switch {
		case name == "transformer.wpe.weight":
			factor, own = 0.125, 0.125
		case strings.HasPrefix(name, "transformer.h.0."):
			factor, own = 0.25, 0.25
		case strings.HasPrefix(name, "transformer.h.1."):
			factor, own = 0.5, 3
		case name == "transformer.wte.weight":
			factor, own = 0.125, 8
		}
		for i := range x {
			require.InDelta(t, factor*x[i], layered[name][i], 1e-6, name)
			require.InDelta(t, own*x[i], ruled[name][i], 1e-5, name)
		}
	}
}

func TestParamGroupsRefuse(t *testing.T) {
	for want, groups := range map[string]map[string]any{
		`no parameter of *gpt2.Model matches "head"`:                     {"head": "lr=1"},
		`transformer.wte.weight matches "weight" and "wte": want one pa`: {"wte": "lr=1", "weight": "lr_factor=2"},
		`want a regular expression in place of "("`:                      {"(": "lr=1"},
		`want one of lr and lr_factor for "wte"`:                         {"wte": "lr=1,lr_factor=2"},
		`want lr to be a number ≥ 0 for "wte"`:                           {"wte": "lr=fast"},
		`want lr=…, lr_factor=…, weight_decay=… or frozen_steps=…, n`:    {"wte": "speed=1"},
		`want texts like lr_factor=0.1,weight_decay=0 by regular`:        {"wte": 0.5},
		"frozen_steps freezes all trainable parameters of *gpt2.Model":   {"ln_|h|w": "frozen_steps=5"},
	} {
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), lineArgs(func(a *args.TrainingArguments) {
			a.ParamGroups = groups
		}), trainer.WithTrainData(texts(8))).Train()
		require.ErrorContains(t, err, want)
	}
	_, err := newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(func(a *args.TrainingArguments) {
		a.LayerwiseLRDecay = 0.9
	}), trainer.WithTrainData(columnsOf(points(64)).rows(0, 64))).Train()
	requireOneError(t, err, "layerwise_lr_decay is 0.9", "lists no layers")
}
