// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func bf16(a *args.TrainingArguments) { a.BF16 = true }
func fp16(a *args.TrainingArguments) { a.FP16 = true }

// Mixed precision has the same bits on any number of ranks and workers, and with recomputation; parameters stay float32
// and the model learns what it learns in float32.
func TestMixedPrecisionHasTheSameBitsOnAnyNumberOfRanks(t *testing.T) {
	counts, long := []int{2, 4, 8}, func(a *args.TrainingArguments) { a.MaxSteps = 12 }
	if testing.Short() {
		counts, long = []int{4}, func(a *args.TrainingArguments) { a.MaxSteps = 6 }
	}
	single := trainOnRanks(t, 1, long)
	for name, half := range map[string]func(*args.TrainingArguments){"bf16": bf16, "fp16": fp16} {
		lower := func(a *args.TrainingArguments) { half(a); long(a) }
		t.Run(name, func(t *testing.T) {
			want := trainOnRanks(t, 1, lower)
			require.NotEqual(t, single.weights, want.weights)
			last := func(r rankRun) float64 {
				for i := len(r.history) - 1; ; i-- {
					if loss, ok := r.history[i]["eval_loss"].(float64); ok {
						return loss
					}
				}
			}
			require.InEpsilon(t, last(single), last(want), 0.02)
			for _, ranks := range counts {
				got := trainOnRanks(t, ranks, lower)
				require.Equal(t, want.weights, got.weights, "%d ranks", ranks)
				require.Equal(t, want.history, got.history, "%d ranks", ranks)
			}
			for _, workers := range []int{1, 3} {
				require.Equal(t, want.weights,
					trainOnRanks(t, 2, lower, func(a *args.TrainingArguments) {
						a.DataloaderNumWorkers = workers
					}).weights)
			}
			require.Equal(t, want.weights, trainOnRanks(t, 1, lower, func(a *args.TrainingArguments) {
				a.GradientCheckpointing = true
			}).weights)
			for _, workers := range []int{1, 2, 3} { // of the kernels
				a, m := rankArgs(1), newGPT2(t, 0.2)
				lower(a)
				dev := tensor.NewCPU(workers)
				defer dev.Close()
				_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev),
					trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13))).Train()
				require.NoError(t, err)
				require.Equal(t, want.weights, weights(m), "%d workers of kernels", workers)
			}
		})
	}
}

// Parameters of a half type, whose gradients are float32, have the same bits on any number of ranks and workers, with
// recomputation and after a resume, for each way to update them, with autocast too.
func TestHalfParametersHaveTheSameBitsOnAnyNumberOfRanks(t *testing.T) {
	of := func(dt tensor.DType) func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
		return func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
			return trainModel(t, newGPT2As(t, 0.2, dt), disk, ranks, set...)
		}
	}
	update := func(h args.HalfUpdate) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.HalfUpdate, a.MaxGradNorm = h, 0.1 }
	}
	counts := []int{2, 4, 8}
	if testing.Short() {
		counts = []int{4}
	}
	seen := map[string]bool{}
	for name, k := range map[string]struct {
		dtype tensor.DType
		set   func(*args.TrainingArguments)
	}{
		"plain": {tensor.BFloat16, update(args.HalfUpdatePlain)},
		"kahan": {tensor.BFloat16, update(args.HalfUpdateKahan)},
		"kahan, bf16": {tensor.BFloat16, func(a *args.TrainingArguments) {
			update(args.HalfUpdateKahan)(a)
			bf16(a)
		}},
		"kahan float16": {tensor.Float16, update(args.HalfUpdateKahan)},
		"stochastic":    {tensor.BFloat16, update(args.HalfUpdateStochastic)},
	} {
		t.Run(name, func(t *testing.T) {
			train, disk := of(k.dtype), vfs.NewMem()
			want := train(disk, 1, k.set)
			digest := fmt.Sprintf("%x", want.weights)
			require.False(t, seen[digest], "another update gives other bits")
			seen[digest] = true
			for _, ranks := range counts {
				got := train(vfs.NewMem(), ranks, k.set)
				require.Equal(t, want.weights, got.weights, "%d ranks", ranks)
				require.Equal(t, want.history, got.history, "%d ranks", ranks)
			}
			again := func(a *args.TrainingArguments) { a.GradientCheckpointing, a.DataloaderNumWorkers = true, 2 }
			require.Equal(t, want.weights, train(vfs.NewMem(), 2, k.set, again).weights)
			resume := func(a *args.TrainingArguments) { resumeFrom(4)(a); a.OutputDir = "elsewhere" }
			require.Equal(t, want.weights, train(disk, 2, k.set, resume).weights, "resumed")
		})
	}
}

