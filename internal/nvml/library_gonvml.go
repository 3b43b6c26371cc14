// SPDX-License-Identifier: Apache-2.0

//go:build nvml && cgo

package nvml

import (
	"fmt"
	"math"

	nvidia "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// goNVML reads the figures through NVIDIA's own binding.
type goNVML struct {
	api     nvidia.Interface
	driver  string
	gpus    []GPU
	devices []nvidia.Device
}

func openLibrary() (Library, error) { return openGoNVML(nvidia.New()) }

// openGoNVML makes no call after an Init that failed: the binding's functions are then not bound, and a call ends the
// process.
func openGoNVML(api nvidia.Interface) (Library, error) {
	switch ret := api.Init(); ret {
	case nvidia.SUCCESS:
	case nvidia.ERROR_LIBRARY_NOT_FOUND:
		return nil, ErrNone
	default:
		return nil, fmt.Errorf("go-nvml: Init returned %d", int(ret))
	}
	l := &goNVML{api: api}
	if err := l.list(); err != nil {
		_ = api.Shutdown()
		return nil, err
	}
	return l, nil
}

func (l *goNVML) list() error {
	var ret nvidia.Return
	if l.driver, ret = l.api.SystemGetDriverVersion(); ret != nvidia.SUCCESS {
		return fmt.Errorf("go-nvml: driver version: %v", ret)
	}
	n, ret := l.api.DeviceGetCount()
	if ret != nvidia.SUCCESS {
		return fmt.Errorf("go-nvml: number of devices: %v", ret)
	}
	for i := range n {
		d, ret := l.api.DeviceGetHandleByIndex(i)
		if ret != nvidia.SUCCESS {
			return fmt.Errorf("go-nvml: device %d: %v", i, ret)
		}
		g := GPU{Index: i}
		if g.Name, ret = d.GetName(); ret != nvidia.SUCCESS {
			return fmt.Errorf("go-nvml: name of device %d: %v", i, ret)
		}
		g.UUID, _ = d.GetUUID() // what follows is left out where a device does not tell
		if pci, ret := d.GetPciInfo(); ret == nvidia.SUCCESS {
			g.PCI = text(pci.BusId[:])
		}
		if major, minor, ret := d.GetCudaComputeCapability(); ret == nvidia.SUCCESS {
			g.Capability = fmt.Sprintf("%d.%d", major, minor)
		}
		if m, ret := d.GetMemoryInfo(); ret == nvidia.SUCCESS {
			g.Memory = int64(m.Total)
		}
		l.gpus, l.devices = append(l.gpus, g), append(l.devices, d)
	}
	return nil
}

// text is a C string; the element type of go-nvml's arrays depends on its version.
func text[T int8 | uint8](c []T) string {
	var b []byte
	for _, x := range c {
		if x == 0 {
			break
		}
		b = append(b, byte(x))
	}
	return string(b)
}

// Source is "go-nvml".
func (*goNVML) Source() string { return "go-nvml" }

// Driver is the version of the driver.
func (l *goNVML) Driver() string { return l.driver }

// GPUs lists the devices.
func (l *goNVML) GPUs() []GPU { return l.gpus }

// Usage asks device by device.
func (l *goNVML) Usage() ([]Usage, error) {
	usage := make([]Usage, len(l.devices))
	for i, d := range l.devices {
		u := unknown
		if rates, ret := d.GetUtilizationRates(); ret == nvidia.SUCCESS {
			u.Utilization, u.MemoryUtilization = float64(rates.Gpu), float64(rates.Memory)
		} else if ret == nvidia.ERROR_GPU_IS_LOST {
			return nil, fmt.Errorf("go-nvml: device %d: %v", i, ret)
		}
		if m, ret := d.GetMemoryInfo(); ret == nvidia.SUCCESS {
			u.MemoryUsed = float64(m.Used)
		}
		if mw, ret := d.GetPowerUsage(); ret == nvidia.SUCCESS {
			u.Power = math.Round(float64(mw)) / 1000
		}
		if t, ret := d.GetTemperature(nvidia.TEMPERATURE_GPU); ret == nvidia.SUCCESS {
			u.Temperature = float64(t)
		}
		usage[i] = u
	}
	return usage, nil
}

// Close ends the library.
func (l *goNVML) Close() error {
	if ret := l.api.Shutdown(); ret != nvidia.SUCCESS {
		return fmt.Errorf("go-nvml: Shutdown: %v", ret)
	}
	return nil
}
