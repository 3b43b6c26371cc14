// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Order yields the micro-batches that a Loader loads, until false. It is called from one goroutine at a time, and ahead
// of the batches that the Loader has returned. It starts where its owner has positioned it: a Loader skips nothing.
type Order interface {
	Next() (samplers.MicroBatch, bool)
}

// StreamOrder returns this rank's micro-batches of the next steps windows of a stream, and takes the stream over. (A
// rank may own none in a window: read the layout of a step from another Stream of the same layout.)
func StreamOrder(stream *samplers.Stream, steps int64) Order {
	return &streamOrder{stream: stream, steps: steps}
}

type streamOrder struct {
	stream *samplers.Stream
	steps  int64
	own    []samplers.MicroBatch
}

func (o *streamOrder) Next() (samplers.MicroBatch, bool) {
	for len(o.own) == 0 {
		if o.steps <= 0 {
			return samplers.MicroBatch{}, false
		}
		o.steps--
		w, ok := o.stream.Next()
		if !ok {
			return samplers.MicroBatch{}, false
		}
		o.own = w.Own
	}
	first := o.own[0]
	o.own = o.own[1:]
	return first, true
}

// EpochOrder returns all batches of one epoch once, as an evaluation needs them. Positions
// count from the epoch's first sample.
func EpochOrder(batches *samplers.Batch, epoch int64) Order {
	return &epochOrder{batches: batches, epoch: epoch}
}

type epochOrder struct {
	batches        *samplers.Batch
	epoch          int64
	next, position int64
}

func (o *epochOrder) Next() (samplers.MicroBatch, bool) {
	if o.next >= o.batches.Len() {
		return samplers.MicroBatch{}, false
	}
	m := samplers.MicroBatch{Position: o.position, Indices: o.batches.At(o.epoch, o.next)}
	o.next++
	o.position += int64(len(m.Indices))
	return m, true
}

// LoaderOptions are the settings of a Loader.
type LoaderOptions struct {
	// Workers is the number of goroutines that prepare batches ahead; with 0, Next
	// prepares each batch itself.
	Workers int
	// PrefetchFactor is how many batches per worker may be ready or in preparation; 0
	// is 2, as in PyTorch.
	PrefetchFactor int
}

// errLoaderClosed is what Next returns after Close.
var errLoaderClosed = errors.New("data: the loader is closed")

// Loader returns the batches of a Source in a given Order, preparing them ahead. The batches do not depend on the
// number of workers. At most Workers × PrefetchFactor batches wait in it. It belongs to one goroutine; call Close at
// the end.
type Loader struct {
	source Source
	order  Order
	ctx    context.Context
	cancel context.CancelCauseFunc
	err    error // what ended the loader: every later Next returns it

	// Without workers:
	own      *tensor.Ctx
	upcoming *lookup // nil before the first Next

	// With workers:
	slots   chan struct{} // one for each batch in the loader
	ordered chan *pending // in the order in which Next gives them
	waited  *pending      // out of ordered, but not given because ctx ended
	running sync.WaitGroup
}

// lookup is what the order answered.
type lookup struct {
	micro samplers.MicroBatch
	ok    bool
	err   error // a panic of the order
}

// pending is a batch in preparation. The result may be read when done is closed.
type pending struct {
	micro samplers.MicroBatch
	last  bool
	done  chan struct{}
	batch *Batch
	err   error
}

func (p *pending) discard() {
	if p.batch != nil {
		p.batch.Free()
	}
}

// NewLoader starts loading. The tensors are made on c's device: with workers in their own contexts, otherwise in c, by
// Next. When ctx ends, so do the goroutines and the batches. The error names a negative option.
func NewLoader(ctx context.Context, c *tensor.Ctx, source Source, order Order, o LoaderOptions) (*Loader, error) {
	if o.Workers < 0 || o.PrefetchFactor < 0 {
		return nil, fmt.Errorf("data: loader with %d workers and prefetch factor %d: want 0 or more", o.Workers,
			o.PrefetchFactor)
	}
	if o.PrefetchFactor == 0 {
		o.PrefetchFactor = 2
	}
	l := &Loader{source: source, order: order, own: c}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	if o.Workers == 0 {
		return l, nil
	}
	limit := o.Workers * o.PrefetchFactor
	l.slots = make(chan struct{}, limit)
	l.ordered = make(chan *pending, limit)
	work := make(chan *pending)
	l.running.Go(func() {
		defer close(l.ordered)
		defer close(work)
		l.feed(work)
	})
	for range o.Workers {
		worker := tensor.NewCtx(c.Device())
		l.running.Go(func() {
			for p := range work {
				l.fill(worker, p)
			}
		})
	}
	return l, nil
}

