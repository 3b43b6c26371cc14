// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// line is a linear layer with dropout before it.
type line struct {
	Drop   *nn.Dropout `nn:"drop"`
	Linear *nn.Linear  `nn:"linear"`
}

func (m *line) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Linear.Forward(c, m.Drop.Forward(c, x))
	}, x)
}

func newLine(dev *tensor.Device) *line {
	return &line{Drop: &nn.Dropout{P: 0.5}, Linear: nn.NewLinear(nn.NewInit(dev, 1).Sub("linear"),
		nn.LinearConfig{In: 4, Out: 2})}
}

// prepared is an accelerator that trains a line by SGD at learning rate 1.
func prepared(t *testing.T, a *args.TrainingArguments) (*accelerate.Accelerator, *line) {
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	m := newLine(acc.Device())
	require.NoError(t, acc.Prepare(t.Context(), m, sgd(1), m))
	return acc, m
}

func TestNewRunsOnTheCPU(t *testing.T) {
	acc, err := accelerate.New(args.Default(""))
	require.NoError(t, err)
	require.Same(t, tensor.CPU(), acc.Device())
	require.Same(t, acc.Device(), acc.Ctx().Device())
	require.Equal(t, 1, acc.WorldSize())
	require.Equal(t, 0, acc.Rank())
	require.True(t, acc.IsMain())
	n := []float64{17}
	require.NoError(t, acc.SumFloats(t.Context(), n, "loss terms"))
	require.Equal(t, []float64{17}, n)
	yes, no := true, false
	require.NoError(t, acc.Agree(t.Context(), &yes, &no))
	require.True(t, yes)
	require.False(t, no)

	dev := tensor.NewCPU(1)
	defer dev.Close()
	acc, err = accelerate.New(args.Default(""), accelerate.WithDevice(dev))
	require.NoError(t, err)
	require.Same(t, dev, acc.Device())
}

// An engine that the program does not have is refused at once, with what to do.
func TestBackendThatIsNotBuiltIn(t *testing.T) {
	for _, name := range []args.Backend{args.BackendNCCL, args.BackendMPI} {
		a := args.Default("")
		a.DDPBackend = name
		require.NoError(t, a.Validate())
		_, err := accelerate.New(a)
		require.ErrorContains(t, err,
			fmt.Sprintf(
				`accelerate: ddp_backend: no engine %q is built into this program (none is): a program builds one in by a blank import`, name))
	}
}

func TestLayout(t *testing.T) {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.DataloaderDropLast = 4, 3, true
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	l, err := acc.Layout()
	require.NoError(t, err)
	require.Equal(t, samplers.WindowLayout{BatchSize: 4, DropLast: true, AccumulationSteps: 3, WorldSize: 1}, l)

	windows, err := acc.Windows(t.Context(), numbers(30), samplers.NewSequential(30), 2)
	require.NoError(t, err)
	w, err := windows.Next()
	require.NoError(t, err)
	defer windows.Close()
	defer w.Free()
	require.Len(t, w.Own, 3)
	require.Equal(t, []int64{4, 5, 6, 7}, w.Own[1].Indices)

	a.GradientAccumulationSteps, a.GlobalTrainBatchSize = 1, 20 // 5 micro-batches of 4
	acc.SetArguments(a)
	l, err = acc.Layout()
	require.NoError(t, err)
	require.Equal(t, 5, l.AccumulationSteps)

	a.GlobalTrainBatchSize = 21
	acc.SetArguments(a)
	_, err = acc.Layout()
	require.ErrorContains(t, err, "21")
	_, err = acc.Windows(t.Context(), numbers(30), samplers.NewSequential(30), 2)
	require.ErrorContains(t, err, "21")
	require.ErrorContains(t, acc.Prepare(t.Context(), newLine(tensor.CPU()), nil), "21")
}

