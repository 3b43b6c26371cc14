// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// stream is a queue of the device, and what belongs to it: memory, staging, and a place for faults.
type stream struct {
	d     *Device
	q     *queue
	pool  pool
	stage staging

	call    *backend.Call // that is being launched, for messages
	scraps  []*block      // scratch of that launch
	faults  cuda.Ptr      // fault block; 0: no kernel had a use for one yet
	mayFail bool          // a kernel that may write the fault block was queued since it was read last
	space   workspace
}

// Alloc returns n bytes.
func (s *stream) Alloc(n int) (backend.Buffer, error) {
	b, err := s.d.mem.alloc(&s.pool, n)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Launch checks the operands and queues the op's kernels.
func (s *stream) Launch(c *backend.Call) {
	defer s.done()
	s.check(c)
	table[c.Op].launch(s, c)
}

// check faults on a call that no launcher may see.
func (s *stream) check(c *backend.Call) {
	s.call, s.q.op = c, c.Op
	if c.Op >= backend.NumOps || table[c.Op].launch == nil {
		s.fault(c, "no kernel")
	}
	for i := range c.NOut {
		s.checkView(c, &c.Out[i], "output", i)
	}
	for i := range c.NIn {
		s.checkView(c, &c.In[i], "input", i)
	}
	if want := operands[c.Op]; c.NOut < want.outs || c.NIn < want.ins {
		s.fault(c, "%d outputs and %d inputs: want at least %d and %d", c.NOut, c.NIn, want.outs, want.ins)
	}
	if dt := c.DType(); !supports(c.Op, dt) {
		s.fault(c, "no kernel for %s", dt)
	}
	if c.If.Buf != nil {
		if !conditional[c.Op] {
			s.fault(c, "a flag: this op has none")
		}
		v := backend.View{Buf: c.If.Buf, DType: dtype.Float64, Offset: c.If.Offset}
		s.checkView(c, &v, "flag", 0)
	}
}

// conditional are the ops that may have a flag.
var conditional = [backend.NumOps]bool{
	backend.OpCopy: true, backend.OpFill: true, backend.OpAdd: true, backend.OpAffine: true, backend.OpAxpby: true,
	backend.OpStochasticRound: true, backend.OpAdamMoments: true, backend.OpAdamW: true,
}

// flag is the address of a call's flag, 0 if it has none.
func (s *stream) flag(c *backend.Call) cuda.Ptr {
	if c.If.Buf == nil {
		return 0
	}
	return s.addr(&backend.View{Buf: c.If.Buf, DType: dtype.Float64, Offset: c.If.Offset})
}

// done ends a launch: later work may use its scratch.
func (s *stream) done() {
	for _, b := range s.scraps {
		s.d.mem.release(&s.pool, b)
	}
	s.scraps, s.call, s.q.op = s.scraps[:0], nil, backend.OpInvalid
}

// checkView faults on a view that leaves its buffer, which the device might not notice.
func (s *stream) checkView(c *backend.Call, v *backend.View, what string, i int) {
	b, ok := v.Buf.(*buffer)
	if !ok || b.s.d != s.d {
		s.fault(c, "%s %d: a buffer of another device", what, i)
	}
	if b.freed.Load() {
		s.fault(c, "%s %d: a buffer that was freed", what, i)
	}
	b.usedBy(s)
	if err := v.Inside(b.n); err != nil {
		s.fault(c, "%s %d: %v", what, i, err)
	}
}

// fault stops a launch.
func (s *stream) fault(c *backend.Call, format string, args ...any) {
	panic(&backend.Fault{Backend: s.d.name, Op: c.Op, Msg: fmt.Sprintf(format, args...)})
}

// must stops a launch whose call of the driver failed.
func (s *stream) must(err error) {
	if err != nil {
		panic(s.d.broken(s.q.op, err))
	}
}

// addr is the address of the first element of a view.
func (s *stream) addr(v *backend.View) cuda.Ptr {
	return v.Buf.(*buffer).at + cuda.Ptr(v.Offset*v.DType.Size())
}

// kernel queues a kernel. shared is its dynamic shared memory in bytes.
func (s *stream) kernel(name string, grid, block [3]uint32, shared int, a *args) {
	f, err := s.d.modules.find(name)
	if _, none := errors.AsType[errNoKernel](err); none && s.call != nil {
		s.fault(s.call, "no kernel for %s (%s)", s.call.DType(), name)
	}
	s.must(err)
	if n := f.f.ParamBytes(); n >= 0 && a.n != n {
		panic(fmt.Sprintf("cuda: a parameter block of %d bytes for kernel %s, which needs %d", a.n, name, n))
	}
	if shared > freeShared {
		s.must(f.allow(shared))
	}
	s.d.counters.launches.Add(1)
	s.must(s.q.launch(f.f, grid, block, shared, a))
}

// scratch is n bytes of device memory for the launch, with undefined contents, aligned to 256 bytes.
func (s *stream) scratch(n int) cuda.Ptr {
	b, err := s.d.mem.scratch(&s.pool, n)
	s.must(err)
	s.scraps = append(s.scraps, b)
	return b.ptr()
}

// sms is the number of multiprocessors. It may decide the size of a grid, and never the order of a sum.
func (s *stream) sms() int { return s.d.info.SMs }

// faultBytes is the size of FaultBlock of kernels/lockstep.cuh: state and op, of 4 bytes each, then value, limit and
// place, of 8.
const faultBytes = 32

// faultWord is the stream's fault block, for a kernel that checks indices.
func (s *stream) faultWord() cuda.Ptr {
	if s.faults == 0 {
		b, err := s.d.mem.scratch(&s.pool, faultBytes) // which stays
		s.must(err)
		s.must(s.q.Fill(b.ptr(), 0, faultBytes))
		s.faults = b.ptr()
	}
	s.mayFail = true
	return s.faults
}

// await waits for the stream's work, and panics with the first fault of it.
func (s *stream) await() {
	s.d.counters.hostWaits.Add(1)
	if !s.mayFail {
		s.must(s.q.Sync())
		s.must(s.d.mem.tidy(&s.pool))
		return
	}
	raw := s.stage.report(s)
	s.must(s.q.CopyToHost(raw, s.faults))
	s.must(s.q.Sync())
	s.must(s.d.mem.tidy(&s.pool))
	s.mayFail = false
	if binary.LittleEndian.Uint32(raw) == 0 {
		return
	}
	s.must(s.q.Fill(s.faults, 0, faultBytes))
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint64(raw[at:])) }
	panic(backend.NewIndexFault(s.d.name, backend.IndexError{Op: backend.Op(binary.LittleEndian.Uint32(raw[4:])),
		Index: number(8), Element: number(24), Limit: number(16)}))
}