// feed hands the micro-batches to the workers, one ahead of itself to know the last.
func (l *Loader) feed(work chan<- *pending) {
	for at := l.look(); at.ok || at.err != nil; {
		p := &pending{micro: at.micro, err: at.err, done: make(chan struct{})}
		if p.err == nil {
			at = l.look()
			p.last = !at.ok && at.err == nil
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		l.ordered <- p // never blocks: it has room for every slot
		if p.err != nil {
			close(p.done)
			return
		}
		select {
		case work <- p:
		case <-l.ctx.Done():
			return
		}
	}
}

// fill prepares a batch on a worker. Next hears of it even if the dataset ends the
// goroutine, as a failing test does.
func (l *Loader) fill(c *tensor.Ctx, p *pending) {
	defer close(p.done)
	p.err = &CollateError{Indices: p.micro.Indices,
		Err: errors.New("the dataset or the collator called runtime.Goexit")}
	p.batch, p.err = l.load(c, p)
}

// look asks the order for the next micro-batch.
func (l *Loader) look() lookup {
	var at lookup
	err := guard(func() error {
		at.micro, at.ok = l.order.Next()
		return nil
	})
	if err != nil {
		at = lookup{err: fmt.Errorf("data: the order of samples: %w", err)}
	}
	return at
}

// load prepares one batch and waits until its tensors are written, since another
// goroutine's context will use them.
func (l *Loader) load(c *tensor.Ctx, p *pending) (b *Batch, err error) {
	err = guard(func() (err error) {
		if s, ok := l.source.(PositionedSource); ok {
			b, err = s.BatchAt(c, p.micro.Position, p.micro.Indices)
		} else {
			b, err = l.source.Batch(c, p.micro.Indices)
		}
		if err == nil {
			c.Sync()
		}
		return err
	})
	if _, bare := err.(*tensor.PanicError); bare {
		err = &CollateError{Indices: p.micro.Indices, Err: err}
	}
	if err != nil {
		return nil, err
	}
	b.Position, b.MicroBatch, b.Last = p.micro.Position, p.micro.Number, p.last
	return b, nil
}

// Next returns the next batch, which the caller frees, or io.EOF after the last one. An error of the source is returned
// at its place in the order and ends the loader. The end of the context ends it immediately, with the context's cause.
func (l *Loader) Next() (*Batch, error) {
	if l.err != nil {
		return nil, l.err
	}
	b, err := l.next()
	if err != nil {
		l.err = err
		l.cancel(err)
	}
	return b, err
}

func (l *Loader) next() (*Batch, error) {
	if err := context.Cause(l.ctx); err != nil {
		return nil, err
	}
	if l.ordered == nil {
		return l.nextSelf()
	}
	var p *pending
	select {
	case p = <-l.ordered:
	case <-l.ctx.Done():
		return nil, context.Cause(l.ctx)
	}
	if p == nil {
		return nil, io.EOF
	}
	select {
	case <-p.done:
	case <-l.ctx.Done():
		l.waited = p
		return nil, context.Cause(l.ctx)
	}
	<-l.slots
	return p.batch, p.err
}

// nextSelf loads the next batch without workers.
func (l *Loader) nextSelf() (*Batch, error) {
	if l.upcoming == nil {
		first := l.look()
		l.upcoming = &first
	}
	at := *l.upcoming
	if at.err != nil {
		return nil, at.err
	}
	if !at.ok {
		return nil, io.EOF
	}
	*l.upcoming = l.look()
	return l.load(l.own, &pending{micro: at.micro, last: !l.upcoming.ok && l.upcoming.err == nil})
}

// All yields the batches until the last one or the first error.
func (l *Loader) All() iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		for {
			b, err := l.Next()
			if err == io.EOF || !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// Close stops loading, waits for the goroutines (and so for the reads that are under
// way) and frees the batches that were not taken. Next returns an error from then on, unless it
// had already ended.
func (l *Loader) Close() {
	if l.err == nil {
		l.err = errLoaderClosed
	}
	l.cancel(l.err)
	l.running.Wait()
	if l.ordered == nil {
		return
	}
	for p := range l.ordered {
		p.discard()
	}
	if l.waited != nil {
		l.waited.discard()
	}
}
