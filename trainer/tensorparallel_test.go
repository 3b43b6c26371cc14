// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// fourHeads is a GPT-2 with dropout.
func fourHeads(t testing.TB) *gpt2.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 8, 8, 2, 4
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	return m
}

// inParts forms sums in as many parts as a GPT-2 of four heads has on several ranks.
func inParts(a *args.TrainingArguments) { a.TPParts = 4 }

// A divided model ends with the bits of one rank with the same parts, and has its records: evaluations, predictions,
// tokens and operations are those of one rank.
func TestTensorParallel(t *testing.T) {
	type settings []func(*args.TrainingArguments)
	tensors := func(ranks, tp int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) {
			a.NumReplicas, a.TPSize = ranks, tp
			a.GradientAccumulationSteps /= ranks / tp
		}
	}
	half := func(a *args.TrainingArguments) { a.BF16, a.BF16FullEval = true, true }
	staged := func(schedule string, shards int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) {
			a.NumReplicas, a.PPSize, a.TPSize, a.PPSchedule = 4*shards, 2, 2, schedule
			if shards > 1 {
				a.FSDP, a.FSDPShareParameters = []string{"full_shard"}, false
			}
			a.GradientAccumulationSteps /= shards
		}
	}
	sharded := func(strategy string) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) {
			tensors(4, 2)(a)
			a.FSDP, a.FSDPShareParameters = []string{strategy}, false
		}
	}
	recompute := func(a *args.TrainingArguments) { a.GradientCheckpointing = true }
	runs := alone{}
	for name, c := range map[string]struct {
		common settings
		ranks  func(*args.TrainingArguments)
	}{
		"2":       {settings{}, tensors(2, 2)},
		"4, bf16": {settings{half}, tensors(4, 4)},
		"2, fp16": {settings{fp16}, tensors(2, 2)},
		"2 × 2":   {settings{}, tensors(4, 2)},
		"2, smoothed": {settings{func(a *args.TrainingArguments) { a.LabelSmoothingFactor = 0.1 }},
			tensors(2, 2)},
		"2 × 2 recomputed": {settings{recompute, half}, tensors(4, 2)},
		"2 × 2 sharded":    {settings{recompute}, sharded("full_shard")},
		"2 × 2 kept, bf16": {settings{half}, sharded("shard_grad_op")},
		"2 × 2 staged":     {settings{recompute}, staged("1f1b", 1)},
		"2 × 2 × 2, bf16":  {settings{half}, staged("zbv", 2)},
	} {
		t.Run(name, func(t *testing.T) {
			common := append(c.common, fewer)
			want, records := runs.run(t, fourHeads(t), append(common, inParts)...)
			got, logged := evaluatedRun(t, fourHeads(t), append(common, c.ranks))
			require.Len(t, got, len(want))
			for name, bits := range want {
				require.True(t, bytes.Equal(bits, got[name]), name)
			}
			require.Equal(t, records, logged)
		})
	}
}

// The loss that 2 ranks along tp log beside 2 along dp is that of one rank. One that each rank along tp counts for
// itself is logged twice as large.
func TestLoggedLossOfDividedModels(t *testing.T) {
	logged := func(ranks, tp int, times float64) float64 {
		still := func(a *args.TrainingArguments) { // so that all runs have the same weights
			a.NumReplicas, a.TPSize, a.TPParts, a.LearningRate = ranks, tp, 4, 0
			a.GradientAccumulationSteps /= ranks / tp
			a.MaxSteps, a.LoggingSteps = 2, 1
		}
		loss := func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			return tensor.Affine(c.Ctx, out.Loss, times, 0), b.Count
		}
		_, figures := evaluatedRun(t, fourHeads(t), []func(*args.TrainingArguments){still}, trainer.WithLoss(loss))
		require.Positive(t, figures["loss"])
		return figures["loss"]
	}
	one := logged(1, 1, 1)
	require.Equal(t, one, logged(4, 2, 1))
	require.Equal(t, 2*one, logged(4, 2, 2), "the faulty one")
}

