// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
	"github.com/lockstep-ml/lockstep/trainer/hashes"
)

// recorded runs 6 steps of 4 micro-batches and gives their record.
func recorded(t *testing.T, ranks int, cb callbacks.Callback, set ...func(*args.TrainingArguments)) *hashes.Run {
	a := args.Default(t.TempDir())
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.MaxSteps = 2, 8, ranks, 6
	a.SaveStrategy, a.RecordHashes, a.DDPTimeout, a.LearningRate = args.StrategyNo, args.RecordStep, 20, 1e-2
	for _, f := range set {
		f(a)
	}
	opts := []trainer.Option{trainer.WithTrainData(texts(40))}
	if cb != nil {
		opts = append(opts, trainer.WithCallbacks(cb))
	}
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0.1), a, opts...).Train()
	require.NoError(t, err)
	run, err := hashes.Load(a.OutputDir)
	require.NoError(t, err)
	return run
}

func ops(a *args.TrainingArguments) { a.RecordHashes = args.RecordOp }

// before is called with the parameters before the optimizer reads their gradients in a step, on every rank.
type before struct {
	callbacks.Base
	step int64
	f    func(params []tensor.Named)
}

func (*before) EveryRank() {}

func (b *before) OnPreOptimizerStep(e *callbacks.Event) error {
	if e.State.GlobalStep+1 == b.step {
		b.f(nn.NamedParameters(e.Model))
	}
	return nil
}

// Runs on 1, 2 and 4 ranks, with shards or none, have the same hashes.
func TestSameHashesOnAnyRanks(t *testing.T) {
	one := recorded(t, 1, nil)
	for _, set := range []func(*args.TrainingArguments){
		func(a *args.TrainingArguments) {},
		func(a *args.TrainingArguments) { a.NumReplicas = 4 },
		func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} },
		func(a *args.TrainingArguments) { a.ZeroStage = 2 },
		func(a *args.TrainingArguments) { a.GradientCheckpointing = true; ops(a) },
	} {
		c := hashes.Compare(one, recorded(t, 2, nil, set))
		require.Nil(t, c.Found, "%v", c.Found)
		require.Equal(t, 7, c.Steps, "the weights at first, and 6 steps")
		require.NotEmpty(t, c.Settings)
	}
	one = recorded(t, 1, nil, func(a *args.TrainingArguments) { a.TPParts = 2 })
	for _, set := range []func(*args.TrainingArguments){
		func(a *args.TrainingArguments) { a.NumReplicas = 2 },
		func(a *args.TrainingArguments) { a.NumReplicas = 4 },
		func(a *args.TrainingArguments) { a.NumReplicas, a.FSDP = 4, []string{"full_shard"} },
		func(a *args.TrainingArguments) { a.NumReplicas, a.PPSize = 4, 2 },
	} {
		c := hashes.Compare(one, recorded(t, 2, nil, func(a *args.TrainingArguments) {
			a.TPSize, a.TPParts = 2, 2
			set(a)
		}))
		require.Nil(t, c.Found, "%v", c.Found)
		require.Equal(t, 7, c.Steps)
	}
	one = recorded(t, 1, nil)
	other := recorded(t, 1, nil, func(a *args.TrainingArguments) { a.Seed = 7 })
	c := hashes.Compare(one, other)
	require.Equal(t, []hashes.Setting{{Name: "seed", Of: [2]string{"42", "7"}}}, c.Settings)
	require.Equal(t, hashes.Data, c.Found.Kind)
	require.Equal(t, int64(1), c.Found.Step)
}

// A difference is found in the step and in the part of it where it comes in.
func TestWhereRunsPart(t *testing.T) {
	one := recorded(t, 2, nil)
	rate := recorded(t, 2, nil, func(a *args.TrainingArguments) { a.LearningRate = 2e-2 })
	c := hashes.Compare(one, rate)
	require.Equal(t, hashes.Rate, c.Found.Kind)
	require.Equal(t, int64(1), c.Found.Step)
	require.Equal(t, [2]string{"0.01", "0.02"}, c.Found.Values)

	decay := recorded(t, 2, nil, func(a *args.TrainingArguments) { a.AdamBeta2 = 0.99 })
	require.Equal(t, hashes.State, hashes.Compare(one, decay).Found.Kind)

	// A bit of one parameter's gradient changes on all ranks: which rank it was cannot be seen any more.
	const name = "transformer.h.1.mlp.c_fc.weight"
	flipAll := &before{step: 4, f: func(params []tensor.Named) { flipBit(t, params, name) }}
	c = hashes.Compare(one, recorded(t, 2, flipAll))
	require.Equal(t, hashes.Gradients, c.Found.Kind)
	require.Equal(t, int64(4), c.Found.Step)
	require.Equal(t, []string{name}, c.Found.Params)
	require.Contains(t, c.Found.String(), "the runs diverge in step 4, in the gradient of parameter "+name+" (1 of 28)")
	require.True(t, c.Found.Computed())
}

// flipBit flips a bit of a parameter's gradient.
func flipBit(t *testing.T, params []tensor.Named, name string) {
	for _, p := range params {
		if p.Name == name {
			mem, ok := tensor.HostBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Grad())
			require.True(t, ok)
			mem[9] ^= 1
		}
	}
}

