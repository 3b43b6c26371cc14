// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
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

// pipelined is a run of AdamW steps with clipping, dropout and evaluations: its weights, and its records.
func pipelined(t *testing.T, set ...func(*args.TrainingArguments)) (map[string][]byte, map[string]float64) {
	return evaluatedRun(t, newGPT2(t, 0.1), set)
}

// evaluatedArgs are those of an evaluatedRun.
func evaluatedArgs(set []func(*args.TrainingArguments)) *args.TrainingArguments {
	a := args.Default(out)
	a.LearningRate, a.WeightDecay, a.MaxGradNorm, a.MaxSteps = 0.05, 0.01, 0.1, 20
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.PerDeviceEvalBatchSize = 1, 4, 3
	a.SaveStrategy, a.LoggingSteps, a.EvalStrategy, a.EvalSteps = args.StrategyNo, 5, args.StrategySteps, new(10.0)
	a.IncludeNumInputTokensSeen = args.TokensSeenAll
	for _, f := range set {
		f(a)
	}
	return a
}

// evaluatedRun is pipelined for a model, with options.
func evaluatedRun(t *testing.T, m models.Model, set []func(*args.TrainingArguments), opts ...trainer.Option) (
	map[string][]byte, map[string]float64) {
	tr := newTrainer(vfs.NewMem(), m, evaluatedArgs(set), append(opts, trainer.WithTrainData(texts(30)),
		trainer.WithEvalData(texts(7)))...)
	result, err := tr.Train()
	require.NoError(t, err)
	figures := map[string]float64{"training": result.TrainingLoss}
	for _, r := range tr.State().LogHistory {
		for _, key := range []string{"loss", "grad_norm", "eval_loss"} {
			if x, ok := r[key].(float64); ok {
				figures[key] += x
			}
		}
	}
	figures["tokens"], figures["flos"] = float64(tr.State().NumInputTokensSeen), tr.State().TotalFLOPs
	require.Positive(t, figures["tokens"])
	evaluated, err := tr.Evaluate()
	require.NoError(t, err)
	predicted, err := tr.Predict(texts(5))
	require.NoError(t, err)
	require.Len(t, predicted.Predictions, 5)
	figures["evaluated"], figures["predicted"] = evaluated["eval_loss"], predicted.Metrics["test_loss"]
	for _, p := range predicted.Predictions {
		for i, x := range p.Logits {
			figures["logits"] += float64(x) * float64(i%7)
		}
	}
	return weights(m), figures
}

// fewer leaves out steps, in short tests, that share what the others do: the second has what the first left.
func fewer(a *args.TrainingArguments) {
	if testing.Short() {
		a.MaxSteps, a.LoggingSteps, a.EvalSteps = 2, 1, new(2.0)
	}
}

// alone are evaluatedRuns of one rank, each made once for all cases of a test with its settings.
type alone map[string]aloneRun

type aloneRun struct {
	weights map[string][]byte
	figures map[string]float64
}

func (runs alone) run(t *testing.T, m models.Model, set ...func(*args.TrainingArguments)) (
	map[string][]byte, map[string]float64) {
	t.Helper()
	key, err := json.Marshal(evaluatedArgs(set))
	require.NoError(t, err)
	one, ok := runs[string(key)]
	if !ok {
		one.weights, one.figures = evaluatedRun(t, m, set)
		runs[string(key)] = one
	}
	return one.weights, one.figures
}

func pipeline(ranks, pp int, schedule string) func(*args.TrainingArguments) {
	return func(a *args.TrainingArguments) { a.NumReplicas, a.PPSize, a.PPSchedule = ranks, pp, schedule }
}

