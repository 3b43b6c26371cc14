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
	d    *Device
	c    *backend.Call
	body body
	run  func(worker, lo, hi int) // t.chunk, bound once
	past bool                     // the output is larger than the caches and is written past them
	// overlap is set if past is and rows shall be written while those that follow are read.
	overlap bool

	lanes []*lane // of each worker that took part; nil before

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

// pastBytes is the size of outputs that no cache holds until somebody reads them.
const pastBytes = 32 << 20

// overlapRows says that a row is written past the caches while the next one is read, instead of one after the other.
// Where the second-level cache is ample the third one tends to be far away, and a core's few lines that are on their
// way keep memory busy only if there are always some of both kinds.
var overlapRows = variants.AmpleSecondCache()

// body is the part of a kernel that does units lo ≤ i < hi of the work. Bodies are plain functions, not closures.
type body func(t *task, l *lane, lo, hi int)

// lane is what one worker needs for itself: operand pointers for a block function and scratch memory.
type lane struct {
	d    *Device
	p    [4]unsafe.Pointer
	runs [4]unsafe.Pointer
	mem  *buffer // scratch
	used int
	flat [flatOperands]unsafe.Pointer
	wide *flatBuffers // nil before it is used

	ahead gemm.Ahead // what products ask for; its room stays
}

func (d *Device) begin(c *backend.Call) *task {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t *task
	if n := len(d.tasks); n > 0 {
		t, d.tasks = d.tasks[n-1], d.tasks[:n-1]
	} else {
		t = &task{d: d, lanes: make([]*lane, d.pool.Workers())}
		t.run = t.chunk
		t.linear.activate, t.half.finish = t.activate, t.round
	}
	t.c, t.past = c, c.NOut > 0 && c.Out[0].Numel()*c.Out[0].DType.Size() >= pastBytes
	t.overlap = t.past && overlapRows
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
	for i, l := range t.lanes {
		if l == nil {
			continue
		}
		l.p, t.lanes[i] = [4]unsafe.Pointer{}, nil
		if d.kept[i] == nil {
			d.kept[i] = l
		} else {
			d.lanes = append(d.lanes, l)
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
	l := t.lanes[worker]
	if l == nil {
		l = t.d.laneOf(worker)
		t.lanes[worker] = l
	}
	t.body(t, l, lo, hi)
}

// laneOf is the lane that the worker had in the launch before, whose scratch its processor has in its cache, unless
// another launch has it now.
func (d *Device) laneOf(worker int) *lane {
	d.mu.Lock()
	l := d.kept[worker]
	d.kept[worker] = nil
	d.mu.Unlock()
	if l == nil {
		l = d.lane()
	}
	return l
}

func (d *Device) lane() *lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.lanes); n > 0 {
		l := d.lanes[n-1]
		d.lanes = d.lanes[:n-1]
		return l
	}
	return &lane{d: d}
}

func (d *Device) putLane(l *lane) {
	l.p = [4]unsafe.Pointer{}
	d.mu.Lock()
	d.lanes = append(d.lanes, l)
	d.mu.Unlock()
}

// reserve makes room for n bytes of scratch and forgets what was carved before. Scratch stays with the lane.
func (l *lane) reserve(n int) {
	l.used = 0
	if l.mem != nil && l.mem.n >= n {
		return
	}
	if l.mem != nil {
		l.d.mem.release(l.mem)
		l.mem = nil
	}
	l.mem = l.d.scratchFor(forKernels, n)
}

// carve takes n elements of the scratch that reserve made room for.
func carve[T any](l *lane, n int) []T {
	size := n * int(unsafe.Sizeof(*new(T)))
	if l.used+size > l.mem.n {
		panic("cpu: a kernel carves more scratch than it reserved")
	}
	p := unsafe.Add(l.mem.ptr, l.used)
	l.used += carved(size)
	return unsafe.Slice((*T)(p), n)
}

// carved is the room that carving n bytes takes.
func carved(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// scratch allocates memory that a kernel needs for itself during one launch; without it the launch faults.
func (d *Device) scratch(n int) *buffer { return d.scratchFor(forCall, n) }

func (d *Device) scratchFor(use purpose, n int) *buffer {
	b, err := d.mem.alloc(n, use)
	if err != nil {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpInvalid, Msg: err.Error()})
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
