// SPDX-License-Identifier: Apache-2.0

// Package joint joins backends to package tensor. A program chooses a device by its name (tensor.OpenDevice) and never
// sees a backend. Packages of this module that register a device, move tensors on it or test it need the backend and
// get it here. Package tensor sets the functions in its init, so that its API has no type that programs cannot name.
package joint

import "github.com/lockstep-ml/lockstep/internal/backend"

// The functions of package tensor: device is a *tensor.Device, memory a *tensor.Memory.
var (
	NewDevice func(be backend.Backend) (device any)
	BackendOf func(device any) backend.Backend
	MemoryOf  func(memory any) (be backend.Backend, buf backend.Buffer, at int, ready backend.Event)
)

// Device makes a device, a D = *tensor.Device, of a backend.
func Device[D any](be backend.Backend) D { return NewDevice(be).(D) }

// Backend returns the backend of a *tensor.Device.
func Backend(device any) backend.Backend { return BackendOf(device) }

// Native returns the memory of a *tensor.Memory for what moves it on the device itself: the device's backend, the
// buffer, the byte in it at which the tensor begins, and the event after which it holds the tensor.
func Native(memory any) (be backend.Backend, buf backend.Buffer, at int, ready backend.Event) {
	return MemoryOf(memory)
}
