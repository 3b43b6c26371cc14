// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// errOtherInterrupted is the reason for a rank to stop whose own context has not ended.
var errOtherInterrupted = errors.New("trainer: another rank was interrupted")

// buildRanks creates the accelerator, and the trainers of the other ranks that run in
// this process (num_replicas). These have the same arguments and data, and their own
// model and state.
func (t *Trainer) buildRanks() error {
	opts := []accelerate.Option{accelerate.WithLogger(t.levelLogger(t.args.SlogLevel()))}
	opts = append(opts, accelerate.WithStages(accelerate.Stages{Forward: stageOf, Example: exampleOf}))
	opts = append(append(opts, t.options...), t.ranks...)
	ranks, err := accelerate.Replicas(t.args, t.args.NumReplicas, opts...)
	if err != nil {
		return err
	}
	t.acc = ranks[0]
	sharing := map[*tensor.Device]int{}
	for _, acc := range ranks {
		sharing[acc.Device()]++
	}
	t.sharing = sharing[t.acc.Device()]
	for _, acc := range ranks[1:] {
		replica := *t
		replica.acc, replica.replicas, replica.display, replica.sharing = acc, nil, nil, sharing[acc.Device()]
		replica.args = t.args.Clone() // a resume changes arguments, on each rank its own
		replica.user = slices.DeleteFunc(slices.Clone(t.user), func(c callbacks.Callback) bool {
			_, every := c.(callbacks.EveryRank)
			return !every
		})
		replica.log = t.rankLogger(acc)
		if replica.model, err = t.cloneModel(acc); err != nil {
			return err
		}
		t.replicas = append(t.replicas, &replica)
	}
	t.log = t.rankLogger(t.acc)
	if n := t.acc.PipelineRanks().WorldSize(); n > 1 && t.stepFunc != nil {
		return fmt.Errorf("trainer: pp_size %d: a step function (WithStep) computes the whole model: want WithLoss, "+
			"which gets the output of the last stage", n)
	}
	if err := t.acc.MoveModel(t.model); err != nil {
		return err
	}
	if err := t.checkFigures(); err != nil {
		return err
	}
	return t.checkMetrics()
}

// stageOf runs a stage of a model.
func stageOf(c *nn.Ctx, m nn.Module, b *data.Batch) (accelerate.Output, error) {
	out := m.(models.Model).Forward(c.WithLossOnly(), b)
	return accelerate.Output{Hidden: out.Hidden, Loss: out.Loss, Count: b.Count}, nil
}

// exampleOf makes a batch to measure a model's parts with.
func exampleOf(c *tensor.Ctx, m nn.Module) (*data.Batch, error) {
	example, ok := m.(models.Example)
	if !ok {
		return nil, errors.New("trainer: pp_size: the model has no ExampleBatch to measure its parts with " +
			"(models.Example): want one, or pp_split, the number of parts in each stage")
	}
	return example.ExampleBatch(c, 1, 0), nil
}

// cloneModel creates the model of another rank.
func (t *Trainer) cloneModel(acc *accelerate.Accelerator) (models.Model, error) {
	if t.newModel != nil {
		var m models.Model
		err := called("WithModelInit", func() (err error) {
			switch m, err = t.newModel(); {
			case err != nil:
				return err
			case m == nil:
				return errors.New("it returned no model")
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%w (rank %d)", err, acc.Rank())
		}
		return m, acc.MoveModel(m)
	}
	if max(acc.PipelineRanks().WorldSize(), acc.TensorRanks().WorldSize()) > 1 { // a rank has memory for its part alone
		return nn.CloneDeferred(t.model, acc.Device())
	}
	return nn.Clone(t.model, acc.Device())
}

// onEvery is every for an f with a result, which is that of t.
func onEvery[T any](ctx context.Context, t *Trainer, f func(rank *Trainer) (T, error)) (result T, err error) {
	err = t.every(ctx, func(rank *Trainer) error {
		out, err := f(rank)
		if rank == t {
			result = out
		}
		return err
	})
	return result, err
}

// every calls f for each rank of this process, each in its own goroutine, and returns when
// all have ended. A rank that fails aborts the others, because they would wait for it; its
// error is returned instead of theirs. ctx ends only the waiting for other processes.
func (t *Trainer) every(ctx context.Context, f func(rank *Trainer) error) error {
	t.busy = true
	defer func() { t.busy = false }()
	defer t.acc.Device().Sync() // the caller reads the model with another context
	unprotected := f
	f = func(rank *Trainer) error { return protect(func() error { return unprotected(rank) }) }
	if len(t.replicas) == 0 {
		err := t.acc.Open(ctx)
		switch {
		case err == nil:
			err = f(t)
		case ctx.Err() != nil:
			return fmt.Errorf("%w while waiting for the other ranks: %w", ErrInterrupted, err)
		}
		if err != nil && !agreed(err) {
			t.acc.Abort(err)
		}
		return err
	}
	ranks := append([]*Trainer{t}, t.replicas...)
	accs := make([]*accelerate.Accelerator, len(ranks))
	for i, rank := range ranks {
		accs[i] = rank.acc
	}
	ended := make([]error, len(ranks)) // what all ranks agreed on would, as an error of one, abort the others
	err := accelerate.RunRanks(ctx, accs, func(acc *accelerate.Accelerator) error {
		err := f(ranks[acc.Rank()])
		if agreed(err) {
			ended[acc.Rank()], err = err, nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, err := range ended {
		if unread, ok := errors.AsType[*accelerate.DataError](err); ok && unread.Err != nil {
			return err // it wraps the cause
		}
	}
	return ended[0]
}
