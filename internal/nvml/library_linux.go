// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux && !(nvml && cgo)

package nvml

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// EnvLibrary names the file of the library, for one that is found under no usual name.
const EnvLibrary = "LOCKSTEP_NVML_LIBRARY"

// Codes of nvmlReturn_t.
const (
	success      = 0
	gpuIsLost    = 15
	textLength   = 96
	busIDAt      = 16 + 5*4 // of busId in nvmlPciInfo_t, behind busIdLegacy and five numbers
	busIDLength  = 32
	versionBytes = 80
)

// native calls libnvidia-ml. Structs lie in byte arrays whose layout is nvml.h's.
type native struct {
	driver string
	gpus   []GPU
	handle []uintptr // nvmlDevice_t

	errorString, shutdown, utilization, memory, power, temperature uintptr
}

func openLibrary() (Library, error) {
	name := "libnvidia-ml.so.1"
	if s := os.Getenv(EnvLibrary); s != "" {
		name = s
	}
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		if os.Getenv(EnvLibrary) == "" && strings.Contains(err.Error(), "No such file") {
			return nil, ErrNone
		}
		return nil, err
	}
	l := &native{}
	var start, driver, count, byIndex, name96, uuid, pci, capability uintptr
	for symbol, f := range map[string]*uintptr{
		"nvmlInit_v2": &start, "nvmlShutdown": &l.shutdown, "nvmlErrorString": &l.errorString,
		"nvmlSystemGetDriverVersion": &driver, "nvmlDeviceGetCount_v2": &count,
		"nvmlDeviceGetHandleByIndex_v2": &byIndex, "nvmlDeviceGetName": &name96, "nvmlDeviceGetUUID": &uuid,
		"nvmlDeviceGetPciInfo_v3": &pci, "nvmlDeviceGetCudaComputeCapability": &capability,
		"nvmlDeviceGetMemoryInfo": &l.memory, "nvmlDeviceGetUtilizationRates": &l.utilization,
		"nvmlDeviceGetPowerUsage": &l.power, "nvmlDeviceGetTemperature": &l.temperature,
	} {
		if *f, err = purego.Dlsym(lib, symbol); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if code := call(start); code != success {
		return nil, l.failed("nvmlInit_v2", code)
	}
	version := make([]byte, versionBytes)
	if code := call(driver, at(&version[0]), versionBytes); code != success {
		return nil, l.end(l.failed("nvmlSystemGetDriverVersion", code))
	}
	runtime.KeepAlive(version)
	l.driver = text(version)
	n := new(uint32)
	if code := call(count, at(n)); code != success {
		return nil, l.end(l.failed("nvmlDeviceGetCount_v2", code))
	}
	for i := range int(*n) {
		g, handle, err := l.look(i, byIndex, name96, uuid, pci, capability)
		if err != nil {
			return nil, l.end(err)
		}
		l.gpus, l.handle = append(l.gpus, g), append(l.handle, handle)
	}
	return l, nil
}

// look describes a device. What it does not tell is left out, but for its name.
func (l *native) look(i int, byIndex, name, uuid, pci, capability uintptr) (GPU, uintptr, error) {
	g, handle := GPU{Index: i}, new(uintptr)
	if code := call(byIndex, uintptr(i), at(handle)); code != success {
		return g, 0, l.failed(fmt.Sprintf("nvmlDeviceGetHandleByIndex_v2(%d)", i), code)
	}
	s := make([]byte, textLength)
	if code := call(name, *handle, at(&s[0]), textLength); code != success {
		return g, 0, l.failed(fmt.Sprintf("nvmlDeviceGetName(%d)", i), code)
	}
	g.Name = text(s)
	if call(uuid, *handle, at(&s[0]), textLength) == success {
		g.UUID = text(s)
	}
	info := make([]byte, busIDAt+busIDLength)
	if call(pci, *handle, at(&info[0])) == success {
		g.PCI = text(info[busIDAt:])
	}
	version := new([2]int32)
	if call(capability, *handle, at(&version[0]), at(&version[1])) == success {
		g.Capability = fmt.Sprintf("%d.%d", version[0], version[1])
	}
	m := new([3]uint64) // total, free, used
	if call(l.memory, *handle, at(&m[0])) == success {
		g.Memory = int64(m[0])
	}
	return g, *handle, nil
}

// call calls a function of the library.
func call(f uintptr, args ...uintptr) int {
	code, _, _ := purego.SyscallN(f, args...)
	return int(int32(code))
}

// at is the address of x, which it makes the compiler put on the heap: a stack moves when it grows, and nobody would
// correct the number.
func at[T any](x *T) uintptr {
	if escapes {
		escaped = x
	}
	return uintptr(unsafe.Pointer(x))
}

var (
	escapes bool // never
	escaped any
)

func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

func (l *native) failed(what string, code int) error {
	address, _, _ := purego.SyscallN(l.errorString, uintptr(code))
	said := "no text"
	if address != 0 {
		var b []byte
		for p := *(*unsafe.Pointer)(unsafe.Pointer(&address)); *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
			b = append(b, *(*byte)(p))
		}
		said = string(b)
	}
	return fmt.Errorf("libnvidia-ml: %s: %s (%d)", what, said, code)
}

// end closes the library after an error.
func (l *native) end(err error) error {
	call(l.shutdown)
	return err
}

// Source is "libnvidia-ml".
func (*native) Source() string { return "libnvidia-ml" }

// Driver is the version of the driver.
func (l *native) Driver() string { return l.driver }

// GPUs lists the devices.
func (l *native) GPUs() []GPU { return l.gpus }

// Usage asks device by device.
func (l *native) Usage() ([]Usage, error) {
	usage := make([]Usage, len(l.handle))
	for i, h := range l.handle {
		u := unknown
		rates, memory, number := new([2]uint32), new([3]uint64), new(uint32)
		switch code := call(l.utilization, h, at(&rates[0])); code {
		case success:
			u.Utilization, u.MemoryUtilization = float64(rates[0]), float64(rates[1])
		case gpuIsLost:
			return nil, l.failed(fmt.Sprintf("device %d", i), code)
		}
		if call(l.memory, h, at(&memory[0])) == success {
			u.MemoryUsed = float64(memory[2])
		}
		if call(l.power, h, at(number)) == success {
			u.Power = float64(*number) / 1000
		}
		if call(l.temperature, h, 0, at(number)) == success {
			u.Temperature = float64(*number)
		}
		usage[i] = u
	}
	return usage, nil
}

// Close ends the library.
func (l *native) Close() error {
	if code := call(l.shutdown); code != success {
		return l.failed("nvmlShutdown", code)
	}
	return nil
}
