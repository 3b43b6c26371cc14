// SPDX-License-Identifier: Apache-2.0

// Package engine is comm/nccl's device engine over any library of collectives: the real one, which comm/nccl opens, or
// the fake of internal/cuda/fake, over which tests run it. Programs import comm/nccl.
package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/failure"
	"github.com/lockstep-ml/lockstep/internal/backend"
	backendcuda "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/nccl"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Engine implements [comm.DeviceEngine] over NCCL. One goroutine makes its calls, the group's.
type Engine struct {
	lib     nccl.Library
	group   string
	control comm.Engine

	be     backend.Backend // of the first call: a rank has one device
	stream backend.Stream
	queue  cuda.Stream // stream's

	failure failure.State

	mu           sync.Mutex // guards communicator against Abort
	communicator nccl.Comm  // nil: no call was made yet, or it was given up
}

// New makes an engine over the library that nccl.Open returns. It is a comm.NewDeviceEngine.
func New(group string, control comm.Engine) (comm.DeviceEngine, error) {
	lib, err := nccl.Open()
	if err != nil {
		return nil, fmt.Errorf("comm/nccl: %w", err)
	}
	return over(lib)(group, control)
}

// over returns a function that makes engines over a library.
func over(lib nccl.Library) comm.NewDeviceEngine {
	return func(group string, control comm.Engine) (comm.DeviceEngine, error) {
		return &Engine{lib: lib, group: group, control: control}, nil
	}
}

// Describe names the library.
func (e *Engine) Describe() string { return "NCCL " + e.lib.Version() }

// Carries is true of collective calls on CUDA's devices, except for the barrier, which moves nothing.
func (e *Engine) Carries(s comm.Signature, dev *tensor.Device) bool {
	if s.Op == comm.Barrier || s.Op.PointToPoint() {
		return false
	}
	_, ok := joint.Backend(dev).(*backendcuda.Device)
	return ok
}

// Run queues the call behind what the tensors wait for, and waits for it.
func (e *Engine) Run(c *comm.Call, in, out *tensor.Memory) error {
	if err := e.failure.Err(); err != nil {
		return err
	}
	var err error
	if fault := tensor.Try(func() { err = e.run(c, in, out) }); fault != nil {
		err = fmt.Errorf("comm/nccl: %w", fault)
	}
	if err == nil {
		return nil
	}
	if first := e.failure.Err(); first != nil {
		return first
	}
	return e.named(c, err)
}

// named makes an error that names this rank, wherever it is told, of one that is none of package comm's.
func (e *Engine) named(c *comm.Call, err error) error {
	switch err.(type) {
	case *comm.TimeoutError, *comm.AbortError, *comm.RankLostError, *comm.MismatchError:
		return err
	}
	return &comm.AbortError{Group: c.Group, Rank: c.JobRank(e.control.Rank()), GroupRank: e.control.Rank(),
		Message: err.Error()}
}

func (e *Engine) run(c *comm.Call, in, out *tensor.Memory) error {
	// The garbage collector frees the memory of tensors that nobody refers to, and work has spans alone.
	defer runtime.KeepAlive(in)
	defer runtime.KeepAlive(out)
	if err := e.begin(c, in, out); err != nil {
		return err
	}
	e.mu.Lock()
	ranks := e.communicator
	e.mu.Unlock()
	if ranks == nil {
		return e.failure.Err()
	}
	w := &work{e: e, c: c, ranks: ranks, n: e.control.Size(), rank: e.control.Rank()}
	defer w.release()
	w.in, w.out = e.span(in, c.DType), e.span(out, c.DType)
	if err := w.queue(); err != nil {
		return fmt.Errorf("comm/nccl: %v: %w", c.Signature, err)
	}
	c.Queued()
	return e.await(c)
}

// begin makes the communicator and the stream in the first call, and lets the stream wait for the operands.
func (e *Engine) begin(c *comm.Call, in, out *tensor.Memory) error {
	for _, m := range []*tensor.Memory{in, out} {
		if m == nil {
			continue
		}
		be, _, _, ready := joint.Native(m)
		if e.be == nil {
			if err := e.open(c, be); err != nil {
				return err
			}
		}
		if be != e.be {
			return fmt.Errorf("comm/nccl: group %q: a tensor on %s after others on %s: want one device for each rank "+
				"of a group", e.group, be.Name(), e.be.Name())
		}
		e.stream.Wait(ready)
	}
	if e.be == nil { // neither gives nor receives, as a rank of no elements
		return errors.New("comm/nccl: a call without a tensor")
	}
	return nil
}

