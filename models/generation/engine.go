// SPDX-License-Identifier: Apache-2.0

package generation

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Engine continues the texts of many goroutines with one model, in batches that texts join and leave at any token
// (continuous batching; Yu et al. 2022). A long prompt is fed in parts between the tokens of the others. A text has
// the tokens that [Generate] gives, whoever shares the batch, since each row has the bits that it has alone. What a
// prompt has in common with earlier texts is not computed again. The texts of models that are no Joiner, or do not join
// them, take turns.
type Engine struct {
	cfg  EngineConfig
	wake chan struct{} // has room for one
	ran  sync.WaitGroup

	prefixes prefixes

	mu      sync.Mutex
	now     *served // of further texts
	waiting []*row
	active  int // rows that the engine has
	closed  bool
}

// EngineConfig is the size of an Engine. 0 means the usual value.
type EngineConfig struct {
	Rows    int // texts at a time; 8
	Waiting int // texts that may wait beside them; 64. Negative: none
	Prefill int // tokens of a prompt that are fed between two tokens of the others; 256
	// PrefixCache is how many bytes of keys and values of texts that have ended are kept for prompts that begin alike,
	// as each turn of a conversation does, and all with one system prompt; 256 MiB. Negative: none, and prompts that
	// are alike are each computed.
	PrefixCache int
}

// ErrBusy is the error of a text for which an Engine has no room.
var ErrBusy = errors.New("generation: the queue of waiting texts is full")

// ErrClosed is the error of the texts of an Engine that is closed.
var ErrClosed = errors.New("generation: the engine is closed")

// served is a model with the texts that it continues.
type served struct {
	m    models.Generator
	c    *nn.Ctx
	rows int // under Engine.mu

	replaced bool
	unused   chan struct{} // is closed when it is replaced and has no rows
}

// NewEngine starts an engine for a model on a device. The caller closes it.
func NewEngine(dev *tensor.Device, m models.Generator, cfg EngineConfig) *Engine {
	for _, d := range []struct {
		value *int
		usual int
	}{{&cfg.Rows, 8}, {&cfg.Waiting, 64}, {&cfg.Prefill, 256},
		{&cfg.PrefixCache, 256 << 20}} {
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	e := &Engine{cfg: cfg, wake: make(chan struct{}, 1), prefixes: prefixes{most: cfg.PrefixCache}}
	e.now = newServed(dev, m)
	e.ran.Go(e.run)
	return e
}

func newServed(dev *tensor.Device, m models.Generator) *served {
	c := nn.NewCtx(tensor.NewCtx(dev), nn.Walk(m), false)
	return &served{m: m, c: c.With(c.NoGrad()), unused: make(chan struct{})}
}

// Generate is the function Generate for the engine's model, from any goroutine. It waits until there is room; the error
// is ErrBusy if too many wait already. OnToken and OnBatchToken are called on the caller's goroutine, and hold up
// nobody else; Stop and Processors on the engine's.
func (e *Engine) Generate(ctx context.Context, prompt []int, opt Options) ([]int, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if len(prompt) == 0 {
		return nil, errEmpty("the prompt")
	}
	r := &row{ctx: ctx, opt: opt, text: newText(0, prompt, opt.Seed), more: make(chan struct{}, 1)}
	if err := e.enter(r); err != nil {
		return nil, err
	}
	given := 0
	for {
		all, err, done := r.look()
		for ; given < len(all) && ctx.Err() == nil; given++ {
			if opt.OnToken != nil {
				opt.OnToken(all[given])
			}
			if opt.OnBatchToken != nil {
				opt.OnBatchToken(0, all[given])
			}
		}
		if cause := context.Cause(ctx); cause != nil && (!done || err != nil || given < len(all)) {
			e.leave(r)
			return all[:given], cause
		}
		if done {
			return all, err
		}
		select {
		case <-r.more:
		case <-ctx.Done():
		}
	}
}

// Swap has texts that come from now on continued by m. Texts that are under way end with the model that they began
// with: no text is of two. It returns when nothing uses that one any more, so that it may be changed or given up, or
// with the cause of ctx.
func (e *Engine) Swap(ctx context.Context, dev *tensor.Device, m models.Generator) error {
	next := newServed(dev, m)
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrClosed
	}
	old := e.now
	e.now, old.replaced = next, true
	if old.rows == 0 {
		close(old.unused)
	}
	e.mu.Unlock()
	e.signal() // what is kept of the old one goes
	select {
	case <-old.unused:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Load is how many texts are under way, and how many wait.
func (e *Engine) Load() (active, waiting int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active, len(e.waiting)
}

// Close ends the texts that are under way with ErrClosed, and the engine.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.signal()
	e.ran.Wait()
}

// signal wakes the engine's goroutine.
func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// enter puts a text into the queue.
func (e *Engine) enter(r *row) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	free := e.cfg.Rows - e.active
	if len(e.waiting) >= max(0, e.cfg.Waiting)+max(0, free) {
		return ErrBusy
	}
	e.waiting = append(e.waiting, r)
	e.signal()
	return nil
}

// leave takes a text out of the queue, if it waits still: otherwise the engine sees that its context has ended.
func (e *Engine) leave(r *row) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.Index(e.waiting, r); i >= 0 {
		e.waiting = slices.Delete(e.waiting, i, i+1)
	}
	e.signal()
}

// admit gives rows to texts that wait, while there are some, and says whether the engine is closed.
func (e *Engine) admit(rows []*row) ([]*row, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.waiting) > 0 && len(rows) < e.cfg.Rows && !e.closed {
		r := e.waiting[0]
		e.waiting = e.waiting[1:]
		r.served = e.now
		r.served.rows++
		rows = append(rows, r)
	}
	e.active = len(rows)
	if e.closed {
		for _, r := range e.waiting {
			r.end(ErrClosed)
		}
		e.waiting = nil
	}
	return rows, e.closed
}

