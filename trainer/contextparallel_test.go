// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
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

// tokens divides the tokens of sequences among cp of so many ranks.
func tokens(ranks, cp int) func(*args.TrainingArguments) {
	return func(a *args.TrainingArguments) {
		a.NumReplicas, a.CPSize = ranks, cp
		a.GradientAccumulationSteps /= ranks / cp
	}
}

// shardedTokens are four ranks, two by two, over which a model is spread.
func shardedTokens(zero int, share bool) func(*args.TrainingArguments) {
	return func(a *args.TrainingArguments) {
		tokens(4, 2)(a)
		a.ZeroStage, a.FSDPShareParameters = zero, share
	}
}

// tensorsOfTokens are four ranks that divide the tokens, and the matrices, by two.
func tensorsOfTokens(a *args.TrainingArguments) { a.NumReplicas, a.CPSize, a.TPSize = 4, 2, 2 }

// stagesOfTokens are four ranks that divide the tokens, and the layers, by two.
func stagesOfTokens(schedule string) func(*args.TrainingArguments) {
	return func(a *args.TrainingArguments) { a.NumReplicas, a.PPSize, a.CPSize, a.PPSchedule = 4, 2, 2, schedule }
}

// Ranks that divide the tokens end with the bits of one rank with the same chunks, and have its records: losses,
// norms, evaluations, predictions, tokens and operations are those of one rank.
func TestContextParallel(t *testing.T) {
	type settings []func(*args.TrainingArguments)
	half := func(a *args.TrainingArguments) { a.BF16, a.BF16FullEval = true, true }
	recompute := func(a *args.TrainingArguments) { a.GradientCheckpointing = true }
	smooth := func(a *args.TrainingArguments) { a.LabelSmoothingFactor = 0.1 }
	runs := alone{}
	// The race detector has those whose ranks share something in another way: numbers in half precision and recomputed
	// activations do not.
	short := []string{"4, ulysses", "2, fp16", "2 × 2 recomputed", "cp 2 × tp 2 ulysses", "dp_shard 2 × cp 2 × tp 2",
		"pp 2 × cp 2 ulysses × tp 2", "pp 2 × dp_shard 2 × cp 2", "2 × 2 zero 1", "2 × 2 shared", "2 × 2 gathered"}
	cases := map[string]struct {
		common settings
		ranks  func(*args.TrainingArguments)
	}{
		"2":       {settings{}, tokens(2, 2)},
		"4, bf16": {settings{half}, tokens(4, 4)},
		"4, ulysses": {settings{recompute}, func(a *args.TrainingArguments) {
			a.NumReplicas, a.SPSize = 4, 4 // with dropout of attention weights
		}},
		"2, fp16":                 {settings{fp16, smooth}, tokens(2, 2)},
		"2 × 2":                   {settings{}, tokens(4, 2)},
		"2 × 2 recomputed":        {settings{recompute, half}, tokens(4, 2)},
		"cp 2 × tp 2":             {settings{inParts}, tensorsOfTokens},
		"cp 2 × tp 2, recomputed": {settings{inParts, recompute, half}, tensorsOfTokens},
		"cp 2 × tp 2 ulysses": {settings{inParts, fp16}, func(a *args.TrainingArguments) {
			tensorsOfTokens(a)
			a.CPStrategy = args.CPUlysses
		}},
		"dp_shard 2 × cp 2 × tp 2": {settings{inParts}, func(a *args.TrainingArguments) {
			tokens(8, 2)(a)
			a.TPSize, a.DPShardSize, a.FSDPShareParameters, a.GradientAccumulationSteps = 2, 2, false, 2
		}},
		"pp 2 × cp 2": {settings{recompute}, stagesOfTokens("1f1b")},
		"pp 2 × cp 2 ulysses × tp 2": {settings{inParts, half}, func(a *args.TrainingArguments) {
			stagesOfTokens("zbv")(a)
			a.NumReplicas, a.TPSize, a.CPStrategy = 8, 2, args.CPUlysses
		}},
		"pp 2 × dp_shard 2 × cp 2": {settings{fp16, smooth}, func(a *args.TrainingArguments) {
			stagesOfTokens("zb_h1")(a)
			a.NumReplicas, a.DPShardSize, a.GradientAccumulationSteps = 8, 2, 2
		}},
		"2 × 2 zero 1":   {settings{half}, shardedTokens(1, false)},
		"2 × 2 shared":   {settings{}, shardedTokens(3, true)},
		"2 × 2 gathered": {settings{recompute, half}, shardedTokens(3, false)},
		"dp_shard 2 × cp 2": {settings{fp16}, func(a *args.TrainingArguments) {
			tokens(4, 2)(a)
			a.DPShardSize = 2 // which shards the model as fsdp does
		}},
	}
	for _, name := range short {
		require.Contains(t, cases, name)
	}
	chunks := func(n int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.CPChunks, a.MaxSteps, a.EvalSteps = n, 8, new(4.0) }
	}
	for name, c := range cases {
		if testing.Short() && !slices.Contains(short, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			common := append(c.common, chunks(8), fewer)
			want, records := runs.run(t, fourHeads(t), common...)
			got, logged := evaluatedRun(t, fourHeads(t), append(common, c.ranks))
			require.Len(t, got, len(want))
			for name, bits := range want {
				require.True(t, bytes.Equal(bits, got[name]), name)
			}
			require.Equal(t, records, logged)
		})
	}
	eight, records := runs.run(t, fourHeads(t), chunks(8), fewer)
	four, logged := runs.run(t, fourHeads(t), chunks(4), fewer)
	require.NotEqual(t, eight, four, "the weights tell in how many chunks they were trained")
	require.NotEqual(t, records, logged)
}

