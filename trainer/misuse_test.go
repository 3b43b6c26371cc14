// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// wrong is a line whose forward pass makes a mistake.
type wrong struct {
	Line *nn.Linear
	f    func(c *nn.Ctx, x *tensor.Tensor)
}

func newWrong(f func(c *nn.Ctx, x *tensor.Tensor)) *wrong {
	return &wrong{nn.NewLinear(nn.NewInit(tensor.CPU(), 1), nn.LinearConfig{In: 1, Out: 1}), f}
}

func (w *wrong) Forward(c *nn.Ctx, b *data.Batch) models.Output { return w.forward(c, b) }

func (w wrong) forward(c *nn.Ctx, b *data.Batch) (out models.Output) {
	x := b.Tensors[data.Inputs]
	if w.f != nil {
		w.f(c, x)
	}
	out.Logits = w.Line.Forward(c, x)
	out.Loss = nn.MSESum(c, tensor.Reshape(c.Ctx, out.Logits, b.Size), b.Tensors[data.Labels])
	return out
}

// byValue is a model that is not passed by pointer.
type byValue struct{ Line *nn.Linear }

func (v byValue) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return (&wrong{Line: v.Line}).Forward(c, b)
}

// hidden has a layer in an unexported field.
type hidden struct {
	*wrong
	line *nn.Linear
}

// keyed has modules under keys that cannot be names.
type keyed struct {
	*wrong
	Lines map[int]*nn.Linear
}

// stored has a module by value in a map.
type stored struct {
	*wrong
	Lines map[string]nn.Linear
}

// empty has a parameter, or buffer, without a tensor.
type empty struct {
	*wrong
	More   *nn.Parameter
	Buffer *nn.Buffer
}

// TestMisuseIsAnError trains every model that nn refuses, every layer and loss that is used wrongly, and every function
// of a program's that panics, on one rank and on two: Train returns an error that says what is wrong, and never panics.
func TestMisuseIsAnError(t *testing.T) {
	fine := func() *wrong { return newWrong(nil) }
	forward := func(f func(c *nn.Ctx, x *tensor.Tensor)) func() models.Model {
		return func() models.Model { return newWrong(f) }
	}
	model := func(m models.Model) func() models.Model { return func() models.Model { return m } }
	in := func() *nn.Init { return nn.NewInit(tensor.CPU(), 1) }
	flat := func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Reshape(c.Ctx, x, x.Numel()) }
	labels := func(c *nn.Ctx, n int) *tensor.Tensor { return tensor.Zeros(c.Ctx, tensor.Int64, n) }
	zeros := func(c *nn.Ctx, shape ...int) *tensor.Tensor { return tensor.Zeros(c.Ctx, tensor.Float32, shape...) }

	for want, c := range map[string]func() models.Model{
		// what nn.Walk refuses
		"a module must be a non-nil pointer to a struct, not trainer_test.byValue": model(
			byValue{fine().Line}),
		"a module must be a non-nil pointer to a struct, not *trainer_test.wrong": model((*wrong)(nil)),
		"trainer_test.hidden.line holds parameters or buffers but is unexported":  model(&hidden{fine(), fine().Line}),
		"want string keys, which name the parameters": model(
			&keyed{fine(), map[int]*nn.Linear{1: fine().Line}}),
		"by value, whose parameters have no address": model(
			&stored{fine(), map[string]nn.Linear{"a": *fine().Line}}),
		"parameter more has no tensor": model(
			&empty{wrong: fine(), More: &nn.Parameter{}}),
		"buffer buffer has no tensor": model(
			&empty{wrong: fine(), Buffer: &nn.Buffer{}}),

		// what the losses refuse
		"nn.L1Sum: operands of shapes": forward(func(c *nn.Ctx, x *tensor.Tensor) { nn.L1Sum(c, x, flat(c, x)) }),
		"nn.HuberSum: operands of shapes": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.HuberSum(c, x, flat(c, x), 1)
		}),
		"nn.HuberSum: delta 0": forward(func(c *nn.Ctx, x *tensor.Tensor) { nn.HuberSum(c, x, x, 0) }),
		"nn.SmoothL1Sum: operands": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.SmoothL1Sum(c, x, flat(c, x), 1)
		}),
		"nn.SmoothL1Sum: beta -1": forward(func(c *nn.Ctx, x *tensor.Tensor) { nn.SmoothL1Sum(c, x, x, -1) }),
		"nn.KLDivSum: operands": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.KLDivSum(c, x, flat(c, x), true)
		}),
		"nn.BCEWithLogitsSum: operands": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.BCEWithLogitsSum(c, x, flat(c, x), nn.BCEOptions{})
		}),
		"does not broadcast to": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.BCEWithLogitsSum(c, flat(c, x), flat(c, x), nn.BCEOptions{Weight: x})
		}),
		"label smoothing 1.5": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.CrossEntropySumWith(c, x, labels(c, x.Shape()[0]), nn.CrossEntropyOptions{LabelSmoothing: 1.5})
		}),
		"class weights of shape [3]: want one for each of 1 classes": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.CrossEntropySumWith(c, x, labels(c, x.Shape()[0]),
				nn.CrossEntropyOptions{ClassWeights: zeros(c, 3)})
		}),

		// what the layers refuse
		"nn.SplitHeads: width 8 does not divide into heads of 3": forward(func(c *nn.Ctx, _ *tensor.Tensor) {
			nn.SplitHeads(c, zeros(c, 1, 2, 8), 3)
		}),
		"nn.NewMultiheadAttention: width 8, 3 heads": forward(func(*nn.Ctx, *tensor.Tensor) {
			nn.NewMultiheadAttention(in(), nn.AttentionConfig{Width: 8, Heads: 3, KVHeads: 1})
		}),
		"training with 1 values per channel": forward(func(c *nn.Ctx, _ *tensor.Tensor) {
			nn.NewBatchNorm(in(), nn.BatchNormConfig{Channels: 3}).Forward(c, zeros(c, 1, 3, 1, 1))
		}),
		"3 groups of 4 channels": forward(func(*nn.Ctx, *tensor.Tensor) {
			nn.NewGroupNorm(in(), nn.GroupNormConfig{Groups: 3, Channels: 4})
		}),
		"nn.NewSequential: layer 1 is nil": forward(func(*nn.Ctx, *tensor.Tensor) {
			nn.NewSequential(&nn.ReLU{}, nil)
		}),
		"tensor.Dropout": forward(func(c *nn.Ctx, x *tensor.Tensor) { (&nn.Dropout{P: 1.5}).Forward(c, x) }),
		"(in nn.Linear)": forward(func(c *nn.Ctx, x *tensor.Tensor) {
			nn.NewLinear(in(), nn.LinearConfig{In: 5, Out: 1}).Forward(c, x)
		}),
	} {
		for _, ranks := range []int{1, 2} {
			err := trainWrong(t, c, ranks)
			requireOneError(t, err, want)
			require.NotContains(t, err.Error(), "tensor.nn.")
			requireStack(t, err, "")
		}
	}
}

