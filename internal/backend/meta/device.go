// SPDX-License-Identifier: Apache-2.0

// Package meta is a backend without values, like PyTorch's meta device: buffers have a size but no memory, kernels do
// nothing, and reads return zeros. A training step on it goes through all allocations of a real one in no time, which
// tells how much memory that needs.
//
// It does not pass the suite of backends, which is about values, and it does not look at a kernel's operands.
package meta

import (
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Device counts memory.
type Device struct {
	like  backend.Backend // nil: none
	mu    sync.Mutex
	stats backend.Stats
}

// New returns a device on which nothing is in use, and which has all kernels.
func New() *Device { return &Device{} }

// Like returns a device on which tensors have the sizes that they have on be, and which has be's kernels.
func Like(be backend.Backend) *Device { return &Device{like: be} }

// Traits are those of the device that this one stands for.
func (d *Device) Traits() backend.Traits {
	if d.like == nil {
		return backend.Traits{}
	}
	return backend.TraitsOf(d.like)
}

// KeptDropout is that of the device that this one stands for.
func (d *Device) KeptDropout(c *backend.Call) int {
	if keeper, ok := d.like.(backend.DropoutKeeper); ok {
		return keeper.KeptDropout(c)
	}
	return 0
}

type buffer struct {
	owner *Device
	n     int
	freed bool
}

// Bytes is the size that was asked for.
func (b *buffer) Bytes() int { return b.n }

// Name is "meta".
func (d *Device) Name() string { return "meta" }

// Alloc counts n bytes.
func (d *Device) Alloc(n int) (backend.Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("meta: cannot allocate %d bytes", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Allocs++
	d.stats.InUse += int64(n)
	d.stats.Peak = max(d.stats.Peak, d.stats.InUse)
	d.stats.Reserved = d.stats.Peak
	return &buffer{owner: d, n: n}, nil
}

// Free counts the buffer's bytes as free. Freeing twice panics.
func (d *Device) Free(b backend.Buffer) {
	own, ok := b.(*buffer)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ok || own.owner != d || own.freed {
		panic("meta: a buffer of another device, or freed twice")
	}
	own.freed = true
	d.stats.InUse -= int64(own.n)
}

// Supports is what the device that this one stands for says.
func (d *Device) Supports(op backend.Op, dt dtype.DType) bool {
	return d.like == nil || d.like.Supports(op, dt)
}

// Sync returns at once: there is no work.
func (d *Device) Sync() {}

// Stats returns the bytes that a real device would hold. Reserved is the peak.
func (d *Device) Stats() backend.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// ResetPeak makes what is in use now the peak.
func (d *Device) ResetPeak() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Peak = d.stats.InUse
}

// NewStream returns a stream on which everything is done at once, since nothing is.
func (d *Device) NewStream() backend.Stream { return stream{d} }

// Close does nothing.
func (d *Device) Close() error { return nil }

// stream is a queue of nothing, and each of its events.
type stream struct{ d *Device }

// Alloc counts n bytes.
func (s stream) Alloc(n int) (backend.Buffer, error) { return s.d.Alloc(n) }

func (stream) Launch(*backend.Call)              {}
func (stream) Write(backend.Buffer, int, []byte) {}
func (stream) Wait(backend.Event)                {}
func (stream) Sync()                             {}
func (stream) Done() bool                        { return true }
func (s stream) Record() backend.Event           { return s }

// Read gives zeros.
func (stream) Read(dst []byte, _ backend.Buffer, _ int) { clear(dst) }
