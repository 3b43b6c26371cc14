// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

func TestPlanSteps(t *testing.T) {
	for _, c := range []struct {
		microBatches, perStep int64
		epochs                float64
		maxSteps              int64
		want                  samplers.Steps
	}{
		{8, 1, 3, -1, samplers.Steps{MicroBatches: 8, PerStep: 1, UpdatesPerEpoch: 8, MaxSteps: 24, Epochs: 3}},
		{8, 3, 3, -1, samplers.Steps{MicroBatches: 8, PerStep: 3, UpdatesPerEpoch: 3, MaxSteps: 9, Epochs: 3}},
		{2, 5, 3, -1, samplers.Steps{MicroBatches: 2, PerStep: 5, UpdatesPerEpoch: 1, MaxSteps: 3, Epochs: 3}},
		{8, 1, 1.5, -1, samplers.Steps{MicroBatches: 8, PerStep: 1, UpdatesPerEpoch: 8, MaxSteps: 12, Epochs: 2}},
		{7, 2, 0.1, -1, samplers.Steps{MicroBatches: 7, PerStep: 2, UpdatesPerEpoch: 4, MaxSteps: 1, Epochs: 1}},
		{8, 1, 3, 20, samplers.Steps{MicroBatches: 8, PerStep: 1, UpdatesPerEpoch: 8, MaxSteps: 20, Epochs: 3}},
		{8, 1, 0, 16, samplers.Steps{MicroBatches: 8, PerStep: 1, UpdatesPerEpoch: 8, MaxSteps: 16, Epochs: 2}},
		{0, 1, 3, -1, samplers.Steps{MicroBatches: 0, PerStep: 1, UpdatesPerEpoch: 1, MaxSteps: 3, Epochs: 3}},
	} {
		got, err := samplers.PlanSteps(c.microBatches, c.perStep, c.epochs, c.maxSteps)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

func TestPlanStepsErrors(t *testing.T) {
	_, err := samplers.PlanSteps(-1, 0, 0, 0)
	require.EqualError(t, err, "samplers: micro-batches per epoch is -1: want 0 or more\nsamplers: micro-batches per "+
		"step is 0: want at least 1\n"+
		"samplers: max_steps is 0 and num_train_epochs is 0: want one of them above 0")
	for _, epochs := range []float64{math.NaN(), math.Inf(1), -2} {
		_, err = samplers.PlanSteps(1, 1, epochs, -1)
		require.ErrorContains(t, err, "num_train_epochs is")
	}
	_, err = samplers.PlanSteps(1<<40, 1, 1<<40, -1)
	require.ErrorContains(t, err, "steps per epoch is too large")
	_, err = samplers.PlanUnsized(1, 0)
	require.EqualError(t, err, "samplers: max_steps is 0: want at least 1: the training data has no length")
	_, err = samplers.PlanUnsized(0, 1)
	require.EqualError(t, err, "samplers: micro-batches per step is 0: want at least 1")
}

func TestPlanUnsized(t *testing.T) {
	p, err := samplers.PlanUnsized(4, 10)
	require.NoError(t, err)
	require.Equal(t, samplers.Steps{PerStep: 4, UpdatesPerEpoch: 10, MaxSteps: 10, Epochs: math.MaxInt64}, p)
	require.Equal(t, 0.5, p.EpochAt(5))
	require.Equal(t, 1.0, p.EpochAt(10))
}

// The rule in global terms is HuggingFace's per rank: ⌈⌈L/N⌉ / accumulation steps⌉.
func TestUpdatesPerEpochIsPerRankRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, n, gas := rapid.Int64Range(0, 1000).Draw(t, "L"), rapid.Int64Range(1, 20).Draw(t, "N"),
			rapid.Int64Range(1, 20).Draw(t, "accumulation")
		perRank := int64(math.Ceil(float64(l) / float64(n)))
		require.Equal(t, max(int64(math.Ceil(float64(perRank)/float64(gas))), 1), samplers.UpdatesPerEpoch(l, n*gas))
	})
}

// EpochAt follows the stream: the micro-batches done in the present epoch over those of an epoch.
func TestEpochAtFollowsStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t).single()
		s := c.stream(t, 0)
		if s.MicroBatches() == 0 {
			return
		}
		p, err := samplers.PlanSteps(s.MicroBatches(), c.layout.MicroBatches(), 3, -1)
		require.NoError(t, err)
		done := int64(0)
		for step := range p.MaxSteps {
			require.InDelta(t, float64(done)/float64(p.MicroBatches), p.EpochAt(step), 1e-12)
			epoch, within := p.ResumeAt(step)
			w := next(t, s)
			require.Equal(t, []int64{w.Epoch, w.Number}, []int64{epoch, within})
			done += int64(w.MicroBatches)
		}
		require.Equal(t, 3.0, p.EpochAt(p.MaxSteps))
	})
}
