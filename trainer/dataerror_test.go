// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

var errDisk = errors.New("part-7.bin: input/output error")

// unreadable fails to give a sample while it is broken.
type unreadable struct {
	data.Source
	at     int64
	panics bool
	broken *atomic.Bool
}

func (s unreadable) Batch(c *tensor.Ctx, indices []int64) (*data.Batch, error) {
	if s.broken.Load() && slices.Contains(indices, s.at) {
		if s.panics {
			return nil, tensor.Recover(func() { panic(errDisk) })
		}
		return nil, errDisk
	}
	return s.Source.Batch(c, indices)
}

// failingRun is 8 steps of 16 samples in their order, with an evaluation after step 4.
func failingRun(ranks int, set func(*args.TrainingArguments)) *args.TrainingArguments {
	a := rankArgs(ranks)
	a.TrainSamplingStrategy, a.SaveSteps, a.EvalSteps = args.SamplingSequential, 100, new(4.0)
	set(a)
	return a
}

// TestDataErrorOfOneRank lets one rank's data fail, under every way to spread a model: all ranks end at the same step
// with an error that names the rank and the cause, what was trained is saved, and a run that goes on has the bits of
// one that nothing happened to.
func TestDataErrorOfOneRank(t *testing.T) {
	m := newGPT2(t, 0)
	_, err := newTrainer(vfs.NewMem(), m, failingRun(2, func(*args.TrainingArguments) {}),
		trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13))).Train()
	require.NoError(t, err)
	want := weights(m)
	for name, set := range spreads() {
		for _, c := range []struct {
			where string
			step  int64
			words string
			panic bool
		}{
			{"train", 0, "trainer: step 1: rank 1: ", false}, // when nothing is to be saved
			{"train", 1, "trainer: step 2: rank 1: ", false}, // when DDP cuts its buckets anew
			{"train", 2, "trainer: step 3: rank 1: ", false},
			{"eval", 4, "trainer: evaluation after step 4: rank 1: ", true},
		} {
			if testing.Short() && name != "ddp" && c.step != 1 {
				continue // what a strategy holds when it is cut off is the same
			}
			t.Run(fmt.Sprint(name, " ", c.where, " ", c.step), func(t *testing.T) {
				broken := new(atomic.Bool)
				broken.Store(true)
				train, eval := raggedTexts(51), raggedTexts(13)
				ranks := 2
				if name == "fsdp hybrid_shard" {
					ranks = 4
				}
				if c.where == "train" {
					train = unreadable{train, sampleOfRank1(ranks, c.step, set), c.panic, broken}
				} else {
					eval = unreadable{eval, 2, c.panic, broken}
				}
				disk, a := vfs.NewMem(), failingRun(ranks, set)
				run := func() (*trainer.Result, *gpt2.Model, error) {
					m := newGPT2(t, 0)
					tr := newTrainer(disk, m, a.Clone(), trainer.WithTrainData(train), trainer.WithEvalData(eval))
					res, err := tr.Train()
					require.NoError(t, tr.Close())
					return res, m, err
				}
				res, _, err := run()
				require.ErrorContains(t, err, c.words)
				require.ErrorContains(t, err, errDisk.Error())
				require.ErrorIs(t, err, errDisk)
				require.NotContains(t, err.Error(), "rank 0")
				require.Equal(t, c.step, res.GlobalStep)
				ck, err := (&checkpoint.Store{Dir: out, FS: disk, Log: quiet}).Latest(context.Background())
				if c.step == 0 {
					require.ErrorIs(t, err, checkpoint.ErrNone)
				} else {
					require.NoError(t, err)
					require.Equal(t, c.step, ck.Step)
					a.ResumeFromCheckpoint = "last"
				}

				broken.Store(false)
				_, m, err := run()
				require.NoError(t, err)
				if a.LocalSGDSteps == 0 { // the averages of a save are those of local SGD
					require.Equal(t, want, weights(m))
				}
			})
		}
	}
}

