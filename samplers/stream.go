// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"errors"
	"fmt"
)

// WindowLayout says how the training stream is cut into micro-batches and windows, and which part of each window is
// this rank's. The package documentation defines the terms.
type WindowLayout struct {
	BatchSize         int  // b, samples per micro-batch
	DropLast          bool // leave out an epoch's ragged last micro-batch
	AccumulationSteps int  // micro-batches per rank and window
	WorldSize         int  // N, ranks
	Rank              int  // 0 ≤ Rank < N
	// Interleaved gives rank r the micro-batches r, r+N, r+2N … of a window instead of consecutive ones, so that the
	// ranks compute consecutive micro-batches at a time. Where a window's last ones do not suffice for all, the other
	// ranks get one of them again, see MicroBatch.
	Interleaved bool
	// Replicas divides interleaved ranks into so many groups of consecutive ranks, each of which has consecutive
	// micro-batches of the window and takes turns within them; 0 means 1.
	Replicas int
}

// MicroBatches returns M, the number of micro-batches in a full window: AccumulationSteps × WorldSize.
func (l WindowLayout) MicroBatches() int64 { return int64(l.AccumulationSteps) * int64(l.WorldSize) }

// MicroBatch returns the number in the window of this rank's micro-batch k.
func (l WindowLayout) MicroBatch(k int) int {
	if l.Interleaved {
		return l.Round(k) + l.Rank%l.replica()
	}
	return l.Rank*l.AccumulationSteps + k
}

// Round returns the first micro-batch of those that interleaved ranks compute at a time as their micro-batch k.
func (l WindowLayout) Round(k int) int {
	n := l.replica()
	return l.Rank/n*n*l.AccumulationSteps + k*n
}

// replica is the number of ranks that take turns.
func (l WindowLayout) replica() int { return l.WorldSize / max(l.Replicas, 1) }

// repeats reports whether other ranks have a micro-batch k where this rank's micro-batch is missing.
func (l WindowLayout) repeats(k int, count int64) bool {
	return l.Interleaved && int64(l.Round(k)) < count
}

// Validate reports every fault of the layout, each with its value and what was wanted.
func (l WindowLayout) Validate() error {
	var faults []error
	for _, f := range []struct {
		name  string
		value int
	}{{"batch size", l.BatchSize}, {"accumulation steps", l.AccumulationSteps}, {"world size", l.WorldSize}} {
		if f.value < 1 {
			faults = append(faults, fmt.Errorf("samplers: %s is %d: want at least 1", f.name, f.value))
		}
	}
	if l.Replicas < 0 || l.Replicas > 0 && l.WorldSize%l.Replicas != 0 {
		faults = append(faults, fmt.Errorf("samplers: replicas are %d: want a divisor of the world size %d", l.Replicas,
			l.WorldSize))
	}
	if l.Rank < 0 || l.WorldSize >= 1 && l.Rank >= l.WorldSize {
		faults = append(faults, fmt.Errorf("samplers: rank is %d: want 0 to %d", l.Rank, l.WorldSize-1))
	}
	return errors.Join(faults...)
}

// MicroBatch has the samples of one forward and backward pass of a window.
type MicroBatch struct {
	Number   int     // in the window, 0 … M−1; −1 if it repeats another rank's micro-batch and counts nowhere
	Position int64   // the position of its first sample in the training stream; the others follow
	Indices  []int64 // dataset indices, 1 … b of them
}

// Window is the data of one optimizer step as one rank sees it.
type Window struct {
	Epoch        int64        // from 0
	Number       int64        // of the window in its epoch, from 0; after a seek off the grid, from the place sought
	Position     int64        // of its first sample in the training stream
	MicroBatches int          // micro-batches over all ranks, 1 … M
	Samples      int64        // samples over all ranks
	Own          []MicroBatch // this rank's, in ascending order; empty if the epoch's tail did not reach it
	LastOfEpoch  bool
}

// Stream gives one rank's part of the training stream, window by window, epoch after epoch without end. It is not safe
// for concurrent use.
type Stream struct {
	batch  *Batch
	layout WindowLayout
	rounds *rounds // of HuggingFace's sharding or torch's; nil under the package's own rule
	epoch  int64
	base   int64 // samples of the epoch that lie before its window 0: 0 but after a seek off the grid
	window int64 // the window that comes next
}

// NewStream returns the stream of s at position 0. The error describes what is wrong with the layout.
func NewStream(s Sampler, layout WindowLayout) (*Stream, error) {
	err := layout.Validate()
	if err == nil && layout.WorldSize > 1 {
		err = part(s)
	}
	if err != nil {
		return nil, err
	}
	b, err := NewBatch(s, layout.BatchSize, layout.DropLast)
	if err != nil {
		return nil, err
	}
	return &Stream{batch: b, layout: layout}, nil
}

// Clone returns an independent stream at the same place.
func (s *Stream) Clone() *Stream {
	c := *s
	return &c
}

// Layout returns the layout that the stream was made with.
func (s *Stream) Layout() WindowLayout { return s.layout }

// MicroBatches returns L, the number of micro-batches per epoch over all ranks; under HuggingFace's sharding, those of
// its rounds, also where a rank has none in the last.
func (s *Stream) MicroBatches() int64 { return s.count(0) }

// Samples returns S, the number of samples per epoch.
func (s *Stream) Samples() int64 { return s.batch.Samples() }

