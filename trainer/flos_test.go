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

// TestTotalFLOPs counts as transformers does: 6 × numbers of the main input × parameters without those of embeddings
// (PreTrainedModel.floating_point_ops), also for a model some of whose parameters are frozen.
func TestTotalFLOPs(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		for _, replicas := range []int{1, 2} {
			m := newGPT2(t, 0)
			if frozen {
				m.Transformer.H[0].MLP.CFC.Weight.SetRequiresGrad(false)
			}
			tr := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
				a.MaxSteps, a.NumReplicas, a.GlobalTrainBatchSize = 5, replicas, 16
			}), trainer.WithTrainData(texts(64)))
			_, err := tr.Train()
			require.NoError(t, err)
			counted := nn.NumParameters(m) - (13+8)*8 // without wte (and the head that shares it) and wpe
			require.EqualValues(t, 6*5*16*6*counted, tr.State().TotalFLOPs)
			require.NoError(t, tr.Close())
		}
	}
	tr := newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithTrainData(columnsOf(points(64)).rows(0, 64)))
	_, err := tr.Train()
	require.NoError(t, err)
	require.Zero(t, tr.State().TotalFLOPs, "a module that is no model of the library has none, as in transformers")
}