func TestPrepareErrors(t *testing.T) {
	a := args.Default("")
	acc, err := accelerate.New(a)
	require.NoError(t, err)

	frozen := newLine(tensor.CPU())
	frozen.Linear.Weight.SetRequiresGrad(false)
	require.NoError(t, acc.Prepare(t.Context(), frozen, nil))
	require.Len(t, acc.Params(), 1)
	require.Equal(t, "linear.bias", acc.Params()[0].Name)
	frozen.Linear.Bias.SetRequiresGrad(false)
	require.EqualError(t, acc.Prepare(t.Context(), frozen, nil),
		"accelerate: the model has no parameter that requires grad: nothing to train")

	dev := tensor.NewCPU(1)
	defer dev.Close()
	require.ErrorContains(t, acc.Prepare(t.Context(), newLine(dev), nil),
		"accelerate: parameter linear.weight is on ")

	a.GradientCheckpointing = true
	acc.SetArguments(a)
	require.EqualError(t, acc.Prepare(t.Context(), newLine(tensor.CPU()), nil),
		"accelerate: gradient_checkpointing is on, but *accelerate_test.line names no units to recompute "+
			"(models.Recomputable)")
}

// step runs a window of two micro-batches with the given sums and counts.
func step(t *testing.T, acc *accelerate.Accelerator, m *line, window float64) float64 {
	acc.ZeroGrad()
	for microBatch := range 2 {
		acc.TrainCtx(int64(8 * microBatch)).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			x := tensor.Normal(c.Ctx, tensor.Float32, uint64(microBatch+1), 0, 1, 8, 4)
			y := m.Forward(c, x)
			acc.Backward(c, tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false), window, microBatch, false)
			return nil
		})
	}
	require.NoError(t, acc.Reduce(t.Context()))
	norm := clip(t, acc, 0.1)
	require.NoError(t, acc.Step(t.Context()))
	return norm
}

func TestStep(t *testing.T) {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 8, 2
	acc, m := prepared(t, a)
	require.NotNil(t, acc.Tree())
	before := tensor.ToSlice[float32](acc.Ctx(), m.Linear.Weight.Tensor)
	norm := step(t, acc, m, 16)
	require.Greater(t, norm, 0.1)

	var moved float64
	for i, w := range tensor.ToSlice[float32](acc.Ctx(), m.Linear.Weight.Tensor) {
		d := float64(w - before[i])
		moved += d * d
	}
	for _, b := range tensor.ToSlice[float32](acc.Ctx(), m.Linear.Bias.Grad()) { // not clipped itself
		b *= float32(optim.ClipFactor(norm, 0.1))
		moved += float64(b) * float64(b)
	}
	require.InEpsilon(t, 0.01, moved, 1e-3, "SGD at rate 1 moves by the clipped norm")

	// The same window counted as twice the terms has half the gradient.
	double, again := prepared(t, a)
	require.InEpsilon(t, norm/2, step(t, double, again, 32), 1e-6)

	acc.ZeroGrad()
	require.Nil(t, m.Linear.Weight.Grad())
	require.Zero(t, clip(t, acc, 1))
}

// A window without any loss term has gradients of zero, not NaN.
func TestBackwardWithoutTerms(t *testing.T) {
	acc, m := prepared(t, args.Default(""))
	c := acc.TrainCtx(0)
	loss := tensor.Affine(c.Ctx, tensor.Sum(c.Ctx, m.Linear.Weight.Tensor, nil, false), 0, 0)
	acc.Backward(c, loss, 0, 0, false)
	require.NoError(t, acc.Reduce(t.Context()))
	require.Zero(t, clip(t, acc, 1))
}

// Dropout draws by the position in the training stream, and not at all in evaluation;
// gradient checkpointing changes no bit.
func TestContexts(t *testing.T) {
	acc, m := prepared(t, args.Default(""))
	x := tensor.Ones(acc.Ctx(), tensor.Float32, 8, 4)
	run := func(c *nn.Ctx) []float32 { return tensor.ToSlice[float32](c.Ctx, m.Forward(c, x)) }
	at0 := run(acc.TrainCtx(0))
	require.Equal(t, at0, run(acc.TrainCtx(0)))
	at4 := run(acc.TrainCtx(4))
	require.NotEqual(t, at0, at4)
	require.Equal(t, at0[4*2:], at4[:4*2], "sample 4 of the stream draws the same in any batch")

	require.True(t, acc.TrainCtx(0).Grad())
	require.False(t, acc.EvalCtx().Grad())
	require.Equal(t, run(acc.EvalCtx()), run(acc.EvalCtx()))
	require.False(t, m.Forward(acc.EvalCtx(), x).RequiresGrad())

	other := args.Default("")
	other.Seed++
	acc2, m2 := prepared(t, other)
	m = m2
	require.NotEqual(t, at0, run(acc2.TrainCtx(0)))
}

