// SPDX-License-Identifier: Apache-2.0

package samplers

// NewShardedStream gives the stream of s at position 0 under the sharding rules of HuggingFace's accelerate,
// BatchShard: the ranks take batches of layout.BatchSize in turn, or each takes its slice of every batch with
// SplitBatches. A round is one batch of every rank, and a window is AccumulationSteps rounds. With one rank nothing is
// shared out, as in accelerate, and this is NewStream.
//
// What a rank sees depends on the number of ranks, so a stream of another number of ranks gives other bits. Samples are
// repeated with EvenBatches, and are counted as often as they are seen. A place can be restored on any number of ranks,
// as long as a batch begins there.
//
// An error tells what is wrong with the layout, or that SplitBatches is set and the ranks do not divide the batch size.
func NewShardedStream(s Sampler, layout Layout, o BatchShardOptions) (*Stream, error) {
	stream, err := NewStream(s, layout)
	if err != nil || layout.WorldSize == 1 {
		return stream, err
	}
	r := &rounds{world: int64(layout.WorldSize), each: int64(layout.BatchSize), even: o.EvenBatches}
	if o.SplitBatches {
		r.each /= r.world
	}
	if r.lead, err = NewBatchShard(stream.batch, Shard{0, layout.WorldSize}, o); err != nil {
		return nil, err
	}
	if r.own, err = NewBatchShard(stream.batch, Shard{layout.Rank, layout.WorldSize}, o); err != nil {
		return nil, err
	}
	stream.rounds = r
	return stream, nil
}

// rounds is how a stream under HuggingFace's rules is shared out: a round has a batch of every rank, in the last round
// of an epoch perhaps of the first ranks alone.
type rounds struct {
	world int64
	lead  *BatchShard // rank 0's, which has as many batches as any
	own   *BatchShard
	each  int64 // samples of a rank's whole batch
	even  bool
}

// count gives the micro-batches of all rounds from sample base of an epoch on, where a batch begins.
func (r *rounds) count(base int64) int64 { return r.rest(r.lead, base).Len() * r.world }

// rest gives what is left of a rank's epoch from sample base on.
func (r *rounds) rest(of *BatchShard, base int64) *BatchShard {
	if base == 0 {
		return of
	}
	left, err := of.SkipFirst(base / int64(of.batches.Size()))
	if err != nil {
		panic(err) // a stream seeks within an epoch
	}
	return left
}

// fill completes the stream's next window: this rank's batches, and how many samples all ranks have.
func (r *rounds) fill(s *Stream, w *Window) {
	if r.even {
		w.Samples = int64(w.Leaves) * r.each
	}
	mine, gas := r.rest(r.own, s.base), int64(s.layout.AccumulationSteps)
	for k := range gas {
		j := s.window*gas + k
		switch lead := r.rest(r.lead, s.base); {
		case j < mine.Len():
			m := mine.MicroBatch(s.epoch, j)
			m.Leaf = s.layout.Leaf(int(k))
			w.Own = append(w.Own, m)
		case s.layout.Interleaved && j < lead.Len():
			m := lead.MicroBatch(s.epoch, j)
			m.Leaf = -1
			w.Own = append(w.Own, m)
		}
	}
}