// Products run in the lower dtype, the loss and the parameters in float32.
func TestMixedPrecisionOfAStep(t *testing.T) {
	for dt, lower := range map[tensor.DType]func(*args.TrainingArguments){tensor.BFloat16: bf16, tensor.Float16: fp16} {
		m := newGPT2(t, 0)
		a := rankArgs(1)
		lower(a)
		a.MaxSteps, a.EvalStrategy, a.SaveStrategy = 1, args.StrategyNo, args.StrategyNo
		seen := 0
		_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithLoss(func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				require.Equal(t, dt, c.Lower())
				require.Equal(t, dt, o.Logits.DType())
				require.Equal(t, tensor.Float32, o.Loss.DType())
				seen++
				return o.Loss, b.Count
			})).Train()
		require.NoError(t, err)
		require.Positive(t, seen)
		for _, p := range nn.NamedParameters(m) {
			require.Equal(t, tensor.Float32, p.DType(), p.Name)
		}
	}
}

// The run says what computes in which dtype, and a module may have a dtype of its own.
func TestMixedPrecisionIsSaid(t *testing.T) {
	run := func(opts ...trainer.Option) (shown string, logits tensor.DType, err error) {
		a := rankArgs(1)
		a.BF16, a.MaxSteps, a.EvalStrategy, a.SaveStrategy = true, 1, args.StrategyNo, args.StrategyNo
		opts = append(opts, trainer.WithTrainData(raggedTexts(51)),
			on(callbacks.TrainBegin, func(e *callbacks.Event) error {
				shown = e.Run.DTypes
				return nil
			}), trainer.WithLoss(func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				logits = o.Logits.DType()
				return o.Loss, b.Count
			}))
		_, err = newTrainer(vfs.NewMem(), newGPT2(t, 0), a, opts...).Train()
		return shown, logits, err
	}
	shown, logits, err := run()
	require.NoError(t, err)
	require.Equal(t, "products, attention, convolutions bfloat16; norms, softmax, losses, sums float32; parameters "+
		"float32", shown)
	require.Equal(t, tensor.BFloat16, logits)
	_, logits, err = run(trainer.WithPrecision("lm_head", tensor.Float32))
	require.NoError(t, err)
	require.Equal(t, tensor.Float32, logits)
	_, _, err = run(trainer.WithPrecision("transformer.h.7", tensor.Float32))
	require.ErrorContains(t, err, `the model has no module "transformer.h.7" to compute in float32`)
	_, _, err = run(trainer.WithPrecision("transformer.h.0", tensor.Int32))
	require.ErrorContains(t, err, "is to compute in int32: want float32, bfloat16 or float16")
}

// An overflow in one micro-batch of one rank: all ranks skip the step and halve the scale, the schedule stands still,
// and a resume keeps the scale.
func TestOverflowHalvesTheScaleOnAllRanks(t *testing.T) {
	const bad, epoch = 5, 51 // a step, the first of the second epoch; and samples
	var scales []float64
	var rates []float64
	run := func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) map[string][]byte {
		m := newGPT2(t, 0.2)
		a := rankArgs(ranks)
		a.FP16, a.FP16InitialScale, a.FP16GrowthInterval = true, 1024, 2
		for _, f := range set {
			f(a)
		}
		scales, rates = nil, nil
		tr := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(epoch)), trainer.WithEvalData(raggedTexts(13)),
			trainer.WithLoss(func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
				if c.Training && b.MicroBatch == 3 && b.Position >= epoch && b.Position < epoch+16 {
					// whose gradient overflows float16
					huge := tensor.Affine(c.Ctx, tensor.Cast(c.Ctx, o.Logits, tensor.Float32), 1e20, 0)
					zero := tensor.Affine(c.Ctx, tensor.Detach(tensor.Sum(c.Ctx, huge, nil, false)), -1, 0)
					return tensor.Add(c.Ctx, o.Loss, tensor.Add(c.Ctx, tensor.Sum(c.Ctx, huge, nil, false), zero)),
						b.Count
				}
				return o.Loss, b.Count
			}),
			on(callbacks.StepEnd, func(e *callbacks.Event) error {
				require.Equal(t, e.State.GlobalStep == bad, e.Step.Overflow)
				scales, rates = append(scales, e.Step.LossScale), append(rates, e.Step.LearningRate)
				return nil
			}))
		_, err := tr.Train()
		require.NoError(t, err)
		return weights(m)
	}
	disk := vfs.NewMem()
	want := run(disk, 1)
	require.Equal(t, []float64{1024, 1024, 2048, 2048, 4096, 2048, 2048, 4096}, scales)
	require.Equal(t, rates[bad-1], rates[bad], "the schedule waits")
	require.NotEqual(t, rates[bad-2], rates[bad-1])
	require.Equal(t, want, run(vfs.NewMem(), 4))
	require.Equal(t, want, run(disk, 2, resumeFrom(6), func(a *args.TrainingArguments) { a.OutputDir = "elsewhere" }))
	require.Equal(t, []float64{2048, 4096}, scales)
}

// A power of two more of scale changes no bit where nothing under- or overflows; where gradients are too small for
// float16, a larger scale keeps more of them.
func TestTheScaleChangesNoBit(t *testing.T) {
	run := func(scale float64) map[string][]byte {
		m := newMLP(t, 1, 1)
		a := lineArgs(fp16, func(a *args.TrainingArguments) { a.FP16InitialScale = scale })
		_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(source(points(64)))).Train()
		require.NoError(t, err)
		return weights(m)
	}
	require.Equal(t, run(1<<8), run(1<<9))

	tiny := func(scale float64) map[string][]byte { // gradients of attention's scores
		return trainOnRanks(t, 1, fp16, func(a *args.TrainingArguments) { a.FP16InitialScale = scale }).weights
	}
	require.NotEqual(t, tiny(1<<8), tiny(1<<16))
}

