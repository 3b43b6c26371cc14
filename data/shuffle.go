// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// Shuffle returns the samples of an iterable dataset in a random order, by a buffer of so many samples, as
// datasets.IterableDataset.shuffle does: the next sample is a random one of the buffer, and the dataset's next sample
// replaces it. So a sample moves forward by at most that many places, and only the buffer takes memory. The order
// depends only on the seed, the epoch and the size of the buffer; the dataset may have its own order for each epoch.
//
// If the dataset's cursors are Seekers, so are those of the result. Their place is short: a resume draws the random
// numbers of the epoch again, and reads from the oldest sample on that was in the buffer. No sample is repeated or left
// out. Opening an epoch is an error if the buffer is smaller than 1.
func Shuffle[T any](dataset Iterable[T], buffer int, seed uint64) Iterable[T] {
	return shuffled[T]{dataset, buffer, seed}
}

type shuffled[T any] struct {
	dataset Iterable[T]
	buffer  int
	seed    uint64
}

// Fingerprint implements Fingerprinter.
func (s shuffled[T]) Fingerprint() string {
	return joinedFingerprint(fmt.Sprintf("shuffle %d %d", s.buffer, s.seed), s.dataset)
}

// Open implements Iterable.
func (s shuffled[T]) Open(ctx context.Context, epoch int64) (Cursor[T], error) {
	if s.buffer < 1 {
		return nil, fmt.Errorf("data: a shuffle buffer of %d samples: want at least 1", s.buffer)
	}
	from, err := s.dataset.Open(ctx, epoch)
	if err != nil || from == nil {
		return nil, err
	}
	c := &shuffleCursor[T]{ctx: ctx, from: from, size: s.buffer, key: rng.Key(s.seed, "data.Shuffle", uint64(epoch))}
	c.seeker, _ = from.(Seeker)
	return c, nil
}

// mark is the place of a sample of the dataset.
type mark struct {
	number int64
	place  json.RawMessage
}

// markEvery is after how many samples of the dataset their place is kept.
const markEvery = 64

type shuffleCursor[T any] struct {
	ctx    context.Context
	from   Cursor[T]
	seeker Seeker // from, or nil
	size   int
	key    uint64

	samples     []T
	numbers     []int64 // of samples, in the dataset
	read, given int64
	ended       bool
	marks       []mark // of which the first is not behind the oldest sample
	most        int    // marks from which on old ones are dropped
}

// Next implements Cursor.
func (c *shuffleCursor[T]) Next() (sample T, err error) {
	for !c.ended && len(c.samples) < c.size {
		next, err := c.readNext()
		if err == io.EOF {
			c.ended = true
			break
		}
		if err != nil {
			return sample, err
		}
		c.samples, c.numbers = append(c.samples, next), append(c.numbers, c.read-1)
	}
	if len(c.samples) == 0 {
		return sample, io.EOF
	}
	i := c.pick(c.given, len(c.samples))
	c.given++
	sample = c.samples[i]
	c.samples, c.numbers = without(c.samples, i), without(c.numbers, i)
	return sample, nil
}

// pick is which of n samples comes at a place.
func (c *shuffleCursor[T]) pick(place int64, n int) int {
	i, _ := bits.Mul64(rng.Uint64At(c.key, 0, uint64(place)), uint64(n))
	return int(i)
}

// without moves the last element to place i.
func without[E any](list []E, i int) []E {
	last := len(list) - 1
	list[i] = list[last]
	clear(list[last:])
	return list[:last]
}

// readNext reads the next sample of the dataset.
func (c *shuffleCursor[T]) readNext() (sample T, err error) {
	if c.seeker != nil && c.read%markEvery == 0 && (len(c.marks) == 0 || c.marks[len(c.marks)-1].number < c.read) {
		place, err := c.seeker.Place()
		if err != nil {
			return sample, err
		}
		c.marks = append(c.marks, mark{c.read, place})
		if len(c.marks) > c.most {
			c.dropMarks()
			c.most = 2*len(c.marks) + 16
		}
	}
	if sample, err = c.from.Next(); err == nil {
		c.read++
	}
	return sample, err
}

