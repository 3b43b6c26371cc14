// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// Of returns the device behind a backend of this package, for libraries that work on its memory; ok is false for
// others.
func Of(be backend.Backend) (dev cuda.Device, ok bool) {
	d, ok := be.(*Device)
	if !ok {
		return nil, false
	}
	return d.dev, true
}

// Borrow returns a stream of a device that nobody uses, for work beside the contexts that compute; GiveBack ends its
// use, when its work is done.
func Borrow(be backend.Backend) backend.Stream {
	d := be.(*Device)
	d.mu.Lock()
	n := len(d.idle)
	if n == 0 {
		d.mu.Unlock()
		return d.NewStream()
	}
	defer d.mu.Unlock()
	s := d.idle[n-1]
	d.idle = d.idle[:n-1]
	return s
}

// GiveBack ends the use of a stream.
func GiveBack(s backend.Stream) {
	own := s.(*stream)
	own.d.mu.Lock()
	defer own.d.mu.Unlock()
	own.d.idle = append(own.d.idle, own)
}

// Prepare loads what first launches would: each kernel that the program has compiled for the device, and the library of
// products. A driver may let it wait for the device's work, while other devices of the process wait for the driver. So
// it comes before work that waits for another device, as a collective call does: that one may wait for ever.
func Prepare(be backend.Backend) error {
	d := be.(*Device)
	if err := d.modules.all(); err != nil {
		return err
	}
	return d.blas.open(d)
}

// Native returns the library's stream behind a stream of this package, which uses no graphs from then on. Who queues
// work on it tells by Use which buffers it touches.
func Native(s backend.Stream) cuda.Stream {
	own := s.(*stream)
	q, err := own.q.native()
	own.must(err)
	return q
}

// Use returns the address of a buffer for work on a stream, and notes that the stream uses it.
func Use(s backend.Stream, b backend.Buffer) cuda.Ptr {
	own := s.(*stream)
	buf := own.d.own(b)
	if buf.freed.Load() {
		panic(&backend.Fault{Backend: own.d.name, Op: backend.OpCopy, Msg: "a buffer that was freed"})
	}
	buf.usedBy(own)
	return buf.at
}
