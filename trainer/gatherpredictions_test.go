// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A row of another rank that is no prediction is an error and no panic.
func TestRowsThatAreNoPredictions(t *testing.T) {
	logits := ranks.Array{DType: tensor.Float32, Shape: []int{2}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64}}
	tokens := ranks.Array{DType: tensor.Int64, Shape: []int{1}, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}}
	labels := ranks.Array{DType: tensor.Float64, Data: []byte{0, 0, 0, 0, 0, 0, 0, 192}}
	p, err := trainer.PredictionOf(ranks.Row{Index: 3, Arrays: []ranks.Array{logits, labels}})
	require.NoError(t, err)
	require.Equal(t, trainer.Prediction{Index: 3, Shape: []int{2}, Logits: []float32{1, 2}, Labels: []float64{-2}}, p)
	p, err = trainer.PredictionOf(ranks.Row{Index: 3, Arrays: []ranks.Array{
		{DType: tensor.Float32, Shape: []int{0}}, labels, tokens, tokens}})
	require.NoError(t, err)
	require.Equal(t, trainer.Prediction{Index: 3, Labels: []float64{-2}, Prompt: []int{7},
		Generated: []int{7}}, p)
	for _, arrays := range [][]ranks.Array{nil, {labels}, {logits, logits}, {logits, labels, labels}, {logits, tokens},
		{tokens, tokens}, {logits, tokens, tokens, tokens}} {
		_, err := trainer.PredictionOf(ranks.Row{Index: 3, Arrays: arrays})
		require.EqualError(t, err, "sample 3: want logits in float32 and, if there are any, labels in float64, "+
			"and a prompt and generated tokens in int64")
	}
}
