// SPDX-License-Identifier: Apache-2.0

package confusion

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// The figures are scikit-learn's of the same labels and guesses.
func TestMatrix(t *testing.T) {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nil, false)
	update := func(m *Matrix, labels []int64, guesses ...int) {
		logits := make([]float32, len(guesses)*3)
		for i, g := range guesses {
			logits[i*3+g] = 1
		}
		require.NoError(t, m.Update(c, models.Output{Logits: tensor.FromSlice(c.Ctx, logits, len(guesses), 3)},
			&data.Batch{Tensors: map[string]*tensor.Tensor{data.Labels: tensor.FromSlice(c.Ctx, labels, len(labels))}}))
	}
	m := New([]string{"cat", "dog", "eel"})
	other := m.ForRank().(*Matrix)
	update(m, []int64{0, 0, 1, tensor.IgnoreIndex}, 0, 1, 1, 2)
	update(other, []int64{2, 1, 0}, 0, 1, 1)
	var parts [][]byte
	for _, part := range []*Matrix{m, other} {
		b, err := part.ExportPart()
		require.NoError(t, err)
		parts = append(parts, b)
	}
	require.NoError(t, m.MergeParts(parts))
	got := m.Compute(trainer.EvalLoss{})
	require.InDelta(t, 0.5, got["accuracy"], 1e-12)
	require.InDelta(t, (0.4+2.0/3+0)/3, got["f1"], 1e-12) // f1_score([0,0,1,2,1,0], [0,1,1,0,1,1], average="macro")
	var b strings.Builder
	require.NoError(t, m.WriteTable(&b, 1))
	require.Equal(t, `class  precision  recall  F1     samples
cat    0.500      0.333   0.400  3
dog    0.500      1.000   0.667  2
eel    0.000      0.000   0.000  1
most frequent mistakes:
  cat taken for dog: 2 of 3
`, b.String())
	require.EqualError(t, m.MergeParts([][]byte{parts[0], nil}), "rank 1 sent 0 bytes: want 9 counts")
	m.Reset()
	require.Zero(t, m.Compute(trainer.EvalLoss{})["accuracy"])
}
