// SPDX-License-Identifier: Apache-2.0

package deferred

import (
	"bytes"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// stream is a queue of commands and, on the goroutine that works it off, a stream of the CPU.
type stream struct {
	d     *Device
	cpu   backend.Stream
	queue chan func()
	fault any // the first panic that no caller has seen; written by the goroutine, read after waiting for it
}

// do runs a command and keeps its panic for the next caller that waits.
func (s *stream) do(f func()) {
	defer func() {
		v := recover()
		if fault, ok := v.(*backend.Fault); ok {
			v = &backend.Fault{Backend: s.d.Name(), Op: fault.Op, Msg: fault.Msg, Cause: fault.Cause}
		}
		if v != nil && s.fault == nil {
			s.fault = v
		}
	}()
	f()
}

// Alloc returns a handle to n bytes. They are filled with NaN patterns in the order of the stream's work: what another
// stream writes before, because it did not wait for an event of this one, is lost.
func (s *stream) Alloc(n int) (backend.Buffer, error) {
	b, err := s.d.alloc(n, s)
	if err != nil {
		return nil, err
	}
	s.queue <- func() { s.cpu.Write(b.mem, 0, bytes.Repeat([]byte{0xFF}, n)) }
	return b, nil
}

// Launch queues a copy of the call. Operands that were freed before are found here, everything else when the kernel
// runs.
func (s *stream) Launch(c *backend.Call) {
	call := s.queued(c)
	s.d.launches.Add(1)
	s.queue <- func() { s.launch(&call) }
}

// launch runs a kernel. A clip factor's flag is 0 behind a fault.
func (s *stream) launch(c *backend.Call) {
	s.cpu.Launch(c)
	if c.Op == backend.OpClipFactor && s.fault != nil {
		out := &c.Out[0]
		s.cpu.Write(out.Buf, (out.Offset+2)*out.DType.Size(), make([]byte, out.DType.Size()))
	}
}

// LaunchMany queues copies of the calls as one command.
func (s *stream) LaunchMany(calls []backend.Call) {
	copied := make([]backend.Call, len(calls))
	for i := range calls {
		copied[i] = s.queued(&calls[i])
	}
	s.d.launches.Add(1)
	s.queue <- func() {
		for i := range copied {
			s.launch(&copied[i])
		}
	}
}

// queued is a copy of a call with the memory behind its handles.
func (s *stream) queued(c *backend.Call) backend.Call {
	call := *c
	for i := range call.NOut {
		call.Out[i].Buf = s.live(c.Op, c.Out[i].Buf)
	}
	for i := range call.NIn {
		call.In[i].Buf = s.live(c.Op, c.In[i].Buf)
	}
	if c.If.Buf != nil {
		call.If.Buf = s.live(c.Op, c.If.Buf)
	}
	return call
}

// Write queues a copy of the bytes.
func (s *stream) Write(dst backend.Buffer, offset int, src []byte) {
	mem, copied := s.live(backend.OpCopy, dst), slices.Clone(src)
	s.queue <- func() { s.cpu.Write(mem, offset, copied) }
}

// Read waits for all earlier work and copies bytes out. It panics with the first fault of that work.
func (s *stream) Read(dst []byte, src backend.Buffer, offset int) {
	mem := s.live(backend.OpCopy, src)
	s.queue <- func() { s.cpu.Read(dst, mem, offset) }
	s.Sync()
}

// Record returns an event that is done when the work so far is.
func (s *stream) Record() backend.Event { return &event{s.d, s.record()} }

// record returns a channel that is closed when the work so far is done.
func (s *stream) record() chan struct{} {
	done := make(chan struct{})
	s.queue <- func() { close(done) }
	return done
}

// Wait holds later work of the stream back until the event is done.
func (s *stream) Wait(e backend.Event) {
	if own, ok := e.(*event); ok {
		s.queue <- func() { <-own.done } // the host does not wait
		return
	}
	s.queue <- e.Sync
}

// Sync waits for all earlier work. It panics with the first fault of that work.
func (s *stream) Sync() {
	s.d.waits.Add(1)
	<-s.record()
	if fault := s.fault; fault != nil {
		s.fault = nil
		panic(fault)
	}
}

// event is done when the work before it is.
type event struct {
	d    *Device
	done chan struct{}
}

// Sync waits until the work before the event is done.
func (e *event) Sync() {
	e.d.waits.Add(1)
	<-e.done
}

// Done reports whether it is.
func (e *event) Done() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}
