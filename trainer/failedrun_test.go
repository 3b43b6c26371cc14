// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
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

// failInStep3 fails once, between the micro-batches of step 3.
func failInStep3() trainer.Option {
	failed := false
	return on(callbacks.SubstepEnd, func(e *callbacks.Event) error {
		if e.State.GlobalStep == 2 && !failed {
			failed = true
			return errors.New("out of luck")
		}
		return nil
	})
}

// After a step that failed while each rank had a part of the weights, nothing goes on with what is left of them: the
// error names the step, its cause and the last checkpoint, from which a run of the same trainer goes on.
func TestAfterAFailedStep(t *testing.T) {
	set := func(a *args.TrainingArguments) {
		shardsArgs(a)
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.EvalStrategy, a.SaveSteps = 2, 16, args.StrategyNo, 1
		a.MaxSteps = 6 // one and a half epochs
		if testing.Short() {
			a.MaxSteps = 4
		}
	}
	uninterrupted := trainWideUninterrupted(t, set) // on one rank, whose bits all have
	for name, spread := range spreads() {
		if name == "fsdp hybrid_shard" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			a, m := rankArgs(2), wideGPT2(t, "")
			set(a)
			spread(a)
			disk := vfs.NewMem()
			tr := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)),
				failInStep3())
			_, err := tr.Train()
			require.ErrorContains(t, err, "out of luck")
			_, evalErr := tr.Evaluate()
			saveErr := tr.SaveModel("model")
			_, predictErr := tr.Predict(raggedTexts(3))
			if len(a.FSDP) == 0 || a.FSDPShareParameters { // every rank has the weights
				require.NoError(t, errors.Join(evalErr, saveErr, predictErr))
				return
			}
			_, trainErr := tr.Train()
			for _, err := range []error{evalErr, saveErr, predictErr, trainErr} {
				requireOneError(t, err, "trainer: step 3 of an earlier run failed (", "out of luck), and the weights "+
					"are incomplete, since each rank had a part of them: want a run that resumes "+
					"(resume_from_checkpoint out/checkpoint-2), or reloaded weights (models.LoadWeights)")
			}

			a.ResumeFromCheckpoint = "last"
			_, err = tr.Train()
			require.NoError(t, err)
			require.Equal(t, uninterrupted, weights(m))
			metrics, err := tr.Evaluate()
			require.NoError(t, err)
			require.False(t, math.IsNaN(metrics["eval_loss"]))
		})
	}
}

func trainWideUninterrupted(t *testing.T, set func(*args.TrainingArguments)) map[string][]byte {
	a, m := rankArgs(1), wideGPT2(t, "")
	set(a)
	_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51))).Train()
	require.NoError(t, err)
	return weights(m)
}

// Weights that the program gives the model after a failure are as good as others.
func TestAfterAFailedStepWithNewWeights(t *testing.T) {
	a, m := rankArgs(2), wideGPT2(t, "")
	a.EvalStrategy, a.SaveStrategy = args.StrategyNo, args.StrategyNo
	gather(a, "full_shard", "auto_wrap")
	tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)),
		failInStep3())
	_, err := tr.Train()
	require.ErrorContains(t, err, "out of luck")
	_, err = tr.Evaluate()
	require.ErrorContains(t, err, "the weights are incomplete, since each rank had a part of them: want reloaded")
	first := "transformer.h.0.mlp.c_fc.weight" // of which the rank had a part
	if testing.Short() {
		first = "transformer.h.0.mlp.c_fc.bias" // the parts of a narrower model end elsewhere
	}
	for _, ranks := range []int{1, 2} { // a trainer that knows nothing of the failed run
		b := a.Clone()
		b.NumReplicas = ranks
		_, err = newTrainer(vfs.NewMem(), m, b, trainer.WithTrainData(raggedTexts(51))).Train()
		var bad *trainer.NonfiniteError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, first, bad.Parameter)
		require.ErrorContains(t, err, "were not finite then either: "+bad.Parameter+" has NaN or infinities")
	}
	fresh, c := wideGPT2(t, ""), tensor.NewCtx(tensor.CPU()).NoGrad()
	for i, p := range nn.NamedParameters(m) {
		tensor.CopyInto(c, p.Tensor, nn.NamedParameters(fresh)[i].Tensor)
	}
	c.Sync()
	_, err = tr.Evaluate()
	require.NoError(t, err)
	_, err = tr.Train()
	require.NoError(t, err)
}

// An error that all ranks return together leaves the weights whole.
func TestAfterAnErrorOfAllRanks(t *testing.T) {
	a, m := rankArgs(2), wideGPT2(t, "")
	a.EvalStrategy, a.SaveStrategy, a.NonfiniteLoss = args.StrategyNo, args.StrategyNo, args.NonfiniteRaise
	gather(a, "full_shard", "auto_wrap")
	spoil := func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
		if b.Position >= 32 {
			return tensor.Affine(c.Ctx, o.Loss, math.NaN(), 0), b.Count
		}
		return o.Loss, b.Count
	}
	tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)),
		trainer.WithLoss(spoil))
	_, err := tr.Train()
	var bad *trainer.NonfiniteError
	require.ErrorAs(t, err, &bad)
	require.EqualValues(t, 3, bad.Step)
	metrics, err := tr.Evaluate()
	require.NoError(t, err)
	require.False(t, math.IsNaN(metrics["eval_loss"]))
}

// A rank whose job was aborted says so, whatever it is asked for, and on each rank.
func TestAfterAFailedStepOfConnectedRanks(t *testing.T) {
	for name, gathers := range map[string]bool{"gathered": true, "ddp": false} {
		groups := tcpGroups(t, 2)
		var all sync.WaitGroup
		for r, g := range groups {
			var m models.Model = wideGPT2(t, "")
			all.Go(func() {
				a := shardedArgs()
				if a.FSDPShareParameters = false; !gathers {
					a.FSDP = nil
				}
				opts := []trainer.Option{trainer.WithGroup(g), trainer.WithTrainData(raggedTexts(51)),
					trainer.WithEvalData(raggedTexts(13))}
				if r == 1 {
					opts = append(opts, trainer.WithLoss(failingLoss()))
				}
				tr := newTrainer(vfs.NewMem(), m, a, opts...)
				_, err := tr.Train()
				assert.ErrorContains(t, err, "out of luck")
				_, err = tr.Evaluate()
				assert.ErrorContains(t, err, "trainer: step 3 of an earlier run failed (", name)
				assert.ErrorContains(t, err, "out of luck")
				assert.ErrorContains(t, err, "and the ranks are no longer connected: want a restart of the program")
				_, err = tr.Train()
				assert.ErrorContains(t, err, "and the ranks are no longer connected: want a restart of the program")
				if err = tr.SaveModel("model"); gathers {
					assert.ErrorContains(t, err, "the weights are incomplete, since each rank had a part of them")
				} else {
					assert.NoError(t, err)
				}
				assert.NoError(t, tr.Close())
				assert.NoError(t, g.Close())
			})
		}
		all.Wait()
	}
}

// failingLoss is the model's loss, which fails in the third step: each has 4 micro-batches, and the first has three
// probes.
func failingLoss() trainer.LossFunc {
	calls := 0
	return func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
		if calls++; calls > 2*4+3 {
			panic("out of luck")
		}
		return o.Loss, b.Count
	}
}
