// SPDX-License-Identifier: Apache-2.0

// Package service serves models over HTTP for the examples: a Batcher, which puts the requests of many goroutines into
// batches, and a small HTTP service around it. It is no example itself; copy it into your own program.
// docs/inference.md explains it.
package service

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/tensor"
)

// ErrClosed is what Do returns after Close.
var ErrClosed = errors.New("the service is shutting down")

// Batcher computes in batches what many goroutines ask for one by one. While a batch is computed, requests queue up;
// the next batch is all that wait, up to a limit. So a single request is computed at once, and under load batches grow.
type Batcher[In, Out any] struct {
	requests chan request[In, Out]
	limit    int
	predict  func([]In) ([]Out, error)

	closing chan struct{}
	once    sync.Once
	worker  sync.WaitGroup
}

// request is one input and where its result goes.
type request[In, Out any] struct {
	in   In
	done chan<- result[Out]
}

type result[Out any] struct {
	out Out
	err error
}

// NewBatcher starts the goroutine that calls predict, with 1 to limit inputs; predict returns one output for each.
// No two calls overlap, so that predict may use one tensor.Ctx for all of them.
func NewBatcher[In, Out any](limit int, predict func([]In) ([]Out, error)) *Batcher[In, Out] {
	b := &Batcher[In, Out]{
		requests: make(chan request[In, Out]), limit: limit, predict: predict, closing: make(chan struct{}),
	}
	b.worker.Go(b.run)
	return b
}

// Do returns the output for one input. It may be called from any number of goroutines.
func (b *Batcher[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	done := make(chan result[Out], 1) // has room, so that a caller who has gone away holds nobody up
	var none Out
	select {
	case b.requests <- request[In, Out]{in, done}:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-b.closing:
		return none, ErrClosed
	}
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Close refuses further requests and waits until those that were taken are answered.
func (b *Batcher[In, Out]) Close() {
	b.once.Do(func() { close(b.closing) })
	b.worker.Wait()
}

// run computes batch after batch.
func (b *Batcher[In, Out]) run() {
	for {
		var batch []request[In, Out]
		select {
		case r := <-b.requests:
			batch = append(batch, r)
		case <-b.closing:
			return
		}
		for more := true; more && len(batch) < b.limit; {
			select {
			case r := <-b.requests:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		b.answer(batch)
	}
}

// answer computes one batch. What goes wrong is the answer to all of its requests.
func (b *Batcher[In, Out]) answer(batch []request[In, Out]) {
	inputs := make([]In, len(batch))
	for i, r := range batch {
		inputs[i] = r.in
	}
	var outputs []Out
	var err error
	if misuse := tensor.Try(func() { outputs, err = b.predict(inputs) }); misuse != nil {
		// a wrong shape, or a token outside the vocabulary, is this batch's fault and not the program's end
		err = misuse
	}
	if err == nil && len(outputs) != len(inputs) {
		err = fmt.Errorf("%d outputs for %d inputs", len(outputs), len(inputs))
	}
	for i, r := range batch {
		if err != nil {
			r.done <- result[Out]{err: err}
			continue
		}
		r.done <- result[Out]{out: outputs[i]}
	}
}
