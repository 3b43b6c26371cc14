// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/trainer"
)

// lengthCase is a row of arithmetic.json: what transformers' Trainer derives from the
// length of the data. The four last are nil where it refuses.
type lengthCase struct {
	size, batch, accumulation int
	epochs                    float64
	maxSteps                  int
	dropLast                  bool
	wantSteps, wantEpochs     *int64
	wantPerEpoch, wantBatches *int64
}

func (c *lengthCase) UnmarshalJSON(text []byte) error {
	row := []any{&c.size, &c.batch, &c.accumulation, &c.epochs, &c.maxSteps, &c.dropLast, &c.wantSteps, &c.wantEpochs,
		&c.wantPerEpoch, &c.wantBatches}
	n := len(row)
	if err := json.Unmarshal(text, &row); err != nil {
		return err
	}
	if len(row) != n {
		return fmt.Errorf("%d columns", len(row))
	}
	return nil
}

func TestStepArithmeticOfTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/arithmetic.json")
	require.NoError(t, err)
	var table struct{ Rows []lengthCase }
	require.NoError(t, json.Unmarshal(text, &table))
	require.Greater(t, len(table.Rows), 400)
	list := points(65)
	refused := 0
	for _, c := range table.Rows {
		name := fmt.Sprintf("%+v", c)
		steps, epochs, err := planned(t, source(list[:c.size]), lineArgs(func(a *args.TrainingArguments) {
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.NumTrainEpochs = c.batch, c.accumulation, c.epochs
			a.MaxSteps, a.DataloaderDropLast = c.maxSteps, c.dropLast
		}))
		if c.wantSteps == nil {
			require.ErrorContains(t, err, "nothing to train on", name)
			refused++
			continue
		}
		require.ErrorIs(t, err, errEnough, name)
		require.Equal(t, *c.wantSteps, steps, name)
		require.Equal(t, *c.wantEpochs, epochs, name)
		batches, err := samplers.NewBatch(samplers.NewSequential(int64(c.size)), c.batch, c.dropLast)
		require.NoError(t, err)
		require.Equal(t, *c.wantBatches, batches.Len(), name)
		require.Equal(t, *c.wantPerEpoch, samplers.UpdatesPerEpoch(batches.Len(), int64(c.accumulation)), name)
	}
	require.Positive(t, refused)
}

var errEnough = errors.New("that is all the test needs to know")

// planned begins a run and gives the length that the trainer has planned.
func planned(t *testing.T, src data.Source, a *args.TrainingArguments) (steps, epochs int64, err error) {
	_, err = newTrainer(vfs.NewMem(), newLine(0, 0), a, trainer.WithTrainData(src),
		on(callbacks.TrainBegin, func(e *callbacks.Event) error {
			steps, epochs = e.State.MaxSteps, e.State.NumTrainEpochs
			return errEnough
		})).Train()
	return steps, epochs, err
}
