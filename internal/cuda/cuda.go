// SPDX-License-Identifier: Apache-2.0

// Package cuda has interfaces for the part of NVIDIA's CUDA that Lockstep uses: a device's memory, streams, events,
// kernels (Driver), matrix products (Blas) and convolutions (Dnn).
//
// Two packages implement it. internal/cuda/libcuda opens NVIDIA's libraries at run time and is built with the tag cuda.
// internal/cuda/fake runs the same PTX in an interpreter, so that all that lies above is tested where there is no GPU.
// Users of tensors import tensor/cuda; this package knows no tensors.
package cuda

import "fmt"

// Ptr is an address in a device's memory; 0 is none.
type Ptr uint64

// Error is what a call of a library returned.
type Error struct {
	Call string // as cuMemAlloc_v2
	Code int    // the library's
	Name string // of the code, as CUDA_ERROR_OUT_OF_MEMORY
	Msg  string // more, where there is more to say
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code)
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	return s
}

// OutOfMemory is the Code of an allocation that the device has no room for.
const OutOfMemory = 2

// Driver is the library that finds devices.
type Driver interface {
	// Version names driver and libraries with their versions; checkpoints record it.
	Version() string
	// Devices is the number of devices that the process may use (CUDA_VISIBLE_DEVICES).
	Devices() (int, error)
	// Open makes the primary context of device i, which several users of the process share.
	Open(i int) (Device, error)
}

// Info describes a device.
type Info struct {
	Name       string // as NVIDIA H100 80GB HBM3
	Capability [2]int // compute capability, 9 and 0
	SMs        int    // multiprocessors
	SharedOpt  int    // bytes of shared memory that a block can opt in to
	Memory     int64  // bytes
	UUID       string // as GPU-…, NVML's name of the device
	PCI        string // bus address, as 0000:1b:00.0
}

// Device is a device's context. Any goroutine may call it.
type Device interface {
	Info() Info
	// MemInfo returns the free and total bytes of the device.
	MemInfo() (free, total int64, err error)
	// Alloc returns n > 0 bytes with undefined contents, aligned to 256. It may wait for the device: callers cache.
	Alloc(n int) (Ptr, error)
	Free(Ptr) error
	// AllocHost returns n bytes of pinned host memory, which copies need to run beside kernels.
	AllocHost(n int) ([]byte, error)
	FreeHost([]byte) error
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// Load loads a module from PTX or a cubin.
	Load(image []byte) (Module, error)
	// Blas opens the library of matrix products on the device.
	Blas() (Blas, error)
	// Dnn opens the library of convolutions on the device. The error is ErrNotFound if the machine has none.
	Dnn() (Dnn, error)
	// Do calls f on the caller's thread, with the device's context current there: for other libraries that work on the
	// device.
	Do(f func() error) error
	// Sync waits for the work of all streams, and before that for captures that others have begun. An error of an
	// earlier kernel appears here or at any other call.
	Sync() error
	Close() error
}

// Stream is a queue of work. Every call but Sync returns before the work is done. Any goroutine may call it; what
// several queue at once comes in some order.
type Stream interface {
	// Launch queues a kernel: a grid of blocks of threads, dynamic shared memory in bytes, and the parameter block with
	// each parameter at its natural alignment. params is read before Launch returns.
	Launch(f Function, grid, block [3]uint32, shared int, params []byte) error
	// CopyToDevice copies from pinned host memory, which must stay unchanged until the copy is done.
	CopyToDevice(dst Ptr, src []byte) error
	// CopyToHost copies to pinned host memory.
	CopyToHost(dst []byte, src Ptr) error
	CopyOnDevice(dst, src Ptr, n int) error
	// Fill sets n bytes.
	Fill(dst Ptr, value byte, n int) error
	// Record marks the point that the stream has reached: the event is done when the work so far is.
	Record(Event) error
	// Wait holds later work back until the event, as last recorded, is done.
	Wait(Event) error
	Sync() error
	// Capture calls f, which makes calls of this stream on its own goroutine, and makes a graph of them in place of
	// queueing them: Launch, CopyOnDevice, Fill, MatMul, Convolve. Parameters are read while f runs, and are the
	// graph's from then on. What f may not call fails with Unsupported, and no graph comes of it: Record, Wait, copies
	// from and to the host, whatever waits for the device, memory of the device and of the host. Nobody else calls the
	// stream meanwhile.
	Capture(f func() error) (Graph, error)
	// Handle is the library's stream, for other libraries that queue work on it (NCCL).
	Handle() uintptr
	Close() error
}

