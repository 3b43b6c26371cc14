// SPDX-License-Identifier: Apache-2.0

package data

import (
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/tensor"
)

// PositionedSource is a Source whose batches depend on their position in training, as those of augmented images do. A
// Loader calls BatchAt in place of Batch.
type PositionedSource interface {
	Source
	// BatchAt is Batch for samples of which the first is at a position of the training stream, counted over epochs, and
	// the others follow it.
	BatchAt(c *tensor.Ctx, position int64, indices []int64) (*Batch, error)
}

// Augment changes a sample at random, with numbers drawn from r. It must not change memory that the sample refers to,
// because the dataset may return it again. It is called from several goroutines at once.
type Augment[T any] func(r *Random, sample T) (T, error)

// NewAugmentedSource joins a dataset, an augmentation and a collator, for training. The result depends on seed and on
// the sample's place in the training stream: it differs in each epoch, and has the same bits on any number of ranks and
// workers and after a resume. Batch, which has no place, returns the samples unchanged.
func NewAugmentedSource[T any](dataset Dataset[T], seed uint64, augment Augment[T], collate Collator[T]) Source {
	return augmentedSource[T]{source[T]{dataset, collate}, rng.Key(seed, "augment", 0), augment}
}

type augmentedSource[T any] struct {
	source[T]
	key     uint64
	augment Augment[T]
}

func (s augmentedSource[T]) BatchAt(c *tensor.Ctx, position int64, indices []int64) (*Batch, error) {
	samples, err := s.samples(indices, func(i int, sample T) (T, error) {
		return s.augment(newRandom(s.key, position+int64(i)), sample)
	})
	if err != nil {
		return nil, err
	}
	return s.collated(c, samples, indices)
}

// Random draws random numbers one after the other. Those of a sample depend only on its place in the training stream.
type Random struct{ stream *rng.Stream }

func newRandom(key uint64, position int64) *Random {
	return &Random{rng.NewStream(rng.Derive(key, "sample", uint64(position)))}
}

// IntN is a uniform integer in [0, n). It panics if n < 1.
func (r *Random) IntN(n int) int { return int(r.stream.Int64N(int64(n))) }

// Float64 is a uniform number in [0, 1).
func (r *Random) Float64() float64 { return r.stream.Float64() }
