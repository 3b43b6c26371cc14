// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
)

// Windows cuts the samples of source, in the order of s, into the windows of this rank; see Layout. The ranks share
// them as data_sharding says. Next gives steps of them. When ctx ends, loading does.
func (a *Accelerator) Windows(ctx context.Context, source data.Source, s samplers.Sampler, steps int64) (*feed.Windows,
	error) {
	layout, err := a.Layout()
	if err != nil {
		return nil, err
	}
	stream, err := a.newStream(s, layout)
	if err != nil {
		return nil, err
	}
	return feed.Sized(ctx, source, stream, a.feeding(steps)), nil
}

// newStream is the order of samples as data_sharding shares it out.
func (a *Accelerator) newStream(s samplers.Sampler, layout samplers.WindowLayout) (*samplers.Stream, error) {
	switch b := a.next.batches; b.dealing {
	case wholeBatches:
		return samplers.NewShardedStream(s, layout, b.shard)
	case singles:
		return samplers.NewDistributedStream(s, layout)
	}
	return samplers.NewStream(s, layout)
}

// IterableWindows cuts an iterable dataset, in its order, into the windows of this rank; see Accelerator.Layout.
// Next gives steps of them. When ctx ends, reading does.
func (a *Accelerator) IterableWindows(ctx context.Context, src data.IterableSource, steps int64) (*feed.Windows,
	error) {
	layout, err := a.Layout()
	if err != nil {
		return nil, err
	}
	var rule *samplers.IterableDatasetShard
	if a.next.batches.dealing != microBatches && layout.WorldSize > 1 {
		rule, err = samplers.NewIterableDatasetShard(layout.BatchSize,
			samplers.Shard{Rank: layout.Rank, WorldSize: layout.WorldSize},
			samplers.IterableDatasetShardOptions{SplitBatches: a.next.batches.shard.SplitBatches,
				DropLast: layout.DropLast})
		if err != nil {
			return nil, err
		}
	}
	return feed.Iterable(ctx, src, layout, rule, a.feeding(steps))
}

// Batches deals the batches of a dataset to the ranks round robin, per_device_eval_batch_size samples each, as an
// evaluation needs them. A window has a batch of each rank; the last one may have fewer.
func (a *Accelerator) Batches(ctx context.Context, src data.Source) (*feed.Windows, error) {
	layout := a.batchLayout()
	stream, err := samplers.NewStream(samplers.NewSequential(int64(src.Len())), layout)
	if err != nil {
		return nil, err
	}
	windows := (stream.MicroBatches() + layout.MicroBatches() - 1) / layout.MicroBatches()
	return feed.Sized(ctx, src, stream, a.feeding(windows)), nil
}

// IterableBatches is Batches of an iterable dataset. LastOfEpoch ends the data: go no further.
func (a *Accelerator) IterableBatches(ctx context.Context, src data.IterableSource) (*feed.Windows, error) {
	return feed.Iterable(ctx, src, a.batchLayout(), nil, a.feeding(math.MaxInt64))
}

// batchLayout is that of windows with a batch of each rank.
func (a *Accelerator) batchLayout() samplers.WindowLayout {
	peers := a.DataRanks()
	return samplers.WindowLayout{BatchSize: a.next.batches.eval, AccumulationSteps: 1, WorldSize: peers.WorldSize(),
		Rank: peers.Rank(), Interleaved: a.GathersParameters()}
}

// feeding are the options of windows.
func (a *Accelerator) feeding(steps int64) feed.Options {
	return feed.Options{Ctx: a.ctx.NoGrad(), Loading: a.next.loading, Steps: steps}
}