func TestGradientCheckpointingChangesNoBit(t *testing.T) {
	weights := func(on bool) []byte {
		a := args.Default("")
		a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.GradientCheckpointing = 8, 2, on
		acc, m := prepared(t, a)
		for range 3 {
			step(t, acc, m, 16)
		}
		return tensor.ReadBytes(acc.Ctx(), m.Linear.Weight.Tensor)
	}
	require.Equal(t, weights(false), weights(true))
}

// The micro-batches of a group are formed apart and then added, with and without recomputation, wherever a group has
// several of them and a product more rows than one block of a sum.
func TestGradientCheckpointingChangesNoBitOfAGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("one rank: not under the race detector")
	}
	const rows, width = 1024, 64
	gradient := func(accumulation int, recompute bool) []float32 {
		a := args.Default("")
		a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.DeterministicRanks, a.GradientCheckpointing = rows,
			accumulation, 8, recompute
		acc, err := accelerate.New(a)
		require.NoError(t, err)
		m := &wide{Linear: nn.NewLinear(nn.NewInit(acc.Device(), 1).Sub("linear"),
			nn.LinearConfig{In: width, Out: width, NoBias: true})}
		require.NoError(t, acc.Prepare(t.Context(), m, sgd(0), m.Linear))
		var batches []*data.Batch
		for microBatch := range accumulation {
			c := acc.Ctx().NoGrad().WithRandom(3, 0)
			batches = append(batches, &data.Batch{Count: rows,
				Tensors: map[string]*tensor.Tensor{
					data.Inputs: tensor.Normal(c, tensor.Float32, uint64(microBatch), 0, 1, rows, width)}})
		}
		_, err = acc.Accumulate(t.Context(), batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			y := m.Forward(c, b.Tensors[data.Inputs])
			return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)
		})
		require.NoError(t, err)
		return tensor.ToSlice[float32](acc.Ctx(), m.Linear.Weight.Grad())
	}
	for _, accumulation := range []int{2, 3, 16} {
		require.Equal(t, gradient(accumulation, false), gradient(accumulation, true), "%d micro-batches", accumulation)
	}
}

// The sizes of the test above tell sums that are formed apart from one that goes on.
func TestAProductSummedOntoAnotherHasOtherBits(t *testing.T) {
	const rows, width = 1024, 64
	c := tensor.NewCtx(tensor.CPU()).NoGrad().WithRandom(3, 0)
	x, g := tensor.Normal(c, tensor.Float32, 1, 0, 1, 2*rows, width),
		tensor.Normal(c, tensor.Float32, 2, 0, 1, 2*rows, width)
	product := func(first, end int) *tensor.Tensor {
		return tensor.MatMul(c, tensor.Transpose(c, tensor.Slice(c, g, 0, first, end), 0, 1),
			tensor.Slice(c, x, 0, first, end))
	}
	apart := tensor.Add(c, product(0, rows), product(rows, 2*rows))
	require.NotEqual(t, tensor.ToSlice[float32](c, apart), tensor.ToSlice[float32](c, product(0, 2*rows)))
}

// wide is a module with one layer.
type wide struct {
	Linear *nn.Linear `nn:"linear"`
}

func (m *wide) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return m.Linear.Forward(c, x) }, x)
}

// Ops that did not compute in what bf16 means for them are an error of the first step, and of no later one.
func TestFirstStepChecksDTypes(t *testing.T) {
	a := args.Default("")
	a.BF16, a.GradientAccumulationSteps = true, 2
	acc, m := prepared(t, a)
	step(t, acc, m, 0)
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	var ran tensor.DTypeCounts
	c := acc.Ctx().CountDTypes(&ran).Sub("head")
	tensor.MatMul(c, tensor.Ones(c, tensor.Float32, 2, 2), tensor.Ones(c, tensor.Float32, 2, 2))
	accelerate.SetRan(acc, &ran)
	acc.ZeroGrad()
	require.EqualError(t, acc.Reduce(t.Context()),
		"accelerate: the first step: tensor: products ran in float32 in head: want bfloat16 under Autocast(bfloat16)")
	require.NoError(t, acc.Reduce(t.Context()))
}