// misspelt looks tensors of its batch up by these names.
type misspelt struct {
	*wrong
	inputs, labels string
}

func (m *misspelt) Forward(c *nn.Ctx, b *data.Batch) (out models.Output) {
	out.Logits = m.Line.Forward(c, b.Tensors[m.inputs])
	out.Loss = nn.MSESum(c, out.Logits, tensor.Reshape(c.Ctx, b.Tensors[data.Labels], b.Size, 1))
	if m.labels != "" {
		out.Loss = nn.MSESum(c, out.Logits, b.Tensors[m.labels])
	}
	return out
}

// A name that the batch lacks is an error with the names that it has, wherever the batch is computed on.
func TestMisspeltNamesOfABatch(t *testing.T) {
	const want = "an operand is nil, as the tensor of a name that a batch lacks is"
	for _, m := range []misspelt{{inputs: "input"}, {inputs: data.Inputs, labels: "label"}} {
		m.wrong = newWrong(nil)
		err := trainWrong(t, func() models.Model { return &m }, 1)
		require.ErrorContains(t, err, want)
		requireOneError(t, err, "; the batch has inputs, labels")
		_, err = newTrainer(vfs.NewMem(), &m, lineArgs(), trainer.WithEvalData(source(points(8)))).Evaluate()
		require.ErrorContains(t, err, want)
		requireOneError(t, err, "; the batch has inputs, labels")
	}
	err := trainWrong(t, func() models.Model { return newWrong(nil) }, 1, trainer.WithLoss(
		func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			return nn.MSESum(c, out.Logits, b.Tensors["targets"]), b.Count
		}))
	requireOneError(t, err, "; the batch has inputs, labels")
}

// trainWrong trains a model on so many ranks and returns the error of Train.
func trainWrong(t *testing.T, model func() models.Model, ranks int, opts ...trainer.Option) error {
	t.Helper()
	a := lineArgs(func(a *args.TrainingArguments) {
		a.MaxSteps, a.NumReplicas, a.EvalStrategy, a.SaveStrategy = 3, ranks, args.StrategyEpoch, args.StrategySteps
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 4, 8
		a.OverwriteOutputDir = true
	})
	opts = append([]trainer.Option{
		trainer.WithModelInit(func() (models.Model, error) { return model(), nil }),
		trainer.WithTrainData(source(points(32))), trainer.WithEvalData(source(points(8)))},
		opts...)
	var err error
	require.NotPanics(t, func() { _, err = newTrainer(vfs.NewMem(), model(), a, opts...).Train() })
	return err
}

