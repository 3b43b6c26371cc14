// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/samplers"
)

// cut says how the samples of a stream make windows.
type cut struct {
	layout samplers.WindowLayout
	rule   *samplers.IterableDatasetShard // HuggingFace's; nil under Lockstep's own
}

// unit is the samples that a window has in multiples of, except for what ends an epoch: a micro-batch, or a block.
func (c cut) unit() int64 {
	if c.rule != nil {
		return c.rule.Block()
	}
	return int64(c.layout.BatchSize)
}

// samples is how many samples a whole window takes from the stream.
func (c cut) samples() int64 {
	if c.rule != nil {
		return c.rule.Block() * int64(c.layout.AccumulationSteps)
	}
	return int64(c.layout.BatchSize) * c.layout.MicroBatches()
}

// own returns the samples [begin, end) of this rank's micro-batch k of a window.
func (c cut) own(k int64) (begin, end int64) {
	size := int64(c.layout.BatchSize)
	begin = int64(c.layout.MicroBatch(int(k))) * size
	if c.rule != nil {
		size = c.rule.Size()
		begin = k*c.rule.Block() + int64(c.layout.Rank)*size
	}
	return begin, begin + size
}

// round is the first sample of those that interleaved ranks compute at a time as their micro-batch k.
func (c cut) round(k int64) int64 {
	if c.rule != nil {
		return k * c.rule.Block()
	}
	return int64(c.layout.Round(int(k))) * int64(c.layout.BatchSize)
}

// rawBatch is a micro-batch of samples before they are collated.
type rawBatch struct {
	samplers.MicroBatch
	samples []any
}

// rawWindow is a window before its batches are made.
type rawWindow struct {
	samplers.Window
	own   []rawBatch
	after IterablePlace // of the next window
}

// cutter reads a stream and cuts it into windows, epoch after epoch.
type cutter struct {
	src   data.IterableSource
	cut   cut
	place IterablePlace // of the next window

	reader   data.SampleReader // nil: not open
	buffered []any             // samples that have been read, from place on
	head     []any             // the first samples of the epoch, where the rule repeats them
	ended    bool              // the reader is at its end
	mark     json.RawMessage   // the reader's place behind the next whole window, once it has been read
}

// next reads the next window, and so far ahead that it knows whether it is the epoch's last.
func (c *cutter) next(ctx context.Context) (rawWindow, error) {
	if err := c.open(ctx); err != nil {
		return rawWindow{}, err
	}
	whole, unit, look := c.cut.samples(), c.cut.unit(), int64(1)
	if c.cut.layout.DropLast {
		look = unit
	}
	if err := c.fill(ctx, whole+look, whole); err != nil {
		return rawWindow{}, err
	}
	took := min(int64(len(c.buffered)), whole)
	if c.cut.layout.DropLast {
		took -= took % unit
	}
	if took == 0 {
		return rawWindow{}, c.empty()
	}
	w := rawWindow{after: c.place}
	w.Window = samplers.Window{
		Epoch: c.place.Epoch, Number: c.place.Windows, Position: c.place.Position, Samples: took,
		LastOfEpoch: c.ended && int64(len(c.buffered))-took < look,
	}
	samples, err := c.complete(ctx, c.buffered[:took])
	if err != nil {
		return rawWindow{}, err
	}
	c.share(&w, samples)
	c.advance(&w, took)
	return w, nil
}

// open begins or continues with the epoch of the next window.
func (c *cutter) open(ctx context.Context) (err error) {
	if c.reader != nil {
		return nil
	}
	c.buffered, c.head, c.mark, c.ended = nil, nil, nil, false
	if c.reader, err = c.src.Open(ctx, c.place.Epoch); err != nil {
		return err
	}
	if c.place.Items > 0 {
		return c.reader.Skip(c.place.Items, c.place.Cursor)
	}
	return nil
}