// Next returns the next window. Every rank gets every window, also those of which it owns nothing, since it takes part
// in their reductions. It gives false if epochs are empty, and otherwise always true.
func (s *Stream) Next() (Window, bool) {
	if s.MicroBatches() == 0 {
		return Window{}, false
	}
	s.settle()
	first, count, total := s.span()
	w := Window{
		Epoch:        s.epoch,
		Number:       s.window,
		Position:     s.position(first),
		MicroBatches: int(count),
		Samples:      min(s.position(first+count), (s.epoch+1)*s.Samples()) - s.position(first),
		LastOfEpoch:  first+count == total,
	}
	if s.rounds != nil {
		s.rounds.fill(s, &w)
		s.window++
		return w, true
	}
	for k := range s.layout.AccumulationSteps {
		number := int64(s.layout.MicroBatch(k))
		if number < count {
			w.Own = append(w.Own, s.microBatch(first, number))
		} else if s.layout.repeats(k, count) {
			again := s.microBatch(first, count-1)
			again.Number = -1
			w.Own = append(w.Own, again)
		}
	}
	s.window++
	return w, true
}

// Position returns the position of the next window's first sample: the number of samples done with if every window
// given so far is.
func (s *Stream) Position() int64 {
	if s.MicroBatches() == 0 {
		return 0
	}
	s.settle()
	return s.position(s.window * s.layout.MicroBatches())
}

// Place returns the position of the next window.
func (s *Stream) Place() Place {
	p := s.Position()
	place := placeAt(s.batch.sampler, s.epoch, 0, s.Samples())
	place.Epoch, place.Position = s.epoch, p
	return place
}

// Restore goes to a saved place, in O(1). The stream continues exactly as the saved one would have, on any world size,
// as long as the batch size and the number of micro-batches per window are the same. It is an error if the place was
// not taken of this order: another seed, number of samples or fingerprint.
func (s *Stream) Restore(p Place) error {
	if err := p.check(placeAt(s.batch.sampler, 0, 0, s.Samples())); err != nil {
		return err
	}
	return s.SeekSample(p.Position)
}

// SeekStep goes to where the first steps windows have been given, in O(1).
func (s *Stream) SeekStep(steps int64) error {
	if err := checkSeek("step", steps); err != nil {
		return err
	}
	perEpoch := UpdatesPerEpoch(s.MicroBatches(), s.layout.MicroBatches())
	s.epoch, s.base, s.window = steps/perEpoch, 0, steps%perEpoch
	return nil
}

// SeekMicroBatch goes to micro-batch number n of the training stream, counted over all ranks and epochs, in O(1): it is
// micro-batch 0 of the next window (see SeekSample).
func (s *Stream) SeekMicroBatch(n int64) error {
	if err := checkSeek("micro-batch", n); err != nil {
		return err
	}
	perEpoch := s.MicroBatches()
	if perEpoch == 0 {
		return nil
	}
	return s.SeekSample(n/perEpoch*s.Samples() + s.samplesOf(n%perEpoch))
}

// SeekSample goes to a position of the training stream, in O(1). The sample there is the first of the next window. If
// no window of the grid begins there (batch size or window changed since the position was saved), the rest of that
// epoch is cut into micro-batches and windows again from there on, and later epochs are as usual.
func (s *Stream) SeekSample(position int64) error {
	if err := checkSeek("position", position); err != nil {
		return err
	}
	if s.Samples() == 0 {
		return nil
	}
	offset := position % s.Samples()
	perWindow := s.samplesOf(s.layout.MicroBatches())
	if s.rounds != nil && !s.rounds.own.begins(offset) {
		return fmt.Errorf("samplers: position %d lies %d samples into its epoch, where no batch of %d begins", position,
			offset, s.batch.size)
	}
	s.epoch, s.base, s.window = position/s.Samples(), 0, offset/perWindow
	if offset%perWindow != 0 {
		s.base, s.window = offset, 0
	}
	return nil
}

// settle moves on to the next epoch if the present one is used up.
func (s *Stream) settle() {
	for s.window*s.layout.MicroBatches() >= s.count(s.base) {
		s.epoch, s.base, s.window = s.epoch+1, 0, 0
	}
}

// span returns the next window's first micro-batch, counted from base, how many it has, and how many the epoch has from
// base on.
func (s *Stream) span() (first, count, total int64) {
	total = s.count(s.base)
	first = s.window * s.layout.MicroBatches()
	return first, min(s.layout.MicroBatches(), total-first), total
}

// position returns the position of the first sample of micro-batch j of the present epoch, counted from base.
func (s *Stream) position(j int64) int64 {
	return s.epoch*s.Samples() + s.base + s.samplesOf(j)
}

// count returns the micro-batches of an epoch from sample base on.
func (s *Stream) count(base int64) int64 {
	if s.rounds != nil {
		return s.rounds.count(base)
	}
	return s.batch.count(s.Samples() - base)
}

// samplesOf returns the samples of j whole micro-batches.
func (s *Stream) samplesOf(j int64) int64 {
	if s.rounds != nil {
		return j * s.rounds.each
	}
	return j * s.batch.size
}

// EpochAfter returns the number of epochs done after window w of the stream, with the fraction of its epoch's
// micro-batches that is done.
func (s *Stream) EpochAfter(w Window) float64 {
	if w.LastOfEpoch {
		return float64(w.Epoch + 1)
	}
	done := w.Position - w.Epoch*s.Samples() + w.Samples
	return float64(w.Epoch) + float64(ceilDiv(done, s.samplesOf(1)))/float64(s.MicroBatches())
}

func (s *Stream) microBatch(first, number int64) MicroBatch {
	begin := s.base + (first+number)*s.batch.size
	n := min(s.batch.size, s.Samples()-begin)
	return MicroBatch{Number: int(number), Position: s.position(first + number),
		Indices: s.batch.indices(s.epoch, begin, n)}
}

func checkSeek(what string, n int64) error {
	if n < 0 {
		return fmt.Errorf("samplers: %s to seek is %d: want 0 or more", what, n)
	}
	return nil
}