// requireStack checks that an error has the stack of the panic, with a function in it.
func requireStack(t *testing.T, err error, function string) {
	t.Helper()
	var p *tensor.PanicError
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), function)
	require.Contains(t, string(p.Stack), ".go:")
}

// errLuck is what the functions of unlucky programs panic with.
var errLuck = errors.New("out of luck")

// unlucky panics in the method of that name.
type unlucky struct{ at string }

func (u unlucky) check(at string) {
	if u.at == at {
		panic(errLuck)
	}
}

// Reset, Update and Compute are a metric's.
func (u unlucky) Reset() { u.check("Reset") }

func (u unlucky) Update(*nn.Ctx, models.Output, *data.Batch) error {
	u.check("Update")
	return nil
}

func (u unlucky) Compute(trainer.EvalLoss) map[string]float64 {
	u.check("Compute")
	return nil
}

// Len and At are a sampler's.
func (u unlucky) Len() int64 {
	u.check("Len")
	return 32
}

func (u unlucky) At(_, i int64) int64 {
	u.check("At")
	return i
}

// Factor is a schedule's.
func (u unlucky) Factor(int64) float64 {
	u.check("Factor")
	return 1
}

// TestPanicsOfTheProgramAreErrors: whatever function of a program's panics, the error is the panic's value, with the
// option that passed the function and the stack that leads to it.
func TestPanicsOfTheProgramAreErrors(t *testing.T) {
	fine := func() models.Model { return newWrong(nil) }
	passed, metric := func(option string) string { return "the function passed to " + option + ": panic: " },
		"the metric trainer_test.unlucky passed to WithMetrics: panic: "
	for _, c := range []struct {
		want string
		opts []trainer.Option
	}{
		{passed("WithLoss"), []trainer.Option{trainer.WithLoss(
			func(*nn.Ctx, models.Output, *data.Batch) (*tensor.Tensor, float64) { panic(errLuck) })}},
		{passed("WithStep"), []trainer.Option{trainer.WithStep(
			func(*nn.Ctx, models.Model, *data.Batch) (models.Output, float64, error) { panic(errLuck) })}},
		{passed("WithLogitsForMetrics"), []trainer.Option{trainer.WithMetrics(unlucky{}), trainer.WithLogitsForMetrics(
			func(*nn.Ctx, *tensor.Tensor, *data.Batch) *tensor.Tensor { panic(errLuck) })}},
		{passed("WithOptimizer"), []trainer.Option{trainer.WithOptimizer(
			func(*tensor.Ctx, []*optim.Group) *optim.Optimizer { panic(errLuck) })}},
		{passed("WithSchedule"), []trainer.Option{trainer.WithSchedule(
			func(int64, int64) optim.Schedule { panic(errLuck) })}},
		{"the schedule of WithSchedule: panic: ", []trainer.Option{trainer.WithSchedule(
			func(int64, int64) optim.Schedule { return unlucky{"Factor"} })}},
		{passed("WithLog"), []trainer.Option{trainer.WithLog(
			func(*callbacks.State, callbacks.Record) error { panic(errLuck) })}},
		{passed("WithComputeMetrics"), []trainer.Option{trainer.WithComputeMetrics(
			func(trainer.EvalPrediction) (map[string]float64, error) { panic(errLuck) })}},
		{passed("WithModelInit"), []trainer.Option{trainer.WithModelInit(
			func() (models.Model, error) { panic(errLuck) })}},
		{passed("WithStrategy"), []trainer.Option{trainer.WithStrategy(strategy.Factory{
			New: func(strategy.Job) (strategy.Strategy, error) { panic(errLuck) }})}},
		{metric, []trainer.Option{trainer.WithMetrics(unlucky{"Reset"})}},
		{metric, []trainer.Option{trainer.WithMetrics(unlucky{"Update"})}},
		{metric, []trainer.Option{trainer.WithMetrics(unlucky{"Compute"})}},
		{"the sampler passed to WithSampler: panic: ", []trainer.Option{trainer.WithSampler(unlucky{"Len"})}},
		{"the sampler passed to WithSampler: panic: ", []trainer.Option{trainer.WithSampler(unlucky{"At"})}},
		{"WithTrainData: data: sample 9: panic: ", []trainer.Option{trainer.WithTrainData(data.NewSource(
			faulty{points(32), 9, func() error { panic(errLuck) }}, data.Stack[point]))}},
		{"WithTrainData: data: collating samples", []trainer.Option{trainer.WithTrainData(data.NewSource(points(32),
			func(*tensor.Ctx, []point) (*data.Batch, error) { panic(errLuck) }))}},
		{`evaluation set "dev": data: collating samples`, []trainer.Option{trainer.WithNamedEvalData("dev",
			data.NewSource(points(32), func(*tensor.Ctx, []point) (*data.Batch, error) { panic(errLuck) }))}},
		{"part x of WithParts: panic: ", []trainer.Option{trainer.WithParts(checkpoint.Part{Name: "x",
			Write: func(io.Writer) error { panic(errLuck) }})}},
	} {
		for _, ranks := range []int{1, 2} {
			switch {
			case ranks > 1 && (c.want == metric || strings.Contains(c.want, "WithLogits")):
				continue // a metric that is not made for several ranks
			case ranks == 1 && (strings.Contains(c.want, "ModelInit") || strings.Contains(c.want, "WithStrategy")):
				continue // they serve several
			}
			err := trainWrong(t, fine, ranks, c.opts...)
			require.ErrorIs(t, err, errLuck, "%s on %d", c.want, ranks)
			requireStack(t, err, "misuse_test.go")
			requireOneError(t, err, c.want, "panic: out of luck")
		}
	}
	for _, ranks := range []int{1, 2} {
		err := trainWrong(t, fine, ranks, on(callbacks.StepEnd, func(*callbacks.Event) error { panic(errLuck) }))
		require.ErrorIs(t, err, errLuck)
		var c *callbacks.Error
		require.ErrorAs(t, err, &c)
		require.Contains(t, string(c.Stack), "misuse_test.go")
		err = trainWrong(t, func() models.Model {
			return newWrong(func(*nn.Ctx, *tensor.Tensor) { panic(errLuck) })
		}, ranks)
		require.ErrorIs(t, err, errLuck)
		requireStack(t, err, "misuse_test.go")
	}
	_, err := newTrainer(vfs.NewMem(), fine(), lineArgs(), trainer.WithTrainDataloader(
		func(context.Context, *accelerate.Accelerator) (*feed.Windows, error) { panic(errLuck) })).Train()
	require.ErrorIs(t, err, errLuck)
	requireOneError(t, err, passed("WithTrainDataloader"))
	requireStack(t, err, "misuse_test.go")
}

