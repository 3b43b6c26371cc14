// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
)

// evalBatches are this rank's batches of an evaluation set, every ranks-th one. Where the ranks gather parameters, all
// have as many: the last batch is repeated, with number −1, on those that would be without.
type evalBatches interface {
	// Next gives the next batch, or io.EOF after the last one.
	Next() (*data.Batch, error)
	Close()
	// total is the number of batches over all ranks, 0 while it is not known.
	total() int64
	// seen gives the samples and batches over all ranks, once Next has given all.
	seen() (samples, batches int64)
}

// evalBatches begins to load a set.
func (t *Trainer) evalBatches(ctx context.Context, set evalSet) (evalBatches, error) {
	if set.stream != nil {
		windows, err := t.acc.IterableBatches(ctx, set.stream)
		return &streamBatches{windows: windows, name: set.name}, err
	}
	n := int64(set.src.Len())
	batches, err := samplers.NewBatch(samplers.NewSequential(n), t.args.PerDeviceEvalBatchSize, false)
	if err != nil {
		return nil, err
	}
	order := &dealtOrder{order: data.EpochOrder(batches, 0), rank: t.acc.Data().Rank(), ranks: t.acc.Data().Size(),
		even: t.acc.GathersParameters()}
	loader, err := data.NewLoader(ctx, t.acc.Ctx().NoGrad(), t.checked(set.src), order, data.LoaderOptions{
		Workers: t.args.DataloaderNumWorkers, PrefetchFactor: t.args.PrefetchBatches(),
	})
	return &loaderBatches{loader, n, batches.Len()}, err
}

// loaderBatches are those of a dataset with a length.
type loaderBatches struct {
	*data.Loader
	samples, batches int64
}

func (b *loaderBatches) total() int64                   { return b.batches }
func (b *loaderBatches) seen() (samples, batches int64) { return b.samples, b.batches }

// streamBatches are those of an iterable dataset. Every rank reads all of it, and so knows how many there are.
type streamBatches struct {
	windows          *feed.Windows
	name             string
	ready            []*data.Batch
	samples, batches int64
	ended            bool
}

// Next implements evalBatches.
func (b *streamBatches) Next() (*data.Batch, error) {
	for len(b.ready) == 0 {
		if b.ended {
			return nil, io.EOF
		}
		w, err := b.windows.Next()
		if err != nil {
			return nil, fmt.Errorf("evaluation set %q: %w", b.name, err)
		}
		b.samples, b.batches, b.ended = b.samples+w.Samples, b.batches+int64(w.MicroBatches), w.LastOfEpoch
		b.ready = w.Batches
	}
	next := b.ready[0]
	b.ready = b.ready[1:]
	return next, nil
}

// Close implements evalBatches.
func (b *streamBatches) Close() {
	for _, left := range b.ready {
		left.Free()
	}
	b.ready = nil
	b.windows.Close()
}

func (b *streamBatches) total() int64                   { return 0 }
func (b *streamBatches) seen() (samples, batches int64) { return b.samples, b.batches }

// dealtOrder yields every ranks-th batch of an order, starting with the rank-th.
type dealtOrder struct {
	order       data.Order
	rank, ranks int
	even        bool // ranks without a batch in the last round repeat the last one
	next        int
	last        samplers.MicroBatch
}

// Next implements data.Order.
func (o *dealtOrder) Next() (samplers.MicroBatch, bool) {
	for {
		m, ok := o.order.Next()
		if !ok {
			return o.spare()
		}
		mine := o.next%o.ranks == o.rank
		o.next++
		if o.last = m; mine {
			return m, true
		}
	}
}

// spare is the last batch again, for a rank that others are ahead of.
func (o *dealtOrder) spare() (samplers.MicroBatch, bool) {
	behind := o.even && o.next%o.ranks != 0 && o.next%o.ranks <= o.rank
	o.even, o.last.Number = false, -1
	return o.last, behind
}