// Rings of ranks that share the tokens of a stage agree with the ring of one rank to a millionth, in steps that are the
// gradients, in evaluations and in predictions.
func TestRingsInPipelines(t *testing.T) {
	ring := func(a *args.TrainingArguments) {
		a.CPStrategy, a.CPChunks, a.MaxSteps, a.EvalSteps, a.LoggingSteps = args.CPRing, 4, 2, new(2.0), 1
		a.Optim, a.LearningRate, a.WeightDecay, a.MaxGradNorm = args.OptimSGD, 1, 0, 0
	}
	moved := func(bits map[string][]byte) map[string][]float64 {
		by := map[string][]float64{}
		for name, first := range weights(fourHeads(t)) {
			for i := 0; i < len(first); i += 4 {
				at := func(b []byte) float64 {
					return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:])))
				}
				by[name] = append(by[name], at(bits[name])-at(first))
			}
		}
		return by
	}
	norm := func(x, y []float64) (n float64) {
		for i := range x {
			n += (x[i] - y[i]) * (x[i] - y[i])
		}
		return math.Sqrt(n)
	}
	bits, want := evaluatedRun(t, fourHeads(t), []func(*args.TrainingArguments){ring})
	for _, schedule := range []string{"1f1b", "zbv"} {
		got, figures := evaluatedRun(t, fourHeads(t), []func(*args.TrainingArguments){ring, stagesOfTokens(schedule)})
		for _, key := range []string{"training", "loss", "grad_norm", "eval_loss", "evaluated", "predicted"} {
			require.InEpsilon(t, want[key], figures[key], 1e-6, key)
		}
		one, many := moved(bits), moved(got)
		for name := range one {
			size := norm(one[name], make([]float64, len(one[name])))
			require.Greater(t, size, 1e-4, "%s has not moved", name)
			require.Less(t, norm(one[name], many[name]), 1e-6*size+1e-6, "%s, %s", schedule, name)
		}
	}
}