// What functions of a program return that cannot be used is an error that names their options.
func TestFunctionsThatReturnNothing(t *testing.T) {
	fine := func() models.Model { return newWrong(nil) }
	requireOneError(t, trainWrong(t, fine, 1, trainer.WithMetrics(unlucky{}), trainer.WithLogitsForMetrics(
		func(*nn.Ctx, *tensor.Tensor, *data.Batch) *tensor.Tensor { return nil })),
		"the function passed to WithLogitsForMetrics returned no logits")
	requireOneError(t, trainWrong(t, fine, 2, trainer.WithModelInit(func() (models.Model, error) { return nil, nil })),
		"the function passed to WithModelInit: it returned no model (rank 1)")
	_, err := newTrainer(vfs.NewMem(), fine(), lineArgs(), nil).Train()
	requireOneError(t, err, "option 4 of New is nil")
}

// A trainer whose run panicked at its beginning has given its output folder up, and can be used again.
func TestAPanicLeavesTheTrainerUsable(t *testing.T) {
	fsys, once := vfs.NewMem(), true
	a := lineArgs(func(a *args.TrainingArguments) { a.MaxSteps, a.SaveStrategy = 2, args.StrategySteps })
	tr := newTrainer(fsys, newWrong(nil), a, trainer.WithTrainData(source(points(32))),
		trainer.WithOptimizer(func(c *tensor.Ctx, groups []*optim.Group) *optim.Optimizer {
			if once {
				once = false
				panic(errLuck)
			}
			return optim.DefaultAdamW().New(c, groups)
		}))
	_, err := tr.Train()
	require.ErrorIs(t, err, errLuck)
	res, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 2, res.GlobalStep)
}

// An optimizer that names a parameter twice, or tied ones, is refused.
func TestParametersNamedTwiceAreAnError(t *testing.T) {
	err := trainWrong(t, func() models.Model { return newWrong(nil) }, 1, trainer.WithOptimizer(
		func(c *tensor.Ctx, groups []*optim.Group) *optim.Optimizer {
			twice := &optim.Group{LR: 0.1, Params: append(groups[0].Params, groups[0].Params...)}
			return optim.DefaultAdamW().New(c, []*optim.Group{twice})
		}))
	requireOneError(t, err, `WithOptimizer: optim.New: parameter "line.weight" is named twice`)
}