// A pipeline ends with the bits of one rank, and has its records. The settings take turns.
func TestPipeline(t *testing.T) {
	micro := func(n int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.GradientAccumulationSteps = n }
	}
	half := func(a *args.TrainingArguments) { a.BF16, a.BF16FullEval = true, true }
	recompute := func(a *args.TrainingArguments) { a.GradientCheckpointing = true }
	grouped := func(n int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.DeterministicRanks = n }
	}
	gathered := func(a *args.TrainingArguments) { a.FSDPShareParameters = false }
	type settings []func(*args.TrainingArguments)
	runs := alone{}
	for name, c := range map[string]struct {
		common, ranks settings
	}{
		"gpipe":            {settings{}, settings{pipeline(2, 2, "gpipe")}},
		"1f1b":             {settings{half}, settings{pipeline(2, 2, "1f1b")}},
		"interleaved":      {settings{fp16}, settings{pipeline(2, 2, "interleaved_1f1b")}},
		"looped bfs":       {settings{recompute}, settings{pipeline(2, 2, "looped_bfs")}},
		"zb_h1":            {settings{grouped(1), half, recompute}, settings{pipeline(2, 2, "zb_h1")}},
		"zbv":              {settings{micro(8)}, settings{pipeline(2, 2, "zbv")}},
		"dualpipev":        {settings{}, settings{pipeline(2, 2, "dualpipev")}},
		"of 4":             {settings{}, settings{pipeline(4, 4, "1f1b")}},
		"one micro-batch":  {settings{micro(1)}, settings{pipeline(2, 2, "1f1b")}},
		"two":              {settings{}, settings{micro(2), pipeline(4, 2, "1f1b")}},
		"two zbv":          {settings{micro(8), half}, settings{micro(4), pipeline(4, 2, "zbv")}},
		"two zb_h1, fewer": {settings{micro(8), fp16}, settings{micro(4), pipeline(4, 2, "zb_h1")}},
		"sharded":          {settings{}, settings{micro(2), pipeline(4, 2, "1f1b"), zero(3)}},
		"gathered, zb_h1":  {settings{half}, settings{micro(2), pipeline(4, 2, "zb_h1"), zero(3), gathered}},
		"zero 1, zbv":      {settings{recompute}, settings{micro(2), pipeline(4, 2, "zbv"), zero(1)}},
		"zero 2":           {settings{}, settings{micro(2), pipeline(4, 2, "gpipe"), zero(2)}},
		"three dimensions": {settings{}, settings{micro(1), pipeline(8, 2, "1f1b"), gathered,
			func(a *args.TrainingArguments) { a.DPReplicateSize, a.DPShardSize = 2, 2 }}},
		"two, two groups": {settings{grouped(2), recompute, micro(8)}, settings{micro(4), pipeline(4, 2, "gpipe")}},
	} {
		t.Run(name, func(t *testing.T) {
			common := append(c.common, fewer)
			want, records := runs.run(t, newGPT2(t, 0.1), common...)
			got, logged := pipelined(t, append(common, c.ranks...)...)
			require.Len(t, got, len(want))
			for name, bits := range want {
				require.True(t, bytes.Equal(bits, got[name]), name)
			}
			require.Equal(t, records, logged)
		})
	}
}

// A profile of a pipeline has a timeline of each pipeline, and changes no bit.
func TestPipelineProfile(t *testing.T) {
	want, _ := pipelined(t)
	dir := t.TempDir()
	got, _ := pipelined(t, pipeline(4, 2, "1f1b"), func(a *args.TrainingArguments) {
		a.GradientAccumulationSteps = 2
		a.Profile, a.ProfileSkipFirst, a.ProfileSteps = dir, 1, 2
	})
	require.Equal(t, want, got)
	files, err := filepath.Glob(filepath.Join(dir, "pipeline_*"))
	require.NoError(t, err)
	require.Len(t, files, 6, "two pipelines, a trace and two pictures each")
	for rank := range 4 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("ops_rank%d.txt", rank)))
		require.NoError(t, err)
		require.Regexp(t, `(?m)^forward +4 `, string(text), "two micro-batches of two steps")
		require.Regexp(t, `(?m)^reduce_gradient +2 `, string(text))
	}
}

// summoner reads all weights, and runs the model, after each step.
type summoner struct {
	callbacks.Base
	t     *testing.T
	lower tensor.DType
	mu    sync.Mutex // ranks are goroutines
	seen  map[int64][][]float64
}

func (*summoner) EveryRank() {}

func (s *summoner) OnStepEnd(e *callbacks.Event) error {
	return e.Summon(false, func() error {
		var sums []float64
		m := e.Model.(models.Model)
		for _, p := range nn.NamedParameters(m) {
			c := tensor.NewCtx(p.Device()).NoGrad()
			sums = append(sums, tensor.Item(c, tensor.Sum(c, p.Tensor, nil, false)))
		}
		c := tensor.NewCtx(nn.NamedParameters(m)[0].Device()).NoGrad().Autocast(s.lower)
		out := m.Forward(nn.NewCtx(c, nn.Walk(m), false), m.(models.Example).ExampleBatch(c, 2, 4))
		sums = append(sums, tensor.Item(c, out.Loss))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen[e.State.GlobalStep] = append(s.seen[e.State.GlobalStep], sums)
		return nil
	})
}

