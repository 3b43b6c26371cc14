// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
	"github.com/lockstep-ml/lockstep/internal/ptx"
)

// device is a context.
type device struct {
	driver *Driver
	number int
	users  int // guarded by driver.mu
	mem    *ptx.Memory
	pinned pinned
	ended  atomic.Bool // the context is gone

	capturing sync.RWMutex // held to read by whoever captures

	mu      sync.Mutex
	sizes   map[cuda.Ptr]int // of what is allocated
	used    int64
	streams int
	made    int // streams ever
	graphs  int
	into    []*graph  // that captures make
	loaded  int       // modules, kernels and libraries, that the context was asked for
	broken  error     // of a kernel: the context is lost
	pending sync.Cond // of commands
	queued  int       // commands that are not done
}

func newDevice(driver *Driver, number int) *device {
	d := &device{driver: driver, number: number, mem: ptx.NewMemory(driver.options.Memory), sizes: map[cuda.Ptr]int{}}
	d.pending.L = &d.mu
	return d
}

// fail keeps the first error of work that was queued.
func (d *device) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken == nil {
		d.broken = err
	}
}

// alive panics where a driver would use the memory of a context that is gone.
func (d *device) alive() {
	if d.ended.Load() {
		panic("fake: a call for a context that is gone: a driver crashes here")
	}
}

// lost is the error that every call returns once a kernel has failed.
func (d *device) lost() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}

// Info describes a small device.
func (d *device) Info() cuda.Info {
	return cuda.Info{Name: "fake", Capability: d.driver.options.Capability, SMs: d.driver.options.SMs,
		SharedOpt: 227 << 10, Memory: d.driver.options.Memory, UUID: fmt.Sprintf("GPU-fake-%d", d.number),
		PCI: fmt.Sprintf("0000:%02x:00.0", d.number)}
}

// MemInfo counts what Alloc gave.
func (d *device) MemInfo() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.driver.options.Memory - d.used, d.driver.options.Memory, d.broken
}

// Alloc returns undefined memory.
func (d *device) Alloc(n int) (cuda.Ptr, error) {
	if err := d.uncaptured("cuMemAlloc"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.broken != nil:
		return 0, d.broken
	case n <= 0:
		return 0, failed("cuMemAlloc", invalidValue, "%d bytes", n)
	case d.used+int64(n) > d.driver.options.Memory:
		return 0, failed("cuMemAlloc", outOfMemory, "")
	}
	at, err := d.mem.Alloc(n)
	if err != nil {
		return 0, failed("cuMemAlloc", outOfMemory, "%v", err)
	}
	p := cuda.Ptr(at)
	d.sizes[p] = n
	d.used += int64(n)
	return p, nil
}

// Free waits for all work, as the real one does, and takes memory back.
func (d *device) Free(p cuda.Ptr) error {
	if err := d.uncaptured("cuMemFree"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drain()
	n, ok := d.sizes[p]
	if !ok {
		return failed("cuMemFree", invalidValue, "%#x is not an allocation", p)
	}
	delete(d.sizes, p)
	d.used -= int64(n)
	return d.mem.Free(uint64(p))
}

// drain waits until nothing is queued. d.mu is held.
func (d *device) drain() {
	for d.queued > 0 {
		d.pending.Wait()
	}
}

// AllocHost returns pinned memory.
func (d *device) AllocHost(n int) ([]byte, error) {
	if err := errors.Join(d.lost(), d.uncaptured("cuMemHostAlloc")); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, failed("cuMemHostAlloc", invalidValue, "%d bytes", n)
	}
	return d.pinned.alloc(n), nil
}

// FreeHost waits for all work, as the real one does, and takes pinned memory back.
func (d *device) FreeHost(b []byte) error {
	if err := d.uncaptured("cuMemFreeHost"); err != nil {
		return err
	}
	d.mu.Lock()
	d.drain()
	d.mu.Unlock()
	if !d.pinned.free(b) {
		return failed("cuMemFreeHost", invalidValue, "not pinned memory, or freed twice")
	}
	return nil
}

// Do calls f.
func (d *device) Do(f func() error) error {
	if err := d.lost(); err != nil {
		return err
	}
	return f()
}

// NewEvent returns an event that is done until it is recorded.
func (d *device) NewEvent() (cuda.Event, error) {
	d.alive()
	return &event{d: d}, d.lost()
}

// loads counts what takes a driver a while.
func (d *device) loads() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loaded++
}

// Load parses PTX, and that of a cubin when one of its kernels is launched: a program may load many more than it
// launches. Modules that were parsed before, by any device of the process, are not parsed again.
func (d *device) Load(image []byte) (cuda.Module, error) {
	if err := errors.Join(d.lost(), d.uncaptured("cuModuleLoadDataEx")); err != nil {
		return nil, err
	}
	d.loads()
	if bytes.HasPrefix(image, []byte("\x7fELF")) {
		f, err := d.assembled(image)
		if err != nil {
			return nil, err
		}
		return &module{d, f.Kernels, sync.OnceValues(func() (*ptx.Module, error) { return d.load(f.PTX()) })}, nil
	}
	if code := d.driver.options.NoCompiler; code != 0 {
		return nil, failed("cuModuleLoadDataEx", code, "no compiler")
	}
	m, err := d.load(image)
	if err != nil {
		return nil, err
	}
	return &module{d, nil, func() (*ptx.Module, error) { return m, nil }}, nil
}