// open makes the rank's part of the communicator. Rank 0 names it, and tells the others by the host's engine.
func (e *Engine) open(c *comm.Call, be backend.Backend) error {
	dev, _ := backendcuda.Of(be)
	var id nccl.ID
	var err error
	if e.control.Rank() == 0 {
		id, err = e.lib.UniqueID()
	}
	// A failure travels as an empty name, so that nobody waits for it.
	tell := comm.Call{Signature: comm.Signature{Seq: c.Seq, Op: comm.Broadcast, DType: dtype.Uint8, Count: len(id),
		Label: "NCCL's unique id", Group: c.Group}, In: id[:], Out: id[:], Deadline: c.Deadline, Timeout: c.Timeout}
	if e := e.control.Run(&tell); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("comm/nccl: %w", err)
	}
	if id == (nccl.ID{}) {
		return errors.New("comm/nccl: rank 0 could not make a unique id")
	}
	if err := backendcuda.Prepare(be); err != nil { // NCCL makes ranks wait for each other
		return fmt.Errorf("comm/nccl: %w", err)
	}
	communicator, err := e.lib.Init(dev, e.control.Size(), e.control.Rank(), id, func() error { return e.over(c) })
	if err != nil {
		return fmt.Errorf("comm/nccl: communicator of %d ranks on %s: %w", e.control.Size(), be.Name(), err)
	}
	e.mu.Lock()
	e.communicator = communicator
	e.mu.Unlock()
	e.be, e.stream = be, backendcuda.Borrow(be)
	e.queue = backendcuda.Native(e.stream)
	return e.failure.Err()
}

// over is why a call must not be waited for any longer.
func (e *Engine) over(c *comm.Call) error {
	if err := e.failure.Err(); err != nil {
		return err
	}
	if time.Now().After(c.Deadline) {
		return comm.NewTimeoutError(c, e.control.Rank(), nil)
	}
	return nil
}

// How often a call that is under way is looked at: soon at first, since a small one takes microseconds.
const (
	firstLook = 10 * time.Microsecond
	lastLook  = time.Millisecond
)

// await waits until what was queued is done, the communicator fails, or the call is over.
func (e *Engine) await(c *comm.Call) error {
	done := e.stream.Record()
	for pause := firstLook; !done.Done(); pause = min(2*pause, lastLook) {
		err := e.over(c)
		if err == nil {
			if err = e.commError(); err != nil {
				err = e.named(c, fmt.Errorf("comm/nccl: %v: %w", c.Signature, err))
			}
		}
		if err != nil {
			e.Abort(err)
			return err
		}
		time.Sleep(pause)
	}
	return e.failure.Err() // what is aborted is done, too
}

// commError is the communicator's asynchronous error.
func (e *Engine) commError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.communicator == nil {
		return e.failure.Err()
	}
	return e.communicator.AsyncError()
}

// Abort ends what is under way.
func (e *Engine) Abort(err error) {
	e.failure.Set(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.communicator != nil {
		_ = e.communicator.Abort() // the group is dead already, and err says why
		e.communicator = nil
	}
}

// Close gives the communicator and the stream's memory back.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var err error
	if e.communicator != nil {
		if err = e.communicator.Close(); err != nil {
			err = fmt.Errorf("comm/nccl: %w", err)
		}
		e.communicator = nil
	}
	closed := errors.New("comm/nccl: the group is closed")
	if e.failure.Set(closed) && e.stream != nil { // after a failure it may have work that never ends
		backendcuda.GiveBack(e.stream)
		e.stream = nil
	}
	return err
}

// span is a tensor's memory as elements of a dtype.
type span struct {
	buf backend.Buffer
	at  cuda.Ptr // of the first element
	lo  int      // its number in the buffer
	n   int      // elements
	dt  dtype.DType
}

func (e *Engine) span(m *tensor.Memory, dt dtype.DType) span {
	if m == nil {
		return span{}
	}
	_, buf, at, _ := joint.Native(m)
	return span{buf, backendcuda.Use(e.stream, buf) + cuda.Ptr(at), at / dt.Size(), m.Len() / dt.Size(), dt}
}

// part is elements lo to hi.
func (s span) part(lo, hi int) span {
	return span{s.buf, s.at + cuda.Ptr(lo*s.dt.Size()), s.lo + lo, hi - lo, s.dt}
}

func (s span) view() backend.View {
	v := backend.View{Buf: s.buf, DType: s.dt, Offset: s.lo, NDim: 1}
	v.Shape[0], v.Stride[0] = s.n, 1
	return v
}
