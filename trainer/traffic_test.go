// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer"
)

// train_sent_bytes of two ranks is half of what all gradients take, for each of the two directions and steps, and what
// ranks say to each other beside; of one rank there is none. The record and the result have the same.
func TestSentBytes(t *testing.T) {
	const steps = 4
	run := func(ranks int, hook args.CommHook) (sent float64, parameters int, ok bool) {
		a := lineArgs(func(a *args.TrainingArguments) {
			a.MaxSteps, a.NumReplicas, a.SaveStrategy, a.DDPCommHook = steps, ranks, args.StrategyNo, hook
			a.PerDeviceTrainBatchSize = 2
		})
		m := newGPT2(t, 0)
		tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(texts(16)))
		res, err := tr.Train()
		require.NoError(t, err)
		sent, ok = res.Metrics["train_sent_bytes"]
		log := tr.State().LogHistory
		require.Equal(t, ok, log[len(log)-1]["train_sent_bytes"] != nil)
		if ok {
			require.Equal(t, sent, log[len(log)-1]["train_sent_bytes"])
		}
		require.NoError(t, tr.Close())
		return sent, nn.NumParameters(m), ok
	}
	_, _, ok := run(1, args.CommHookNo)
	require.False(t, ok)
	whole, parameters, ok := run(2, args.CommHookNo)
	require.True(t, ok)
	gradients := 4 * steps * float64(parameters)
	require.GreaterOrEqual(t, whole, gradients)
	half, _, _ := run(2, args.CommHookBF16)
	require.InEpsilon(t, gradients/2, whole-half, 0.1, "what ranks say beside is the same, and buckets have gaps")
}
