// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Map applies f to the samples of an iterable dataset, batch samples at a time, as datasets.IterableDataset.map does
// with batched=True: f gets the next batch samples in their order, fewer at the end of an epoch, and returns any number
// of samples. So it can encode texts, pack several into one, or leave some out. It must return equal samples for equal
// ones, and not keep the slice.
//
// If the dataset's cursors are Seekers, so are those of the result: a resume calls f again for the samples whose
// results were not all used. name is part of the fingerprint, by which a resume detects another f. Opening an epoch is
// an error if batch is smaller than 1.
func Map[T, U any](dataset Iterable[T], name string, batch int, f func(samples []T) ([]U, error)) Iterable[U] {
	return mapped[T, U]{dataset, name, batch, f}
}

type mapped[T, U any] struct {
	dataset Iterable[T]
	name    string
	batch   int
	f       func([]T) ([]U, error)
}

// Fingerprint implements Fingerprinter.
func (m mapped[T, U]) Fingerprint() string {
	return joinedFingerprint(fmt.Sprintf("map %d %s", m.batch, m.name), m.dataset)
}

// Open implements Iterable.
func (m mapped[T, U]) Open(ctx context.Context, epoch int64) (Cursor[U], error) {
	if m.batch < 1 {
		return nil, fmt.Errorf("data: a map of %d samples at a time: want at least 1", m.batch)
	}
	from, err := m.dataset.Open(ctx, epoch)
	if err != nil || from == nil {
		return nil, err
	}
	c := &mapCursor[T, U]{from: from, f: m.f, samples: make([]T, 0, m.batch)}
	c.seeker, _ = from.(Seeker)
	return c, nil
}

type mapCursor[T, U any] struct {
	from    Cursor[T]
	seeker  Seeker // from, or nil
	f       func([]T) ([]U, error)
	samples []T // of which the capacity is that of a batch

	at    json.RawMessage // the place of the samples of which made is what f made
	made  []U
	given int // of made
	ended bool
}

// Next implements Cursor.
func (c *mapCursor[T, U]) Next() (sample U, err error) {
	for c.given == len(c.made) {
		if c.ended {
			return sample, io.EOF
		}
		if err := c.read(); err != nil {
			return sample, err
		}
	}
	sample = c.made[c.given]
	c.given++
	return sample, nil
}

// read makes the next samples.
func (c *mapCursor[T, U]) read() (err error) {
	c.made, c.given = nil, 0
	if c.seeker != nil {
		if c.at, err = c.seeker.Place(); err != nil {
			return err
		}
	}
	clear(c.samples)
	c.samples = c.samples[:0]
	for len(c.samples) < cap(c.samples) {
		sample, err := c.from.Next()
		if err == io.EOF {
			c.ended = true
			break
		}
		if err != nil {
			return err
		}
		c.samples = append(c.samples, sample)
	}
	if len(c.samples) > 0 {
		c.made, err = c.f(c.samples)
	}
	return err
}

// mapPlace is where a cursor continues.
type mapPlace struct {
	At    json.RawMessage `json:"at"` // of the first sample of the batch
	Given int             `json:"given"`
}

// Place implements Seeker. It is nil if the dataset's cursor is no Seeker.
func (c *mapCursor[T, U]) Place() (json.RawMessage, error) {
	if c.seeker == nil {
		return nil, nil
	}
	p := mapPlace{c.at, c.given}
	if c.given == len(c.made) { // the next batch
		var err error
		if p.At, err = c.seeker.Place(); err != nil {
			return nil, err
		}
		p.Given = 0
	}
	if p.At == nil {
		return nil, nil
	}
	return json.Marshal(p)
}

// Seek implements Seeker.
func (c *mapCursor[T, U]) Seek(to json.RawMessage) error {
	var p mapPlace
	if err := json.Unmarshal(to, &p); err != nil {
		return fmt.Errorf("data: the place %.100q: %w", to, err)
	}
	if c.seeker == nil || p.Given < 0 || p.At == nil {
		return fmt.Errorf("data: the place %.100s is not one of this dataset", to)
	}
	if err := c.seeker.Seek(p.At); err != nil {
		return err
	}
	c.made, c.given, c.ended = nil, 0, false
	if p.Given == 0 {
		return nil
	}
	if err := c.read(); err != nil {
		return err
	}
	if p.Given > len(c.made) {
		return fmt.Errorf("data: the place %.100s is behind the %d samples that were made there: the data are others "+
			"than before", to, len(c.made))
	}
	c.given = p.Given
	return nil
}

// Close implements Cursor.
func (c *mapCursor[T, U]) Close() error { return c.from.Close() }
