// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	variants "github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// task is one launch that is running: what its workers share. Tasks are reused, with the method value that a pool
// needs, so that a launch makes no garbage.
type task struct {
	d           *Device
	c           *backend.Call
	body        body
	run         func(worker, lo, hi int) // t.chunk, bound once
	nonTemporal bool                     // the output is larger than the caches and is written by non-temporal stores
	// overlap is set if nonTemporal is and rows shall be written while those that follow are read.
	overlap bool

	workspaces []*workspace // of each worker that took part; nil before

	reduction reduction
	product   product
	linear    linear
	half      halfProduct
	attention attention
	conv      convolution
	loops     loops
	block     block
	flat      flatBlock
	parts     *buffer // partial results of a reduction
	n         [8]int  // the kernel's own numbers
}

// nonTemporalBytes is the size of outputs that no cache holds until somebody reads them.
const nonTemporalBytes = 32 << 20

// overlapRows says that a row is written by non-temporal stores while the next one is read, instead of one after the
// other.
// Where the second-level cache is ample the third one tends to be far away, and a core's few lines that are on their
// way keep memory busy only if there are always some of both kinds.
var overlapRows = variants.LargeL2()

// body is the part of a kernel that does units lo ≤ i < hi of the work. Bodies are plain functions, not closures.
type body func(t *task, ws *workspace, lo, hi int)

// workspace is what one worker needs for itself: operand pointers for a block function and scratch memory.
type workspace struct {
	d    *Device
	p    [4]unsafe.Pointer
	runs [4]unsafe.Pointer
	mem  *buffer // scratch
	used int
	flat [flatOperands]unsafe.Pointer
	wide *flatBuffers // nil before it is used

	prefetch gemm.Prefetch // what products prefetch; its room stays
}

func (d *Device) begin(c *backend.Call) *task {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t *task
	if n := len(d.tasks); n > 0 {
		t, d.tasks = d.tasks[n-1], d.tasks[:n-1]
	} else {
		t = &task{d: d, workspaces: make([]*workspace, d.pool.Workers())}
		t.run = t.chunk
		t.linear.activate, t.half.finish = t.activate, t.round
	}
	t.c, t.nonTemporal = c, c.NOut > 0 && c.Out[0].Numel()*c.Out[0].DType.Size() >= nonTemporalBytes
	t.overlap = t.nonTemporal && overlapRows
	return t
}

func (t *task) end() {
	d := t.d
	if t.parts != nil {
		d.mem.release(t.parts)
		t.parts = nil
	}
	t.c, t.body, t.block, t.flat = nil, nil, nil, nil
	d.mu.Lock()
	for i, ws := range t.workspaces {
		if ws == nil {
			continue
		}
		ws.p, t.workspaces[i] = [4]unsafe.Pointer{}, nil
		if d.kept[i] == nil {
			d.kept[i] = ws
		} else {
			d.workspaces = append(d.workspaces, ws)
		}
	}
	d.tasks = append(d.tasks, t)
	d.mu.Unlock()
}

// do runs the body over units 0 ≤ i < n in chunks of grain, on the workers and the caller.
func (t *task) do(n, grain int, f body) {
	if n <= 0 {
		return
	}
	t.body = f
	t.d.pool.ForWorkers(n, grain, t.run)
}

func (t *task) chunk(worker, lo, hi int) {
	ws := t.workspaces[worker]
	if ws == nil {
		ws = t.d.workspaceOf(worker)
		t.workspaces[worker] = ws
	}
	t.body(t, ws, lo, hi)
}

// workspaceOf is what the worker had in the launch before, whose scratch its processor has in its cache, unless
// another launch has it now.
func (d *Device) workspaceOf(worker int) *workspace {
	d.mu.Lock()
	ws := d.kept[worker]
	d.kept[worker] = nil
	d.mu.Unlock()
	if ws == nil {
		ws = d.workspace()
	}
	return ws
}

func (d *Device) workspace() *workspace {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.workspaces); n > 0 {
		ws := d.workspaces[n-1]
		d.workspaces = d.workspaces[:n-1]
		return ws
	}
	return &workspace{d: d}
}

func (d *Device) putWorkspace(ws *workspace) {
	ws.p = [4]unsafe.Pointer{}
	d.mu.Lock()
	d.workspaces = append(d.workspaces, ws)
	d.mu.Unlock()
}

// reserve makes room for n bytes of scratch and forgets what was carved before. Scratch stays with the workspace.
func (ws *workspace) reserve(n int) {
	ws.used = 0
	if ws.mem != nil && ws.mem.n >= n {
		return
	}
	if ws.mem != nil {
		ws.d.mem.release(ws.mem)
		ws.mem = nil
	}
	ws.mem = ws.d.scratchFor(forKernels, n)
}

// carve takes n elements of the scratch that reserve made room for.
func carve[T any](ws *workspace, n int) []T {
	size := n * int(unsafe.Sizeof(*new(T)))
	if ws.used+size > ws.mem.n {
		panic("cpu: a kernel carves more scratch than it reserved")
	}
	p := unsafe.Add(ws.mem.ptr, ws.used)
	ws.used += carved(size)
	return unsafe.Slice((*T)(p), n)
}

// carved is the room that carving n bytes takes.
func carved(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// scratch allocates memory that a kernel needs for itself during one launch; without it the launch faults.
func (d *Device) scratch(n int) *buffer { return d.scratchFor(forCall, n) }

func (d *Device) scratchFor(use purpose, n int) *buffer {
	b, err := d.mem.alloc(n, use)
	if err != nil {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpInvalid, Msg: err.Error(), Cause: err})
	}
	return b
}

// float is a dtype with kernels of its own: the half types are widened before.
type float interface{ float32 | float64 }

// slice is the elements of a contiguous view.
func slice[T any](v *backend.View) []T {
	return unsafe.Slice((*T)(at(v, v.Offset)), v.Numel())
}

// from is the elements of a view's buffer from an element on, to the buffer's end.
func from[T any](v *backend.View, element int) []T {
	b := v.Buf.(*buffer)
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(b.ptr), b.n/size)[element:]
}

// at is the address of an element of the view's buffer.
func at(v *backend.View, element int) unsafe.Pointer {
	return unsafe.Add(v.Buf.(*buffer).ptr, element*v.DType.Size())
}
