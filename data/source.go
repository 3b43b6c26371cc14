// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Dataset is a sized collection of samples with random access. Get is called from
// several goroutines at once. Its error needs no index: the caller adds it.
type Dataset[T any] interface {
	Len() int
	Get(i int) (T, error)
}

// Slice is a Dataset in memory.
type Slice[T any] []T

// Len implements Dataset.
func (s Slice[T]) Len() int { return len(s) }

// Get implements Dataset.
func (s Slice[T]) Get(i int) (T, error) {
	if i < 0 || i >= len(s) {
		var zero T
		return zero, fmt.Errorf("data: index %d is outside a dataset of %d", i, len(s))
	}
	return s[i], nil
}

// Collator makes a batch from one or more samples. It makes the tensors with c, which belongs to it during the call;
// several calls run at the same time, each with its own context. It sets Tensors and Count; the Source and the Loader
// fill in the rest of the batch.
type Collator[T any] func(c *tensor.Ctx, samples []T) (*Batch, error)

// Source is a dataset with its collator, without the type of the samples. A training loop draws batches from it.
// NewSource makes one; it is safe for concurrent use with one context per goroutine.
type Source interface {
	// Len is the number of samples.
	Len() int
	// Batch collates the samples of the given indices. The tensors live until Batch.Free, independent of the memory
	// scope of c. An error, or a panic, of the dataset or the collator is returned as a *SampleError or a
	// *CollateError.
	Batch(c *tensor.Ctx, indices []int64) (*Batch, error)
}

// NewSource joins a dataset and its collator.
func NewSource[T any](dataset Dataset[T], collate Collator[T]) Source {
	return source[T]{dataset, collate}
}

type source[T any] struct {
	dataset Dataset[T]
	collate Collator[T]
}

func (s source[T]) Len() int { return s.dataset.Len() }

func (s source[T]) Batch(c *tensor.Ctx, indices []int64) (*Batch, error) {
	samples, err := s.samples(indices, nil)
	if err != nil {
		return nil, err
	}
	return s.collated(c, samples, indices)
}

// samples reads the samples of the given indices, and changes each if change is not nil.
func (s source[T]) samples(indices []int64, change func(i int, sample T) (T, error)) ([]T, error) {
	samples := make([]T, len(indices))
	for i, index := range indices {
		err := guard(func() (err error) {
			if samples[i], err = s.dataset.Get(int(index)); err == nil && change != nil {
				samples[i], err = change(i, samples[i])
			}
			return err
		})
		if err != nil {
			return nil, &SampleError{Index: index, Err: err}
		}
	}
	return samples, nil
}

// collated makes a batch of samples, which have the given indices.
func (s source[T]) collated(c *tensor.Ctx, samples []T, indices []int64) (*Batch, error) {
	var batch *Batch
	err := guard(func() (err error) {
		batch, err = s.build(c, samples)
		return err
	})
	if err != nil {
		return nil, &CollateError{Indices: indices, Err: err}
	}
	batch.Size, batch.Indices = len(indices), indices
	return batch, nil
}

// build runs the collator in a memory scope, which frees what it leaves behind, and
// takes the batch out of it.
func (s source[T]) build(c *tensor.Ctx, samples []T) (batch *Batch, err error) {
	_, err = c.NoGrad().TryScope(func(c *tensor.Ctx) (_ []*tensor.Tensor, err error) {
		if batch, err = s.collate(c, samples); err != nil {
			return nil, err
		}
		if batch == nil {
			return nil, errors.New("the collator returned nil and no error: want a batch or an error")
		}
		for _, t := range batch.Tensors {
			c.Keep(t)
		}
		return nil, nil
	})
	return batch, err
}

// SampleError says which sample could not be read.
type SampleError struct {
	Index int64 // in the dataset
	Err   error // what the dataset returned, or a *tensor.PanicError
}

func (e *SampleError) Error() string { return fmt.Sprintf("data: sample %d: %v", e.Index, e.Err) }

// Unwrap returns the cause.
func (e *SampleError) Unwrap() error { return e.Err }

// CollateError says which samples could not be made a batch of.
type CollateError struct {
	Indices []int64 // in the dataset
	Err     error   // what the collator returned, or a *tensor.PanicError
}

func (e *CollateError) Error() string {
	return fmt.Sprintf("data: collating samples %v: %v", e.Indices, e.Err)
}

// Unwrap returns the cause.
func (e *CollateError) Unwrap() error { return e.Err }

// guard calls f and turns a panic into an error.
func guard(f func() error) (err error) {
	if p := tensor.Recover(func() { err = f() }); p != nil {
		return p
	}
	return err
}
