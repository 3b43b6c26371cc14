// SPDX-License-Identifier: Apache-2.0

package samplers

import "fmt"

// Batch cuts a sampler's epochs into micro-batches of consecutive samples.
type Batch struct {
	sampler  Sampler
	size     int64
	dropLast bool
}

// NewBatch cuts the epochs of s into batches of size samples. The last of an epoch has what remains, or is left out
// with dropLast. An error names a size below 1.
func NewBatch(s Sampler, size int, dropLast bool) (*Batch, error) {
	if size < 1 {
		return nil, fmt.Errorf("samplers: batch size is %d: want at least 1", size)
	}
	return &Batch{sampler: s, size: int64(size), dropLast: dropLast}, nil
}

// Len returns the number of batches per epoch: ⌈n/size⌉, or ⌊n/size⌋ with dropLast.
func (b *Batch) Len() int64 { return b.count(b.sampler.Len()) }

// Samples returns the number of samples used per epoch: n, or Len()·size with dropLast.
func (b *Batch) Samples() int64 {
	if b.dropLast {
		return b.Len() * b.size
	}
	return b.sampler.Len()
}

// First returns the number of samples before batch j, 0 ≤ j ≤ Len().
func (b *Batch) First(j int64) int64 {
	if j < 0 || j > b.Len() {
		panic(fmt.Sprintf("samplers: begin of batch %d of an epoch of %d", j, b.Len()))
	}
	return min(j*b.size, b.Samples())
}

// Size returns the number of samples in a whole batch.
func (b *Batch) Size() int { return int(b.size) }

// DropLast tells whether an epoch's ragged last batch is left out.
func (b *Batch) DropLast() bool { return b.dropLast }

// Seed returns the sampler's seed, 0 if it has none.
func (b *Batch) Seed() uint64 { return seedOf(b.sampler) }

// Fingerprint returns the sampler's fingerprint, 0 if it has none.
func (b *Batch) Fingerprint() uint64 { return fingerprintOf(b.sampler) }

// At returns the dataset indices of batch j, 0 ≤ j < Len(), of an epoch, in a new slice.
func (b *Batch) At(epoch, j int64) []int64 {
	if j < 0 || j >= b.Len() {
		panic(fmt.Sprintf("samplers: batch %d of an epoch of %d", j, b.Len()))
	}
	first := j * b.size
	return b.indices(epoch, first, min(b.size, b.sampler.Len()-first))
}

// count returns the number of batches that n samples make.
func (b *Batch) count(n int64) int64 {
	if b.dropLast {
		return n / b.size
	}
	return ceilDiv(n, b.size)
}

// indices returns the dataset indices of samples first … first+n−1 of an epoch.
func (b *Batch) indices(epoch, first, n int64) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = b.sampler.At(epoch, first+int64(i))
	}
	return out
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
