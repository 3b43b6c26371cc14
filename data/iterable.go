// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Iterable is a dataset without a length that is read in its order: files larger than the memory, a feed, a generator.
// Every rank reads all of it, and takes its part of the samples to be collated. So Open must give equal samples for
// equal epochs on all ranks, and after a resume.
type Iterable[T any] interface {
	// Open begins to read an epoch, from 0 on, at its first sample. Several epochs may be open at once, each on its own
	// goroutine. When ctx ends, a Next that waits should return.
	Open(ctx context.Context, epoch int64) (Cursor[T], error)
}

// Cursor reads the samples of one epoch. It belongs to one goroutine.
type Cursor[T any] interface {
	// Next gives the next sample, or io.EOF after the last one. Its error needs no number of the sample: the caller
	// adds it.
	Next() (T, error)
	// Close ends reading.
	Close() error
}

// Seeker is an optional interface of a Cursor: a resumed run continues at its place without reading the samples before.
// Other cursors are read up to it.
type Seeker interface {
	// Place is the place of the next sample, a short JSON value. It is asked for once per optimizer step.
	Place() (json.RawMessage, error)
	// Seek goes to a place that Place returned for the same epoch of the same data.
	Seek(place json.RawMessage) error
}

// Seq is an Iterable whose epochs are Go iterators. An iterator ends after its first error.
type Seq[T any] func(epoch int64) iter.Seq2[T, error]

// Open implements Iterable.
func (s Seq[T]) Open(ctx context.Context, epoch int64) (Cursor[T], error) {
	next, stop := iter.Pull2(s(epoch))
	return &seqCursor[T]{next, stop}, nil
}

type seqCursor[T any] struct {
	next func() (T, error, bool)
	stop func()
}

func (c *seqCursor[T]) Next() (T, error) {
	sample, err, ok := c.next()
	if !ok && err == nil {
		err = io.EOF
	}
	return sample, err
}

func (c *seqCursor[T]) Close() error {
	c.stop()
	return nil
}

// IterableSource is an iterable dataset with its collator, without the type of the samples. A training loop reads a
// stream from it. NewIterableSource makes one.
type IterableSource interface {
	// Open begins to read an epoch.
	Open(ctx context.Context, epoch int64) (SampleReader, error)
	// Collate makes a batch of samples that a reader gave, and that have these numbers in their epoch. It is safe for
	// concurrent use with one context per goroutine; the rest is as in Source.Batch.
	Collate(c *tensor.Ctx, samples []any, numbers []int64) (*Batch, error)
}

// SampleReader reads the samples of one epoch of an IterableSource. It belongs to one goroutine.
type SampleReader interface {
	// Next gives the next sample, or io.EOF after the last one. Other errors, and panics of the dataset, are
	// *SampleError.
	Next() (any, error)
	// Place is that of the next sample, nil if the dataset cannot go to one (see Seeker).
	Place() (json.RawMessage, error)
	// Skip advances to sample number of the epoch, by a place that Place returned there, or by reading if it is nil. It
	// is called first, if at all. It is an error if the epoch ends before.
	Skip(number int64, place json.RawMessage) error
	// Close ends reading.
	Close() error
}

// NewIterableSource joins an iterable dataset and its collator. Put costly work, such as tokenizing, into the collator:
// each rank collates only its own samples, on several goroutines with dataloader_num_workers.
func NewIterableSource[T any](dataset Iterable[T], collate Collator[T]) IterableSource {
	return iterableSource[T]{dataset, collate}
}

type iterableSource[T any] struct {
	dataset Iterable[T]
	collate Collator[T]
}

// Fingerprint implements Fingerprinter: what the dataset says, or nothing, since reading a stream twice may not be
// possible.
func (s iterableSource[T]) Fingerprint() string {
	if f, ok := s.dataset.(Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
}

func (s iterableSource[T]) Open(ctx context.Context, epoch int64) (SampleReader, error) {
	r := &sampleReader[T]{}
	err := guard(func() (err error) {
		r.cursor, err = s.dataset.Open(ctx, epoch)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("data: epoch %d of the iterable dataset: %w", epoch, err)
	case r.cursor == nil:
		return nil, fmt.Errorf("data: epoch %d of the iterable dataset: %T gave no cursor", epoch, s.dataset)
	}
	return r, nil
}

func (s iterableSource[T]) Collate(c *tensor.Ctx, samples []any, numbers []int64) (*Batch, error) {
	typed := make([]T, len(samples))
	for i, sample := range samples {
		typed[i], _ = sample.(T) // a nil of an interface type stays one
	}
	return source[T]{collate: s.collate}.collated(c, typed, numbers)
}

type sampleReader[T any] struct {
	cursor Cursor[T]
	number int64 // of the next sample
	err    error // what ended reading
}

func (r *sampleReader[T]) Next() (any, error) {
	if r.err != nil {
		return nil, r.err
	}
	var sample T
	err := guard(func() (err error) {
		sample, err = r.cursor.Next()
		return err
	})
	if err != nil {
		if err != io.EOF { // an error about the end of a file is not the end of the samples
			err = &SampleError{Index: r.number, Err: err}
		}
		r.err = err
		return nil, err
	}
	r.number++
	return sample, nil
}

func (r *sampleReader[T]) Place() (place json.RawMessage, err error) {
	s, ok := r.cursor.(Seeker)
	if !ok {
		return nil, nil
	}
	err = guard(func() (err error) {
		place, err = s.Place()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("data: the place of sample %d: %w", r.number, err)
	}
	return place, nil
}

func (r *sampleReader[T]) Skip(number int64, place json.RawMessage) error {
	if s, ok := r.cursor.(Seeker); ok && place != nil {
		if err := guard(func() error { return s.Seek(place) }); err != nil {
			return fmt.Errorf("data: seeking to sample %d: %w", number, err)
		}
		r.number = number
		return nil
	}
	for r.number < number {
		if _, err := r.Next(); err != nil {
			if err == io.EOF {
				err = fmt.Errorf("data: the epoch ended after %d samples, before sample %d: the data changed",
					r.number, number)
			}
			return err
		}
	}
	return nil
}

func (r *sampleReader[T]) Close() error {
	return guard(r.cursor.Close)
}
