// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/mapped"
)

// stream runs everything on its caller, so that order is the caller's order and there is never anything to wait for.
type stream struct{ d *Device }

// NewStream returns a stream. Its calls return when the work is done.
func (d *Device) NewStream() backend.Stream { return &stream{d} }

// Alloc returns n bytes of memory with undefined contents, aligned to 64 bytes. Streams share all memory, since no work
// is under way when memory is given out.
func (s *stream) Alloc(n int) (backend.Buffer, error) { return s.d.Alloc(n) }

// Launch runs the kernel.
func (s *stream) Launch(c *backend.Call) {
	d := s.d
	if c.Op >= backend.NumOps || kernels[c.Op].run == nil {
		d.fault(c, "no kernel")
	}
	for i := range c.NOut {
		d.checkView(c, &c.Out[i], "output", i)
	}
	for i := range c.NIn {
		d.checkView(c, &c.In[i], "input", i)
	}
	if c.If.Buf != nil && !d.holds(c) {
		return
	}
	k := &kernels[c.Op]
	if c.NOut < k.outs || c.NIn < k.ins {
		d.fault(c, "%d outputs and %d inputs: want at least %d and %d", c.NOut, c.NIn, k.outs, k.ins)
	}
	if mapped.Any() {
		if err := mapped.Guard(func() { d.run(k, c) }); err != nil {
			panic(&backend.Fault{Backend: d.Name(), Op: c.Op, Msg: err.Error(), Cause: err})
		}
		return
	}
	d.run(k, c)
}

// run runs a kernel.
func (d *Device) run(k *kernel, c *backend.Call) {
	if !k.raw && c.HasHalf() {
		d.launchWidened(k, c)
		return
	}
	k.run(d, c)
}

// checkView faults on a view that leaves its buffer, since the memory is not the Go heap and nothing else would notice.
func (d *Device) checkView(c *backend.Call, v *backend.View, what string, i int) {
	b, ok := v.Buf.(*buffer)
	if !ok || b.owner != &d.mem {
		d.fault(c, "%s %d: a buffer of another device", what, i)
	}
	if !b.live {
		d.fault(c, "%s %d: a buffer that was freed", what, i)
	}
	if err := v.Inside(b.n); err != nil {
		d.fault(c, "%s %d: %v", what, i, err)
	}
}

// Write copies host bytes into dst.
func (s *stream) Write(dst backend.Buffer, offset int, src []byte) {
	s.d.copy(s.d.span(dst, offset, len(src)), src)
}

// Read copies device bytes out.
func (s *stream) Read(dst []byte, src backend.Buffer, offset int) {
	s.d.copy(dst, s.d.span(src, offset, len(dst)))
}

// copy copies from or to memory that may be a file's.
func (d *Device) copy(dst, src []byte) {
	if err := mapped.Guard(func() { copy(dst, src) }); err != nil {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpCopy, Msg: err.Error(), Cause: err})
	}
}

func (d *Device) span(b backend.Buffer, offset, n int) []byte {
	own := d.own(b)
	if !own.live || offset < 0 || offset+n > own.n {
		panic(&backend.Fault{Backend: d.Name(), Op: backend.OpCopy,
			Msg: fmt.Sprintf("bytes %d to %d of a buffer of %d bytes (in use: %t)", offset, offset+n, own.n, own.live)})
	}
	return own.bytes()[offset : offset+n]
}

// Record returns an event that is done.
func (s *stream) Record() backend.Event { return done{} }

// Wait does nothing: the work before any event of this device is done.
func (s *stream) Wait(backend.Event) {}

// Sync does nothing.
func (s *stream) Sync() {}

type done struct{}

func (done) Sync()      {}
func (done) Done() bool { return true }

// fault stops a launch.
func (d *Device) fault(c *backend.Call, format string, args ...any) {
	panic(&backend.Fault{Backend: d.Name(), Op: c.Op, Msg: fmt.Sprintf(format, args...)})
}
