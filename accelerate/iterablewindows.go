// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
)

// IterableWindows gives a rank's data of one optimizer step after the other from an iterable dataset, epoch after
// epoch: what Windows is for datasets with a length. Batches are made ahead on goroutines, as dataloader_num_workers
// and dataloader_prefetch_factor say. It belongs to one goroutine.
//
// A window is M·b consecutive samples, with M micro-batches of b over all ranks; micro-batches go to the ranks as those
// of a dataset with a length do, so that the windows do not depend on the number of ranks, and nothing is repeated.
// With data_sharding huggingface or torch the rules are those of samplers.IterableDatasetShard.
type IterableWindows struct {
	acc  *Accelerator
	ctx  context.Context
	src  data.IterableSource
	cut  cut
	left int64 // windows to come

	place IterablePlace // of the next window
	ahead *prefetch     // nil before the first window, and after Close
}

// IterablePlace is a place in an iterable dataset in global terms, for a checkpoint: it says nothing of ranks.
type IterablePlace struct {
	Iterable bool `json:"iterable"` // true: tells it from the places of datasets with a length
	samplers.IterableState
	Windows  int64           `json:"windows"`          // of the epoch that are done with
	Position int64           `json:"position"`         // samples of all epochs that are done with
	Cursor   json.RawMessage `json:"cursor,omitempty"` // what the dataset's own cursor says (data.Seeker)
}

// maxPlace bounds the numbers of a place, far above those of any run.
const maxPlace = 1 << 53

// NewIterableWindows cuts an iterable dataset into the windows of a rank; see Accelerator.Layout. Next gives steps of
// them. When ctx ends, reading does.
func NewIterableWindows(ctx context.Context, a *Accelerator, src data.IterableSource, steps int64) (*IterableWindows,
	error) {
	layout, err := a.Layout()
	if err != nil {
		return nil, err
	}
	if a.plan.batches.dealing == microBatches || layout.WorldSize == 1 {
		return newIterableWindows(ctx, a, src, layout, nil, steps)
	}
	rule, err := samplers.NewIterableDatasetShard(layout.BatchSize,
		samplers.Shard{Rank: layout.Rank, WorldSize: layout.WorldSize},
		samplers.IterableDatasetShardOptions{SplitBatches: a.plan.batches.shard.SplitBatches,
			DropLast: layout.DropLast})
	if err != nil {
		return nil, err
	}
	return newIterableWindows(ctx, a, src, layout, rule, steps)
}

// NewIterableBatches deals the batches of one epoch of an iterable dataset to the ranks in turn, each
// per_device_eval_batch_size samples, as an evaluation needs them. A window has a batch of each rank; the last one may
// have fewer. LastOfEpoch ends the data: go no further.
func NewIterableBatches(ctx context.Context, a *Accelerator, src data.IterableSource) (*IterableWindows, error) {
	ranks := a.Data()
	layout := samplers.Layout{
		BatchSize: a.plan.batches.eval, AccumulationSteps: 1, WorldSize: ranks.Size(), Rank: ranks.Rank(),
		Interleaved: a.GathersParameters(),
	}
	return newIterableWindows(ctx, a, src, layout, nil, maxPlace)
}

func newIterableWindows(ctx context.Context, a *Accelerator, src data.IterableSource, layout samplers.Layout,
	rule *samplers.IterableDatasetShard, steps int64) (*IterableWindows, error) {
	if err := layout.Validate(); err != nil {
		return nil, err
	}
	return &IterableWindows{acc: a, ctx: ctx, src: src, cut: cut{layout, rule}, left: steps,
		place: IterablePlace{Iterable: true}}, nil
}

// Layout gives the layout of the windows.
func (w *IterableWindows) Layout() samplers.Layout { return w.cut.layout }

// Limit lets Next give steps more windows, instead of what is left.
func (w *IterableWindows) Limit(steps int64) {
	if steps != w.left {
		w.Close()
	}
	w.left = steps
}

// Next gives the next window, which the caller frees, or io.EOF after the last one that Limit allows. An epoch without
// a sample is an error.
func (w *IterableWindows) Next() (*Window, error) {
	if w.left <= 0 {
		return nil, io.EOF
	}
	if err := context.Cause(w.ctx); err != nil {
		return nil, err
	}
	if w.ahead == nil {
		w.ahead = newPrefetch(w.ctx, w.acc, &cutter{src: w.src, cut: w.cut, place: w.place}, w.left)
	}
	out, after, err := w.ahead.next()
	if err != nil {
		w.Close()
		return nil, err
	}
	w.left--
	w.place = after
	return out, nil
}

// Place gives the place of the next window.
func (w *IterableWindows) Place() IterablePlace { return w.place }

// Position gives the position of the next window's first sample: the number of samples that are done with.
func (w *IterableWindows) Position() int64 { return w.place.Position }

// Epoch gives the epoch of the next window.
func (w *IterableWindows) Epoch() int64 { return w.place.Epoch }

// Restore goes to a saved place, on any number of ranks. The samples before it are read again unless the dataset's
// cursor is a data.Seeker.
func (w *IterableWindows) Restore(p IterablePlace) error {
	if !p.Iterable {
		return errors.New("accelerate: the place was saved with a dataset that has a length, this one is iterable")
	}
	for name, v := range map[string]int64{"epoch": p.Epoch, "items": p.Items, "windows": p.Windows,
		"position": p.Position} {
		if v < 0 || v > maxPlace {
			return fmt.Errorf("accelerate: the place's %s is %d: want 0 to %d", name, v, int64(maxPlace))
		}
	}
	if p.Items > p.Position || p.Windows > p.Items {
		return fmt.Errorf("accelerate: the place has %d windows of %d samples in its epoch and %d samples in all: "+
			"these do not go together", p.Windows, p.Items, p.Position)
	}
	w.Close()
	w.place = p
	return nil
}

// SeekEpoch goes to the beginning of an epoch. Samples that are left out are not read.
func (w *IterableWindows) SeekEpoch(epoch int64) {
	w.Close()
	w.place.IterableState, w.place.Windows, w.place.Cursor = samplers.IterableState{Epoch: epoch}, 0, nil
}

// Close ends reading. Next starts it again at the place of the next window.
func (w *IterableWindows) Close() {
	if w.ahead != nil {
		w.ahead.close()
		w.ahead = nil
	}
}
