// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"iter"
	"slices"
)

// IterableDatasetShardOptions are accelerate's settings of the same names.
type IterableDatasetShardOptions struct {
	// SplitBatches says that the batch size is that of all ranks together.
	SplitBatches bool
	// DropLast leaves out what remains after the last whole block.
	DropLast bool
}

// IterableDatasetShard shares a stream of items out to W ranks in blocks of b·W consecutive items, of which rank r has
// slice [r·b, (r+1)·b): HuggingFace's IterableDatasetShard. All ranks read all items. A last block that is not whole is
// completed with items from the stream's first block, which are then seen twice (more often if the stream is shorter
// than a block), unless DropLast is set.
type IterableDatasetShard struct {
	shard Shard
	size  int64 // b, items per rank and block
	block int64 // b·W
	drop  bool
}

// NewIterableDatasetShard returns a rank's part of streams. It is an error if the shard is at fault, batchSize is below
// 1, or SplitBatches is set and W does not divide it.
func NewIterableDatasetShard(batchSize int, shard Shard, o IterableDatasetShardOptions) (*IterableDatasetShard, error) {
	if err := shard.Validate(); err != nil {
		return nil, err
	}
	if batchSize < 1 {
		return nil, fmt.Errorf("samplers: batch size is %d: want at least 1", batchSize)
	}
	size := int64(batchSize)
	if o.SplitBatches {
		if batchSize%shard.WorldSize != 0 {
			return nil,
				fmt.Errorf("samplers: split_batches with a batch size of %d: want a multiple of the world size %d",
					batchSize, shard.WorldSize)
		}
		size /= shard.world()
	}
	return &IterableDatasetShard{shard: shard, size: size, block: size * shard.world(), drop: o.DropLast}, nil
}

// Size returns the number of items of a rank in a block, b.
func (s *IterableDatasetShard) Size() int64 { return s.size }

// Block returns the number of items in a block, b·W.
func (s *IterableDatasetShard) Block() int64 { return s.block }

// Len returns the number of items per rank of a stream of n: ⌈n/bW⌉·b, or ⌊n/bW⌋·b with DropLast.
func (s *IterableDatasetShard) Len(n int64) int64 {
	if s.drop {
		return n / s.block * s.size
	}
	return ceilDiv(n, s.block) * s.size
}

// Index returns the place of this rank's item i in the stream, from 0. Past the end of a stream of n stands the item at
// that place modulo n.
func (s *IterableDatasetShard) Index(i int64) int64 {
	return i/s.size*s.block + s.shard.rank()*s.size + i%s.size
}

// Share yields the items of a stream that are a rank's, as a loop over HuggingFace's IterableDatasetShard does. It
// holds the stream's first block, to repeat its items at the end, and the block under way.
func Share[T any](s *IterableDatasetShard, items iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		var first, block []T
		begin := s.size * s.shard.rank()
		own := func() bool {
			for _, item := range block[begin : begin+s.size] {
				if !yield(item) {
					return false
				}
			}
			return true
		}
		for item := range items {
			if block = append(block, item); int64(len(block)) < s.block {
				continue
			}
			if !own() {
				return
			}
			if first == nil {
				first = slices.Clone(block)
			}
			block = block[:0]
		}
		if s.drop || len(block) == 0 {
			return
		}
		if first == nil {
			first = slices.Clone(block)
		}
		for i := 0; int64(len(block)) < s.block; i++ {
			block = append(block, first[i%len(first)])
		}
		own()
	}
}