// A run that saves on a mesh goes on, on any other, to the bits of one rank with the same parts; in between lie the
// files of one rank. The best checkpoint is loaded at the end.
func TestCheckpointsOfDividedModels(t *testing.T) {
	const half, last = out + "/checkpoint-10", out + "/checkpoint-20"
	files := []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"}
	type mesh struct {
		ranks, tp int
		fsdp      []string
		pp        int
	}
	one, full := mesh{1, 1, nil, 1}, []string{"full_shard"}
	run := func(disk *vfs.Mem, on mesh, set ...func(*args.TrainingArguments)) rankRun {
		a := rankArgs(on.ranks / on.tp / on.pp)
		shardsArgs(a)
		a.NumReplicas, a.TPSize, a.FSDP, a.FSDPShareParameters = on.ranks, on.tp, on.fsdp, false
		a.PPSize = on.pp
		a.GlobalTrainBatchSize, a.MaxSteps, a.SaveSteps, a.LoggingSteps = 16, 20, 10, 10
		if a.TPSize == 1 {
			inParts(a)
		}
		for _, f := range set {
			f(a)
		}
		m := fourHeads(t)
		tr := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)))
		_, err := tr.Train()
		require.NoError(t, err)
		return rankRun{weights(m), untimed(tr.State().LogHistory), disk}
	}
	whole := run(vfs.NewMem(), one)
	for _, save := range []struct {
		mesh
		form    args.StateDictType
		resumes []mesh
	}{{mesh{4, 2, nil, 1}, args.ShardedStateDict, []mesh{{4, 4, nil, 1}}},
		{mesh{4, 2, full, 1}, args.ShardedStateDict, []mesh{one, {4, 2, nil, 2}}},
		{mesh{4, 2, full, 1}, args.FullStateDict, []mesh{{2, 1, full, 1}}},
		{mesh{4, 2, nil, 2}, args.FullStateDict, []mesh{{4, 2, full, 1}}},
		{mesh{8, 2, full, 2}, args.ShardedStateDict, []mesh{one, {8, 2, full, 2}}},
		{one, args.FullStateDict, []mesh{{4, 4, nil, 1}, {8, 2, full, 2}}}} {
		saved := run(vfs.NewMem(), save.mesh, func(a *args.TrainingArguments) {
			a.FSDPStateDictType = save.form
		})
		require.Equal(t, whole.weights, saved.weights)
		require.Equal(t, whole.history, saved.history)
		dir := exported(t, saved.disk, half)
		if save.form == args.ShardedStateDict {
			merged := t.TempDir()
			_, err := checkpointer.MergeWeights(t.Context(), dir, merged, checkpointer.MergeOptions{Optimizer: true})
			require.NoError(t, err)
			dir = merged
		}
		for _, name := range files {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, content(t, whole.disk, half+"/"+name), string(text), name)
		}
		for _, resume := range save.resumes {
			fork := saved.disk.CrashClone(nil)
			resumed := run(fork, resume, func(a *args.TrainingArguments) {
				a.ResumeFromCheckpoint, a.TPParts = half, 0 // those of the checkpoint
			})
			require.Equal(t, whole.weights, resumed.weights, "%v", resume)
			for _, name := range files {
				require.Equal(t, content(t, whole.disk, last+"/"+name), content(t, fork, last+"/"+name), "%v: %s",
					resume, name)
			}
		}
	}
	best := func(a *args.TrainingArguments) {
		a.EvalStrategy, a.EvalSteps, a.SaveSteps, a.MaxSteps = args.StrategySteps, new(2.0), 2, 8
		a.LoadBestModelAtEnd, a.GreaterIsBetter = true, new(true) // of losses: the last is not the best
	}
	loaded := run(vfs.NewMem(), one, best)
	for _, on := range []mesh{{4, 2, full, 1}, {4, 2, nil, 2}} {
		many := run(vfs.NewMem(), on, best)
		require.Equal(t, loaded.weights, many.weights)
		require.Equal(t, loaded.history, many.history)
	}
	require.NotEqual(t, run(vfs.NewMem(), one, best, func(a *args.TrainingArguments) {
		a.LoadBestModelAtEnd = false
	}).weights, loaded.weights, "the last is not the best")
}

