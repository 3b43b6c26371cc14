// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/ptx"
)

// stream is a queue that a goroutine works off.
type stream struct {
	d     *device
	mu    sync.Mutex
	more  sync.Cond
	queue []func() error
	end   bool
	ended chan struct{}
	rng   *rand.Rand // of the goroutine
	into  *graph     // that a capture makes
}

// NewStream starts a queue.
func (d *device) NewStream() (cuda.Stream, error) {
	if err := d.lost(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.streams++
	d.made++
	seed := rand.New(rand.NewPCG(d.driver.options.Seed, uint64(d.number)<<32|uint64(d.made)))
	d.mu.Unlock()
	s := &stream{d: d, ended: make(chan struct{}), rng: seed}
	s.more.L = &s.mu
	go s.work()
	return s, nil
}

// work runs commands. After an error of the context they do nothing.
func (s *stream) work() {
	defer close(s.ended)
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.end {
			s.more.Wait()
		}
		if len(s.queue) == 0 {
			s.mu.Unlock()
			return
		}
		f := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		s.pause()
		if err := f(); err != nil {
			s.d.fail(err)
		}
		s.d.mu.Lock()
		s.d.queued--
		s.d.pending.Broadcast()
		s.d.mu.Unlock()
	}
}

// pause lets other streams go first, sometimes. It does not sleep, which takes a millisecond or more however short it
// was to be.
func (s *stream) pause() {
	most := s.d.driver.options.Delay
	switch r := s.rng.IntN(8); {
	case r == 0 && most > 0:
		begun, length := time.Now(), time.Duration(s.rng.Int64N(int64(most)))
		for time.Since(begun) < length {
			runtime.Gosched()
		}
	case r < 3:
		for range s.rng.IntN(20) {
			runtime.Gosched()
		}
	}
}

// push queues a command, unless the context is lost, or makes it part of a graph. always is for commands that others
// wait for.
func (s *stream) push(always bool, f func() error) error {
	return s.pushNode(always, node{run: func([]byte) error { return f() }})
}

func (s *stream) pushNode(always bool, n node) error {
	if err := s.d.lost(); err != nil && !always {
		return err
	}
	if s.captured(n) {
		return nil
	}
	s.d.mu.Lock()
	s.d.queued++
	s.d.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end {
		panic("fake: work for a closed stream")
	}
	s.queue = append(s.queue, func() error {
		if !always && s.d.lost() != nil {
			return nil
		}
		return n.run(n.params)
	})
	s.more.Signal()
	return nil
}

// Launch queues a kernel.
func (s *stream) Launch(f cuda.Function, grid, block [3]uint32, shared int, params []byte) error {
	k, ok := f.(*function)
	if !ok || k.d != s.d {
		return failed("cuLaunchKernel", invalidHandle, "a function of another context")
	}
	at := k.kernel()
	threads := uint64(block[0]) * uint64(block[1]) * uint64(block[2])
	switch {
	case at.err != nil:
		return at.err
	case threads == 0 || threads > 1024 || block[2] > 64:
		return failed("cuLaunchKernel", invalidValue, "%s: blocks of %v threads", k.name, block)
	case grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > 1<<31-1 || grid[1] > 65535 || grid[2] > 65535:
		return failed("cuLaunchKernel", invalidValue, "%s: a grid of %v blocks", k.name, grid)
	case shared < 0 || shared > k.maxShared():
		return failed("cuLaunchKernel", invalidValue, "%s: %d bytes of dynamic shared memory, of %d", k.name, shared,
			k.maxShared())
	case len(params) != at.k.ParamBytes():
		return failed("cuLaunchKernel", invalidValue, "%s: %d bytes of parameters: want %d", k.name, len(params),
			at.k.ParamBytes())
	}
	s.count()
	o := s.d.driver.options
	return s.pushNode(false, node{kernel: k, params: slices.Clone(params), run: func(params []byte) error {
		stats, err := at.k.Run(s.d.mem, ptx.Launch{Grid: grid, Block: block, SharedBytes: shared, Seed: s.rng.Uint64(),
			Workers: o.Workers, CheckRaces: o.CheckRaces, MaxInstructions: o.Budget}, params)
		if err != nil {
			return kernelError(k.name, err)
		}
		if o.Ran != nil {
			o.Ran(k.name, stats.Instructions)
		}
		return nil
	}})
}

// CopyToDevice queues a copy of pinned memory.
func (s *stream) CopyToDevice(dst cuda.Ptr, src []byte) error {
	const call = "cuMemcpyHtoDAsync"
	if err := s.direct(call); err != nil {
		return err
	}
	if !s.d.pinned.holds(src) {
		return failed(call, invalidValue, "the host memory is not pinned: the copy would wait")
	}
	was := slices.Clone(src)
	return s.push(false, func() error {
		switch {
		case !s.d.pinned.holds(src):
			return failed(call, illegalAddress, "the host memory was freed before the copy was done")
		case !bytes.Equal(was, src):
			return failed(call, illegalAddress, "the host memory was changed before the copy was done")
		}
		return s.write(call, dst, was)
	})
}

