// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/backend/meta"
)

// Device is where tensors live and kernels run.
type Device struct {
	be      backend.Backend
	traits  backend.Traits
	lacking *lacking     // nil: the backend has all kernels
	mu      sync.RWMutex // held for writing while the backend closes
	closed  bool
}

func newDevice(be backend.Backend) *Device {
	traits := backend.TraitsOf(be)
	return &Device{be: be, traits: traits, lacking: lackingOf(be, traits)}
}

var defaultCPU = sync.OnceValue(func() *Device { return newDevice(cpu.Default()) })

// CPU returns the process's CPU device, which uses as many workers as GOMAXPROCS.
func CPU() *Device { return defaultCPU() }

// NewCPU returns a CPU device with its own worker pool and memory. Results do not
// depend on the number of workers, bit for bit.
func NewCPU(workers int) *Device { return newDevice(cpu.New(workers)) }

// NewMeta returns a device whose tensors have shapes and no values, like PyTorch's meta device: ops check their
// operands and allocate, MemStats counts, but nothing is computed, and reads return zeros. Use it to find out how
// much memory a computation needs.
func NewMeta() *Device { return newDevice(meta.New()) }

// Name is the backend's name, as "cpu".
func (d *Device) Name() string { return d.be.Name() }

// Workers is the number of goroutines that a kernel may use; 0 if the backend does not say.
func (d *Device) Workers() int {
	if b, ok := d.be.(interface{ Workers() int }); ok {
		return b.Workers()
	}
	return 0
}

// Versions names what bits of results depend on: the device's model, and the versions of the libraries that it computes
// with, or the variant of the CPU's kernels. It is empty if the backend does not say.
func (d *Device) Versions() string {
	if b, ok := d.be.(interface{ Versions() string }); ok {
		return b.Versions()
	}
	return ""
}

// AllowTF32 lets float32 matrix products round their inputs to 10 bits of fraction (TF32), which matrix units of GPUs
// multiply many times faster, or ends that. It reports whether the device has the mode.
func (d *Device) AllowTF32(on bool) bool {
	b, ok := d.be.(interface{ SetTF32(on bool) })
	if ok {
		b.SetTF32(on)
	}
	return ok
}

// MemStats counts a device's memory in bytes.
type MemStats struct {
	InUse    int64 // held by tensors
	Peak     int64 // the largest InUse so far
	Reserved int64 // taken from the system, including memory that is cached for reuse
	Allocs   int64 // number of allocations so far
}

// MemStats returns the device memory in use.
func (d *Device) MemStats() MemStats { return MemStats(d.be.Stats()) }

// SetMemoryLimit sets how many bytes the device's tensors may hold: an allocation beyond it is an *OutOfMemoryError. It
// reports whether the device has a limit. The CPU's is initially fifteen sixteenths of the memory of the machine or the
// cgroup. 0 removes the limit.
func (d *Device) SetMemoryLimit(bytes int64) bool {
	b, ok := d.be.(interface{ SetMemoryLimit(int64) })
	if ok {
		b.SetMemoryLimit(bytes)
	}
	return ok
}

// Collect frees the memory of tensors that nothing refers to any more, as those that a pass saved for gradients before
// it failed. It runs the garbage collector and waits for what that frees.
func (d *Device) Collect() {
	const quiet = 2 // the order in which the runtime frees what it has found is not defined
	for used, same := d.MemStats().InUse, 0; same < quiet; {
		collected()
		now := d.MemStats().InUse
		if same++; now < used {
			same = 0
		}
		used = now
	}
}

// collected waits until the garbage collector has found what was unreachable before.
func collected() {
	found := make(chan struct{})
	runtime.AddCleanup(&struct{ _ *int }{}, func(c chan struct{}) { close(c) }, found)
	for {
		runtime.GC()
		select {
		case <-found:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// HostMemory reports whether tensors of the device are in host memory, see HostBytes.
func (d *Device) HostMemory() bool {
	_, ok := d.be.(backend.HostMemory)
	return ok
}

// Sync waits for all work on the device, from any context. Before one context reads a tensor
// that another one created or wrote, call this or the other context's Sync.
func (d *Device) Sync() { d.be.Sync() }

// Close frees all resources of the device; its tensors must not be used again.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return d.be.Close()
}

// free gives buf back, unless Close did: tensors may be collected later than that.
func (d *Device) free(buf backend.Buffer) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if !d.closed {
		d.be.Free(buf)
	}
}

var registry struct {
	sync.Mutex
	open map[string]func() (*Device, error)
}

// RegisterDevice registers a device for OpenDevice under its name: a kind, as "cuda", or one of several of a kind, as
// "cuda:0". Packages such as tensor/cuda call it from init, so that a blank import suffices. Registering a name twice
// panics.
func RegisterDevice(name string, open func() (*Device, error)) {
	registry.Lock()
	defer registry.Unlock()
	if registry.open == nil {
		registry.open = map[string]func() (*Device, error){}
	}
	if _, dup := registry.open[name]; dup || name == "cpu" {
		panic(fmt.Sprintf("tensor: device %q registered twice", name))
	}
	registry.open[name] = open
}

// OpenDevice returns the device of the given name: "cpu", or one that a package
// registered. The error lists the available names.
func OpenDevice(name string) (*Device, error) {
	if name == "cpu" {
		return CPU(), nil
	}
	registry.Lock()
	open := registry.open[name]
	registry.Unlock()
	if open == nil {
		return nil, fmt.Errorf("tensor: no device %q is built in: want one of %s", name,
			strings.Join(DeviceNames(), ", "))
	}
	return open()
}

// DeviceNames lists the names that OpenDevice knows, sorted, cuda:2 before cuda:10.
func DeviceNames() []string {
	registry.Lock()
	defer registry.Unlock()
	names := append(slices.Collect(maps.Keys(registry.open)), "cpu")
	slices.SortFunc(names, func(a, b string) int {
		kindA, indexA, _ := strings.Cut(a, ":")
		kindB, indexB, _ := strings.Cut(b, ":")
		return cmp.Or(strings.Compare(kindA, kindB), len(indexA)-len(indexB), strings.Compare(indexA, indexB))
	})
	return names
}
