// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// StoppingStrategy says when an epoch of several datasets ends, by the names of datasets.interleave_datasets.
type StoppingStrategy string

// The strategies.
const (
	// FirstExhausted ends after the last sample of the dataset that is exhausted first.
	FirstExhausted StoppingStrategy = "first_exhausted"
	// AllExhausted restarts exhausted datasets, and ends once each was exhausted.
	AllExhausted StoppingStrategy = "all_exhausted"
	// AllExhaustedWithoutReplacement continues with the others, so that each sample is used once.
	AllExhaustedWithoutReplacement StoppingStrategy = "all_exhausted_without_replacement"
)

// StoppingStrategies are all strategies.
func StoppingStrategies() []StoppingStrategy {
	return []StoppingStrategy{FirstExhausted, AllExhausted, AllExhaustedWithoutReplacement}
}

// Interleave mixes datasets as datasets.interleave_datasets does: each sample is taken from a dataset that is drawn
// with the given probabilities, which are scaled to a sum of 1, or, if there are none, from the datasets round robin.
// The choice depends on the seed, the epoch and the number of samples before, not on the samples. An epoch opens the
// same epoch of each dataset; one that restarts opens its next epoch.
//
// If the cursors of all datasets are Seekers, so are those of the result. It is an error if there is no dataset, if
// there are not as many probabilities, all above 0, or if the strategy is unknown; an epoch of a dataset without a
// sample is an error of Next.
func Interleave[T any](sets []Iterable[T], probabilities []float64, seed uint64, stop StoppingStrategy) (Iterable[T],
	error) {
	switch {
	case len(sets) == 0:
		return nil, errors.New("data: no dataset to interleave: want at least 1")
	case len(probabilities) > 0 && len(probabilities) != len(sets):
		return nil, fmt.Errorf("data: %d probabilities for %d datasets: want one of each", len(probabilities),
			len(sets))
	case !slices.Contains(StoppingStrategies(), stop):
		return nil, fmt.Errorf("data: stopping strategy %.40q: want one of %q", stop, StoppingStrategies())
	}
	m := interleaved[T]{sets: slices.Clone(sets), seed: seed, stop: stop}
	sum := 0.0
	for _, p := range probabilities {
		if !(p > 0) || math.IsInf(p, 0) {
			return nil, fmt.Errorf("data: a probability of %v: want more than 0", p)
		}
		sum += p
		m.bounds = append(m.bounds, sum)
	}
	return m, nil
}

type interleaved[T any] struct {
	sets   []Iterable[T]
	bounds []float64 // sums of probabilities; nil: in turn
	seed   uint64
	stop   StoppingStrategy
}

// Fingerprint implements Fingerprinter.
func (m interleaved[T]) Fingerprint() string {
	return joinedFingerprint(fmt.Sprintf("interleave %v %d %s", m.bounds, m.seed, m.stop), m.sets...)
}

