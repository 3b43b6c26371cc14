// SPDX-License-Identifier: Apache-2.0

package samplers

// NewShardedStream returns the stream of s at position 0 under the sharding rules of HuggingFace's accelerate,
// BatchSamplerShard: the ranks take batches of layout.BatchSize in turn, or each takes its slice of every batch with
// SplitBatches. A round is one batch of every rank, and a window is AccumulationSteps rounds. With one rank nothing is
// shared out, as in accelerate, and this is NewStream.
//
// What a rank sees depends on the number of ranks, so a stream of another number of ranks gives other bits. Samples are
// repeated with EvenBatches, and are counted as often as they are seen. A place can be restored on any number of ranks,
// as long as a batch begins there.
//
// The error describes what is wrong with the layout, or that SplitBatches is set and the ranks do not divide the batch
// size.
func NewShardedStream(s Sampler, layout WindowLayout, o BatchSamplerShardOptions) (*Stream, error) {
	stream, err := NewStream(s, layout)
	if err != nil || layout.WorldSize == 1 {
		return stream, err
	}
	r := &rounds{world: int64(layout.WorldSize), each: int64(layout.BatchSize)}
	if o.SplitBatches {
		r.each /= r.world
	}
	if r.lead, err = NewBatchSamplerShard(stream.batch, Shard{0, layout.WorldSize}, o); err != nil {
		return nil, err
	}
	if r.own, err = NewBatchSamplerShard(stream.batch, Shard{layout.Rank, layout.WorldSize}, o); err != nil {
		return nil, err
	}
	stream.rounds = r
	return stream, nil
}

// NewDistributedStream returns the stream of s at position 0, shared out as torch's DistributedSampler does: the ranks
// take one sample in turn, ⌈n/W⌉ each, and the last ones are samples from the epoch's head again where W does not
// divide n. Each rank cuts its samples into batches of layout.BatchSize, of which the ragged last one is left out with
// DropLast, as torch's DataLoader does. A round is one batch of every rank, and a window is AccumulationSteps rounds. s
// is the order of all samples: with that of a DistributedSampler of one replica and Shuffle the indices are torch's to
// the number. With one rank this is NewStream.
//
// What a rank sees depends on the number of ranks, as with NewShardedStream. A place can be restored where a round
// begins. The error describes what is wrong with the layout, or that s is one rank's part already.
func NewDistributedStream(s Sampler, layout WindowLayout) (*Stream, error) {
	stream, err := NewStream(s, layout)
	if err != nil || layout.WorldSize == 1 {
		return stream, err
	}
	d := dealt{order: s, shard: Shard{0, layout.WorldSize}, size: int64(layout.BatchSize), dropLast: layout.DropLast}
	own := d
	own.shard.Rank = layout.Rank
	stream.rounds = &rounds{world: d.shard.world(), lead: d, own: own, each: d.size}
	return stream, nil
}

// share is a rank's batches of each epoch.
type share interface {
	// Len is how many there are.
	Len() int64
	// MicroBatch gives batch j of an epoch.
	MicroBatch(epoch, j int64) MicroBatch
	// from gives what is left of the epoch under way from sample base on, where a batch begins: see begins.
	from(base int64) share
	// begins reports whether a batch begins at sample base of an epoch.
	begins(base int64) bool
	// samples counts those of all ranks in rounds [j, j+n); 0: those that lie in the epoch.
	samples(j, n int64) int64
}

// rounds is how a stream under the rules of HuggingFace or torch is shared out: a round has a batch of every rank, in
// the last round of an epoch perhaps of the first ranks alone.
type rounds struct {
	world int64
	lead  share // rank 0's, which has as many batches as any
	own   share
	each  int64 // samples of a rank's whole batch
}

// dealt are the batches of a rank where samples are dealt one by one: the rule of torch's DistributedSampler.
type dealt struct {
	order    Sampler // of all samples
	shard    Shard
	size     int64 // samples of a whole batch
	dropLast bool
	done     int64 // samples of each rank that are left out at the front
}

// left is the number of samples that the rank still has.
func (d dealt) left() int64 { return ceilDiv(d.order.Len(), d.shard.world()) - d.done }

func (d dealt) Len() int64 {
	if d.dropLast {
		return d.left() / d.size
	}
	return ceilDiv(d.left(), d.size)
}

// MicroBatch returns batch j. In the training stream the batches of a round lie one after the other, rank by rank.
func (d dealt) MicroBatch(epoch, j int64) MicroBatch {
	begin := d.done + j*d.size
	indices := make([]int64, min(d.size, d.done+d.left()-begin))
	world, rank, n := d.shard.world(), d.shard.rank(), d.order.Len()
	for i := range indices {
		indices[i] = d.order.At(epoch, ((begin+int64(i))*world+rank)%n)
	}
	return MicroBatch{Position: epoch*d.epoch() + begin*world + rank*int64(len(indices)), Indices: indices}
}

// epoch is the number of samples of an epoch in the training stream, as Batch.Samples counts them.
func (d dealt) epoch() int64 {
	n := d.order.Len()
	if d.dropLast {
		n -= n % d.size
	}
	return n
}

func (d dealt) from(base int64) share {
	d.done += base / d.shard.world()
	return d
}

func (d dealt) begins(base int64) bool { return base%(d.size*d.shard.world()) == 0 }

func (d dealt) samples(j, n int64) int64 {
	return d.shard.world() * (min((j+n)*d.size, d.left()) - j*d.size)
}

func (s *BatchSamplerShard) from(base int64) share {
	left, err := s.SkipFirst(base / int64(s.batches.Size()))
	if err != nil {
		panic(err) // a stream seeks within an epoch
	}
	return left
}

func (s *BatchSamplerShard) begins(base int64) bool { return base%int64(s.batches.Size()) == 0 }

func (s *BatchSamplerShard) samples(_, n int64) int64 {
	if !s.EvenBatches {
		return 0
	}
	return n * s.size * s.shard.world()
}

// count returns the micro-batches of all rounds from sample base of an epoch on, where a batch begins.
func (r *rounds) count(base int64) int64 { return r.rest(r.lead, base).Len() * r.world }

// rest returns what is left of a rank's epoch from sample base on.
func (r *rounds) rest(of share, base int64) share {
	if base == 0 {
		return of
	}
	return of.from(base)
}

// fill completes the stream's next window: this rank's batches, and how many samples all ranks have.
func (r *rounds) fill(s *Stream, w *Window) {
	mine, gas := r.rest(r.own, s.base), int64(s.layout.AccumulationSteps)
	if n := mine.samples(s.window*gas, int64(w.MicroBatches)/r.world); n > 0 {
		w.Samples = n
	}
	for k := range gas {
		j := s.window*gas + k
		switch lead := r.rest(r.lead, s.base); {
		case j < mine.Len():
			m := mine.MicroBatch(s.epoch, j)
			m.Number = s.layout.MicroBatch(int(k))
			w.Own = append(w.Own, m)
		case s.layout.Interleaved && j < lead.Len():
			m := lead.MicroBatch(s.epoch, j)
			m.Number = -1
			w.Own = append(w.Own, m)
		}
	}
}