// dropMarks drops the marks that no sample of the buffer needs.
func (c *shuffleCursor[T]) dropMarks() {
	oldest := c.read
	for _, n := range c.numbers {
		oldest = min(oldest, n)
	}
	needed := 0
	for needed+1 < len(c.marks) && c.marks[needed+1].number <= oldest {
		needed++
	}
	c.marks = append(c.marks[:0], c.marks[needed:]...)
}

// shufflePlace is where a cursor continues.
type shufflePlace struct {
	Given int64           `json:"given"`
	Read  int64           `json:"read"` // samples of the dataset
	From  int64           `json:"from"` // the first of them that is to be read again
	At    json.RawMessage `json:"at,omitempty"`
}

// Place implements Seeker. It is nil if the dataset's cursor is no Seeker.
func (c *shuffleCursor[T]) Place() (json.RawMessage, error) {
	if c.seeker == nil {
		return nil, nil
	}
	p := shufflePlace{Given: c.given, Read: c.read}
	if len(c.marks) > 0 {
		c.dropMarks()
		p.From, p.At = c.marks[0].number, c.marks[0].place
		if p.At == nil {
			return nil, nil
		}
	}
	return json.Marshal(p)
}

// Seek implements Seeker.
func (c *shuffleCursor[T]) Seek(to json.RawMessage) error {
	var p shufflePlace
	if err := json.Unmarshal(to, &p); err != nil {
		return fmt.Errorf("data: the place %.100q: %w", to, err)
	}
	if p.Given < 0 || p.Read < p.Given || p.Read > p.Given+int64(c.size) || p.From < 0 || p.From > p.Read {
		return fmt.Errorf("data: the place %s is not one of a shuffle buffer of %d samples", to, c.size)
	}
	if err := c.replay(p); err != nil {
		return err
	}
	if p.At == nil || c.seeker == nil {
		return nil // at the beginning
	}
	if err := c.seeker.Seek(p.At); err != nil {
		return err
	}
	c.marks = append(c.marks[:0], mark{p.From, p.At})
	slots := make(map[int64]int, len(c.numbers))
	for i, n := range c.numbers {
		slots[n] = i
	}
	c.samples = make([]T, len(c.numbers))
	for c.read = p.From; c.read < p.Read; {
		i, kept := slots[c.read]
		sample, err := c.readNext()
		if err != nil {
			return fmt.Errorf("data: reading sample %d again: %w", c.read, unexpectedEnd(err))
		}
		if kept {
			c.samples[i] = sample
			delete(slots, c.read-1)
		}
	}
	if len(slots) > 0 {
		return fmt.Errorf("data: the place %s is behind samples of the buffer", to)
	}
	return nil
}

// replay finds which samples the buffer had.
func (c *shuffleCursor[T]) replay(p shufflePlace) error {
	c.given, c.numbers = p.Given, c.numbers[:0]
	next := int64(0)
	for n := range p.Given {
		if n%(1<<20) == 0 && c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		for next < p.Read && len(c.numbers) < c.size {
			c.numbers = append(c.numbers, next)
			next++
		}
		if len(c.numbers) == 0 {
			break
		}
		c.numbers = without(c.numbers, c.pick(n, len(c.numbers)))
	}
	if next != p.Read || int64(len(c.numbers)) != p.Read-p.Given {
		return fmt.Errorf("data: the place of sample %d with %d read is not one of a shuffle buffer of %d samples",
			p.Given, p.Read, c.size)
	}
	return nil
}

// unexpectedEnd is an error of reading where there were samples before.
func unexpectedEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Close implements Cursor.
func (c *shuffleCursor[T]) Close() error { return c.from.Close() }