// CopyToHost queues a copy to pinned memory, which is garbage until then.
func (s *stream) CopyToHost(dst []byte, src cuda.Ptr) error {
	const call = "cuMemcpyDtoHAsync"
	if err := s.direct(call); err != nil {
		return err
	}
	if !s.d.pinned.holds(dst) {
		return failed(call, invalidValue, "the host memory is not pinned: the copy would wait")
	}
	if err := s.d.lost(); err != nil {
		return err
	}
	garbage(dst)
	return s.push(false, func() error {
		if !s.d.pinned.holds(dst) {
			return failed(call, illegalAddress, "the host memory was freed before the copy was done")
		}
		if err := s.d.mem.Read(dst, uint64(src)); err != nil {
			return failed(call, illegalAddress, "%v", err)
		}
		return nil
	})
}

// CopyOnDevice queues a copy. What is undefined stays so.
func (s *stream) CopyOnDevice(dst, src cuda.Ptr, n int) error {
	const call = "cuMemcpyDtoDAsync"
	s.count()
	return s.push(false, func() error {
		if err := s.d.mem.Copy(uint64(dst), uint64(src), n); err != nil {
			return failed(call, illegalAddress, "%v", err)
		}
		return nil
	})
}

// Fill queues setting bytes.
func (s *stream) Fill(dst cuda.Ptr, value byte, n int) error {
	s.count()
	return s.push(false, func() error {
		return s.write("cuMemsetD8Async", dst, bytes.Repeat([]byte{value}, n))
	})
}

func (s *stream) write(call string, dst cuda.Ptr, raw []byte) error {
	if err := s.d.mem.Write(uint64(dst), raw); err != nil {
		return failed(call, illegalAddress, "%v", err)
	}
	return nil
}

// Forget makes the contents of memory undefined.
func (s *stream) Forget(p cuda.Ptr, n int) error {
	return s.push(false, func() error { return s.d.mem.Undefine(uint64(p), n) })
}

// Record queues a mark, which is what the event stands for from now on.
func (s *stream) Record(e cuda.Event) error {
	own, ok := e.(*event)
	if !ok {
		return failed("cuEventRecord", invalidHandle, "an event of another driver")
	}
	if err := s.direct("cuEventRecord"); err != nil {
		return err
	}
	if err := s.d.lost(); err != nil {
		return err
	}
	done := make(chan struct{})
	own.set(done)
	return s.push(true, func() error { close(done); return nil })
}

// Wait queues waiting for what the event stands for now.
func (s *stream) Wait(e cuda.Event) error {
	own, ok := e.(*event)
	if !ok {
		return failed("cuStreamWaitEvent", invalidHandle, "an event of another driver")
	}
	if err := s.direct("cuStreamWaitEvent"); err != nil {
		return err
	}
	if done := own.get(); done != nil {
		return s.push(false, func() error { <-done; return nil })
	}
	return nil
}

// Sync waits for the work so far.
func (s *stream) Sync() error {
	if err := s.direct("cuStreamSynchronize"); err != nil {
		return err
	}
	done := make(chan struct{})
	if err := s.push(true, func() error { close(done); return nil }); err != nil {
		return err
	}
	<-done
	return s.d.lost()
}

// Handle is no stream of a library.
func (s *stream) Handle() uintptr { return 0 }

// Close works off what is queued and ends the goroutine.
func (s *stream) Close() error {
	s.mu.Lock()
	s.end = true
	s.more.Signal()
	s.mu.Unlock()
	<-s.ended
	s.d.mu.Lock()
	s.d.streams--
	s.d.mu.Unlock()
	return nil
}

// event stands for a point in a stream.
type event struct {
	d    *device
	mu   sync.Mutex
	done chan struct{} // nil: never recorded
}

func (e *event) set(done chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = done
}

func (e *event) get() chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.done
}

// Sync waits until the work before the event is done.
func (e *event) Sync() error {
	e.d.alive()
	e.d.driver.calls.Add(1)
	if done := e.get(); done != nil {
		<-done
	}
	return e.d.lost()
}

// Done reports whether it is.
func (e *event) Done() (bool, error) {
	e.d.alive()
	e.d.driver.calls.Add(1)
	done := e.get()
	if done == nil {
		return true, e.d.lost()
	}
	select {
	case <-done:
		return true, e.d.lost()
	default:
		return false, e.d.lost()
	}
}

// Close does nothing.
func (e *event) Close() error {
	e.d.alive()
	return nil
}

// Hold queues waiting for a channel, with which a test holds the stream back.
func (s *stream) Hold(gate <-chan struct{}) {
	_ = s.push(true, func() error { <-gate; return nil })
}
