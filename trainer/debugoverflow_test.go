// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// write sets the values of a parameter.
func write(m models.Model, name string, values ...float32) {
	for _, p := range nn.NamedParameters(m) {
		if p.Name == name {
			c := tensor.NewCtx(p.Device()).NoGrad()
			tensor.CopyInto(c, p.Tensor, tensor.FromSlice(c, values, p.Shape()...))
			return
		}
	}
	panic("no parameter " + name)
}

func overflowArgs(ranks int) *args.TrainingArguments {
	a := rankArgs(ranks)
	a.Debug, a.MaxSteps, a.EvalStrategy = []string{"underflow_overflow"}, 2, args.StrategyNo
	return a
}

// The frames are those that transformers' DebugUnderflowOverflow prints: testdata/debugoverflow.py.
func TestDebugUnderflowOverflow(t *testing.T) {
	m := newMLP(t, 1, 2, 1)
	write(m, "layers.0.weight", 1.5, -0.25)
	write(m, "layers.0.bias", 0.5, 2)
	write(m, "layers.1.weight", 3e38, 1e-3)
	write(m, "layers.1.bias", 2e38)
	a := overflowArgs(1)
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 3, 3
	list := data.Slice[point]{{Inputs: [1]float32{1}}, {Inputs: [1]float32{-2}}, {Inputs: [1]float32{0.125}}}
	_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(source(list))).Train()
	var e *trainer.OverflowError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "layers.1: output[0] infinities", fmt.Sprintf("%s: %s %s", e.Module, e.Value, e.Kind))
	require.ErrorContains(t, err, "trainer: step 1, rank 0, micro-batch 0: debug underflow_overflow: output[0] of "+
		"layers.1 (nn.Linear) has infinities; the last 2 modules")
	requirePermanent(t, err)

	text, err := os.ReadFile("testdata/debugoverflow.txt")
	require.NoError(t, err)
	var want, got []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] != "output" && !strings.HasPrefix(f[0], "Last") {
			want = append(want, strings.Join(f, " "))
		} else if len(f) == 2 && f[1] == "Linear" {
			want = append(want, f[0])
		}
	}
	for _, f := range e.Frames {
		got = append(got, f.Module)
		for _, v := range f.Values {
			line := fmt.Sprintf("%.2e %.2e %s", v.Min, v.Max, v.Name)
			got = append(got, strings.NewReplacer("+Inf", "inf", "output[0]", "output").Replace(line))
		}
	}
	require.Equal(t, want, got)
}

// A weight that is not finite is named, on ranks too, with at most 21 frames; sound runs have the bits that they have
// without the search.
func TestDebugUnderflowOverflowOnRanks(t *testing.T) {
	train := func(m models.Model, a *args.TrainingArguments) error {
		_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51))).Train()
		return err
	}
	plain, watched := newGPT2(t, 0.1), newGPT2(t, 0.1)
	a := overflowArgs(2)
	require.NoError(t, train(watched, a))
	a = overflowArgs(2)
	a.Debug = nil
	require.NoError(t, train(plain, a))
	require.Equal(t, weights(plain), weights(watched))

	write(watched, "transformer.ln_f.bias", 0, 0, 0, float32(math.NaN()), 0, 0, 0, 0)
	err := train(watched, overflowArgs(2))
	var e *trainer.OverflowError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "transformer.ln_f: bias NaN", fmt.Sprintf("%s: %s %s", e.Module, e.Value, e.Kind))
	require.Len(t, e.Frames, 21)
	for _, sharded := range []string{"full_shard", "shard_grad_op"} { // weights are elsewhere there
		a := overflowArgs(2)
		gather(a, sharded)
		err := train(watched, a)
		require.ErrorAs(t, err, &e, sharded)
		require.Equal(t, "transformer.ln_f: output[0] NaN", fmt.Sprintf("%s: %s %s", e.Module, e.Value, e.Kind))
	}
}
