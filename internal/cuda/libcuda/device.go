// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// Numbers of cuda.h.
const (
	attributeSMs            = 16
	attributeMajor          = 75
	attributeMinor          = 76
	attributeSharedOpt      = 97
	attributeMaxSharedBytes = 8 // of a function
	streamNonBlocking       = 1
	eventDisableTiming      = 2
	jitErrorLog             = 5
	jitErrorLogBytes        = 6
	launchParamEnd          = 0
	launchParamPointer      = 1
	launchParamBytes        = 2
)

// device is the primary context of a device. A context belongs to threads, and goroutines have none: each call makes it
// that of the thread that it is on.
type device struct {
	d      *driver
	number int32 // CUdevice
	ctx    uintptr
	info   cuda.Info
	once   sync.Once
	ended  atomic.Bool // released: its objects are gone

	capturing *sync.RWMutex // of the context
}

// Open retains the primary context.
func (d *driver) Open(i int) (cuda.Device, error) {
	if i < 0 || i >= int(d.devices) {
		return nil, fmt.Errorf("no device %d: CUDA has %d", i, d.devices)
	}
	v := &device{d: d}
	if err := d.call("cuDeviceGet", d.f.deviceGet, clib.Address(&v.number), uintptr(i)); err != nil {
		return nil, err
	}
	if err := v.look(); err != nil {
		return nil, err
	}
	err := d.call("cuDevicePrimaryCtxRetain", d.f.primaryCtxRetain, clib.Address(&v.ctx), uintptr(v.number))
	if err != nil {
		return nil, err
	}
	v.capturing = lockOf(v.number)
	return v, nil
}

// look asks what the device is.
func (v *device) look() error {
	f, dev := &v.d.f, uintptr(v.number)
	var name [256]byte
	var pci [64]byte
	var memory uintptr
	errs := []error{
		v.d.call("cuDeviceGetName", f.deviceGetName, clib.Address(&name), uintptr(len(name)), dev),
		v.d.call("cuDeviceGetPCIBusId", f.deviceGetPCIBusID, clib.Address(&pci), uintptr(len(pci)), dev),
		v.d.call("cuDeviceTotalMem", f.deviceTotalMem, clib.Address(&memory), dev),
	}
	attribute := func(which uintptr) int {
		var n int32
		errs = append(errs, v.d.call("cuDeviceGetAttribute", f.deviceGetAttribute, clib.Address(&n), which, dev))
		return int(n)
	}
	uuid, err := v.uuid(clib.Cut(name[:]))
	errs = append(errs, err)
	v.info = cuda.Info{Name: clib.Cut(name[:]),
		Capability: [2]int{attribute(attributeMajor), attribute(attributeMinor)}, SMs: attribute(attributeSMs),
		SharedOpt: attribute(attributeSharedOpt), Memory: int64(memory),
		UUID: uuid, PCI: clib.Cut(pci[:])}
	return errors.Join(errs...)
}

// uuid is NVML's name of the device: GPU-…, or MIG-… for a slice of a GPU. cuDeviceGetUuid_v2 gives that of a slice,
// cuDeviceGetUuid that of its GPU. A driver may have one of them alone; the device's name has "MIG" in it, too. It is
// empty if the driver has neither.
func (v *device) uuid(name string) (string, error) {
	f := &v.d.f
	var own, gpu [16]byte
	var errs [2]error
	if f.deviceGetUUIDv2 != 0 {
		errs[0] = v.d.call("cuDeviceGetUuid_v2", f.deviceGetUUIDv2, clib.Address(&own), uintptr(v.number))
	}
	if f.deviceGetUUID != 0 {
		errs[1] = v.d.call("cuDeviceGetUuid", f.deviceGetUUID, clib.Address(&gpu), uintptr(v.number))
	}
	kind := "GPU"
	switch {
	case f.deviceGetUUID == 0 && f.deviceGetUUIDv2 == 0:
		return "", nil
	case f.deviceGetUUIDv2 == 0:
		own = gpu
	case f.deviceGetUUID == 0 && strings.Contains(name, " MIG "), f.deviceGetUUID != 0 && own != gpu:
		kind = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, own[:4], own[4:6], own[6:8], own[8:10], own[10:]),
		errors.Join(errs[:]...)
}

// Info describes the device.
func (v *device) Info() cuda.Info { return v.info }

// call calls a function in the device's context.
func (v *device) call(name string, f uintptr, args ...uintptr) error {
	return v.d.result(name, v.within(f, args...))
}

func (v *device) within(f uintptr, args ...uintptr) uintptr {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if v.ended.Load() {
		return contextDestroyed // the driver would follow a pointer to what it freed
	}
	if code := clib.Call(v.d.f.ctxSetCurrent, v.ctx); int32(code) != 0 {
		return code
	}
	return clib.Call(f, args...)
}

// Do calls f on this thread with the device's context current.
func (v *device) Do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := v.d.result("cuCtxSetCurrent", clib.Call(v.d.f.ctxSetCurrent, v.ctx)); err != nil {
		return err
	}
	return f()
}