// Record marks a point in the stream.
func (s *stream) Record() backend.Event {
	e, err := s.d.takeEvent()
	if err == nil {
		err = errors.Join(s.q.flush(), s.q.Record(e)) // whoever waits for it should not wait long
	}
	s.must(err)
	return s.d.newEvent(e)
}

// Wait holds later work back until the event: on the device if it is one of CUDA's, else the host waits.
func (s *stream) Wait(e backend.Event) {
	if own, ok := e.(*event); ok {
		s.must(s.q.Wait(own.e))
		return
	}
	e.Sync()
}

// Sync waits for all earlier work. It panics with the first fault of that work.
func (s *stream) Sync() { s.await() }

func (s *stream) close() error {
	return errors.Join(s.d.mem.close(&s.pool), s.stage.close(s), s.q.close())
}

// blocksFor is the number of blocks of a grid for n things of which a block takes perBlock, at least 1.
func blocksFor(n, perBlock int) uint32 {
	return uint32(min(max(1, (n+perBlock-1)/perBlock), 1<<31-1))
}

var suffixes = map[dtype.DType]string{dtype.Float32: "f32", dtype.Float64: "f64", dtype.BFloat16: "bf16",
	dtype.Float16: "f16", dtype.Int32: "i32", dtype.Int64: "i64", dtype.Uint8: "u8", dtype.Bool: "b8"}

// suffix is how kernels' names end that work on a dtype.
func suffix(dt dtype.DType) string { return suffixes[dt] }
