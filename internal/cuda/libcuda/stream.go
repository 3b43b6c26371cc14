// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// stream is a CUstream.
type stream struct {
	v      *device
	handle uintptr
	into   *graph // that a capture makes
}

// frame is the parameter block of a launch, and the list that tells the driver where it is. It lies on the heap, which
// does not move.
type frame struct {
	extra  [5]uintptr
	size   uintptr
	params [4096]byte
	node   nodeParams // of a graph's kernel
}

// fill puts a parameter block into the frame.
func (p *frame) fill(params []byte) {
	p.size = uintptr(copy(p.params[:], params))
	p.extra = [5]uintptr{launchParamPointer, clib.Address(&p.params), launchParamBytes, clib.Address(&p.size),
		launchParamEnd}
}

var frames = sync.Pool{New: func() any { return new(frame) }}

// Launch queues a kernel.
func (s *stream) Launch(f cuda.Function, grid, block [3]uint32, shared int, params []byte) error {
	k, ok := f.(*function)
	if !ok {
		return fmt.Errorf("cuLaunchKernel: kernel %s of another driver", f.Name())
	}
	p := frames.Get().(*frame)
	defer frames.Put(p)
	p.fill(params)
	err := s.v.call("cuLaunchKernel", s.v.d.f.launch, k.handle, uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]),
		uintptr(block[0]), uintptr(block[1]), uintptr(block[2]), uintptr(shared), s.handle, 0, clib.Address(&p.extra))
	runtime.KeepAlive(p)
	if err != nil {
		return fmt.Errorf("kernel %s of %v blocks of %v threads: %w", k.name, grid, block, err)
	}
	if s.into != nil {
		return s.note(k, grid, block, shared)
	}
	return nil
}

// CopyToDevice queues a copy of pinned memory.
func (s *stream) CopyToDevice(dst cuda.Ptr, src []byte) error {
	if s.into != nil {
		return uncaptured("cuMemcpyHtoDAsync")
	}
	return s.v.call("cuMemcpyHtoDAsync", s.v.d.f.memcpyHtoD, uintptr(dst), hostAddress(src), uintptr(len(src)),
		s.handle)
}

// CopyToHost queues a copy to pinned memory.
func (s *stream) CopyToHost(dst []byte, src cuda.Ptr) error {
	if s.into != nil {
		return uncaptured("cuMemcpyDtoHAsync")
	}
	return s.v.call("cuMemcpyDtoHAsync", s.v.d.f.memcpyDtoH, hostAddress(dst), uintptr(src), uintptr(len(dst)),
		s.handle)
}

// CopyOnDevice queues a copy.
func (s *stream) CopyOnDevice(dst, src cuda.Ptr, n int) error {
	return s.v.call("cuMemcpyDtoDAsync", s.v.d.f.memcpyDtoD, uintptr(dst), uintptr(src), uintptr(n), s.handle)
}

// Fill queues setting bytes.
func (s *stream) Fill(dst cuda.Ptr, value byte, n int) error {
	return s.v.call("cuMemsetD8Async", s.v.d.f.memsetD8, uintptr(dst), uintptr(value), uintptr(n), s.handle)
}

// Record records an event.
func (s *stream) Record(e cuda.Event) error {
	if s.into != nil {
		return uncaptured("cuEventRecord")
	}
	own, ok := e.(*event)
	if !ok {
		return errors.New("cuEventRecord: an event of another driver")
	}
	return s.v.call("cuEventRecord", s.v.d.f.eventRecord, own.handle, s.handle)
}

// Wait holds later work back until an event, of any device.
func (s *stream) Wait(e cuda.Event) error {
	if s.into != nil {
		return uncaptured("cuStreamWaitEvent")
	}
	own, ok := e.(*event)
	if !ok {
		return errors.New("cuStreamWaitEvent: an event of another driver")
	}
	return s.v.call("cuStreamWaitEvent", s.v.d.f.streamWaitEvent, s.handle, own.handle, 0)
}

// Sync waits for the work so far.
func (s *stream) Sync() error {
	return s.v.call("cuStreamSynchronize", s.v.d.f.streamSynchronize, s.handle)
}

// Handle is the CUstream.
func (s *stream) Handle() uintptr { return s.handle }

// Close destroys the stream, when its work is done.
func (s *stream) Close() error {
	return errors.Join(s.Sync(), s.v.call("cuStreamDestroy", s.v.d.f.streamDestroy, s.handle))
}

// event is a CUevent.
type event struct {
	v      *device
	handle uintptr
}

// Sync waits for the event.
func (e *event) Sync() error {
	return e.v.call("cuEventSynchronize", e.v.d.f.eventSynchronize, e.handle)
}

// Done asks whether it is done.
func (e *event) Done() (bool, error) {
	code := e.v.within(e.v.d.f.eventQuery, e.handle)
	if int32(code) == notReady {
		return false, nil
	}
	err := e.v.d.result("cuEventQuery", code)
	return err == nil, err
}

// Close destroys the event.
func (e *event) Close() error {
	return e.v.call("cuEventDestroy", e.v.d.f.eventDestroy, e.handle)
}
