// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// communicator is one of NCCL's. Abort frees it in the library, and may come from another goroutine than the calls. A
// mutex therefore covers each call of the library, which is short since the communicator does not block, and a group of
// calls from its start to its end. It covers no wait, neither for the communicator nor for the device: work may hang
// there that only Abort ends.
type communicator struct {
	lib *library
	dev cuda.Device
	// where the library stores the communicator, once when its initialisation begins and again, from its own thread,
	// when that ends
	cell *uintptr

	mu     sync.Mutex
	handle uintptr // 0: given up or back
}

// errGivenUp is the error of calls after Abort or Close.
var errGivenUp = errors.New("the communicator was aborted")

// How often a communicator in progress is looked at, and how long its end may take.
const (
	look     = 100 * time.Microsecond
	patience = 30 * time.Second
)

// settle waits until the communicator is no longer in progress.
func (c *communicator) settle(name string, over func() error) error {
	for {
		state, err := c.look(name)
		if err != nil || state != inProgress {
			return err
		}
		if err := over(); err != nil {
			return err
		}
		time.Sleep(look)
	}
}

// look returns the communicator's state, or its error as one of the call that name names.
func (c *communicator) look(name string) (state int32, err error) {
	now := new(int32)
	err = c.with(func() error {
		if err := c.lib.call("ncclCommGetAsyncError", c.lib.asyncError, c.handle, clib.Address(now)); err != nil {
			return err
		}
		return c.lib.result(name, c.handle, *now)
	})
	return *now, err
}

// with calls f unless the communicator was aborted, which does not happen meanwhile.
func (c *communicator) with(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handle == 0 {
		return errGivenUp
	}
	return f()
}

// AsyncError is what went wrong in work that was queued.
func (c *communicator) AsyncError() error {
	_, err := c.look("NCCL")
	return err
}

// Group makes the calls of f one.
func (c *communicator) Group(f func() error) error {
	if err := c.with(func() error { return c.group(f) }); err != nil {
		return err
	}
	return c.queued("ncclGroupEnd")
}

// group is Group up to the end of the calls. The library counts groups by thread.
func (c *communicator) group(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.lib.call("ncclGroupStart", c.lib.groupStart); err != nil {
		return err
	}
	err := f()
	if e := c.lib.call("ncclGroupEnd", c.lib.groupEnd); err == nil {
		err = e
	}
	return err
}

// queued waits until what was called is queued on the stream, which is soon.
func (c *communicator) queued(name string) error {
	deadline := time.Now().Add(patience)
	return c.settle(name, func() error {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is in progress after %v", name, patience)
		}
		return nil
	})
}

// on calls a function with the device current.
func (c *communicator) on(name string, f uintptr, args ...uintptr) error {
	return c.dev.Do(func() error { return c.lib.call(name, f, args...) })
}

// alone is a call that is no part of a group. The communicator follows its arguments, and then the stream, unless that
// is nil.
func (c *communicator) alone(name string, f uintptr, s cuda.Stream, args ...uintptr) error {
	err := c.with(func() error {
		args = append(args, c.handle)
		if s != nil {
			args = append(args, s.Handle())
		}
		return c.on(name, f, args...)
	})
	if err != nil {
		return err
	}
	return c.queued(name)
}

// Send queues a message, within a Group.
func (c *communicator) Send(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, to int) error {
	return c.on("ncclSend", c.lib.send, uintptr(p), uintptr(count), uintptr(dt), uintptr(to), c.handle, s.Handle())
}

// Recv queues taking a message, within a Group.
func (c *communicator) Recv(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, from int) error {
	return c.on("ncclRecv", c.lib.recv, uintptr(p), uintptr(count), uintptr(dt), uintptr(from), c.handle, s.Handle())
}

// AllReduce queues a sum.
func (c *communicator) AllReduce(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType, op nccl.RedOp) error {
	return c.alone("ncclAllReduce", c.lib.allReduce, s, uintptr(in), uintptr(out), uintptr(count), uintptr(dt),
		uintptr(op))
}

// ReduceScatter queues a sum of which each rank keeps a part.
func (c *communicator) ReduceScatter(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType,
	op nccl.RedOp) error {
	return c.alone("ncclReduceScatter", c.lib.reduceScatter, s, uintptr(in), uintptr(out), uintptr(count), uintptr(dt),
		uintptr(op))
}

// AllGather queues putting parts side by side.
func (c *communicator) AllGather(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType) error {
	return c.alone("ncclAllGather", c.lib.allGather, s, uintptr(in), uintptr(out), uintptr(count), uintptr(dt))
}

// Broadcast queues a copy of the root's.
func (c *communicator) Broadcast(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, root int) error {
	return c.alone("ncclBroadcast", c.lib.broadcast, s, uintptr(p), uintptr(p), uintptr(count), uintptr(dt),
		uintptr(root))
}

// Abort ends queued work and gives the communicator up. It waits for a call of the library that is under way; calls
// that come later, or wait for the communicator, return an error.
func (c *communicator) Abort() error { return c.end("ncclCommAbort", c.lib.abort) }

// end gives the communicator back to the library, once. If that fails its cell is kept for good.
func (c *communicator) end(name string, f uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handle == 0 {
		return nil
	}
	err := c.on(name, f, c.handle)
	c.handle = 0
	if err == nil {
		c.lib.hold(c, false)
	}
	return err
}

// Close waits for queued work and gives the communicator back.
func (c *communicator) Close() error {
	err := c.alone("ncclCommFinalize", c.lib.finalize, nil)
	if errors.Is(err, errGivenUp) {
		return nil
	}
	if err != nil {
		return errors.Join(err, c.Abort())
	}
	return c.end("ncclCommDestroy", c.lib.destroy)
}
