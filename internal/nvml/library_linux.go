// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux && !(nvml && cgo)

package nvml

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/clib"
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
	lib, err := clib.Open(name)
	if err != nil {
		if os.Getenv(EnvLibrary) == "" && strings.Contains(err.Error(), "No such file") {
			return nil, ErrNone
		}
		return nil, err
	}
	l := &native{}
	var start, driver, count, byIndex, name96, uuid, pci, capability uintptr
	if err := lib.Bind(map[string]*uintptr{
		"nvmlInit_v2": &start, "nvmlShutdown": &l.shutdown, "nvmlErrorString": &l.errorString,
		"nvmlSystemGetDriverVersion": &driver, "nvmlDeviceGetCount_v2": &count,
		"nvmlDeviceGetHandleByIndex_v2": &byIndex, "nvmlDeviceGetName": &name96, "nvmlDeviceGetUUID": &uuid,
		"nvmlDeviceGetPciInfo_v3": &pci, "nvmlDeviceGetCudaComputeCapability": &capability,
		"nvmlDeviceGetMemoryInfo": &l.memory, "nvmlDeviceGetUtilizationRates": &l.utilization,
		"nvmlDeviceGetPowerUsage": &l.power, "nvmlDeviceGetTemperature": &l.temperature,
	}); err != nil {
		return nil, err
	}
	if code := call(start); code != success {
		return nil, l.failed("nvmlInit_v2", code)
	}
	version := make([]byte, versionBytes)
	if code := call(driver, clib.Address(&version[0]), versionBytes); code != success {
		return nil, l.end(l.failed("nvmlSystemGetDriverVersion", code))
	}
	runtime.KeepAlive(version)
	l.driver = clib.Cut(version)
	n := new(uint32)
	if code := call(count, clib.Address(n)); code != success {
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

// look describes a device. What it does not tell is left out, except for its name.
func (l *native) look(i int, byIndex, name, uuid, pci, capability uintptr) (GPU, uintptr, error) {
	g, handle := GPU{Index: i}, new(uintptr)
	if code := call(byIndex, uintptr(i), clib.Address(handle)); code != success {
		return g, 0, l.failed(fmt.Sprintf("nvmlDeviceGetHandleByIndex_v2(%d)", i), code)
	}
	s := make([]byte, textLength)
	if code := call(name, *handle, clib.Address(&s[0]), textLength); code != success {
		return g, 0, l.failed(fmt.Sprintf("nvmlDeviceGetName(%d)", i), code)
	}
	g.Name = clib.Cut(s)
	if call(uuid, *handle, clib.Address(&s[0]), textLength) == success {
		g.UUID = clib.Cut(s)
	}
	info := make([]byte, busIDAt+busIDLength)
	if call(pci, *handle, clib.Address(&info[0])) == success {
		g.PCI = clib.Cut(info[busIDAt:])
	}
	version := new([2]int32)
	if call(capability, *handle, clib.Address(&version[0]), clib.Address(&version[1])) == success {
		g.Capability = fmt.Sprintf("%d.%d", version[0], version[1])
	}
	m := new([3]uint64) // total, free, used
	if call(l.memory, *handle, clib.Address(&m[0])) == success {
		g.Memory = int64(m[0])
	}
	return g, *handle, nil
}

// call calls a function of the library.
func call(f uintptr, args ...uintptr) int { return int(int32(clib.Call(f, args...))) }

func (l *native) failed(what string, code int) error {
	said := clib.Text(clib.Call(l.errorString, uintptr(code)))
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
		switch code := call(l.utilization, h, clib.Address(&rates[0])); code {
		case success:
			u.Utilization, u.MemoryUtilization = float64(rates[0]), float64(rates[1])
		case gpuIsLost:
			return nil, l.failed(fmt.Sprintf("device %d", i), code)
		}
		if call(l.memory, h, clib.Address(&memory[0])) == success {
			u.MemoryUsed = float64(memory[2])
		}
		if call(l.power, h, clib.Address(number)) == success {
			u.Power = float64(*number) / 1000
		}
		if call(l.temperature, h, 0, clib.Address(number)) == success {
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
