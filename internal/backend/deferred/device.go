// SPDX-License-Identifier: Apache-2.0

// Package deferred is a backend that behaves like a GPU and computes with the CPU's kernels.
//
// Work is queued and runs later, on a goroutine per stream; only events order the work of different streams. Buffers
// are handles: the memory behind them is touched by the device's goroutines alone. Memory is filled with NaN patterns
// when it is given out, in the order of the stream that it belongs to, and when it is freed, and a kernel's fault
// appears at the next call that waits. Code that relies on the CPU's immediate execution fails here.
//
// It is not fast and not meant for training; it is the proof that the engine above does not depend on the CPU's ways.
package deferred

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// queueLen is the number of commands that a stream takes before its caller must wait.
const queueLen = 256

// Device is one simulated device.
type Device struct {
	cpu *cpu.Device

	mu      sync.Mutex
	streams []*stream
	running sync.WaitGroup
	closed  bool
	stats   backend.Stats

	waits, launches atomic.Int64
}

// New returns a device whose kernels use up to the given number of workers; 0 means GOMAXPROCS.
func New(workers int) *Device {
	d := &Device{cpu: cpu.New(workers)}
	d.cpu.SetPoison(true)
	return d
}

// SetMemoryLimit sets how many bytes tensors may hold; Alloc refuses more. 0: any number.
func (d *Device) SetMemoryLimit(n int64) { d.cpu.SetMemoryLimit(n) }

// buffer is a handle. What it stands for is the business of the device's goroutines.
type buffer struct {
	owner *Device
	n     int
	freed bool      // guarded by owner.mu
	users []*stream // that use it, the one that it belongs to first; guarded by owner.mu
	mem   backend.Buffer
}

// Bytes is the size that was asked for.
func (b *buffer) Bytes() int { return b.n }

// Name is "deferred".
func (d *Device) Name() string { return "deferred" }

// alloc returns a handle to n bytes for a stream.
func (d *Device) alloc(n int, s *stream) (*buffer, error) {
	mem, err := d.cpu.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("deferred: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Allocs++
	d.stats.InUse += int64(n)
	d.stats.Peak = max(d.stats.Peak, d.stats.InUse)
	return &buffer{owner: d, n: n, mem: mem, users: []*stream{s}}, nil
}

// Free invalidates the handle; the memory is poisoned and goes when the streams that use it have done what was
// launched before. Freeing twice panics.
func (d *Device) Free(b backend.Buffer) {
	own := d.own(b)
	d.mu.Lock()
	if own.freed {
		d.mu.Unlock()
		panic(fmt.Sprintf("deferred: buffer of %d bytes freed twice", own.n))
	}
	own.freed = true
	d.stats.InUse -= int64(own.n)
	closed, users := d.closed, own.users
	d.mu.Unlock()
	if closed {
		d.cpu.Free(own.mem)
		return
	}
	var left atomic.Int64
	left.Store(int64(len(users)))
	for _, s := range users {
		s.queue <- func() {
			if left.Add(-1) == 0 {
				d.cpu.Free(own.mem)
			}
		}
	}
}

// NewStream starts a queue and the goroutine that works it off.
func (d *Device) NewStream() backend.Stream {
	s := &stream{d: d, cpu: d.cpu.NewStream(), queue: make(chan func(), queueLen)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		panic("deferred: new stream on a closed device")
	}
	d.streams = append(d.streams[:len(d.streams):len(d.streams)], s)
	d.running.Go(func() {
		for f := range s.queue {
			s.do(f)
		}
	})
	return s
}

// Supports is true of what the CPU has a kernel for.
func (d *Device) Supports(op backend.Op, dt dtype.DType) bool { return d.cpu.Supports(op, dt) }

// Sync waits for the work of all streams.
func (d *Device) Sync() {
	d.mu.Lock()
	streams := d.streams
	d.mu.Unlock()
	d.waits.Add(1)
	for _, s := range streams {
		<-s.record()
	}
}

// HostWaits is how often a caller has waited for the device so far: to read, or for a stream, an event or all of it.
func (d *Device) HostWaits() int64 { return d.waits.Load() }

// Launches is how many kernels were launched so far; the calls of a list count as one.
func (d *Device) Launches() int64 { return d.launches.Load() }

// Stats returns the memory in use.
func (d *Device) Stats() backend.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	stats := d.stats
	stats.Reserved = d.cpu.Stats().Reserved
	return stats
}

// Close waits for all work and gives everything back. Faults that nobody waited for are lost.
func (d *Device) Close() error {
	d.mu.Lock()
	streams := d.streams
	d.streams, d.closed = nil, true
	d.mu.Unlock()
	for _, s := range streams {
		close(s.queue)
	}
	d.running.Wait()
	return d.cpu.Close()
}

// own is the handle behind the interface; one of another device is misuse.
func (d *Device) own(b backend.Buffer) *buffer {
	own, ok := b.(*buffer)
	if !ok || own.owner != d {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpInvalid, Msg: "a buffer of another device"})
	}
	return own
}

// live is the memory of a handle for work that is being queued on s; a handle that was freed is misuse.
func (s *stream) live(op backend.Op, b backend.Buffer) backend.Buffer {
	d := s.d
	own := d.own(b)
	d.mu.Lock()
	defer d.mu.Unlock()
	if own.freed {
		panic(&backend.Fault{Backend: d.Name(), Op: op, Msg: fmt.Sprintf("a buffer of %d bytes that was freed", own.n)})
	}
	if own.users[0] != s && !slices.Contains(own.users, s) {
		own.users = append(own.users, s)
	}
	return own.mem
}
