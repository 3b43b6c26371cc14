// SPDX-License-Identifier: Apache-2.0

// Package backend is the interface between the tensor engine and a device.
//
// It is below autograd: a backend has buffers, streams and kernels, and no gradients, scopes or modules. The interface
// is a GPU's from the start: buffers are opaque, kernels are launched on streams and may run later, and the host sees
// device memory through explicit copies alone.
//
// There are four: backend/cpu runs kernels immediately, backend/deferred runs them on another goroutine in its own
// address space, backend/cuda runs them on NVIDIA's devices, and backend/meta only counts memory. backendtest.Run is
// the conformance suite that the first three pass.
package backend

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// MaxDims is the largest number of dimensions of a View.
const MaxDims = 6

// Buffer is a piece of device memory, aligned to at least 64 bytes. Only the
// backend that made it can look inside.
type Buffer interface {
	// Bytes is the size that was asked for.
	Bytes() int
}

// Backend is one device.
type Backend interface {
	// Name identifies the device in messages, "cpu" or "cuda:0".
	Name() string
	// Free gives the buffer back, to the stream that it belongs to, once all work that was launched before the call
	// has used it. The backend sees in Launch, Read and Write which other streams use a buffer, and waits for those
	// alone. Freeing twice panics. Any goroutine may call it.
	Free(Buffer)
	// NewStream returns an independent queue of work.
	NewStream() Stream
	// Sync waits for the work of all streams. Faults stay with their streams.
	Sync()
	// Supports reports whether there is a kernel for op on operands of dt (see Call.DType), where op's contract has
	// one at all. The answer never changes. Package tensor composes some kernels of others where they are missing;
	// adding-a-backend.md says which. It also converts what a convolution of a half type reads and writes, unless there
	// is a kernel that multiplies half numbers.
	Supports(op Op, dt dtype.DType) bool
	// Stats returns the memory in use, for profiles and tests.
	Stats() Stats
	// Close waits for all work and gives everything back.
	Close() error
}

// Stream runs work in the order in which it was given. A Stream is used by one
// goroutine at a time. Faults of a kernel (an index out of range, a dtype that an
// op has no kernel for) appear as a *Fault panic on the caller, at once or at the
// next call that waits.
type Stream interface {
	// Alloc returns a buffer of n bytes, n ≥ 0, with undefined contents, which belongs to the stream. Its memory may be
	// that of a buffer of the same stream that was freed, while earlier work of the stream still uses that: so
	// another stream must wait for an event that was recorded after Alloc before it uses the buffer. The error says
	// how much was requested and how much is in use; for want of memory it is an *OutOfMemoryError.
	Alloc(n int) (Buffer, error)
	// Launch queues a kernel. The call is read before Launch returns, so the
	// caller may reuse it; the buffers it names must stay alive (Free waits).
	Launch(*Call)
	// Write copies host bytes into dst at a byte offset; src may be reused on return.
	Write(dst Buffer, offset int, src []byte)
	// Read waits for all earlier work of the stream and copies device bytes out.
	Read(dst []byte, src Buffer, offset int)
	// Record marks a point in the stream.
	Record() Event
	// Wait makes later work of this stream start after e.
	Wait(e Event)
	// Sync waits for all earlier work of the stream.
	Sync()
}

// Event is a point in a stream that another stream or the host can wait for.
type Event interface {
	// Sync waits until the work before the event is done.
	Sync()
	// Done reports whether it is.
	Done() bool
}

// Stats counts a device's memory in bytes.
type Stats struct {
	InUse    int64 // given out by Alloc and not yet freed
	Peak     int64 // the largest InUse so far
	Reserved int64 // taken from the system, including what is cached for reuse
	Allocs   int64 // number of Alloc calls
}

// View is a strided window into a buffer. Offset and strides count elements; a
// stride of 0 repeats (broadcasting) and is never written through; strides are
// never negative.
type View struct {
	Buf    Buffer
	DType  dtype.DType
	Offset int
	NDim   int
	Shape  [MaxDims]int
	Stride [MaxDims]int
}

// Numel is the number of elements that the view shows; 1 for zero dimensions.
func (v *View) Numel() int {
	n := 1
	for _, s := range v.Shape[:v.NDim] {
		n *= s
	}
	return n
}

// Contiguous reports whether the elements lie in row-major order without gaps.
func (v *View) Contiguous() bool {
	want := 1
	for d := v.NDim - 1; d >= 0; d-- {
		if v.Shape[d] == 0 {
			return true
		}
		if v.Shape[d] != 1 {
			if v.Stride[d] != want {
				return false
			}
			want *= v.Shape[d]
		}
	}
	return true
}