func TestMixedPrecisionFaults(t *testing.T) {
	for want, set := range map[string]func(*args.TrainingArguments){
		"fp16 is true: want one of bf16 and fp16": func(a *args.TrainingArguments) {
			a.BF16, a.FP16 = true, true
		},
		"fp16_initial_scale is -2: want a power of two from 1 to 2^64": func(a *args.TrainingArguments) {
			a.FP16InitialScale = -2
		},
		"fp16_initial_scale is NaN: want a power of two from 1 to 2^64": func(a *args.TrainingArguments) {
			a.FP16InitialScale = math.NaN()
		},
		"fp16_growth_interval is 0: want": func(a *args.TrainingArguments) { a.FP16GrowthInterval = 0 },
	} {
		a := rankArgs(1)
		set(a)
		require.ErrorContains(t, a.Validate(), want)
	}
	a := rankArgs(1)
	a.FP16 = true
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	cfg := newGPT2(t, 0).Cfg
	m, err := models.FromConfig(nn.NewInit(tensor.CPU(), 1).As(tensor.Float64),
		[]byte(fmt.Sprintf(`{"model_type":"gpt2","vocab_size":%d,"n_embd":8,"n_head":2,"n_layer":1,"n_positions":8}`,
			cfg.VocabSize)))
	require.NoError(t, err)
	require.ErrorContains(t, acc.Prepare(t.Context(), m, nil),
		"is float64: want float32 parameters with bf16 and fp16, or bfloat16 ones with bf16")
}

// bf16_full_eval and fp16_full_eval change what evaluation and prediction compute in, and nothing of training.
func TestFullEvaluationInHalfPrecision(t *testing.T) {
	single := trainOnRanks(t, 1)
	loss := func(r rankRun) (last float64) {
		for _, rec := range r.history {
			if v, ok := rec["eval_loss"].(float64); ok {
				last = v
			}
		}
		return last
	}
	for name, set := range map[string]func(*args.TrainingArguments){
		"bf16": func(a *args.TrainingArguments) { a.BF16FullEval = true },
		"fp16": func(a *args.TrainingArguments) { a.FP16FullEval = true },
	} {
		got := trainOnRanks(t, 1, set)
		require.Equal(t, single.weights, got.weights, name)
		require.NotEqual(t, loss(single), loss(got), name)
		require.InEpsilon(t, loss(single), loss(got), 0.01, name)
		require.Equal(t, got.history, trainOnRanks(t, 2, set).history, name)
	}
	a := rankArgs(1)
	a.BF16FullEval, a.FP16FullEval = true, true
	require.ErrorContains(t, a.Validate(), "fp16_full_eval is true: want one of bf16_full_eval and fp16_full_eval")
}

// logitTypes is a metric that notes the types of logits, and reads them as float32.
type logitTypes struct{ seen map[tensor.DType]bool }

func (m *logitTypes) Reset() {}

func (m *logitTypes) Update(c *nn.Ctx, out models.Output, _ *data.Batch) error {
	m.seen[out.Logits.DType()] = true
	tensor.ToSlice[float32](c.Ctx, out.Logits)
	return nil
}

func (m *logitTypes) Compute(trainer.EvalLoss) map[string]float64 { return nil }

// Metrics and functions of logits get float32 logits whatever the model computes in.
func TestFunctionsGetFloat32Logits(t *testing.T) {
	for name, set := range map[string]func(*args.TrainingArguments){
		"float32":        func(*args.TrainingArguments) {},
		"bf16":           bf16,
		"fp16":           fp16,
		"bf16_full_eval": func(a *args.TrainingArguments) { a.BF16FullEval = true },
		"fp16_full_eval": func(a *args.TrainingArguments) { a.FP16FullEval = true },
	} {
		seen := map[tensor.DType]bool{}
		note := func(l *tensor.Tensor) { seen[l.DType()] = true }
		eval := source(points(16))
		predict := func(opts ...trainer.Option) *trainer.PredictionOutput {
			opts = append(opts, trainer.WithTrainData(source(points(16))), trainer.WithEvalData(eval),
				trainer.WithMetrics(&logitTypes{seen}))
			a := lineArgs(set, func(a *args.TrainingArguments) { a.EvalStrategy = args.StrategyEpoch })
			tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 4, 1), a, opts...)
			_, err := tr.Train()
			require.NoError(t, err, name)
			out, err := tr.Predict(eval)
			require.NoError(t, err, name)
			return out
		}
		want := predict()
		got := predict(trainer.WithLogitsForMetrics(
			func(_ *nn.Ctx, l *tensor.Tensor, _ *data.Batch) *tensor.Tensor { note(l); return l }))
		require.Equal(t, want.Predictions, got.Predictions, name)
		require.Equal(t, map[tensor.DType]bool{tensor.Float32: true}, seen, name)
	}
}
