// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/data"
)

// evaluation is a pass over a set. Its batches are this rank's, every ranks-th one. Where the ranks gather parameters,
// all have as many: the last batch is repeated, with MicroBatch −1, on those that would be without.
type evaluation struct {
	*feed.Windows
	name             string
	samples, batches int64 // so far, over all ranks
	ended            bool
	losses           map[int64]EvalLoss  // of this rank's batches that have one
	figures          map[int64][]float64 // beside them
	sums             []float64           // of the figures, over all ranks' batches
	predicts         bool                // for Predict
	predictions      []Prediction        // of this rank's batches; empty where nothing needs them
}

// newEvaluation begins to load a set.
func (t *Trainer) newEvaluation(ctx context.Context, set evalSet) (e *evaluation, err error) {
	e = &evaluation{name: set.name, losses: map[int64]EvalLoss{}, figures: map[int64][]float64{},
		sums: make([]float64, len(t.figures))}
	if set.stream != nil {
		e.Windows, err = t.acc.IterableBatches(ctx, set.stream)
	} else {
		e.Windows, err = t.acc.Batches(ctx, t.checked(set.src))
	}
	return e, err
}

// Next returns the next batch, or io.EOF after the last one.
func (e *evaluation) Next() (*data.Batch, error) {
	if e.ended {
		return nil, io.EOF
	}
	w, err := e.Windows.Next()
	switch {
	case err == io.EOF, errors.Is(err, feed.ErrNoSamples):
		return nil, io.EOF
	case err != nil:
		return nil, fmt.Errorf("evaluation set %q: %w", e.name, err)
	}
	e.samples, e.batches, e.ended = e.samples+w.Samples, e.batches+int64(w.MicroBatches), w.LastOfEpoch
	if len(w.Batches) == 0 { // the last window has batches of other ranks alone
		return nil, io.EOF
	}
	return w.Batches[0], nil
}

// take returns the next batches, at most n, or an error and none; after the last ones there are none.
func (e *evaluation) take(n int) (list []*data.Batch, err error) {
	for len(list) < n {
		b, err := e.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			for _, b := range list {
				b.Free()
			}
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// setLoss enters the loss of a batch.
func (e *evaluation) setLoss(b *data.Batch, sum, count float64, figures ...float64) {
	batch := e.batch(b)
	e.losses[batch], e.figures[batch] = EvalLoss{sum, count}, figures
}

// lossOf is the loss of a batch, if it has one.
func (e *evaluation) lossOf(b *data.Batch) (loss EvalLoss, ok bool) {
	loss, ok = e.losses[e.batch(b)]
	return loss, ok
}

// batch is the number of a batch in the set.
func (e *evaluation) batch(b *data.Batch) int64 { return b.Position / int64(e.Layout().BatchSize) }

// loss adds the losses and figures of all ranks' batches in their order, so that their bits do not depend on the ranks.
// labelled reports whether there were any. It is collective.
func (e *evaluation) loss(ctx context.Context, peers *ranks.Peers) (total EvalLoss, labelled bool, err error) {
	width := int64(2 + len(e.sums))           // sum, count and figures
	all := make([]float64, width*e.batches+1) // batch by batch, and whether there are any
	for batch, l := range e.losses {
		row := all[width*batch:]
		row[0], row[1], all[width*e.batches] = l.Sum, l.Count, 1
		copy(row[2:], e.figures[batch])
	}
	if err := peers.SumFloats(ctx, all, "losses of an evaluation"); err != nil {
		return total, false, err
	}
	for batch := range e.batches {
		row := all[width*batch:]
		total.Sum += row[0]
		total.Count += row[1]
		for i := range e.sums {
			e.sums[i] += row[2+i]
		}
	}
	return total, all[width*e.batches] > 0, nil
}