// A resumed run keeps the parts of its checkpoint, unless it is given others, and says what does not fit.
func TestResumeKeepsParts(t *testing.T) {
	run := func(disk *vfs.Mem, tp, parts int, log *slog.Logger, set ...func(*args.TrainingArguments)) (
		map[string][]byte, error) {
		a := rankArgs(1)
		a.NumReplicas, a.TPSize, a.TPParts, a.GlobalTrainBatchSize, a.MaxSteps, a.SaveSteps = tp, tp, parts, 4, 4, 2
		a.EvalStrategy = args.StrategyNo
		for _, f := range set {
			f(a)
		}
		m := fourHeads(t)
		_, err := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithLogger(log)).Train()
		return weights(m), err
	}
	resume := func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = out + "/checkpoint-2" }
	quiet := slog.New(slog.DiscardHandler)
	plain := vfs.NewMem()
	_, err := run(plain, 1, 0, quiet)
	require.NoError(t, err)
	divided := vfs.NewMem()
	want, err := run(divided, 2, 0, quiet)
	require.NoError(t, err)
	for _, c := range []struct {
		disk      *vfs.Mem
		tp, parts int
		set       func(*args.TrainingArguments)
		logged    string
		fault     string
	}{
		{disk: divided, tp: 1},
		{disk: divided, tp: 4, parts: 4},
		{disk: divided, tp: 1, parts: 1, logged: "resuming with a changed tp_parts: the result will differ"},
		{disk: divided, tp: 2, parts: 2, logged: "resuming with a changed tp_parts: the result will differ"},
		{disk: plain, tp: 2, logged: "resuming with a changed tp_parts: the result will differ"},
		{disk: divided, tp: 1, set: func(a *args.TrainingArguments) { a.NumReplicas, a.ZeroStage = 2, 1 }},
		{disk: divided, tp: 1, parts: 1, logged: "the result will differ",
			set: func(a *args.TrainingArguments) { a.NumReplicas, a.ZeroStage = 2, 1 }},
		{disk: divided, tp: 3, set: func(a *args.TrainingArguments) { a.TPPlan = replicated(t) },
			fault: "the run computes each sum in 4 parts, which tp_size 3 does not divide: want a tp_size that does, " +
				"or tp_parts 3, with which the result will differ"},
	} {
		var text bytes.Buffer
		set := []func(*args.TrainingArguments){resume}
		if c.set != nil {
			set = append(set, c.set)
		}
		got, err := run(c.disk.CrashClone(nil), c.tp, c.parts, slog.New(slog.NewTextHandler(&text, nil)), set...)
		if c.fault != "" {
			require.ErrorContains(t, err, c.fault)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.logged != "", strings.Contains(text.String(), "changed tp_parts"), "%v: %s", c, &text)
		require.Contains(t, text.String(), c.logged)
		if c.logged == "" {
			require.Equal(t, want, got)
		}
	}
}

// Rules of a plan that do not fit each other are a fault of the arguments, on one rank with parts too.
func TestRulesThatDoNotFit(t *testing.T) {
	for _, set := range []func(*args.TrainingArguments){inParts, func(a *args.TrainingArguments) { a.TPSize = 2 }} {
		a := args.Default("")
		a.TPPlan = map[string]any{"transformer.h.*.mlp.c_fc": "replicate"}
		set(a)
		require.EqualError(t, a.ValidateFor(trainer.ProgramFor(fourHeads(t))), "arguments: "+
			"transformer.h.*.mlp.c_proj is rowwise, which is for an input whose features are divided, and gets all of "+
			"them from transformer.h.*.mlp.c_fc (replicate): want colwise or rowwise_split_input, or colwise in front "+
			"of it")
	}
}

// replicated is a plan that leaves all matrices of fourHeads whole.
func replicated(t *testing.T) map[string]any {
	plan := map[string]any{}
	for path := range fourHeads(t).TPPlan() {
		plan[path] = "replicate"
	}
	return plan
}
