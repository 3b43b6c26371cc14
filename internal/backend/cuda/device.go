// SPDX-License-Identifier: Apache-2.0

// Package cuda is the backend of NVIDIA's devices: kernels as PTX (internal/cuda/kernels), matrix products by cuBLASLt,
// convolutions by cuDNN if it is installed, over the interfaces of internal/cuda. Package tensor/cuda opens it with the
// real libraries; tests open it over internal/cuda/fake, which runs the same kernels on the processor.
//
// Each op has a launcher (table.go), which checks the operands, packs a parameter block and queues kernels. Calls of
// the driver are kept until there is a sequence of them (queue.go); one that came before is a CUDA graph (graphs.go).
// The device's memory is taken in segments and given out by a pool per stream (memory.go). Host bytes go through pinned
// memory (staging.go). A kernel that meets a bad index writes it to the stream's fault block, and the next call that
// waits panics with it.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Device is one device of CUDA. Any goroutine may use it.
type Device struct {
	name    string
	driver  cuda.Driver
	dev     cuda.Device
	info    cuda.Info
	tf32    atomic.Bool
	mem     memory
	modules modules
	blas    blas
	dnn     dnn

	keepBytes int // of memory for dropout's decisions of a launch, unless those of one group of heads take more

	mu      sync.Mutex
	streams []*stream
	idle    []*stream    // of those, for who borrows one
	events  []cuda.Event // for later use
	closed  bool
	graphs  Graphs // of streams that come

	counters Counters
}

// Counters count what a device was asked for so far.
type Counters struct {
	hostWaits, launches, products, graphs, graphLaunches, inGraphs, changed, singles atomic.Int64
}

// Open makes a backend of device i of a driver.
func Open(driver cuda.Driver, i int) (*Device, error) {
	on := true
	if text := os.Getenv(EnvGraphs); text != "" {
		var err error
		if on, err = strconv.ParseBool(text); err != nil {
			return nil, fmt.Errorf("%s is %q: want 0 or 1", EnvGraphs, text)
		}
	}
	dev, err := driver.Open(i)
	if err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", i, err)
	}
	d := &Device{name: fmt.Sprintf("cuda:%d", i), driver: driver, dev: dev, info: dev.Info(), graphs: Graphs{Off: !on},
		keepBytes: keepBytes}
	d.mem.d = d
	d.modules.d = d
	return d, nil
}

// Name is "cuda:0" and so on.
func (d *Device) Name() string { return d.name }

// Versions names the device's model and compute capability, the driver and its libraries.
func (d *Device) Versions() string {
	return fmt.Sprintf("%s (compute capability %d.%d, %s)", d.info.Name, d.info.Capability[0], d.info.Capability[1],
		d.driver.Version())
}

// SetTF32 lets products of float32 that are queued from now on round their inputs to 10 bits of fraction, as the matrix
// units do, or ends that.
func (d *Device) SetTF32(on bool) { d.tf32.Store(on) }

// SetGraphs says how streams that are made from now on use CUDA graphs.
func (d *Device) SetGraphs(g Graphs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.graphs = g
}

// Info describes the device.
func (d *Device) Info() cuda.Info { return d.info }

// HostWaits is how often a caller has waited for the device so far: to read, or for a stream, an event or all of it.
func (d *Device) HostWaits() int64 { return d.counters.hostWaits.Load() }

// GraphCounts are what CUDA graphs did.
type GraphCounts struct {
	Made     int64 // graphs
	Launched int64 // graphs
	Calls    int64 // that graphs made when they were launched
	Changed  int64 // kernels whose numbers were set before a launch
	Singles  int64 // calls that were made without a graph
}

// Graphs is what CUDA graphs did so far.
func (d *Device) Graphs() GraphCounts {
	c := &d.counters
	return GraphCounts{c.graphs.Load(), c.graphLaunches.Load(), c.inGraphs.Load(), c.changed.Load(), c.singles.Load()}
}

// Launches is the number of kernels and products that were queued so far.
func (d *Device) Launches() int64 { return d.counters.launches.Load() + d.counters.products.Load() }

// DeviceAllocs is how often the driver was asked for device memory so far.
func (d *Device) DeviceAllocs() int64 { return d.mem.segments.Load() }

// Traits: the library has its fast half products for rows and sizes of multiples of 16 bytes alone.
func (d *Device) Traits() backend.Traits {
	return backend.Traits{Align: 64, Memory: d.info.Memory, NoSoftCap: true}
}

// Supports reports whether there are kernels for op on operands of dt.
func (d *Device) Supports(op backend.Op, dt dtype.DType) bool { return supports(op, dt) }

// NewStream returns a queue.
func (d *Device) NewStream() backend.Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		panic(d.name + ": new stream on a closed device")
	}
	q, err := d.dev.NewStream()
	if err != nil {
		panic(d.broken(backend.OpInvalid, err))
	}
	s := &stream{d: d, q: newQueue(d, q, d.graphs)}
	s.pool.s = s
	d.streams = append(d.streams, s)
	return s
}

