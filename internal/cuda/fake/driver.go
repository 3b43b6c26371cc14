// SPDX-License-Identifier: Apache-2.0

// Package fake is a CUDA driver without a device: package ptx runs the kernels on the CPU. Tests of all that lies above
// the driver use it.
//
// It imitates the properties of a device that break incorrect code. Streams are goroutines, which work late and at
// random paces; only events order them. Memory is undefined when it is given out. Copies require pinned host memory,
// which must not change until they are done; their destination is garbage until then. A kernel's error appears at a
// later call and is permanent. Products and convolutions check their descriptors as cuBLASLt and cuDNN do, and follow
// them literally.
//
// It is slow, and it proves nothing about speed or about what a real device's memory model allows.
package fake

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// Options describe the machine.
type Options struct {
	Devices    int           // 0 means 1
	Version    string        // of driver and libraries; "" stands for fake
	Memory     int64         // bytes of each device; 0 means 256 MiB
	Seed       uint64        // of the paces of streams, and of the order of threads
	Delay      time.Duration // the longest pause before a command; 0: goroutines yield at random alone
	CheckRaces bool          // look for races between blocks and warps: slower
	SMs        int           // multiprocessors; 0 means 4
	Workers    int           // goroutines that run a kernel's blocks; 0 means 1
	Budget     int64         // instructions of a launch, of all threads together; 0: no bound
	NoDnn      bool          // the machine has no cuDNN
	// NoAlgorithm makes cuDNN find no algorithm for convolutions of more kernels than this; 0: it finds one for all.
	NoAlgorithm int
	NoCompiler  int    // the code with which PTX cannot be loaded, as cuda.NoCompiler; 0: it can
	NoCubins    bool   // cubins cannot be loaded
	Capability  [2]int // compute capability; 0.0 means 9.0
	// Ran is told of each kernel that has run, and of its threads' instructions, by the goroutines of streams; nil:
	// nobody is.
	Ran func(kernel string, instructions int64)
}

// codes of cuda.h.
const (
	invalidValue   = 1
	outOfMemory    = cuda.OutOfMemory
	invalidDevice  = 101
	invalidImage   = 200
	invalidContext = 201
	noBinary       = 209
	invalidPTX     = 218
	invalidHandle  = 400
	notFound       = 500
	illegalAddress = 700
	launchFailed   = 719
	unsupported    = cuda.Unsupported
	invalidated    = 901
)

var names = map[int]string{invalidValue: "CUDA_ERROR_INVALID_VALUE", outOfMemory: "CUDA_ERROR_OUT_OF_MEMORY",
	invalidDevice: "CUDA_ERROR_INVALID_DEVICE", invalidContext: "CUDA_ERROR_INVALID_CONTEXT",
	invalidImage: "CUDA_ERROR_INVALID_IMAGE", noBinary: "CUDA_ERROR_NO_BINARY_FOR_GPU",
	invalidPTX: "CUDA_ERROR_INVALID_PTX", invalidHandle: "CUDA_ERROR_INVALID_HANDLE", notFound: "CUDA_ERROR_NOT_FOUND",
	illegalAddress: "CUDA_ERROR_ILLEGAL_ADDRESS", launchFailed: "CUDA_ERROR_LAUNCH_FAILED",
	unsupported: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", invalidated: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
	cuda.NoCompiler:       "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
	cuda.CompilerDisabled: "CUDA_ERROR_JIT_COMPILATION_DISABLED"}

func failed(call string, code int, format string, args ...any) error {
	return &cuda.Error{Call: call, Code: code, Name: names[code], Msg: fmt.Sprintf(format, args...)}
}

// Driver is a machine's devices.
type Driver struct {
	options Options
	mu      sync.Mutex
	devices []*device // nil where none is open
	calls   atomic.Int64
}

// Calls is how often streams, events and graphs of the machine were called so far.
func (d *Driver) Calls() int64 { return d.calls.Load() }

// Loaded is how many modules, kernels and libraries the context of device i was asked for.
func (d *Driver) Loaded(i int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.devices[i] == nil {
		return 0
	}
	d.devices[i].mu.Lock()
	defer d.devices[i].mu.Unlock()
	return d.devices[i].loaded
}

// New returns a machine.
func New(o Options) *Driver {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Memory == 0 {
		o.Memory = 256 << 20
	}
	if o.SMs == 0 {
		o.SMs = 4
	}
	if o.Capability == [2]int{} {
		o.Capability = [2]int{9, 0}
	}
	if o.Workers == 0 {
		o.Workers = 1
	}
	return &Driver{options: o, devices: make([]*device, o.Devices)}
}

// Version names the fake.
func (d *Driver) Version() string { return cmp.Or(d.options.Version, "fake") }

// Devices is the number that New was told.
func (d *Driver) Devices() (int, error) { return len(d.devices), nil }

// Open returns the context of a device, which all who open it share.
func (d *Driver) Open(i int) (cuda.Device, error) {
	if i < 0 || i >= len(d.devices) {
		return nil, failed("cuDeviceGet", invalidDevice, "device %d of %d", i, len(d.devices))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.devices[i] == nil {
		d.devices[i] = newDevice(d, i)
	}
	d.devices[i].users++
	return &handle{device: d.devices[i]}, nil
}

// handle is one user's device.
type handle struct {
	*device
	once sync.Once
}

// Close ends the context with its last user. The error names what was not given back.
func (h *handle) Close() (err error) {
	h.once.Do(func() {
		d := h.device
		d.driver.mu.Lock()
		defer d.driver.mu.Unlock()
		if d.users--; d.users > 0 {
			return
		}
		d.driver.devices[d.number] = nil
		d.ended.Store(true)
		d.mu.Lock()
		defer d.mu.Unlock()
		var errs []error
		if len(d.sizes) > 0 {
			errs = append(errs, fmt.Errorf("fake: %d pieces of device memory were not given back", len(d.sizes)))
		}
		if n := d.pinned.len(); n > 0 {
			errs = append(errs, fmt.Errorf("fake: %d pieces of pinned memory were not given back", n))
		}
		if d.streams > 0 {
			errs = append(errs, fmt.Errorf("fake: %d streams were not closed", d.streams))
		}
		if d.graphs > 0 {
			errs = append(errs, fmt.Errorf("fake: %d graphs were not closed", d.graphs))
		}
		err = errors.Join(errs...)
	})
	return err
}
