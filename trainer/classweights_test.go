// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// classifier has logits and no loss of its own.
type classifier struct {
	Head *nn.Linear `nn:"head"`
}

func newClassifier() *classifier {
	return &classifier{nn.NewLinear(nn.NewInit(tensor.CPU(), 3).As(tensor.Float64), nn.LinearConfig{In: 2, Out: 3})}
}

func (m *classifier) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	out := nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return m.Head.Forward(c, x) },
		b.Tensors[data.Inputs])
	return models.Output{Logits: out}
}

type labelled struct {
	Inputs [2]float64
	Labels int64
}

// The recipe of nn.CrossEntropySumWith: the labels' weights are the count, and a step on ragged micro-batches takes the
// gradient of PyTorch's weighted mean.
func TestClassWeightsInTheCount(t *testing.T) {
	list := make(data.Slice[labelled], 13)
	for i := range list {
		list[i] = labelled{[2]float64{math.Sin(float64(3 * i)), math.Cos(float64(i * i))}, int64(i*i) % 3}
	}
	list[4].Labels = tensor.IgnoreIndex
	weighted := func(c *nn.Ctx, logits *tensor.Tensor, b *data.Batch) (sum, total *tensor.Tensor) {
		weights := tensor.FromSlice(c.Ctx, []float64{0.05, 3, 1.5}, 3)
		labels := b.Tensors[data.Labels]
		return nn.CrossEntropySumWith(c, logits, labels,
			nn.CrossEntropyOptions{ClassWeights: weights, LabelSmoothing: 0.1}), nn.LabelWeightSum(c, labels, weights)
	}
	loss := func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
		sum, total := weighted(c, o.Logits, b)
		return sum, tensor.Item(c.Ctx, total)
	}

	root := tensor.NewCtx(tensor.CPU())
	all, err := data.Stack(root, list)
	require.NoError(t, err)
	m := newClassifier()
	params := nn.NamedParameters(m)
	c := nn.NewCtx(root, nil, true)
	sum, total := weighted(c, m.Forward(c, all).Logits, all)
	mean := tensor.Div(root, sum, total)
	wantLoss := tensor.Item(root, mean)
	tensor.Backward(root, []*tensor.Tensor{mean}, nil, nil)
	for _, p := range params {
		tensor.AxpbyInto(root.NoGrad(), p.Tensor, 1, p.Tensor, -0.1, p.Grad())
	}

	for _, batch := range []int{13, 4, 5} {
		got := newClassifier()
		a := lineArgs(func(a *args.TrainingArguments) {
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.MaxSteps = batch, (13+batch-1)/batch, 1
			a.Optim, a.LearningRate, a.MaxGradNorm, a.LRSchedulerType = args.OptimSGD, 0.1, 0, args.SchedulerConstant
		})
		res, err := newTrainer(vfs.NewMem(), got, a, trainer.WithTrainData(data.NewSource(list, data.Stack[labelled])),
			trainer.WithLoss(loss)).Train()
		require.NoError(t, err)
		require.InDelta(t, wantLoss, res.TrainingLoss, 1e-12)
		for i, p := range nn.NamedParameters(got) {
			require.InDeltaSlice(t, tensor.ToSlice[float64](root, params[i].Tensor),
				tensor.ToSlice[float64](root, p.Tensor), 1e-12, "batch %d: %s", batch, p.Name)
		}
	}
}

// Fractions that collators and loss functions count are added micro-batch by micro-batch, so that their bits, like
// those of whole numbers, do not depend on the ranks. 0.1 added in another order is another number.
func TestFractionsOnAnyNumberOfRanks(t *testing.T) {
	list := make(data.Slice[labelled], 51)
	for i := range list {
		list[i] = labelled{[2]float64{math.Sin(float64(3 * i)), math.Cos(float64(i * i))}, int64(i*i) % 3}
	}
	collate := func(c *tensor.Ctx, samples []labelled) (*data.Batch, error) {
		b, err := data.Stack(c, samples)
		if err == nil {
			b.Count *= 0.1
		}
		return b, err
	}
	for name, share := range map[string]float64{"counted by the collator": 0.1, "by the loss": 0.7} {
		t.Run(name, func(t *testing.T) {
			loss := func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				sum := nn.CrossEntropySum(c, o.Logits, b.Tensors[data.Labels])
				return tensor.Affine(c.Ctx, sum, share, 0), share * float64(b.Size)
			}
			run := func(ranks int) (map[string][]byte, []callbacks.Record) {
				m, a := newClassifier(), rankArgs(ranks)
				a.SaveStrategy = args.StrategyNo
				tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(data.NewSource(list, collate)),
					trainer.WithEvalData(data.NewSource(list, collate)), trainer.WithLoss(loss))
				_, err := tr.Train()
				require.NoError(t, err)
				return weights(m), untimed(tr.State().LogHistory)
			}
			wantWeights, wantHistory := run(1)
			for _, ranks := range []int{2, 4, 8} {
				gotWeights, gotHistory := run(ranks)
				require.Equal(t, wantWeights, gotWeights, "%d ranks", ranks)
				require.Equal(t, wantHistory, gotHistory, "%d ranks", ranks)
			}
		})
	}
}