// Call is one kernel launch: an op, its operands and its scalar attributes, laid
// out without pointers of its own so that a launch makes no garbage. What each
// operand and attribute means stands at the op.
type Call struct {
	Op     Op
	NOut   int
	NIn    int
	Out    [4]View
	In     [8]View
	Ints   [8]int
	Floats [8]float64
	Key    uint64 // random stream, see internal/rng
	If     Flag   // see op.go: Conditional
}

// Flag is a number in device memory that decides whether a kernel does anything: element Offset of Buf, a float64. A
// nil Buf is no flag: the kernel runs.
type Flag struct {
	Buf    Buffer
	Offset int
}

// Traits are what a device needs of the tensors that package tensor makes for itself. The zero value is a host's.
type Traits struct {
	// Align is the number of elements of which the sizes of half matrices should be multiples: products of others take
	// several times as long. 0: any size will do.
	Align int
	// Memory is the size of the memory that is the device's own; 0: it computes in the host's.
	Memory int64
	// NoSoftCap: its attention has no soft caps.
	NoSoftCap bool
}

// TraitsOf asks a backend for its traits.
func TraitsOf(be Backend) Traits {
	if b, ok := be.(interface{ Traits() Traits }); ok {
		return b.Traits()
	}
	return Traits{}
}

// DropoutKeeper is a Backend whose OpAttention can store dropout's decisions, which OpAttentionGrad then does not draw
// again. The results have the same bits.
type DropoutKeeper interface {
	Backend
	// KeptDropout is how many int32 a call of OpAttention should store for its gradient, 0 for none. It follows from
	// the inputs' dtypes and shapes and from the attributes; the call's outputs need not be set.
	KeptDropout(*Call) int
}

// ManyLauncher is a Stream that takes many calls of one op at once. Calls of a list write to different memory, and none
// reads what another writes, so that they may run in one kernel, in any order.
type ManyLauncher interface {
	Stream
	// LaunchMany has the bits of Launch for each call. The calls are read before it returns.
	LaunchMany(calls []Call)
}

// LaunchMany launches the calls of a list on any stream: at once where it is a ManyLauncher, else one after the other.
func LaunchMany(s Stream, calls []Call) {
	if many, ok := s.(ManyLauncher); ok {
		many.LaunchMany(calls)
		return
	}
	for i := range calls {
		s.Launch(&calls[i])
	}
}

// DType is the dtype that a call computes in: that of the first floating-point operand, inputs before outputs, or if
// there is none, of the first operand.
func (c *Call) DType() dtype.DType {
	for i := range c.NIn {
		if dt := c.In[i].DType; dt.IsFloat() {
			return dt
		}
	}
	for i := range c.NOut {
		if dt := c.Out[i].DType; dt.IsFloat() {
			return dt
		}
	}
	if c.NIn > 0 {
		return c.In[0].DType
	}
	return c.Out[0].DType
}

// Fault is the panic value of a kernel that cannot do what it was asked to.
type Fault struct {
	Backend string
	Op      Op
	Msg     string
	Cause   error // an *IndexError, for instance; nil if Msg says all
}

func (f *Fault) Error() string { return fmt.Sprintf("%s: %s: %s", f.Backend, f.Op, f.Msg) }

// Unwrap gives Cause.
func (f *Fault) Unwrap() error { return f.Cause }

// OutOfMemoryError is the error of an Alloc, or the cause of a fault, that the device has no memory for.
type OutOfMemoryError struct {
	Bytes int // asked for
	Err   error
}

func (e *OutOfMemoryError) Error() string { return e.Err.Error() }

// Unwrap gives Err.
func (e *OutOfMemoryError) Unwrap() error { return e.Err }

// IndexError is the cause of a kernel's fault: an element of a tensor of indices, such as labels or token ids, that is
// not below the size of what it chooses from.
type IndexError struct {
	Op      Op
	Index   int64 // the element
	Element int64 // its number in the tensor that the kernel read
	Limit   int64 // 0 ≤ Index < Limit is wanted
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("index %d at element %d is out of range [0, %d)", e.Index, e.Element, e.Limit)
}

// NewIndexFault is the fault of a kernel that met such an element.
func NewIndexFault(backend string, e IndexError) *Fault {
	return &Fault{Backend: backend, Op: e.Op, Msg: e.Error(), Cause: &e}
}