// sampleOfRank1 is the first sample that rank 1 reads after so many steps.
func sampleOfRank1(ranks int, steps int64, set func(*args.TrainingArguments)) int64 {
	if shard.Strategy(failingRun(ranks, set).ShardStrategy()).ShardsGradients() { // ranks take turns
		return 16*steps + 2
	}
	return 16*steps + 16/int64(ranks)
}

// Each rank returns the error, with its cause where it arose; without save_on_interrupt nothing is written, and with
// save_strategy no it is, as save_on_interrupt says. The trainer can train again.
func TestDataErrorOnEachRank(t *testing.T) {
	for _, c := range []struct {
		strategy args.Strategy
		save     bool
	}{{args.StrategySteps, false}, {args.StrategyNo, true}, {args.StrategyNo, false}} {
		t.Run(fmt.Sprint(c.strategy, c.save), func(t *testing.T) {
			disk, broken, groups := vfs.NewMem(), new(atomic.Bool), tcpGroups(t, 2)
			broken.Store(true)
			errs := make([][2]error, len(groups))
			var all sync.WaitGroup
			for r, g := range groups {
				m := newGPT2(t, 0)
				all.Go(func() {
					a := failingRun(1, func(a *args.TrainingArguments) {
						a.SaveStrategy, a.SaveOnInterrupt = c.strategy, c.save
					})
					a.EvalStrategy = args.StrategyNo
					src := unreadable{raggedTexts(51), 40, true, broken}
					tr := newTrainer(disk, m, a, trainer.WithGroup(g), trainer.WithTrainData(src))
					_, errs[r][0] = tr.Train()
					assert.NoError(t, g.Barrier().Wait(context.Background()))
					broken.Store(false)
					_, errs[r][1] = tr.Train()
					assert.NoError(t, tr.Close())
					assert.NoError(t, g.Close())
				})
			}
			all.Wait()
			for rank, err := range errs {
				require.ErrorContains(t, err[0],
					"trainer: step 3: rank 1: WithTrainData: data: collating samples [40 41]: panic: "+
						errDisk.Error())
				require.Equal(t, rank == 1, errors.Is(err[0], errDisk))
				var failed *accelerate.DataError
				require.ErrorAs(t, err[0], &failed)
				require.Len(t, failed.Failed, 1)
				require.Equal(t, 1, failed.Failed[0].Rank)
				require.NoError(t, err[1])
			}
			_, err := disk.Stat(checkpointPath(2))
			require.Equal(t, c.save, !errors.Is(err, os.ErrNotExist))
		})
	}
}

// unreadableStream is a stream of which the collator fails for one sample while it is broken.
type unreadableStream struct {
	data.IterableSource
	at     int64
	broken *atomic.Bool
}

func (s unreadableStream) Collate(c *tensor.Ctx, samples []any, indices []int64) (*data.Batch, error) {
	if s.broken.Load() && slices.Contains(indices, s.at) {
		return nil, errDisk
	}
	return s.IterableSource.Collate(c, samples, indices)
}

// The ranks whose data were read go back to before the step in a stream too.
func TestDataErrorOfAStream(t *testing.T) {
	want := trainOnStream(t, vfs.NewMem(), 1, false).weights
	for _, workers := range []int{0, 2} {
		disk, broken := vfs.NewMem(), new(atomic.Bool)
		broken.Store(true)
		train := func(resume string) (*trainer.Result, map[string][]byte, error) {
			m := newGPT2(t, 0.2)
			a := streamArgs(2, func(a *args.TrainingArguments) {
				a.SaveSteps, a.ResumeFromCheckpoint, a.DataloaderNumWorkers = 100, resume, workers
			})
			tr := newTrainer(disk, m, a, trainer.WithIterableEvalData(streamOf(13, false)),
				trainer.WithIterableTrainData(unreadableStream{streamOf(51, false), 44, broken}))
			res, err := tr.Train()
			return res, weights(m), err
		}
		res, _, err := train("")
		require.ErrorContains(t, err, "trainer: step 3: rank 1: ")
		require.ErrorIs(t, err, errDisk)
		require.EqualValues(t, 2, res.GlobalStep)
		broken.Store(false)
		_, got, err := train("last")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
