// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/mapped"
)

// FromHost returns a tensor over host memory that the caller owns, aligned to 8 bytes
// (kernels are fastest at 64), without a copy; ok is false if the device does not compute
// in host memory. The memory must outlive the tensor, and the caller must synchronise
// (Ctx.Sync) before accessing it.
func FromHost(c *Ctx, mem []byte, dt DType, shape ...int) (t *Tensor, ok bool) {
	return FromOwner(c, mem, nil, dt, shape...)
}

// FromOwner is FromHost for memory that belongs to owner. The tensor refers to owner, so the garbage collector keeps
// owner as long as the memory is used.
func FromOwner(c *Ctx, mem []byte, owner any, dt DType, shape ...int) (t *Tensor, ok bool) {
	host, ok := c.eng.dev.be.(backend.HostMemory)
	if !ok {
		return nil, false
	}
	if n := c.checkShape("FromHost", dt, shape); n*dt.Size() != len(mem) {
		c.fail("FromHost", nil, "%d bytes do not fill %v%v", len(mem), dt, append([]int(nil), shape...))
	}
	s := &storage{dev: c.eng.dev, buf: host.Wrap(mem, owner), refs: 1, op: "FromHost", step: c.eng.step}
	s.give(c.memory("FromHost"))
	return newTensor(s, dt, shape), true
}

// HostBytes returns the memory of a contiguous tensor in host memory, after waiting for the kernels launched so far; ok
// is false if the memory is elsewhere or has gaps, or if it is a mapped file, which only copies (ReadBytes) access
// safely. The bytes are valid as long as the tensor.
func HostBytes(c *Ctx, t *Tensor) (mem []byte, ok bool) {
	t.check(c, "HostBytes")
	host, ok := c.eng.dev.be.(backend.HostMemory)
	if !ok || !t.IsContiguous() {
		return nil, false
	}
	c.Sync()
	at := t.offset * t.dtype.Size()
	return plainMemory(host.HostBytes(t.st.buf)[at : at+t.Bytes()])
}

// plainMemory refuses memory of a file: a fault there, when the file was cut short or its disk fails, would end the
// process outside of copies and kernels.
func plainMemory(mem []byte) ([]byte, bool) {
	if mapped.Holds(mem) {
		return nil, false
	}
	return mem, true
}
