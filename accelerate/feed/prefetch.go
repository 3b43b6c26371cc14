// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// prefetch gives the windows of a cutter with their batches. With workers one goroutine reads ahead, and the workers
// collate; what comes does not depend on their number.
type prefetch struct {
	ctx    context.Context
	cancel context.CancelFunc
	cutter *cutter
	left   int64       // windows to come
	own    *tensor.Ctx // of batches without workers

	ordered chan *madeWindow // in the order in which next gives them; nil without workers
	workers chan *tensor.Ctx // those that are idle
	running sync.WaitGroup
}

// madeWindow is a window in preparation.
type madeWindow struct {
	rawWindow
	batches []*data.Batch
	errs    []error
	err     error         // of reading
	started chan struct{} // closed when all that is to be made of it is under way
	making  sync.WaitGroup
}

// newPrefetch begins to read, in a new context.
func newPrefetch(ctx context.Context, o Options, c *cutter, windows int64) *prefetch {
	p := &prefetch{cutter: c, left: windows, own: o.Ctx}
	p.ctx, p.cancel = context.WithCancel(ctx)
	workers := o.Loading.Workers
	if workers == 0 {
		return p
	}
	p.ordered = make(chan *madeWindow, max(1, workers*o.Loading.PrefetchFactor/c.cut.layout.AccumulationSteps))
	p.workers = make(chan *tensor.Ctx, workers)
	for range workers {
		p.workers <- tensor.NewCtx(o.Ctx.Device())
	}
	p.running.Go(func() {
		defer close(p.ordered)
		defer c.close()
		p.feed()
	})
	return p
}

// feed reads windows and has their batches made.
func (p *prefetch) feed() {
	for p.left > 0 {
		p.left--
		m := &madeWindow{started: make(chan struct{})}
		m.rawWindow, m.err = p.cutter.next(p.ctx)
		select {
		case p.ordered <- m:
		case <-p.ctx.Done():
			return
		}
		m.batches, m.errs = make([]*data.Batch, len(m.own)), make([]error, len(m.own))
		for i := range m.own {
			select {
			case c := <-p.workers:
				m.making.Go(func() {
					defer func() { p.workers <- c }()
					m.make(p.cutter.src, c, i)
				})
			case <-p.ctx.Done():
				m.errs[i] = context.Cause(p.ctx)
			}
		}
		close(m.started)
		if m.err != nil {
			return
		}
	}
}

// make makes batch i of the window, and waits until its tensors are written, since another context will use them.
func (m *madeWindow) make(src data.IterableSource, c *tensor.Ctx, i int) {
	m.errs[i] = errors.New("feed: the collator called runtime.Goexit")
	raw := m.own[i]
	b, err := src.Collate(c, raw.samples, raw.Indices)
	if err == nil {
		c.Sync()
		b.Position, b.MicroBatch = raw.Position, raw.Number
	}
	m.batches[i], m.errs[i] = b, err
}

// finish returns the window and the place after it.
func (m *madeWindow) finish() (*Window, IterablePlace, error) {
	for _, err := range append(m.errs, m.err) {
		if err != nil {
			m.free()
			return nil, IterablePlace{}, err
		}
	}
	return &Window{Window: m.Window, Batches: m.batches}, m.after, nil
}

func (m *madeWindow) free() {
	for _, b := range m.batches {
		if b != nil {
			b.Free()
		}
	}
}

// next returns the next window and the place after it.
func (p *prefetch) next() (*Window, IterablePlace, error) {
	if p.ordered == nil {
		return p.nextSelf()
	}
	select {
	case m := <-p.ordered:
		if m == nil {
			return nil, IterablePlace{}, p.why()
		}
		<-m.started
		m.making.Wait()
		return m.finish()
	case <-p.ctx.Done():
		return nil, IterablePlace{}, context.Cause(p.ctx)
	}
}

// why is the reason why there is no window.
func (p *prefetch) why() error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	if p.left > 0 {
		return errors.New("feed: the iterable dataset called runtime.Goexit")
	}
	return io.EOF
}

// nextSelf reads and makes the next window without workers.
func (p *prefetch) nextSelf() (*Window, IterablePlace, error) {
	m := &madeWindow{}
	m.rawWindow, m.err = p.cutter.next(p.ctx)
	if m.err == nil {
		m.batches, m.errs = make([]*data.Batch, len(m.own)), make([]error, len(m.own))
		for i := range m.own {
			if m.make(p.cutter.src, p.own, i); m.errs[i] != nil {
				break
			}
		}
	}
	return m.finish()
}

// close ends reading, waits for the goroutines and frees what was not taken.
func (p *prefetch) close() {
	p.cancel()
	p.running.Wait()
	if p.ordered == nil {
		p.cutter.close()
		return
	}
	for m := range p.ordered {
		<-m.started
		m.making.Wait()
		m.free()
	}
}