// load reads PTX, and gives its variables memory.
func (d *device) load(text []byte) (*ptx.Module, error) {
	m, err := parse(text)
	if err != nil {
		return nil, failed("cuModuleLoadDataEx", invalidPTX, "%v", err)
	}
	if err := m.Load(d.mem); err != nil {
		return nil, failed("cuModuleLoadDataEx", outOfMemory, "%v", err)
	}
	return m, nil
}

// assembled is the family that a cubin is of.
func (d *device) assembled(cubin []byte) (*kernels.Family, error) {
	f, architecture := known(cubin)
	c := d.Info().Capability
	switch {
	case f == nil:
		return nil, failed("cuModuleLoadDataEx", invalidImage, "an unknown cubin")
	case d.driver.options.NoCubins || architecture/10 != c[0] || architecture%10 > c[1]:
		return nil, failed("cuModuleLoadDataEx", noBinary, "a cubin of sm_%d", architecture)
	}
	return f, nil
}

var cubins sync.Map // by their SHA-256

// known is kernels.OfCubin, which decompresses what it compares, once for each.
func known(cubin []byte) (*kernels.Family, int) {
	type origin struct {
		f            *kernels.Family
		architecture int
	}
	sum := sha256.Sum256(cubin)
	if o, ok := cubins.Load(sum); ok {
		return o.(origin).f, o.(origin).architecture
	}
	f, architecture := kernels.OfCubin(cubin)
	cubins.Store(sum, origin{f, architecture})
	return f, architecture
}

var parsed struct {
	sync.Mutex
	modules map[[sha256.Size]byte]*ptx.Module
}

func parse(text []byte) (*ptx.Module, error) {
	parsed.Lock()
	defer parsed.Unlock()
	sum := sha256.Sum256(text)
	if m := parsed.modules[sum]; m != nil {
		return m, nil
	}
	m, err := ptx.Parse(string(text))
	if err != nil {
		return nil, err
	}
	if parsed.modules == nil {
		parsed.modules = map[[sha256.Size]byte]*ptx.Module{}
	}
	parsed.modules[sum] = m
	return m, nil
}

// defined reads bytes that must be defined.
func (d *device) defined(from uint64, raw []byte) error {
	ok, err := d.mem.Defined(from, len(raw))
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("some of %d bytes at %#x are undefined", len(raw), from)
	}
	return d.mem.Read(raw, from)
}

// Blas returns the products.
func (d *device) Blas() (cuda.Blas, error) {
	d.loads()
	return &blas{d}, d.lost()
}

// Sync waits for all work, and for captures that others have begun.
func (d *device) Sync() error {
	if err := d.uncaptured("cuCtxSynchronize"); err != nil {
		return err
	}
	d.capturing.Lock()
	defer d.capturing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drain()
	return d.broken
}

// module is loaded PTX.
type module struct {
	d     *device
	names []string // of its kernels; nil: m says
	m     func() (*ptx.Module, error)
}

// Function finds a kernel.
func (m *module) Function(name string) (cuda.Function, error) {
	m.d.loads()
	kernel := sync.OnceValue(func() found {
		text, err := m.m()
		if err != nil {
			return found{nil, err}
		}
		k, err := text.Kernel(name)
		if err != nil {
			err = failed("cuModuleGetFunction", notFound, "%v", err)
		}
		return found{k, err}
	})
	f := &function{d: m.d, kernel: kernel, name: name, shared: 48 << 10}
	if !slices.Contains(m.names, name) {
		if err := kernel().err; err != nil {
			return nil, err
		}
	}
	return f, nil
}

// function is a kernel.
type function struct {
	d      *device
	kernel func() found
	name   string

	mu     sync.Mutex
	shared int
}

func (f *function) Name() string { return f.name }

func (f *function) ParamBytes() int {
	if at := f.kernel(); at.err == nil {
		return at.k.ParamBytes()
	}
	return -1 // Launch returns the error
}

// SetMaxShared raises the bound of dynamic shared memory.
func (f *function) SetMaxShared(n int) error {
	if n > f.d.Info().SharedOpt {
		return failed("cuFuncSetAttribute", invalidValue, "%d bytes of shared memory, of at most %d", n,
			f.d.Info().SharedOpt)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shared = max(f.shared, n)
	return nil
}

// found is what a name leads to.
type found struct {
	k   *ptx.Kernel
	err error
}

func (f *function) maxShared() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shared
}

// kernelError is what a kernel's fault is to the host.
func kernelError(name string, err error) error {
	code := launchFailed
	if f, ok := errors.AsType[*ptx.Fault](err); ok &&
		slices.Contains([]ptx.Kind{ptx.UndefinedMemory, ptx.OutOfBounds, ptx.UseAfterFree, ptx.ReadOnly}, f.Kind) {
		code = illegalAddress
	}
	return failed("kernel "+name, code, "%v", err)
}
