// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A number in the data that the model cannot use is an error that names it, its sample, and what is possible, without a
// stack: in a training step, on any device, and in an evaluation.
func TestNumbersThatTheModelDoesNotHave(t *testing.T) {
	type labelled struct {
		Inputs [2]float32
		Labels int64
	}
	classes := make(data.Slice[labelled], 40)
	for i := range classes {
		classes[i].Labels = int64(i % 3)
	}
	classes[21].Labels = 3
	sequences := make(data.Slice[text], 40)
	for i := range sequences {
		sequences[i] = text{make([]int32, 6), make([]int32, 6)}
	}
	type shiftedText struct{ InputIDs, ShiftLabels []int32 }
	shifted := make(data.Slice[shiftedText], 40)
	for i := range shifted {
		shifted[i] = shiftedText{make([]int32, 6), make([]int32, 6)}
	}
	shifted[21].ShiftLabels = []int32{0, 0, 13, 0, 0, 0}
	ids, labels := data.Slice[text]{}, data.Slice[text]{}
	ids, labels = append(ids, sequences...), append(labels, sequences...)
	ids[21] = text{[]int32{0, 0, 0, 0, 13, 0}, sequences[0].Labels}
	labels[21] = text{sequences[0].InputIDs, []int32{0, 0, 0, -1, 0, 0}}
	classifier := func(in *nn.Init) (models.Model, error) {
		return mlp.New(in, mlp.Config{Sizes: []int{2, 3}, Loss: "cross_entropy"})
	}
	language := func(in *nn.Init) (models.Model, error) {
		cfg := gpt2.DefaultConfig()
		cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 8, 8, 1, 2
		cfg.BosTokenID, cfg.EosTokenID = nil, nil
		return gpt2.New(in, cfg)
	}
	for name, c := range map[string]struct {
		model func(in *nn.Init) (models.Model, error)
		src   data.Source
		want  string
	}{
		"a label without a class": {classifier, data.NewSource(classes, data.Stack[labelled]),
			"the label 3 of sample 21 (row 5 of its batch, element 0) is out of range: want 0 to 2 for 3 classes, or " +
				"-100 for no label"},
		"a label of a language model": {language, data.NewSource(labels, data.Stack[text]),
			"the label -1 of sample 21 (row 5 of its batch, element 3) is out of range: want 0 to 12 for 13 classes, " +
				"or -100 for no label"},
		"a shifted label": {language, data.NewSource(shifted, data.Stack[shiftedText]),
			"the label 13 of sample 21 (row 5 of its batch, element 2) is out of range: want 0 to 12 for 13 classes, " +
				"or -100 for no label"},
		"a token": {language, data.NewSource(ids, data.Stack[text]),
			"input_ids has 13 in sample 21 (row 5 of its batch, element 4): want 0 to 12"},
	} {
		dev := joint.Device[*tensor.Device](deferred.New(1))
		for _, d := range []*tensor.Device{tensor.CPU(), dev} {
			a := lineArgs(func(a *args.TrainingArguments) { a.TrainSamplingStrategy = args.SamplingSequential })
			m, err := c.model(nn.NewInit(d, 1))
			require.NoError(t, err)
			tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(c.src), trainer.WithEvalData(c.src),
				trainer.WithDevice(d))
			_, trainErr := tr.Train()
			requireOneError(t, trainErr, "trainer: step 3, rank 0", c.want)
			_, evalErr := tr.Evaluate()
			requireOneError(t, evalErr, "trainer: evaluation after step 2, rank 0: "+c.want)
			for _, err := range []error{trainErr, evalErr} {
				var sample *data.IndexError
				require.ErrorAs(t, err, &sample, name)
				require.EqualValues(t, 21, sample.Sample)
				var panicked *tensor.PanicError
				require.False(t, errors.As(err, &panicked), "program.Run would print its stack")
			}
		}
		require.NoError(t, dev.Close())
	}
}