// fill reads until n samples are there or the epoch ends, and asks for the reader's place where whole ones have been
// read.
func (c *cutter) fill(ctx context.Context, n, whole int64) error {
	for int64(len(c.buffered)) < n && !c.ended {
		if int64(len(c.buffered)) == whole && c.mark == nil {
			if err := c.see(); err != nil {
				return err
			}
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		sample, err := c.reader.Next()
		if err == io.EOF {
			c.ended = true
			return nil
		}
		if err != nil {
			return err
		}
		c.buffered = append(c.buffered, sample)
	}
	return nil
}

// see notes the reader's place.
func (c *cutter) see() (err error) {
	c.mark, err = c.reader.Place()
	return err
}

// complete returns the samples of a window as the ranks share them out: with HuggingFace's rule the last block of an
// epoch is completed with samples of its first block.
func (c *cutter) complete(ctx context.Context, samples []any) ([]any, error) {
	if c.cut.rule == nil {
		return samples, nil
	}
	block := c.cut.rule.Block()
	if c.place.Items == 0 {
		c.head = append([]any{}, samples[:min(block, int64(len(samples)))]...)
	}
	missing := (block - int64(len(samples))%block) % block
	if missing == 0 {
		return samples, nil
	}
	if c.head == nil {
		if err := c.readHead(ctx, block); err != nil {
			return nil, err
		}
	}
	samples = append([]any{}, samples...)
	for i := range missing {
		samples = append(samples, c.head[i%int64(len(c.head))])
	}
	return samples, nil
}

// readHead reads the first block of the epoch again, which a resumed run has not seen.
func (c *cutter) readHead(ctx context.Context, block int64) error {
	r, err := c.src.Open(ctx, c.place.Epoch)
	if err != nil {
		return err
	}
	for int64(len(c.head)) < block {
		sample, err := r.Next()
		if err != nil {
			if err == io.EOF {
				err = errors.New("its first samples cannot be read again")
			}
			return errors.Join(fmt.Errorf("feed: epoch %d of the iterable dataset: %w", c.place.Epoch, err),
				r.Close())
		}
		c.head = append(c.head, sample)
	}
	return r.Close()
}

// share gives this rank its micro-batches.
func (c *cutter) share(w *rawWindow, samples []any) {
	took, n, size := w.Samples, int64(len(samples)), int64(c.cut.layout.BatchSize)
	if c.cut.rule != nil {
		size = c.cut.rule.Size()
	}
	w.Samples, w.MicroBatches = n, int((n+size-1)/size)
	for k := range int64(c.cut.layout.AccumulationSteps) {
		begin, end := c.cut.own(k)
		number := c.cut.layout.MicroBatch(int(k))
		if end = min(end, n); begin >= end {
			if !c.cut.layout.Interleaved || c.cut.round(k) >= n {
				return
			}
			number, begin, end = -1, (n-1)/size*size, n // repeats the last micro-batch
		}
		m := samplers.MicroBatch{Number: number, Position: c.place.Position + begin}
		for i := begin; i < end; i++ {
			index := c.place.Items + i
			if i >= took {
				index = (i - took) % int64(len(c.head))
			}
			m.Indices = append(m.Indices, index)
		}
		w.Own = append(w.Own, m)
		w.own = append(w.own, rawBatch{m, samples[begin:end:end]})
	}
}

// advance continues after a window.
func (c *cutter) advance(w *rawWindow, took int64) {
	p := &c.place
	p.Position += took
	if w.LastOfEpoch {
		p.Epoch, p.Items, p.Windows, p.Cursor = p.Epoch+1, 0, 0, nil
		c.close()
	} else {
		p.Items, p.Windows, p.Cursor = p.Items+took, p.Windows+1, c.mark
		c.buffered, c.mark = append([]any{}, c.buffered[took:]...), nil
	}
	w.after = *p
}

// ErrNoSamples is in the error of an iterable dataset that has none.
var ErrNoSamples = errors.New("no samples")

// empty says that an epoch has nothing to train on.
func (c *cutter) empty() error {
	c.close()
	switch n := int64(len(c.buffered)); {
	case c.place.Items > 0:
		return fmt.Errorf("feed: epoch %d of the iterable dataset ends after %d samples, but was longer when the "+
			"place was saved", c.place.Epoch, c.place.Items+n)
	case n > 0:
		return fmt.Errorf("feed: epoch %d of the iterable dataset has %s, fewer than one batch of %d, "+
			"and dataloader_drop_last drops incomplete batches",
			c.place.Epoch, quantity.Of(n, "sample"), c.cut.unit())
	}
	return fmt.Errorf("feed: epoch %d of the iterable dataset has %w", c.place.Epoch, ErrNoSamples)
}

// close ends reading. That it fails to end changes no sample.
func (c *cutter) close() {
	if c.reader != nil {
		_ = c.reader.Close()
		c.reader = nil
	}
}
