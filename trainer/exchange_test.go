// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Beside the gradients, the ranks tell each other of a step what the data need, and agree once.
func TestExchangesOfAStep(t *testing.T) {
	const ranks = 2
	var labels []string
	var all sync.WaitGroup
	for rank, g := range local.New(ranks, comm.Options{}) {
		a := lineArgs(func(a *args.TrainingArguments) { a.MaxSteps, a.LoggingSteps = 6, 100 })
		seen := 0
		watch := on(callbacks.StepBegin, func(e *callbacks.Event) error {
			entries := g.Flight().Entries
			if rank == 0 && e.State.GlobalStep == 4 {
				for _, call := range entries[seen:] {
					labels = append(labels, call.Label)
				}
			}
			seen = len(entries)
			return nil
		})
		tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 4, 1), a, trainer.WithTrainData(source(points(128))),
			trainer.WithGroup(g), watch)
		all.Go(func() {
			_, err := tr.Train()
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.Equal(t, []string{"loss terms", "bucket 0 (layers.1.weight … layers.0.bias)", "parameters in use",
		"losses of a step", "control"}, labels)
}
