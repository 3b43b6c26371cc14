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
	has := func(parts ...byte) ranks.Array {
		return ranks.Array{DType: tensor.Bool, Shape: []int{len(parts)}, Data: parts}
	}
	logits := ranks.Array{DType: tensor.Float32, Shape: []int{2}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64}}
	tokens := ranks.Array{DType: tensor.Int64, Shape: []int{1}, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}}
	number := ranks.Array{DType: tensor.Float64, Data: []byte{0, 0, 0, 0, 0, 0, 0, 192}}
	empty := ranks.Array{DType: tensor.Float64, Shape: []int{0}}
	row := func(list ...ranks.Array) ranks.Row { return ranks.Row{Index: 3, Arrays: list} }
	for want, r := range map[*trainer.Prediction]ranks.Row{
		{Index: 3, Shape: []int{2}, Logits: []float32{1, 2}, Labels: []float64{-2}}: row(has(1, 1, 0, 0, 0, 0), logits,
			number),
		{Index: 3, Shape: []int{2}, Logits: []float32{1, 2}, Inputs: []float64{-2}, Loss: new(-2.0)}: row(
			has(1, 0, 1, 1, 0, 0), logits, number, number),
		{Index: 3, Labels: []float64{-2}, Prompt: []int{7}, Generated: []int{7}}: row(has(0, 1, 0, 0, 1, 1), number,
			tokens, tokens),
	} {
		p, err := trainer.PredictionOf(r)
		require.NoError(t, err)
		require.Equal(t, *want, p)
	}
	for _, r := range []ranks.Row{row(), row(logits), row(has()), row(has(1), logits), row(has(1, 0, 0, 0, 0, 0)),
		row(has(1, 0, 0, 0, 0, 0), tokens), row(has(0, 0, 0, 1, 0, 0), empty), row(has(0, 0, 0, 0, 1, 0), logits),
		row(has(0, 0, 0, 0, 0, 0), logits)} {
		_, err := trainer.PredictionOf(r)
		require.EqualError(t, err, "sample 3: the gathered arrays are not a prediction")
	}
}
