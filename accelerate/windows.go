// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
)

// Windows gives a rank's data of one optimizer step after the other, epoch after epoch. Its Stream is the place of the
// next window; it may be moved between two calls of Next. Batches are loaded ahead, as dataloader_num_workers and
// dataloader_prefetch_factor say. It belongs to one goroutine.
type Windows struct {
	*samplers.Stream

	acc    *Accelerator
	ctx    context.Context
	source data.Source
	left   int64        // windows to come
	loader *data.Loader // nil before the first window
	next   int64        // the position that the loader continues at
}

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

// Windows cuts the samples of source, in the order of s, into the windows of this rank; see Layout. The ranks share
// them as data_sharding says. Next gives steps of them. When ctx ends, loading does.
func (a *Accelerator) Windows(ctx context.Context, source data.Source, s samplers.Sampler, steps int64) (*Windows,
	error) {
	layout, err := a.Layout()
	if err != nil {
		return nil, err
	}
	stream, err := newStream(a, s, layout)
	if err != nil {
		return nil, err
	}
	return &Windows{Stream: stream, acc: a, ctx: ctx, source: source, left: steps}, nil
}

// newStream is the order of samples as data_sharding shares it out.
func newStream(a *Accelerator, s samplers.Sampler, layout samplers.Layout) (*samplers.Stream, error) {
	switch b := a.plan.batches; b.dealing {
	case wholeBatches:
		return samplers.NewShardedStream(s, layout, b.shard)
	case singles:
		return samplers.NewDistributedStream(s, layout)
	}
	return samplers.NewStream(s, layout)
}

// Limit lets Next give steps more windows, instead of what is left.
func (w *Windows) Limit(steps int64) {
	if steps != w.left {
		w.Close()
	}
	w.left = steps
}

// Next gives the next window, which the caller frees, or io.EOF after the last one. After an error the Stream is still
// at the window that could not be loaded.
func (w *Windows) Next() (_ *Window, err error) {
	if w.left <= 0 {
		return nil, io.EOF
	}
	if err := w.load(); err != nil {
		return nil, err
	}
	out, before := new(Window), *w.Stream
	defer func() {
		if err != nil {
			*w.Stream = before
		}
	}()
	var ok bool
	if out.Window, ok = w.Stream.Next(); !ok {
		return nil, io.EOF
	}
	for range out.Own {
		b, err := w.loader.Next()
		if err != nil {
			out.Free()
			if errors.Is(err, io.EOF) {
				err = errors.New("accelerate: the loader ended before the windows did")
			}
			return nil, err
		}
		out.Batches = append(out.Batches, b)
	}
	w.left--
	w.next = w.Position()
	return out, nil
}

// load starts the loader, on a stream of its own, unless it is at the right place.
func (w *Windows) load() error {
	if w.loader != nil && w.next == w.Position() {
		return nil
	}
	w.Close()
	loader, err := data.NewLoader(w.ctx, w.acc.ctx.NoGrad(), w.source, data.StreamOrder(w.Stream.Clone(), w.left),
		w.acc.plan.loading)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	w.loader, w.next = loader, w.Position()
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

// Close stops loading. Next starts it again.
func (w *Windows) Close() {
	if w.loader != nil {
		w.loader.Close()
		w.loader = nil
	}
}
