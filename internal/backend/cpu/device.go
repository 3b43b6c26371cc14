// SPDX-License-Identifier: Apache-2.0

// Package cpu is the backend that runs kernels on the processor: Launch returns when the work is done.
//
// Every kernel is a row of the table in table.go, over a few loop drivers: elementwise (loops.go, elementwise.go), row
// by row (rows.go), reductions (reduce.go). Half types have no kernels of their own except for products
// (halfproduct.go): Launch widens them to float32, runs the float32 kernel and rounds once (widened.go). Work is
// divided by shape alone, never by the number of workers, so that results do not depend on it; a launch makes no
// garbage.
//
// The package is not a tensor library: shapes are checked only as far as needed to stay inside the buffers,
// broadcasting and type promotion are the caller's.
package cpu

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/hostmemory"
	variants "github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// Device is the processor: an allocator and a number of workers. It is safe for concurrent use by several streams.
type Device struct {
	pool *parallel.Pool
	mem  memory

	mu         sync.Mutex
	tasks      []*task
	kept       []*workspace // by worker, nil where a launch has it
	workspaces []*workspace // others
	calls      []*widened
}

// New returns a device whose kernels use up to the given number of workers; 0 means GOMAXPROCS.
func New(workers int) *Device {
	d := &Device{pool: parallel.New(workers)}
	d.kept = make([]*workspace, d.pool.Workers())
	d.mem.name = d.Name()
	if host, _ := hostmemory.Limit(); host > 0 { // beyond it the system ends processes instead of refusing memory
		d.mem.limit = int64(host - host/16)
	}
	return d
}

// Default returns the device that a process shares, with GOMAXPROCS workers.
var Default = sync.OnceValue(func() *Device { return New(0) })

// Name is "cpu".
func (d *Device) Name() string { return "cpu" }

// Versions names the variant of the kernels.
func (d *Device) Versions() string {
	return fmt.Sprintf("cpu (%s, %s kernels)", runtime.GOARCH, variants.Active())
}

// Workers is the number of goroutines that a kernel may use.
func (d *Device) Workers() int { return d.pool.Workers() }

// SetLabels gives the workers the pprof labels of ctx for the loops that begin from now on.
func (d *Device) SetLabels(ctx context.Context) { d.pool.SetLabels(ctx) }

// ClearLabels ends SetLabels.
func (d *Device) ClearLabels() { d.pool.ClearLabels() }

// Alloc returns n bytes of memory with undefined contents, aligned to 64 bytes.
func (d *Device) Alloc(n int) (backend.Buffer, error) {
	b, err := d.mem.alloc(n, forTensor)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Free gives the buffer back. Freeing twice panics.
func (d *Device) Free(b backend.Buffer) { d.mem.release(d.own(b)) }

// SetPoison makes Alloc and Free fill memory with bytes 0xFF, NaN in every floating dtype, so that a use before writing
// or after freeing shows.
func (d *Device) SetPoison(on bool) {
	d.mem.mu.Lock()
	defer d.mem.mu.Unlock()
	d.mem.poison = on
}

// SetMemoryLimit sets how many bytes tensors may hold; Alloc refuses more. 0: any number.
func (d *Device) SetMemoryLimit(n int64) {
	d.mem.mu.Lock()
	defer d.mem.mu.Unlock()
	d.mem.limit = n
}

// Trim returns cached free blocks of a mebibyte or more to the system.
func (d *Device) Trim() {
	d.mem.mu.Lock()
	defer d.mem.mu.Unlock()
	d.mem.arena.trim(0)
	d.mem.lasting.trim(0)
}

// Supports reports whether there is a kernel for op: those that there are work on all dtypes of its contract, but that
// convolutions multiply float32 alone, of half operands copies of it.
func (d *Device) Supports(op backend.Op, dt dtype.DType) bool {
	switch op {
	case backend.OpConv2D, backend.OpConv2DGrad, backend.OpConv2DParamGrad:
		return !dt.IsHalf()
	}
	return op < backend.NumOps && kernels[op].run != nil
}

// Sync returns at once: work is done when its launch returns.
func (d *Device) Sync() {}

// Stats returns the memory in use.
func (d *Device) Stats() backend.Stats {
	d.mem.mu.Lock()
	defer d.mem.mu.Unlock()
	stats := d.mem.stats
	stats.Reserved = d.mem.reserved()
	return stats
}

// Close gives all memory back to the system, including that of buffers that were not freed; the device must not be used
// afterwards.
func (d *Device) Close() error {
	d.pool.Close()
	d.mu.Lock()
	d.tasks, d.workspaces, d.calls = nil, nil, nil
	clear(d.kept)
	d.mu.Unlock()
	d.mem.close()
	return nil
}

// own is the buffer behind the interface; one of another device is misuse.
func (d *Device) own(b backend.Buffer) *buffer {
	own, ok := b.(*buffer)
	if !ok || own.owner != &d.mem {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpInvalid, Msg: "a buffer of another device"})
	}
	return own
}