// MemInfo returns the free and total bytes of the device.
func (v *device) MemInfo() (free, total int64, err error) {
	err = v.call("cuMemGetInfo", v.d.f.memGetInfo, clib.Address(&free), clib.Address(&total))
	return free, total, err
}

// Alloc returns device memory.
func (v *device) Alloc(n int) (cuda.Ptr, error) {
	var p cuda.Ptr
	err := v.call("cuMemAlloc", v.d.f.memAlloc, clib.Address(&p), uintptr(n))
	return p, err
}

// Free gives device memory back.
func (v *device) Free(p cuda.Ptr) error { return v.call("cuMemFree", v.d.f.memFree, uintptr(p)) }

// AllocHost returns pinned memory.
func (v *device) AllocHost(n int) ([]byte, error) {
	var p uintptr
	if err := v.call("cuMemHostAlloc", v.d.f.memHostAlloc, clib.Address(&p), uintptr(n), 0); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(clib.Pointer(p)), n), nil
}

// FreeHost gives pinned memory back.
func (v *device) FreeHost(b []byte) error {
	return v.call("cuMemFreeHost", v.d.f.memFreeHost, hostAddress(b))
}

func hostAddress(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// NewStream makes a stream that does not wait for the default one.
func (v *device) NewStream() (cuda.Stream, error) {
	s := &stream{v: v}
	if err := v.call("cuStreamCreate", v.d.f.streamCreate, clib.Address(&s.handle), streamNonBlocking); err != nil {
		return nil, err
	}
	return s, nil
}

// NewEvent makes an event without a time.
func (v *device) NewEvent() (cuda.Event, error) {
	e := &event{v: v}
	if err := v.call("cuEventCreate", v.d.f.eventCreate, clib.Address(&e.handle), eventDisableTiming); err != nil {
		return nil, err
	}
	return e, nil
}

// Load loads a cubin, or compiles PTX for the device. The error holds what the compiler said.
func (v *device) Load(image []byte) (cuda.Module, error) {
	text := append(append([]byte(nil), image...), 0) // which PTX has to end with
	log := make([]byte, 8192)
	options := [2]int32{jitErrorLog, jitErrorLogBytes}
	values := [2]uintptr{hostAddress(log), uintptr(len(log))}
	m := &module{v: v}
	err := v.call("cuModuleLoadDataEx", v.d.f.moduleLoadDataEx, clib.Address(&m.handle), hostAddress(text),
		uintptr(len(options)), clib.Address(&options), clib.Address(&values))
	runtime.KeepAlive(text)
	runtime.KeepAlive(&options)
	runtime.KeepAlive(&values)
	said := clib.Cut(log) // which is alive until here
	if err != nil {
		if said != "" {
			return nil, fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return m, nil
}

// Blas opens cuBLASLt.
func (v *device) Blas() (cuda.Blas, error) {
	lib, err := openBlas()
	if err != nil {
		return nil, err
	}
	return newBlas(lib, v)
}

// Dnn opens cuDNN. It looks for cuBLASLt, and some versions end the process if they find none.
func (v *device) Dnn() (cuda.Dnn, error) {
	lib, err := openDnn()
	if err != nil {
		return nil, err
	}
	if _, err := openBlas(); err != nil {
		return nil, fmt.Errorf("cuDNN %s: %w", lib.version(), err)
	}
	return newDnn(lib, v)
}

// Sync waits for all work.
func (v *device) Sync() error {
	v.capturing.Lock() // or it would fail, and the capture with it
	defer v.capturing.Unlock()
	return v.call("cuCtxSynchronize", v.d.f.ctxSynchronize)
}

// Close releases the context.
func (v *device) Close() (err error) {
	v.once.Do(func() {
		v.ended.Store(true)
		err = v.d.call("cuDevicePrimaryCtxRelease", v.d.f.primaryCtxRelease, uintptr(v.number))
	})
	return err
}

// module is a CUmodule. It lives as long as the context.
type module struct {
	v      *device
	handle uintptr
}

// Function finds a kernel.
func (m *module) Function(name string) (cuda.Function, error) {
	f := &function{v: m.v, name: name, params: -1}
	text := append([]byte(name), 0)
	err := m.v.call("cuModuleGetFunction", m.v.d.f.moduleGetFunction, clib.Address(&f.handle), m.handle,
		hostAddress(text))
	runtime.KeepAlive(text)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	if info := m.v.d.f.funcGetParamInfo; info != 0 {
		f.params = 0
		for i := uintptr(0); ; i++ {
			var offset, size uintptr
			if m.v.within(info, f.handle, i, clib.Address(&offset), clib.Address(&size)) != 0 {
				break
			}
			f.params = int(offset + size)
		}
	}
	return f, nil
}

// function is a CUfunction.
type function struct {
	v      *device
	name   string
	handle uintptr
	params int
}

func (f *function) Name() string    { return f.name }
func (f *function) ParamBytes() int { return f.params }

// SetMaxShared lets launches have more dynamic shared memory.
func (f *function) SetMaxShared(n int) error {
	return f.v.call("cuFuncSetAttribute", f.v.d.f.funcSetAttribute, f.handle, attributeMaxSharedBytes, uintptr(n))
}