// joinedFingerprint is one of datasets and what is done with them; "" if one of them has none.
func joinedFingerprint[T any](what string, sets ...Iterable[T]) string {
	h := sha256.New()
	h.Write([]byte(what))
	for _, s := range sets {
		f, ok := s.(Fingerprinter)
		if !ok {
			return ""
		}
		one := f.Fingerprint()
		if one == "" {
			return ""
		}
		h.Write([]byte("\n" + one))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Open implements Iterable.
func (m interleaved[T]) Open(ctx context.Context, epoch int64) (Cursor[T], error) {
	return &interleaveCursor[T]{interleaved: m, ctx: ctx, epoch: epoch, parts: make([]part[T], len(m.sets)),
		key: rng.Key(m.seed, "data.Interleave", uint64(epoch))}, nil
}

// part is how far one of the datasets is.
type part[T any] struct {
	partPlace
	cursor Cursor[T] // nil: not open yet, or no longer
	ahead  *T        // its next sample; nil: not read yet
}

type partPlace struct {
	Round     int64           `json:"round,omitempty"` // how often it restarted
	Exhausted bool            `json:"exhausted,omitempty"`
	At        json.RawMessage `json:"at,omitempty"` // of its next sample
}

type interleaveCursor[T any] struct {
	interleaved[T]
	ctx   context.Context
	epoch int64
	key   uint64
	parts []part[T]
	drawn int64 // random numbers, or turns
	began bool
	ended bool
}

// Next implements Cursor.
func (c *interleaveCursor[T]) Next() (sample T, err error) {
	if !c.began {
		for i := range c.parts {
			if err := c.advance(i); err != nil {
				return sample, err
			}
		}
		c.began = true
	}
	if c.ended {
		return sample, io.EOF
	}
	i := c.draw()
	for c.parts[i].ahead == nil {
		i = c.draw()
	}
	sample = *c.parts[i].ahead
	return sample, c.advance(i)
}

// draw is the dataset that comes next, unless it is exhausted.
func (c *interleaveCursor[T]) draw() int {
	n := c.drawn
	c.drawn++
	if c.bounds == nil {
		return int(n % int64(len(c.parts)))
	}
	last := len(c.bounds) - 1
	x := rng.Float64At(c.key, 0, uint64(n)) * c.bounds[last]
	i, _ := slices.BinarySearchFunc(c.bounds, x, func(bound, x float64) int {
		if bound <= x {
			return -1
		}
		return 1
	})
	return min(i, last)
}

// advance reads the next sample of a dataset ahead, so that the epoch ends behind the last one. A dataset that is
// exhausted restarts the dataset if the strategy requires it.
func (c *interleaveCursor[T]) advance(i int) error {
	p := &c.parts[i]
	err := c.readAhead(i)
	if err != io.EOF {
		return c.named(i, err)
	}
	fresh := !c.began && p.Round == 0 && !p.Exhausted
	if err := c.shut(i); err != nil {
		return c.named(i, err)
	}
	if fresh {
		return c.named(i, errors.New("it has no sample"))
	}
	p.Exhausted = true
	open := func(p part[T]) bool { return !p.Exhausted }
	c.ended = c.stop == FirstExhausted || !slices.ContainsFunc(c.parts, open)
	if c.ended || c.stop != AllExhausted {
		return nil
	}
	p.Round++
	if err = c.readAhead(i); err == io.EOF {
		err = errors.New("it has no sample when it restarts")
	}
	return c.named(i, err)
}

// named is an error of a dataset.
func (c *interleaveCursor[T]) named(i int, err error) error {
	if err == nil || len(c.sets) == 1 {
		return err
	}
	return fmt.Errorf("dataset %d of %d: %w", i+1, len(c.sets), err)
}

// readAhead reads the next sample of a dataset, which it opens if need be.
func (c *interleaveCursor[T]) readAhead(i int) (err error) {
	p := &c.parts[i]
	p.ahead = nil
	if p.cursor == nil {
		if p.cursor, err = c.sets[i].Open(c.ctx, c.epoch+p.Round); err != nil {
			return err
		}
		if p.cursor == nil {
			return fmt.Errorf("%T gave no cursor", c.sets[i])
		}
	}
	p.At = nil
	if s, ok := p.cursor.(Seeker); ok {
		if p.At, err = s.Place(); err != nil {
			return err
		}
	}
	sample, err := p.cursor.Next()
	if err != nil {
		return err
	}
	p.ahead = &sample
	return nil
}

func (c *interleaveCursor[T]) shut(i int) error {
	p := &c.parts[i]
	p.ahead, p.At = nil, nil
	if p.cursor == nil {
		return nil
	}
	err := p.cursor.Close()
	p.cursor = nil
	return err
}

// interleavePlace is where a cursor continues.
type interleavePlace struct {
	Drawn int64       `json:"drawn"`
	Began bool        `json:"began"`
	Ended bool        `json:"ended,omitempty"`
	Parts []partPlace `json:"parts"`
}

// Place implements Seeker. It is nil if the cursor of a dataset is no Seeker.
func (c *interleaveCursor[T]) Place() (json.RawMessage, error) {
	place := interleavePlace{Drawn: c.drawn, Began: c.began, Ended: c.ended}
	for _, p := range c.parts {
		if p.ahead != nil && p.At == nil {
			return nil, nil
		}
		place.Parts = append(place.Parts, p.partPlace)
	}
	return json.Marshal(place)
}

// Seek implements Seeker.
func (c *interleaveCursor[T]) Seek(to json.RawMessage) error {
	var place interleavePlace
	if err := json.Unmarshal(to, &place); err != nil {
		return fmt.Errorf("data: the place %.100q: %w", to, err)
	}
	open := func(p partPlace) bool { return p.At != nil }
	if len(place.Parts) != len(c.parts) || place.Drawn < 0 ||
		place.Began && !place.Ended && !slices.ContainsFunc(place.Parts, open) {
		return fmt.Errorf("data: the place %s is not one of %d datasets", to, len(c.parts))
	}
	if err := c.Close(); err != nil {
		return err
	}
	c.drawn, c.began, c.ended = place.Drawn, place.Began, place.Ended
	for i, p := range place.Parts {
		c.parts[i] = part[T]{partPlace: p}
		if p.At == nil || !c.began || c.ended {
			continue
		}
		if err := c.reopen(i, p); err != nil {
			return c.named(i, unexpectedEnd(err))
		}
	}
	return nil
}

// reopen opens a dataset at its place.
func (c *interleaveCursor[T]) reopen(i int, at partPlace) error {
	cursor, err := c.sets[i].Open(c.ctx, c.epoch+at.Round)
	if err != nil {
		return err
	}
	c.parts[i].cursor = cursor
	s, ok := cursor.(Seeker)
	if !ok {
		return fmt.Errorf("%T cannot seek", cursor)
	}
	if err := s.Seek(at.At); err != nil {
		return err
	}
	return c.readAhead(i)
}

// Close implements Cursor.
func (c *interleaveCursor[T]) Close() error {
	var errs []error
	for i := range c.parts {
		errs = append(errs, c.shut(i))
	}
	return errors.Join(errs...)
}
