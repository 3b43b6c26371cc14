// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package compiled

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// Driver has one device, which computes when it is called.
type Driver struct {
	mu     sync.Mutex // the library runs one kernel at a time
	launch uintptr
	ran    func(kernel string)
}

// New opens a library that Build made. ran is told of each kernel that has run.
func New(library string, ran func(kernel string)) (*Driver, error) {
	lib, err := clib.Open(library)
	if err != nil {
		return nil, err
	}
	d := &Driver{ran: ran}
	return d, lib.Bind(map[string]*uintptr{"shim_launch": &d.launch})
}

// Version names the driver.
func (d *Driver) Version() string { return "compiled" }

// Devices is 1.
func (d *Driver) Devices() (int, error) { return 1, nil }

// Open opens the device.
func (d *Driver) Open(int) (cuda.Device, error) {
	return &device{d: d, memory: map[cuda.Ptr][]byte{}}, nil
}

// device has memory of Go's heap, aligned as a device's is.
type device struct {
	d      *Driver
	mu     sync.Mutex
	memory map[cuda.Ptr][]byte
}

const (
	memoryBytes = 1 << 30
	alignment   = 256
	undefined   = 0xA5 // what memory has before it is written
)

func (v *device) Info() cuda.Info {
	return cuda.Info{Name: "compiled", Capability: [2]int{9, 0}, SMs: 4, SharedOpt: 227 << 10, Memory: memoryBytes}
}

func (v *device) MemInfo() (free, total int64, err error) { return memoryBytes, memoryBytes, nil }

func (v *device) Alloc(n int) (cuda.Ptr, error) {
	b := make([]byte, n+alignment)
	for i := range b {
		b[i] = undefined
	}
	at := (address(b) + alignment - 1) &^ (alignment - 1)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory[cuda.Ptr(at)] = b
	return cuda.Ptr(at), nil
}

func (v *device) Free(p cuda.Ptr) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.memory, p)
	return nil
}

func (v *device) AllocHost(n int) ([]byte, error)  { return make([]byte, n), nil }
func (v *device) FreeHost([]byte) error            { return nil }
func (v *device) NewStream() (cuda.Stream, error)  { return &stream{v}, nil }
func (v *device) NewEvent() (cuda.Event, error)    { return event{}, nil }
func (v *device) Load([]byte) (cuda.Module, error) { return module{}, nil }
func (v *device) Dnn() (cuda.Dnn, error)           { return nil, cuda.ErrNotFound }
func (v *device) Do(f func() error) error          { return f() }
func (v *device) Sync() error                      { return nil }
func (v *device) Close() error                     { return nil }

func (v *device) Blas() (cuda.Blas, error) {
	return nil, errors.New("compiled kernels come without cuBLASLt")
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// at shows device memory.
func at(p cuda.Ptr, n int) []byte { return unsafe.Slice((*byte)(clib.Pointer(uintptr(p))), n) }

// module has all kernels: the library knows which there are.
type module struct{}

func (module) Function(name string) (cuda.Function, error) { return function(name), nil }

type function string

func (f function) Name() string           { return string(f) }
func (f function) ParamBytes() int        { return -1 }
func (f function) SetMaxShared(int) error { return nil }

// event is always done.
type event struct{}

func (event) Sync() error         { return nil }
func (event) Done() (bool, error) { return true, nil }
func (event) Close() error        { return nil }

type stream struct{ v *device }

// Launch runs a kernel to its end.
func (s *stream) Launch(f cuda.Function, grid, block [3]uint32, shared int, params []byte) error {
	d := s.v.d
	d.mu.Lock()
	defer d.mu.Unlock()
	name := append([]byte(f.Name()), 0)
	code := clib.Call(d.launch, address(name), clib.Address(&grid), clib.Address(&block), address(params),
		uintptr(shared))
	runtime.KeepAlive(name)
	runtime.KeepAlive(&grid)
	runtime.KeepAlive(&block)
	runtime.KeepAlive(params)
	if int32(code) != 0 {
		return fmt.Errorf("kernel %s with %d bytes of shared memory cannot run", f.Name(), shared)
	}
	d.ran(f.Name())
	return nil
}

func (s *stream) CopyToDevice(dst cuda.Ptr, src []byte) error {
	copy(at(dst, len(src)), src)
	return nil
}

func (s *stream) CopyToHost(dst []byte, src cuda.Ptr) error {
	copy(dst, at(src, len(dst)))
	return nil
}

func (s *stream) CopyOnDevice(dst, src cuda.Ptr, n int) error {
	copy(at(dst, n), at(src, n))
	return nil
}

func (s *stream) Fill(dst cuda.Ptr, value byte, n int) error {
	b := at(dst, n)
	for i := range b {
		b[i] = value
	}
	return nil
}

func (s *stream) Record(cuda.Event) error { return nil }
func (s *stream) Wait(cuda.Event) error   { return nil }
func (s *stream) Sync() error             { return nil }
func (s *stream) Handle() uintptr         { return 0 }
func (s *stream) Close() error            { return nil }

func (s *stream) Capture(func() error) (cuda.Graph, error) {
	return nil, &cuda.Error{Call: "cuStreamBeginCapture", Code: cuda.Unsupported, Name: "no graphs"}
}
