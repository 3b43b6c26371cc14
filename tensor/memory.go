// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"runtime"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// Memory is the device memory of a contiguous tensor and the event after which it has the tensor's elements. It is for
// packages that move tensors between ranks; it refers to the tensor, which must not be freed meanwhile.
type Memory struct {
	t     *Tensor
	dev   *Device
	buf   backend.Buffer
	at, n int // bytes in buf
	ready backend.Event
}

// Memory returns t's memory as it will be once the kernels that c has launched so far are done. t must be contiguous.
func (t *Tensor) Memory(c *Ctx) *Memory {
	t.check(c, "Memory")
	if !t.IsContiguous() {
		c.fail("Memory", []*Tensor{t}, "want a contiguous tensor")
	}
	return &Memory{t, t.st.dev, t.st.buf, t.offset * t.dtype.Size(), t.Bytes(), c.eng.stream.Record()}
}

// Device is the device of the memory.
func (m *Memory) Device() *Device { return m.dev }

// DType is the type of its elements.
func (m *Memory) DType() DType { return m.t.dtype }

// Len is the number of bytes.
func (m *Memory) Len() int { return m.n }

// Wait waits for the event.
func (m *Memory) Wait() { m.ready.Sync() }

// Host returns the memory if it is host memory; ok is false elsewhere, and for a mapped file, as in HostBytes. Call
// Wait before using it.
func (m *Memory) Host() (mem []byte, ok bool) {
	host, ok := m.dev.be.(backend.HostMemory)
	if !ok {
		return nil, false
	}
	return plainMemory(host.HostBytes(m.buf)[m.at : m.at+m.n : m.at+m.n])
}

// Overlaps reports whether the two share bytes of a device.
func (m *Memory) Overlaps(o *Memory) bool {
	return m.buf == o.buf && m.at < o.at+o.n && o.at < m.at+m.n
}

// Queue copies memory of a device from and to the host, concurrently with the contexts that compute there. It belongs
// to one goroutine at a time.
type Queue struct{ stream backend.Stream }

// NewQueue returns a queue of copies.
func (d *Device) NewQueue() *Queue { return &Queue{d.be.NewStream()} }

// Read copies the memory to dst, of Len bytes, after its event and what the queue did before.
func (q *Queue) Read(dst []byte, m *Memory) {
	q.stream.Wait(m.ready)
	q.stream.Read(dst, m.buf, m.at)
	runtime.KeepAlive(m)
}

// Write copies src, of Len bytes, to the memory, after its event, and waits until every context can read it.
func (q *Queue) Write(m *Memory, src []byte) {
	q.stream.Wait(m.ready)
	q.stream.Write(m.buf, m.at, src)
	q.stream.Sync()
	runtime.KeepAlive(m)
}

// Bits returns a vector of dt over the whole memory of the contiguous tensor t, without a conversion. Bytes at the end
// that do not fill an element are left out. It takes no part in autograd.
func (t *Tensor) Bits(dt DType) *Tensor {
	if !t.IsContiguous() || t.offset*t.dtype.Size()%dt.Size() != 0 {
		panic(&Error{Op: "Bits", Inputs: []string{describe(t)},
			Msg: "want a contiguous tensor that begins at a multiple of the new element's size"})
	}
	v := t.alias()
	v.offset = t.offset * t.dtype.Size() / dt.Size()
	v.dtype, v.ndim = dt, 1
	v.shape[0], v.stride[0] = t.Bytes()/dt.Size(), 1
	return v
}
