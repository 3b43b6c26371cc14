// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/data"
)

// evalBatches are this rank's batches of an evaluation set, every ranks-th one. Where the ranks gather parameters, all
// have as many: the last batch is repeated, with MicroBatch −1, on those that would be without.
type evalBatches struct {
	*feed.Windows
	name             string
	samples, batches int64 // so far, over all ranks
	ended            bool
}

// evalBatches begins to load a set.
func (t *Trainer) evalBatches(ctx context.Context, set evalSet) (b *evalBatches, err error) {
	b = &evalBatches{name: set.name}
	if set.stream != nil {
		b.Windows, err = t.acc.IterableBatches(ctx, set.stream)
	} else {
		b.Windows, err = t.acc.Batches(ctx, t.checked(set.src))
	}
	return b, err
}

// Next gives the next batch, or io.EOF after the last one.
func (b *evalBatches) Next() (*data.Batch, error) {
	if b.ended {
		return nil, io.EOF
	}
	w, err := b.Windows.Next()
	switch {
	case err == io.EOF:
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("evaluation set %q: %w", b.name, err)
	}
	b.samples, b.batches, b.ended = b.samples+w.Samples, b.batches+int64(w.MicroBatches), w.LastOfEpoch
	if len(w.Batches) == 0 { // the last window has batches of other ranks alone
		return nil, io.EOF
	}
	return w.Batches[0], nil
}
