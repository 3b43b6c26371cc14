// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/hostmemory"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Buffer is a piece of the caller's memory and the type of its elements. It is a view: calls read and write the memory
// itself, which must not be touched until the call's handle is done.
type Buffer struct {
	data   []byte // for memory of a device that is not the host's: where to stage it, nil: wherever the group likes
	dtype  dtype.DType
	memory *tensor.Memory // nil: ordinary memory, ready
}

// OfTensor returns the memory of the contiguous tensor t, on any device, as a Buffer. The call waits for the kernels
// that c has launched so far, and the caller does not; kernels that are launched after the call's handle is done see
// the result. Engines work in host memory: other memory, and mapped files, are copied there and back.
func OfTensor(c *tensor.Ctx, t *tensor.Tensor) Buffer {
	m := t.Memory(c)
	data, _ := m.Host()
	return Buffer{data: data, dtype: t.DType(), memory: m}
}

// Via returns the buffer with host memory through which it is copied if it is on a device without host memory: memory
// of Group.Alloc, which the engine reduces in place. It has no effect on other buffers, or without that memory.
func (b Buffer) Via(staging []byte) Buffer {
	if b.memory != nil && !onHost(b.memory) && len(staging) > 0 {
		b.data = staging
	}
	return b
}

// Of returns s as a Buffer.
func Of[T tensor.Element](s []T) Buffer {
	return Buffer{data: dtype.Bytes(s), dtype: dtype.Of[T]()}
}

// Bytes returns b, which holds elements of dtype d in the host's byte order, as a Buffer. Its length must be a multiple
// of d's size and its address a multiple too; a call returns an error otherwise.
func Bytes(b []byte, d dtype.DType) Buffer { return Buffer{data: b, dtype: d} }

// DType returns the type of the elements.
func (b Buffer) DType() dtype.DType { return b.dtype }

// Len returns the number of elements.
func (b Buffer) Len() int {
	if b.dtype.Size() == 0 {
		return 0
	}
	if b.memory != nil {
		return b.memory.Len() / b.dtype.Size()
	}
	return len(b.data) / b.dtype.Size()
}

// check returns an error if the memory cannot hold elements of the dtype.
func (b Buffer) check() error {
	size := b.dtype.Size()
	switch {
	case size == 0:
		return fmt.Errorf("buffer of dtype %v: want a valid one", b.dtype)
	case b.memory != nil && b.data != nil && len(b.data) != b.memory.Len():
		return fmt.Errorf("%d bytes to stage a tensor of %d bytes: want as many", len(b.data), b.memory.Len())
	case len(b.data)%size != 0:
		return fmt.Errorf("buffer of %d bytes: want a multiple of %d (%v)", len(b.data), size, b.dtype)
	case uintptr(unsafe.Pointer(unsafe.SliceData(b.data)))%uintptr(size) != 0:
		return fmt.Errorf("buffer at an address that is not a multiple of %d (%v)", size, b.dtype)
	}
	return nil
}

// overlaps reports whether two buffers share memory.
func (b Buffer) overlaps(o Buffer) bool {
	if b.memory != nil && o.memory != nil && b.memory.Overlaps(o.memory) {
		return true
	}
	if len(b.data) == 0 || len(o.data) == 0 {
		return false
	}
	b0, o0 := uintptr(unsafe.Pointer(&b.data[0])), uintptr(unsafe.Pointer(&o.data[0]))
	return b0 < o0+uintptr(len(o.data)) && o0 < b0+uintptr(len(b.data))
}

// Memory is a piece of memory that an engine gave out.
type Memory struct {
	Bytes []byte // zeroed, aligned to 64 bytes
	free  func() error
}

// NewMemory is for engines: free is called once, by Free, and may be nil.
func NewMemory(b []byte, free func() error) *Memory { return &Memory{Bytes: b, free: free} }

// Free frees the memory. Nothing may use it afterwards, on any rank: free it after a barrier, or when the group is dead
// or closed.
func (m *Memory) Free() error {
	f := m.free
	m.Bytes, m.free = nil, nil
	if f == nil {
		return nil
	}
	return f()
}

// View returns the memory as elements of type T.
func View[T tensor.Element](m *Memory) []T { return dtype.Elements[T](m.Bytes) }

// Aligned returns n bytes of ordinary memory at an address that is a multiple of 64. It is for engines; programs use
// Group.Alloc. Memory of several large pages is put in such: messages between processes then look up a few hundred
// times fewer pages.
func Aligned(n int) []byte {
	const least = 2 * hostmemory.HugePage
	align := 64
	if n >= least {
		align = hostmemory.HugePage
	}
	b := make([]byte, n+align-1)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & uintptr(align-1))
	b = b[skip : skip+n : skip+n]
	if n >= least {
		hostmemory.WantHugePages(b[:n&^(hostmemory.HugePage-1)])
	}
	return b
}