// Within Summon, callbacks of every rank read all weights and run the whole model, and training goes on as without.
func TestSummonInAPipeline(t *testing.T) {
	run := func(ranks int, set ...func(*args.TrainingArguments)) (*summoner, map[string][]byte) {
		a := args.Default(out)
		a.LearningRate, a.MaxSteps, a.PerDeviceTrainBatchSize, a.SaveStrategy = 0.05, 3, 1, args.StrategyNo
		a.GlobalTrainBatchSize, a.NumReplicas = 4, ranks
		for _, f := range set {
			f(a)
		}
		s, m := &summoner{t: t, seen: map[int64][][]float64{}}, newGPT2(t, 0.1)
		if a.BF16 {
			s.lower = tensor.BFloat16
		}
		_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(texts(30)), trainer.WithCallbacks(s)).Train()
		require.NoError(t, err)
		return s, weights(m)
	}
	alone, want := run(1)
	for name, c := range map[string]func(*args.TrainingArguments){
		"zbv":      func(a *args.TrainingArguments) { a.PPSchedule = "zbv" },
		"shared":   func(a *args.TrainingArguments) { a.ZeroStage, a.NumReplicas = 3, 4 },
		"gathered": func(a *args.TrainingArguments) { a.ZeroStage, a.NumReplicas, a.FSDPShareParameters = 3, 4, false },
		"zero 1":   func(a *args.TrainingArguments) { a.ZeroStage, a.NumReplicas = 1, 4 },
	} {
		got, end := run(2, func(a *args.TrainingArguments) { a.PPSize = 2 }, c)
		require.Len(t, got.seen, 3, name)
		for step, ranks := range got.seen {
			for _, sums := range ranks {
				require.Equal(t, alone.seen[step][0], sums, "%s: step %d", name, step)
			}
		}
		for key, bits := range want {
			require.True(t, bytes.Equal(bits, end[key]), "%s: %s", name, key)
		}
	}
	alone, _ = run(1, bf16)
	for _, c := range []struct { // products read what the ranks rounded
		ranks, stage int
		share        bool
	}{{2, 0, false}, {4, 3, true}, {4, 3, false}} {
		got, _ := run(c.ranks, bf16, func(a *args.TrainingArguments) {
			a.PPSize, a.ZeroStage, a.FSDPShareParameters = 2, c.stage, c.share
		})
		for step, ranks := range got.seen {
			for _, sums := range ranks {
				require.Equal(t, alone.seen[step][0], sums, "bf16: step %d", step)
			}
		}
	}
}

// A callback of rank 0 alone cannot read what another rank has.
func TestAloneInAPipeline(t *testing.T) {
	a := args.Default(out)
	a.MaxSteps, a.SaveStrategy, a.NumReplicas, a.PPSize = 1, args.StrategyNo, 2, 2
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 1, 2
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(texts(30)),
		trainer.WithCallbacks(lastReader{})).Train()
	require.ErrorContains(t, err, "parameter transformer.ln_f.weight is on rank 1, which has its stage: want Summon")
}

// lastReader reads a weight of the last stage.
type lastReader struct{ callbacks.Base }

func (lastReader) OnStepEnd(e *callbacks.Event) error {
	for _, p := range nn.NamedParameters(e.Model) {
		if p.Name == "transformer.ln_f.weight" {
			tensor.ToSlice[float32](tensor.NewCtx(p.Device()).NoGrad(), p.Tensor)
		}
	}
	return nil
}

// once fails to give one batch, whoever of the ranks asks for it.
type once struct {
	data.Source
	left *atomic.Int32
}

func (s once) Batch(c *tensor.Ctx, indices []int64) (*data.Batch, error) {
	if s.left.Add(-1) == 0 {
		return nil, errDisk
	}
	return s.Source.Batch(c, indices)
}

// Data without a length are those of one rank in a pipeline. A rank that cannot read its data ends the others of its
// pipeline in the same step, also in an evaluation.
func TestDataInAPipeline(t *testing.T) {
	pp := func(a *args.TrainingArguments) { a.PPSize, a.PPSchedule = 2, "zbv" }
	one := trainOnStream(t, vfs.NewMem(), 1, true)
	two := trainOnStream(t, vfs.NewMem(), 2, true, pp)
	require.Equal(t, one.weights, two.weights)
	for name, at := range map[string]int32{"training": 21, "evaluation": 4} {
		left := new(atomic.Int32)
		left.Store(at)
		train, eval := texts(51), texts(13)
		if name == "training" {
			train = once{train, left}
		} else {
			eval = once{eval, left}
		}
		a := failingRun(2, pp)
		a.DDPTimeout = 20
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(train),
			trainer.WithEvalData(eval)).Train()
		var failed *accelerate.DataError
		require.ErrorAs(t, err, &failed, name)
		require.Len(t, failed.Failed, 1, name)
		require.ErrorContains(t, err, errDisk.Error(), name)
	}
}

// New refuses a pipeline that the model cannot be cut into, as a fault of the arguments, which no launcher tries again.
func TestNewComparesStagesWithParts(t *testing.T) {
	a := args.Default(out)
	a.NumReplicas, a.PPSize = 16, 16
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(texts(30))).Train()
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "pp_size is 16: want at most 4 stages, as many as the model has parts")
}