// dismiss frees a row.
func (e *Engine) dismiss(r *row, err error) {
	e.prefixes.keep(r)
	e.mu.Lock()
	s := r.served
	if s.rows--; s.rows == 0 && s.replaced {
		close(s.unused)
	}
	e.active--
	e.mu.Unlock()
	r.end(err)
}

// run is the engine's goroutine.
func (e *Engine) run() {
	var rows []*row
	for {
		var closed bool
		if rows, closed = e.admit(rows); closed {
			for _, r := range rows {
				e.dismiss(r, ErrClosed)
			}
			e.prefixes.drop(func(*kept) bool { return true })
			return
		}
		e.prefixes.drop(e.isReplaced)
		if len(rows) == 0 {
			<-e.wake
			continue
		}
		e.step(rows)
		rows = slices.DeleteFunc(rows, func(r *row) bool {
			if r.ctx.Err() == nil && r.err == nil && !r.ended() {
				return false
			}
			e.dismiss(r, r.err)
			return true
		})
	}
}

// isReplaced reports whether no further text is of the model of a kept one.
func (e *Engine) isReplaced(k *kept) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return k.served.replaced
}

// step feeds a part of one prompt, and gives all others a token.
func (e *Engine) step(rows []*row) {
	var together []*row
	filled := false
	for _, r := range rows {
		if r.ctx.Err() != nil || r.ended() {
			continue
		}
		if r.cache == nil {
			if filled {
				continue // it may begin as the one that is fed
			}
			if e.open(r, rows); r.err != nil {
				continue
			}
		}
		switch part := r.part(e.cfg.Prefill); {
		case r.err != nil:
		case len(part) == 1 && r.whole():
			together = append(together, r)
		case !filled:
			filled = true
			r.feed(part)
		}
	}
	for len(together) > 0 {
		var batch, rest []*row
		for _, r := range together { // of one model
			if r.served == together[0].served {
				batch = append(batch, r)
			} else {
				rest = append(rest, r)
			}
		}
		next(batch)
		together = rest
	}
}

// next gives rows of one model a token each.
func next(batch []*row) {
	s := batch[0].served
	if len(batch) == 1 || !batch[0].joins {
		for _, r := range batch {
			r.feed(r.text.all[r.fed:])
		}
		return
	}
	ids, caches := make([]int32, len(batch)), make([]models.Cache, len(batch))
	for i, r := range batch {
		ids[i], caches[i] = int32(r.text.all[r.fed]), r.cache
	}
	var logits []float32
	err := tensor.Recover(func() {
		logits = logitsOf(s.c, s.m, s.m.(models.Joiner).Join(caches), ids, len(batch))
	})
	if err != nil {
		for _, r := range batch {
			r.err = err
		}
		return
	}
	vocabulary := len(logits) / len(batch)
	for i, r := range batch {
		r.fed++
		r.choose(logits[i*vocabulary:][:vocabulary])
	}
}

// row is a text of an engine.
type row struct {
	ctx    context.Context
	opt    Options
	text   *text
	served *served
	cache  models.Cache
	joins  bool  // others in a step
	fed    int   // tokens that the model has seen, or that lie before what it sees
	err    error // that ends it

	more chan struct{} // there is something new; has room for one
	mu   sync.Mutex
	new  []int // tokens for the caller
	over bool
	why  error
}

func (r *row) ended() bool { return r.text.ended || len(r.text.new()) >= r.opt.MaxNewTokens }

// part is what the model sees next, at most n tokens. As in Generate, a text that the context has no room for continues
// from its last half.
func (r *row) part(n int) []int {
	if r.cache.Len() == r.cache.Cap() && r.fed < len(r.text.all) {
		r.cache.Reset()
		r.fed = len(r.text.all) - max(1, r.cache.Cap()/2)
	}
	if !r.joins {
		n = len(r.text.all) // its angles may depend on the length of all
	}
	return r.text.all[r.fed:min(len(r.text.all), r.fed+n)]
}

// whole reports whether one token is all that the model has not seen.
func (r *row) whole() bool { return r.fed == len(r.text.all)-1 }

// feed gives the model a part of the text, and the text a token if it was the last one.
func (r *row) feed(part []int) {
	ids := make([]int32, len(part))
	for i, id := range part {
		ids[i] = int32(id)
	}
	var logits []float32
	r.err = tensor.Recover(func() { logits = logitsOf(r.served.c, r.served.m, r.cache, ids, 1) })
	if r.err != nil {
		return
	}
	if r.fed += len(part); r.fed == len(r.text.all) {
		r.choose(logits)
	}
}

// choose adds a token.
func (r *row) choose(logits []float32) {
	var id int
	err := tensor.Recover(func() {
		var fault error
		if id, fault = r.opt.extend(r.text, logits); fault != nil {
			r.err = fault
		}
	})
	if err != nil {
		r.err = err
	}
	if r.err != nil {
		return
	}
	r.mu.Lock()
	r.new = append(r.new, id)
	r.mu.Unlock()
	r.tell()
}

// end gives the caller the last word.
func (r *row) end(err error) {
	r.mu.Lock()
	r.over, r.why = true, err
	r.mu.Unlock()
	r.tell()
}

func (r *row) tell() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// look is what the caller may see: the tokens so far, and whether and how it has ended.
func (r *row) look() (all []int, err error, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.new), r.why, r.over
}