// Sync waits for the work of all streams.
func (d *Device) Sync() {
	d.counters.hostWaits.Add(1)
	if err := d.wait(); err != nil {
		panic(d.broken(backend.OpInvalid, err))
	}
}

// wait makes the calls that streams have kept, and waits for them all.
func (d *Device) wait() error {
	var errs []error
	for _, s := range d.allStreams() {
		errs = append(errs, s.q.flush())
	}
	return errors.Join(append(errs, d.dev.Sync())...)
}

// Stats returns the memory in use.
func (d *Device) Stats() backend.Stats { return d.mem.snapshot() }

// Close waits for all work and gives everything back.
func (d *Device) Close() error {
	d.mu.Lock()
	streams, events, closed := d.streams, d.events, d.closed
	d.events, d.closed = nil, true
	d.mu.Unlock()
	if closed {
		return nil
	}
	errs := []error{d.wait()}
	d.mu.Lock()
	d.streams = nil
	d.mu.Unlock()
	for _, s := range streams {
		errs = append(errs, s.close())
	}
	for _, e := range events {
		errs = append(errs, e.Close())
	}
	errs = append(errs, d.blas.close(), d.dnn.close(), d.dev.Close())
	return errors.Join(errs...)
}

// broken is the fault of a call of the driver that failed: one that was made for op, unless err knows better.
func (d *Device) broken(op backend.Op, err error) *backend.Fault {
	if e, ok := errors.AsType[*opError](err); ok {
		op = e.op
	}
	return &backend.Fault{Backend: d.name, Op: op, Msg: err.Error(), Cause: err}
}

// takeEvent finds or makes an event of the driver.
func (d *Device) takeEvent() (cuda.Event, error) {
	d.mu.Lock()
	if n := len(d.events); n > 0 {
		e := d.events[n-1]
		d.events = d.events[:n-1]
		d.mu.Unlock()
		return e, nil
	}
	d.mu.Unlock()
	return d.dev.NewEvent()
}

// giveEvent keeps an event that nobody will wait for again. One that comes after Close went with the device's context:
// a call of the driver for it would use freed memory.
func (d *Device) giveEvent(e cuda.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.events = append(d.events, e)
	}
}

// event is a point in a stream.
type event struct {
	d *Device
	e cuda.Event
}

// newEvent wraps a recorded event, which goes back when nobody holds the wrapper.
func (d *Device) newEvent(e cuda.Event) *event {
	w := &event{d, e}
	runtime.AddCleanup(w, d.giveEvent, e)
	return w
}

// Sync waits until the work before the event is done.
func (e *event) Sync() {
	e.d.counters.hostWaits.Add(1)
	if err := e.e.Sync(); err != nil {
		panic(e.d.broken(backend.OpInvalid, err))
	}
	runtime.KeepAlive(e)
}

// Done reports whether it is.
func (e *event) Done() bool {
	done, err := e.e.Done()
	if err != nil {
		panic(e.d.broken(backend.OpInvalid, err))
	}
	runtime.KeepAlive(e)
	return done
}

// Free gives a buffer back to the stream that it belongs to, which may use its memory again at once: after its own
// work, and after that of other streams that used the buffer. Freeing twice panics.
func (d *Device) Free(b backend.Buffer) {
	own := d.own(b)
	if own.freed.Swap(true) {
		panic(fmt.Sprintf("%s: buffer of %d bytes freed twice", d.name, own.n))
	}
	if d.isClosed() {
		return // its memory went with the device
	}
	var marks []cuda.Event
	for _, s := range own.others() {
		e, err := d.takeEvent()
		if err == nil {
			err = s.q.Record(e)
		}
		if err != nil {
			panic(d.broken(backend.OpInvalid, err))
		}
		marks = append(marks, e)
	}
	d.mem.free(own, marks)
}

// own is the buffer behind the interface; one of another device is misuse.
func (d *Device) own(b backend.Buffer) *buffer {
	own, ok := b.(*buffer)
	if !ok || own.s.d != d {
		panic(&backend.Fault{Backend: d.name, Op: backend.OpInvalid, Msg: "a buffer of another device"})
	}
	return own
}

// buffer is a piece of device memory.
type buffer struct {
	s     *stream // that it belongs to
	at    cuda.Ptr
	n     int
	block *block
	freed atomic.Bool

	mu    sync.Mutex
	users []*stream // others that use it
}

// Bytes is the size that was asked for.
func (b *buffer) Bytes() int { return b.n }

// usedBy notes that a stream uses the buffer.
func (b *buffer) usedBy(s *stream) {
	if b.s == s {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.users, s) {
		b.users = append(b.users, s)
	}
}

func (b *buffer) others() []*stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.users
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

func (d *Device) allStreams() []*stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.streams)
}