// A rank whose gradient differs from the other's is named, whichever it is: the other has that of the other run.
func TestRankThatDiffers(t *testing.T) {
	one := recorded(t, 1, nil)
	const name = "transformer.h.0.ln_1.bias"
	for range 2 { // the rank that comes first is the faulty one
		first := make(chan struct{}, 1)
		first <- struct{}{}
		alone := &before{step: 3, f: func(params []tensor.Named) {
			select {
			case <-first:
				flipBit(t, params, name)
			default:
			}
		}}
		run := recorded(t, 2, alone)
		c := hashes.Compare(one, run)
		require.Equal(t, int64(3), c.Found.Step)
		require.Equal(t, hashes.Gradients, c.Found.Kind)
		require.Equal(t, []string{name}, c.Found.Params)
		require.Len(t, c.Found.Alone[1], 1)
		require.Contains(t, c.Found.String(), "of the second run disagrees with the other ranks of that run")
		wrong, right := c.Found.Alone[1][0], 1-c.Found.Alone[1][0]
		require.NotEqual(t, gradients(t, one, 0), gradients(t, run, wrong))
		require.Equal(t, gradients(t, one, 0), gradients(t, run, right))
	}
}

// gradients are what a rank has recorded of step 3.
func gradients(t *testing.T, run *hashes.Run, rank int) (sums any) {
	text, err := os.ReadFile(filepath.Join(run.Path, hashes.Dir, fmt.Sprintf("rank-%d.jsonl", rank)))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var step hashes.Step
		require.NoError(t, json.Unmarshal([]byte(line), &step))
		if step.Step == 3 {
			return step.Grads
		}
	}
	return nil
}

// A record of modules names the first one whose result differs.
func TestFirstOp(t *testing.T) {
	one := recorded(t, 1, nil, ops)
	other := recorded(t, 1, nil, ops, func(a *args.TrainingArguments) { a.LearningRate = 1.5e-2 })
	c := hashes.Compare(one, other)
	require.Equal(t, hashes.Rate, c.Found.Kind)
	require.Nil(t, c.Found.Op, "all that is computed is equal")

	// Other dropout from the first step on.
	b, err := hashes.Load(dropout(t))
	require.NoError(t, err)
	c = hashes.Compare(one, b)
	require.Equal(t, hashes.Loss, c.Found.Kind)
	require.Equal(t, hashes.OpDifference{MicroBatch: 0, Pass: hashes.Forward, Path: "transformer.drop",
		Ranks: [2][]int{{0}, {0}}}, *c.Found.Op)
	require.False(t, c.Found.Computed())

	// record_until ends the run, and only its step has modules.
	until := recorded(t, 2, nil, ops, func(a *args.TrainingArguments) { a.RecordUntil = 3 })
	c = hashes.Compare(one, until)
	require.Nil(t, c.Found)
	require.Equal(t, int64(3), c.Last)
}

// dropout is the folder of a run with other dropout.
func dropout(t *testing.T) string {
	a := args.Default(t.TempDir())
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.MaxSteps = 2, 8, 1
	a.SaveStrategy, a.RecordHashes, a.LearningRate = args.StrategyNo, args.RecordOp, 1e-2
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0.2), a, trainer.WithTrainData(texts(40))).Train()
	require.NoError(t, err)
	return a.OutputDir
}

// A resumed run goes on with its record, and a step that was done again counts as it was last.
func TestRecordOfAResumedRun(t *testing.T) {
	dir := t.TempDir()
	run := func(steps int, resume string, rate float64) {
		a := args.Default(dir)
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.MaxSteps, a.SaveSteps = 2, 8, steps, 2
		a.RecordHashes, a.ResumeFromCheckpoint, a.LearningRate = args.RecordStep, resume, rate
		a.LRSchedulerType = args.SchedulerConstant
		tr := trainer.New(newGPT2(t, 0.1), a, trainer.WithTrainData(texts(40)), trainer.WithDisplay(nil),
			trainer.WithLogger(quiet))
		_, err := tr.Train()
		require.NoError(t, err)
	}
	run(5, "", 1e-2)
	whole, err := hashes.Load(dir)
	require.NoError(t, err)
	run(6, filepath.Join(dir, "checkpoint-4"), 1e-2)
	text, err := os.ReadFile(filepath.Join(dir, hashes.Dir, "rank-0.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(text), `"version":1`))
	again, err := hashes.Load(dir)
	require.NoError(t, err)
	c := hashes.Compare(whole, again)
	require.Nil(t, c.Found, "%v", c.Found)
	require.Equal(t, int64(5), c.Last)
	run(6, filepath.Join(dir, "checkpoint-4"), 2e-2)
	again, err = hashes.Load(dir)
	require.NoError(t, err)
	c = hashes.Compare(whole, again)
	require.Equal(t, int64(5), c.Found.Step)
	require.Equal(t, hashes.Rate, c.Found.Kind)
}

// Ranks that divide the tokens record the ops of their chunks, and a comparison names the chunk that differs first.
func TestHashesOfDividedTokens(t *testing.T) {
	chunks := func(a *args.TrainingArguments) { a.MaxSteps, a.CPChunks = 2, 4 }
	one := recorded(t, 1, nil, ops, chunks)
	two := func(strategy args.CPStrategy) *hashes.Comparison {
		return hashes.Compare(one, recorded(t, 2, nil, ops, chunks, func(a *args.TrainingArguments) {
			a.CPSize, a.CPStrategy = 2, strategy
		}))
	}
	c := two(args.CPUlysses)
	require.Nil(t, c.Found, "%v", c.Found)
	require.Equal(t, 3, c.Steps, "the weights at first, and 2 steps")
	c = two(args.CPRing)
	require.NotNil(t, c.Found)
	require.Contains(t, fmt.Sprintf("%+v", *c.Found), "transformer.h.0.attn")
	require.Contains(t, fmt.Sprintf("%+v", *c.Found), " chunk ")
}
