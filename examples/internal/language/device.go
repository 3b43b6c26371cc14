// SPDX-License-Identifier: Apache-2.0

package language

import (
	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// DeviceArguments say where a program computes that does not train.
type DeviceArguments struct {
	Device string `json:"device" usage:"where to compute: auto (an accelerator if there is one), cpu, or a device, such as cuda or cuda:1"`
}

// NewDevice has the default, which is that of training.
func NewDevice() *DeviceArguments { return &DeviceArguments{Device: args.DeviceAuto} }

// Check reports all faults at once.
func (a *DeviceArguments) Check(c *args.Checker) { trainer.Program().CheckDevice(c, a.Device) }

// Open opens the device.
func (a *DeviceArguments) Open() (*tensor.Device, error) { return accelerate.OpenDevice(a.Device) }