// A run that saves on a mesh goes on, on any other, to the bits of one rank with the same chunks; in between lie the
// files of one rank. Nobody need repeat cp_chunks: the checkpoint has the number that 0 stood for.
func TestCheckpointsOfDividedTokens(t *testing.T) {
	const half = out + "/checkpoint-10"
	run := func(disk *vfs.Mem, ranks, cp int, set ...func(*args.TrainingArguments)) rankRun {
		a := rankArgs(ranks / cp)
		a.NumReplicas, a.CPSize = ranks, cp
		a.GlobalTrainBatchSize, a.MaxSteps, a.SaveSteps, a.LoggingSteps = 16, 20, 10, 10
		for _, f := range set {
			f(a)
		}
		m := fourHeads(t)
		tr := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)))
		_, err := tr.Train()
		require.NoError(t, err)
		return rankRun{weights(m), untimed(tr.State().LogHistory), disk}
	}
	chunks := func(a *args.TrainingArguments) { a.CPChunks = 4 }
	staged := func(a *args.TrainingArguments) { a.PPSize = 2 }
	gathered := func(a *args.TrainingArguments) { gather(a, "full_shard", "auto_wrap") }
	whole := run(vfs.NewMem(), 1, 1, chunks)
	saved := run(vfs.NewMem(), 2, 2)
	require.Equal(t, whole.weights, saved.weights)
	require.Equal(t, whole.history, saved.history)
	sharded := run(vfs.NewMem(), 4, 2, chunks, gathered)
	require.Equal(t, whole.weights, sharded.weights)
	require.Equal(t, whole.history, sharded.history)
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"} {
		require.Equal(t, content(t, whole.disk, half+"/"+name), content(t, saved.disk, half+"/"+name), name)
		require.Equal(t, content(t, whole.disk, half+"/"+name), content(t, sharded.disk, half+"/"+name), name)
	}
	scattered := run(vfs.NewMem(), 4, 2, chunks, gathered, staged, func(a *args.TrainingArguments) {
		a.FSDPStateDictType = args.ShardedStateDict
	})
	for _, resume := range []struct {
		from      *vfs.Mem
		ranks, cp int
		set       func(*args.TrainingArguments)
	}{
		{saved.disk, 1, 1, chunks}, {saved.disk, 4, 2, staged}, {saved.disk, 2, 1, chunks},
		{saved.disk, 4, 2, gathered}, {scattered.disk, 2, 2, gathered}, {scattered.disk, 1, 1, chunks},
	} {
		resumed := run(resume.from.CrashClone(nil), resume.ranks, resume.cp, resume.set,
			func(a *args.TrainingArguments) { a.ResumeFromCheckpoint, a.CPChunks = half, 0 })
		require.Equal(t, whole.weights, resumed.weights, "%d ranks, cp %d", resume.ranks, resume.cp)
	}
	control := run(vfs.NewMem(), 1, 1)
	require.NotEqual(t, whole.weights, control.weights, "without chunks")
}

// A loss function gets the tokens of one chunk at a time. One that gives a mean of them is refused in the first step,
// also with one sample in a micro-batch; one that gives their sum has the loss of one rank.
func TestLossFunctionsOfDividedTokens(t *testing.T) {
	sum := func(c *nn.Ctx, out models.Output, b *data.Batch) *tensor.Tensor {
		labels := b.Tensors[data.ShiftLabels]
		if labels == nil {
			labels = nn.NextTokens(c, b.Tensors[data.Labels])
		}
		return nn.CrossEntropySum(c, out.Logits, labels)
	}
	scaled := func(c *nn.Ctx, out models.Output, b *data.Batch) *tensor.Tensor {
		return tensor.Affine(c.Ctx, sum(c, out, b), 1/float64(out.Logits.Size(1)), 0)
	}
	losses := map[string]trainer.LossFunc{
		"sum": func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			return sum(c, out, b), b.Count
		},
		"mean as one term": func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			return scaled(c, out, b), 1
		},
		"mean, batch's count": func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			return scaled(c, out, b), b.Count
		},
	}
	for name, loss := range losses {
		train := func(ranks, cp int) (*callbacks.Record, error) {
			a := rankArgs(ranks / cp)
			a.NumReplicas, a.CPSize, a.PerDeviceTrainBatchSize, a.MaxSteps, a.LoggingSteps = ranks, cp, 1, 1, 1
			if name == "sum" {
				a.CPChunks = 4 // on one rank too, where dropout draws the same then
			}
			a.EvalStrategy, a.SaveStrategy = args.StrategyNo, args.StrategyNo
			tr := newTrainer(vfs.NewMem(), fourHeads(t), a, trainer.WithTrainData(texts(16)), trainer.WithLoss(loss))
			if _, err := tr.Train(); err != nil {
				return nil, err
			}
			return &tr.State().LogHistory[0], nil
		}
		whole, err := train(1, 1)
		require.NoError(t, err, name)
		for _, on := range [][2]int{{2, 2}, {4, 2}} {
			got, err := train(on[0], on[1])
			if name != "sum" {
				require.ErrorContains(t, err, "want a loss function that gives the SUM of the terms", name)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, (*whole)["loss"], (*got)["loss"], "%v", on)
		}
	}
}
