// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Window is the data of one optimizer step on one rank. The batches are those of Own: a rank may have none where an
// epoch ends.
type Window struct {
	samplers.Window
	Batches []*data.Batch
}

// Free frees the batches.
func (w *Window) Free() {
	for _, b := range w.Batches {
		b.Free()
	}
	w.Batches = nil
}

// Options are what all windows need.
type Options struct {
	Ctx     *tensor.Ctx // of batches that no worker makes
	Loading data.LoaderOptions
	Steps   int64 // windows that Next gives
}

// Windows gives a rank's data of one optimizer step after the other, epoch after epoch. It belongs to one goroutine.
// Batches are loaded ahead of Next, as Options.Loading says, until Close or the end of the context.
type Windows struct {
	Loader
	layout       samplers.WindowLayout
	microBatches int64
	left         int64 // windows to come
	before       Place // where the last call of Next began
}

// Loader is where Windows come from. One that is a data.Fingerprinter lets a resume recognize other data.
type Loader interface {
	// Next gives the next of so many windows that are left. After an error it is still the next. Dropout depends on the
	// Position of batches (data.Batch), which is at least that of Place before.
	Next(left int64) (*Window, error)
	// Close ends loading until Next is called again.
	Close()
	// Place gives the place of the next window. Its position advances with each window.
	Place() Place
	// Restore goes to a saved place, on any number of ranks. Of an iterable dataset, the samples before it are read
	// again unless the dataset's cursor is a data.Seeker.
	Restore(Place) error
	// EpochAfter is the number of epochs done after one of so many planned windows, with the fraction of its epoch. As
	// the length of an iterable dataset is not known, an epoch under way counts there for the part of the planned
	// windows that it has had, as in transformers.
	EpochAfter(w samplers.Window, planned int64) float64
}

// Place is the place of the next window in global terms, for a checkpoint: it says nothing of ranks. In JSON it is
// Iterable where that is set, else Sized.
type Place struct {
	Sized    samplers.Place
	Iterable *IterablePlace
}

// MarshalJSON implements json.Marshaler.
func (p Place) MarshalJSON() ([]byte, error) {
	if p.Iterable != nil {
		return json.Marshal(p.Iterable)
	}
	return json.Marshal(p.Sized)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Place) UnmarshalJSON(text []byte) error {
	var kind struct{ Iterable bool }
	if err := json.Unmarshal(text, &kind); err != nil {
		return err
	}
	*p = Place{}
	if kind.Iterable {
		return json.Unmarshal(text, &p.Iterable)
	}
	return json.Unmarshal(text, &p.Sized)
}

// position is the number of samples that are done with.
func (p Place) position() int64 {
	if p.Iterable != nil {
		return p.Iterable.Position
	}
	return p.Sized.Position
}

// epoch is that of the next window.
func (p Place) epoch() int64 {
	if p.Iterable != nil {
		return p.Iterable.Epoch
	}
	return p.Sized.Position / max(p.Sized.Samples, 1)
}

// beginning is the place where an epoch begins. The positions of an iterable dataset continue.
func (p Place) beginning(epoch int64) Place {
	if p.Iterable != nil {
		return Place{Iterable: &IterablePlace{Iterable: true, Epoch: epoch, Position: p.Iterable.Position}}
	}
	p.Sized.Epoch, p.Sized.Position = epoch, epoch*p.Sized.Samples
	return p
}

// Next returns the next window, which the caller frees, or io.EOF after the last one. After an error the place is still
// that of the window that could not be loaded.
func (w *Windows) Next() (*Window, error) {
	if w.left <= 0 {
		return nil, io.EOF
	}
	w.before = w.Place()
	out, err := w.Loader.Next(w.left)
	switch {
	case err == io.EOF:
		return nil, errors.New("feed: the loader ended before the windows did: want it to begin the next epoch")
	case err != nil:
		return nil, err
	case out == nil:
		return nil, errors.New("feed: the loader returned no window: want one, or an error")
	}
	if err := out.check(w.before.position(), w.Position()); err != nil {
		out.Free()
		return nil, err
	}
	w.left--
	return out, nil
}

