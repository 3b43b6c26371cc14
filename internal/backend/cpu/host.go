// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

var _ backend.HostMemory = (*Device)(nil)

// foreign is the class of buffers that wrap memory of others.
const foreign = -1

// least is how memory of others is aligned, in bytes: as the widest elements are.
const least = 8

// Wrap makes a buffer of memory that somebody else owns; see backend.HostMemory. It panics
// if the memory is not aligned to 8 bytes.
func (d *Device) Wrap(mem []byte, owner any) backend.Buffer {
	ptr := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(ptr)%least != 0 {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpInvalid,
			Msg: "memory to wrap is not aligned to 8 bytes"})
	}
	return &buffer{ptr: ptr, n: len(mem), class: foreign, owner: &d.mem, live: true, use: forKernels, of: owner}
}

// HostBytes shows the memory of a buffer of this device.
func (d *Device) HostBytes(b backend.Buffer) []byte { return d.own(b).bytes() }
