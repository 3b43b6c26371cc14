// SPDX-License-Identifier: Apache-2.0

// Package nvml reads the state of this host's GPUs from NVIDIA's management library: names, memory, load, power and
// temperature. It is for reports and logs; computing goes through internal/cuda.
//
// There are three ways to the same figures, and Open takes the first that the program has and the host answers:
//
//   - go-nvml, in programs built with cgo and the tag nvml;
//   - libnvidia-ml.so.1, opened at run time, in programs built with the tag cuda;
//   - the program nvidia-smi.
package nvml

import (
	"errors"
	"fmt"
	"math"
)

// GPU describes a device.
type GPU struct {
	Index      int    `json:"index"` // NVML's, in the order of bus addresses; CUDA_VISIBLE_DEVICES does not change it
	Name       string `json:"name"`  // as NVIDIA H100 80GB HBM3
	UUID       string `json:"uuid"`  // as GPU-…
	PCI        string `json:"pci"`   // bus address, as 00000000:1B:00.0
	Capability string `json:"compute_capability"`
	Memory     int64  `json:"memory"` // bytes
}

// Usage is what a device does at the moment. A figure that the device does not tell is NaN.
type Usage struct {
	Utilization       float64 // percent of the last sampling period in which a kernel ran
	MemoryUtilization float64 // percent of the period in which memory was read or written
	MemoryUsed        float64 // bytes, of all processes
	Power             float64 // watts
	Temperature       float64 // °C
}

// unknown is a Usage of which nothing is known.
var unknown = Usage{math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()}

// Library is a way to the figures. One goroutine uses it at a time.
type Library interface {
	// Source is "go-nvml", "libnvidia-ml" or "nvidia-smi".
	Source() string
	// Driver is the version of NVIDIA's driver.
	Driver() string
	// GPUs lists the devices of the host by index.
	GPUs() []GPU
	// Usage reads the present state of all devices, by index.
	Usage() ([]Usage, error)
	Close() error
}

// ErrNone says that the host has no driver of NVIDIA's, or this program no way to it.
var ErrNone = errors.New("no NVIDIA driver")

// Open finds the GPUs of the host. Where there is no driver the error is ErrNone; one that does not answer is another
// error.
func Open() (Library, error) {
	var failed []error
	for _, open := range []func() (Library, error){openLibrary, openSMI} {
		l, err := open()
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, ErrNone) {
			failed = append(failed, err)
		}
	}
	if failed == nil {
		return nil, fmt.Errorf("nvml: %w", ErrNone)
	}
	return nil, fmt.Errorf("nvml: %w", errors.Join(failed...))
}