// check refuses a window that does not say where it is; begin is its place, and end that of the next.
func (w *Window) check(begin, end int64) error {
	if end <= begin {
		return fmt.Errorf("feed: the loader's Place is position %d of the training stream before window %d and %d "+
			"behind it: want it to advance", begin, w.Number, end)
	}
	for _, b := range w.Batches {
		if b.MicroBatch >= 0 && b.Position < begin {
			return fmt.Errorf("feed: window %d has a batch at position %d of the training stream: want at least "+
				"%d, where the window begins", w.Number, b.Position, begin)
		}
	}
	return nil
}

// All yields the windows until the last one or the first error. Each is freed when the next one is asked for, and
// loading ends with the loop.
func (w *Windows) All() iter.Seq2[*Window, error] {
	return func(yield func(*Window, error) bool) {
		defer w.Close()
		for {
			window, err := w.Next()
			if err == io.EOF {
				return
			}
			more := yield(window, err) && err == nil
			if window != nil {
				window.Free()
			}
			if !more {
				return
			}
		}
	}
}

// Limit lets Next give steps more windows, instead of what is left.
func (w *Windows) Limit(steps int64) {
	if steps != w.left {
		w.Close()
	}
	w.left = steps
}

// Fingerprint tells the data from others, as data.Fingerprint does; "" where nothing can be said.
func (w *Windows) Fingerprint() string {
	if f, ok := w.Loader.(data.Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
}

// Undo goes back to the window that the last call of Next gave, or could not give.
func (w *Windows) Undo() error { return w.Restore(w.before) }

// Layout returns the layout of the windows.
func (w *Windows) Layout() samplers.WindowLayout { return w.layout }

// MicroBatches returns the number of micro-batches of an epoch over all ranks; 0 of an iterable dataset, whose length
// is not known.
func (w *Windows) MicroBatches() int64 { return w.microBatches }

// Position returns the position of the next window's first sample: the number of samples that are done with.
func (w *Windows) Position() int64 { return w.Place().position() }

// Epoch returns the epoch of the next window.
func (w *Windows) Epoch() int64 { return w.Place().epoch() }

// SeekEpoch goes to the beginning of an epoch. Samples of an iterable dataset that are left out are not read.
func (w *Windows) SeekEpoch(epoch int64) error {
	return w.Restore(w.Place().beginning(epoch))
}

// New returns steps windows of a loader. microBatches is how many an epoch has over all ranks, 0 if that is not known.
func New(l Loader, layout samplers.WindowLayout, microBatches, steps int64) *Windows {
	return &Windows{Loader: l, layout: layout, microBatches: microBatches, left: steps}
}

// Sized returns windows of a dataset with a length, in the order of a stream, which belongs to it from here on.
func Sized(ctx context.Context, source data.Source, stream *samplers.Stream, o Options) *Windows {
	return New(&sized{stream: stream, ctx: ctx, source: source, options: o}, stream.Layout(), stream.MicroBatches(),
		o.Steps)
}

// Iterable returns windows of an iterable dataset.
//
// A window is M·b consecutive samples, with M micro-batches of b over all ranks; micro-batches go to the ranks as those
// of a dataset with a length do, so that the windows do not depend on the number of ranks, and nothing is repeated.
// With a rule they are HuggingFace's.
func Iterable(ctx context.Context, source data.IterableSource, layout samplers.WindowLayout,
	rule *samplers.IterableDatasetShard, o Options) (*Windows, error) {
	if err := layout.Validate(); err != nil {
		return nil, err
	}
	return New(&iterable{ctx: ctx, source: source, options: o, cut: cut{layout, rule},
		at: IterablePlace{Iterable: true}}, layout, 0, o.Steps), nil
}
