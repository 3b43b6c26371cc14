// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
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

// averaging is a model whose loss is a mean, the usual mistake of who comes from PyTorch.
type averaging struct {
	Line *line `nn:"line"`
}

func (m *averaging) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	o := m.Line.Forward(c, b)
	o.Loss = tensor.Affine(c.Ctx, o.Loss, 1/float64(b.Size), 0)
	return o
}

// A mean in place of the sum is an error at the first step, in the model or in the loss function, with any number of
// micro-batches and ranks. A mean per micro-batch that counts as one term is what it says.
func TestMeanInPlaceOfTheSum(t *testing.T) {
	square := func(c *nn.Ctx, o models.Output, b *data.Batch) *tensor.Tensor {
		d := tensor.Sub(c.Ctx, o.Logits, b.Tensors[data.Labels])
		return tensor.Mul(c.Ctx, d, d)
	}
	mean := func(c *nn.Ctx, o models.Output, b *data.Batch) *tensor.Tensor {
		return tensor.Mean(c.Ctx, square(c, o, b), nil, false)
	}
	const refused = "halves"
	for name, k := range map[string]struct {
		model models.Model
		loss  trainer.LossFunc
		want  string
	}{
		"sum of the model":  {model: newExactLine(1, 1)},
		"mean of the model": {model: &averaging{newExactLine(1, 1)}, want: refused},
		"mean of the loss function, batch's count": {model: newExactLine(1, 1), want: refused,
			loss: func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				return mean(c, o, b), b.Count
			}},
		"negative mean": {model: newExactLine(1, 1), want: refused,
			loss: func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				return tensor.Affine(c.Ctx, mean(c, o, b), -1e-6, 0), float64(b.Size)
			}},
		"mean as one term": {model: newExactLine(1, 1),
			loss: func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				return mean(c, o, b), 1
			}},
		"sum of the loss function": {model: newExactLine(1, 1),
			loss: func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				return tensor.Sum(c.Ctx, square(c, o, b), nil, false), b.Count
			}},
	} {
		for _, ranks := range []int{1, 2} {
			t.Run(name, func(t *testing.T) {
				a := lineArgs(func(a *args.TrainingArguments) {
					a.NumReplicas, a.GradientAccumulationSteps, a.MaxSteps, a.LearningRate = ranks, 2, 2, 1e-3
				})
				opts := []trainer.Option{trainer.WithTrainData(exactly(points(64)))}
				if k.loss != nil {
					opts = append(opts, trainer.WithLoss(k.loss))
				}
				_, err := newTrainer(vfs.NewMem(), k.model, a, opts...).Train()
				if k.want == "" {
					require.NoError(t, err)
					return
				}
				requireOneError(t, err, "trainer: step 1: the loss of 8 samples", k.want, "want the SUM", "8 terms")
			})
		}
	}
}