// Unsupported is the Code of a call that a capture does not allow.
const Unsupported = 900

// Graph is a sequence of calls that a stream queues at once, as often as it is told to. It belongs to one goroutine at
// a time.
type Graph interface {
	// Launch queues the calls on a stream of the device that captured them, in their order.
	Launch(Stream) error
	// SetParams gives kernel i of those that Stream.Launch captured, counted from 0, another parameter block. Launches
	// before that keep theirs.
	SetParams(i int, params []byte) error
	// Close destroys the graph, when its launches are done.
	Close() error
}

// Event is a point in a stream, which can be recorded again and again: who waits for it waits for what it recorded last
// before. Times are not measured.
type Event interface {
	Sync() error
	Done() (bool, error)
	Close() error
}

// Module is loaded PTX.
type Module interface {
	// Function finds a kernel by its name.
	Function(name string) (Function, error)
}

// Function is a kernel of a loaded module.
type Function interface {
	Name() string
	// ParamBytes is the size of the kernel's parameter block; −1 if the library does not say.
	ParamBytes() int
	// SetMaxShared lets launches have up to n bytes of dynamic shared memory; 48 KiB need no call.
	SetMaxShared(n int) error
}

// DataType is cudaDataType_t, as far as it is used.
type DataType int32

// The library's numbers.
const (
	R32F  DataType = 0
	R64F  DataType = 1
	R16F  DataType = 2
	R16BF DataType = 14
)

// Compute is cublasComputeType_t, as far as it is used.
type Compute int32

// The library's numbers.
const (
	Compute32F     Compute = 68
	Compute64F     Compute = 70
	Compute32FTF32 Compute = 77
)

// Epilogue is cublasLtEpilogue_t, as far as it is used.
type Epilogue uint32

// The library's numbers. Bias is one number a row of the column-major D.
const (
	EpilogueNone        Epilogue = 1
	EpilogueReLU        Epilogue = 2
	EpilogueBias        Epilogue = 4
	EpilogueReLUBias    Epilogue = 6
	EpilogueGELU        Epilogue = 32
	EpilogueGELUBias    Epilogue = 36
	EpilogueGELUAux     Epilogue = 160
	EpilogueGELUAuxBias Epilogue = 164
)

// Matrix is a cublasLtMatrixLayout_t: Rows × Cols elements in column-major order, LD elements from column to column,
// Stride elements from one matrix of the batch to the next.
type Matrix struct {
	Type       DataType
	Rows, Cols int
	LD         int
	Batch      int // at least 1
	Stride     int
}

// Product is D = epilogue(Alpha·op(A)·op(B) + Beta·C + bias), as cublasLtMatmul computes it. It is comparable: one
// algorithm is chosen for each Product, by a rule that does not measure.
type Product struct {
	Compute        Compute
	TransA, TransB bool
	A, B, C, D     Matrix
	Alpha, Beta    float64
	Epilogue       Epilogue
	BiasType       DataType
	AuxLD          int // of the epilogue's second output, in elements of D's type
	Align          int // bytes that all addresses are multiples of, at most 256: faster algorithms want 16
}

// Operands are the addresses of a product.
type Operands struct {
	A, B, C, D Ptr
	Bias, Aux  Ptr // of the epilogue
}

// Blas is cuBLASLt.
type Blas interface {
	// Workspace is the number of bytes that a product may need beside its operands.
	Workspace(Product) (int, error)
	// MatMul queues a product. workspace holds at least the bytes that Workspace returned, aligned to 256, for this
	// stream alone.
	MatMul(s Stream, p Product, o Operands, workspace Ptr) error
	Close() error
}
