// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// storage is a handle on device memory. Several tensors may view one storage. It is
// held by reference counts: one for its owner (a scope, or the user), one for each
// graph node that saved it and each gradient in flight.
type storage struct {
	dev   *Device
	buf   backend.Buffer       // nil once freed, and while away
	away  int                  // bytes that Unload gave up and Reload brings back
	bring func()               // called when something uses the storage while it is away; nil: that is an error
	fill  func(c *Ctx) *Tensor // what Defer was given, until it is used; see Deferred
	refs  int32
	gen   uint32 // grows when the memory is given up: a tensor of an older generation is dead
	ver   uint32 // grows with every write in place
	owner *scope // nil: the user owns it, and the garbage collector after him

	gradient bool // Backward made it, for a leaf
	outlives bool // something that no scope ends has held it

	op      string // what made it, and when: for messages
	step    int64
	cleanup runtime.Cleanup
}

// newStorage allocates n bytes, owned by c's scope if there is one.
func (c *Ctx) newStorage(op string, n int) *storage {
	owner := c.memory(op)
	buf, err := c.eng.stream.Alloc(n)
	if err != nil {
		panic(&Error{Op: op, Msg: err.Error(), Where: c.where(), Cause: err})
	}
	s := &storage{dev: c.eng.dev, buf: buf, refs: 1, op: op, step: c.eng.step}
	s.give(owner)
	return s
}

// give makes scope the owner; nil hands the storage to the garbage collector, which
// frees it when no tensor refers to it any more.
func (s *storage) give(to *scope) {
	s.owner = to
	if to == nil {
		s.watch()
		return
	}
	s.cleanup.Stop()
	to.own = append(to.own, s)
}

// watch makes the garbage collector free the memory when no tensor refers to it any more.
func (s *storage) watch() {
	s.cleanup.Stop()
	s.cleanup = runtime.AddCleanup(s, s.dev.free, s.buf)
}

func (s *storage) retain() { s.refs++ }

// hold is retain for something that no scope ends: if that is forgotten, the garbage collector frees the memory.
func (s *storage) hold() {
	s.retain()
	s.outlives = true
	if s.owner == nil {
		s.watch()
	}
}

func (s *storage) release() {
	if s.refs--; s.refs == 0 {
		s.free()
	}
}

func (s *storage) free() {
	if s.buf == nil && s.away == 0 {
		return
	}
	if s.buf != nil {
		s.cleanup.Stop()
		s.dev.free(s.buf)
	}
	s.buf, s.owner, s.away = nil, nil, 0
	s.gen++
}

// holds reports whether the storage is still that of a tensor of generation gen: its memory is here, or away.
func (s *storage) holds(gen uint32) bool { return (s.buf != nil || s.away > 0) && s.gen == gen }

// Unload releases the memory of t until Reload brings it back, so that weights need it only while they are used. t and
// its views stay valid: graphs that saved them keep them, and their version does not change. Until then using them
// panics. t must not belong to a Scope, and must not be empty.
func (t *Tensor) Unload() {
	s := t.st
	switch {
	case s.buf == nil || t.gen != s.gen:
		panic(&Error{Op: "Unload", Inputs: []string{describe(t)}, Msg: "its memory is not there"})
	case s.owner != nil || s.buf.Bytes() == 0:
		panic(&Error{Op: "Unload", Inputs: []string{describe(t)},
			Msg: "want a tensor that holds memory outside of every Scope"})
	}
	s.cleanup.Stop()
	s.away = s.buf.Bytes()
	s.dev.free(s.buf)
	s.buf = nil
}

// Withdraw makes t a tensor that is unloaded, and returns its elements, with what LendLowered lent, as another tensor;
// other views of them stay what they are. Return takes it back, behind OnMissing for example. t must not be empty or
// belong to a Scope; graphs that saved it are invalid until then.
func (t *Tensor) Withdraw() *Tensor {
	if t.st.owner != nil || t.Bytes() == 0 || t.node != nil {
		panic(&Error{Op: "Withdraw", Inputs: []string{describe(t)},
			Msg: "want a tensor that holds memory outside of every Scope, and no result of a recorded op"})
	}
	kept := newTensor(t.st, t.dtype, t.Shape())
	kept.gen, kept.offset, kept.stride = t.gen, t.offset, t.stride
	st := &storage{dev: t.st.dev, away: t.Bytes(), refs: 1, op: t.st.op, step: t.st.step}
	away := newTensor(st, t.dtype, t.Shape())
	if t.leaf != nil {
		kept.leaf = &leaf{frozen: true}
		t.leaf.lowered.moveLoan(&kept.leaf.lowered)
	}
	t.st, t.gen, t.offset, t.stride = away.st, away.gen, away.offset, away.stride
	return kept
}

// Return restores the elements that Withdraw took from t.
func (t *Tensor) Return(kept *Tensor) {
	t.st, t.gen, t.offset, t.stride = kept.st, kept.gen, kept.offset, kept.stride
	if t.leaf != nil && kept.leaf != nil {
		kept.leaf.lowered.moveLoan(&t.leaf.lowered)
	}
}

// Reload makes the memory of from that of an unloaded tensor, and ends from. It must hold the elements that t had, as
// graphs that saved t may read them: from is as large as what was unloaded, on the same device, has no views and
// belongs to no Scope.
func (t *Tensor) Reload(from *Tensor) {
	s, f := t.st, from.st
	switch {
	case s.away == 0 || t.gen != s.gen:
		panic(&Error{Op: "Reload", Inputs: []string{describe(t)}, Msg: "it is not unloaded"})
	case f.buf == nil || from.gen != f.gen || f.owner != nil || f.refs != 1 || f.dev != s.dev ||
		f.buf.Bytes() != s.away:
		panic(&Error{Op: "Reload", Inputs: []string{describe(t), describe(from)}, Msg: fmt.Sprintf(
			"want %d bytes of the same device that nothing else refers to, outside of every Scope", s.away)})
	}
	f.cleanup.Stop()
	s.buf, f.buf = f.buf, nil
	f.gen++
	s.away = 0
	s.watch()
}

// Unloaded reports whether Unload was called on t or a view of it, and Reload was not yet.
func (t *Tensor) Unloaded() bool { return t.st.away > 0 && t.gen == t.st.gen }

// OnMissing makes bring be called when something uses t, or a view of it, while it is unloaded. It is to Reload the
// memory, on the goroutine that uses it. nil ends that, and what Defer began.
func (t *Tensor) OnMissing(bring func()) {
	if t.st.bring = bring; bring == nil {
		t.st.fill = nil
	}
}

// Defer releases the memory of t until something uses it. Then fill makes its elements, as often as t is unloaded and
// used: a tensor of t's shape and dtype that nothing else refers to, outside of every Scope. t must not be empty or
// belong to a Scope; only one goroutine may use it first. Defer replaces the fill of a tensor that is deferred or
// unloaded.
func (t *Tensor) Defer(fill func(c *Ctx) *Tensor) {
	if !t.Unloaded() {
		t.Unload()
	}
	t.st.fill = fill
	t.OnMissing(func() {
		c := NewCtx(t.Device()).NoGrad()
		elements := fill(c)
		c.Sync()
		t.Reload(elements)
		t.st.fill = nil
	})
}

// NewDeferred makes a tensor without memory until its first use: see Tensor.Defer. It must not be empty.
func NewDeferred(dev *Device, dt DType, shape []int, fill func(c *Ctx) *Tensor) *Tensor {
	bytes := dt.Size()
	for _, n := range shape {
		bytes *= n
	}
	if bytes <= 0 {
		panic(&Error{Op: "NewDeferred", Msg: fmt.Sprintf("shape %v: want positive sizes", shape)})
	}
	t := newTensor(&storage{dev: dev, away: bytes, refs: 1, op: "NewDeferred"}, dt, shape)
	t.Defer(fill)
	return t
}

// Deferred returns what Defer was given, until something has used t; nil otherwise.
func (t *Tensor) Deferred() func(c *Ctx) *Tensor {
	if !t.Unloaded() {
		return nil
	}
	return t.st.fill
}

// Rehome makes t, with its elements, a view of to, which is contiguous, has t's shape and dtype and takes no part in
// autograd. t stays the same tensor, a leaf with its hooks. Its earlier memory is left to other views of it, and to the
// garbage collector. t must be contiguous, belong to no Scope, and have no gradient; graphs that saved it are void. c
// is a context of the device.
func (t *Tensor) Rehome(c *Ctx, to *Tensor) {
	t.checkRehome(c, "Rehome", to)
	CopyInto(c.NoGrad(), to, t)
	t.become(to)
}

// Become is Rehome, but t takes the elements that are in to.
func (t *Tensor) Become(c *Ctx, to *Tensor) {
	t.checkRehome(c, "Become", to)
	t.become(to)
}

func (t *Tensor) become(to *Tensor) {
	if t.leaf != nil {
		t.leaf.lowered.end()
	}
	t.st, t.gen, t.offset, t.stride = to.st, to.gen, to.offset, to.stride
}

func (t *Tensor) checkRehome(c *Ctx, op string, to *Tensor) {
	t.check(c, op)
	to.check(c, op)
	switch {
	case t.st.owner != nil || to.st.owner != nil || t.node != nil || to.node != nil || to.leaf != nil:
		c.fail(op, []*Tensor{t, to}, "want tensors outside of every Scope that no recorded op made, and no leaf "+
			"to go to")
	case t.dtype != to.dtype || !slices.Equal(t.Shape(), to.Shape()) || !to.IsContiguous():
		c.fail(op, []*Tensor{t, to}, "want a contiguous tensor of the same shape and dtype to go to")
	case t.leaf != nil && t.leaf.hasMemory():
		c.fail(op, []*Tensor{t}, "it has a gradient or a buffer for one: want none")
	}
}

// Written says that the memory of t, and of all its views, was written by other means than ops. Graphs that saved it
// refuse to run, and copies of it are made again.
func (t *Tensor) Written() { t.st.ver++ }

// MoveTo moves the memory of t, and so that of its views, to the device of to. from is a context of the device where it
// is, which has synchronised with the writer. t must not belong to a Scope and has no gradient; graphs that saved it
// are invalid. Any context of the new device may use t immediately.
func (t *Tensor) MoveTo(to, from *Ctx) {
	const op = "MoveTo"
	t.check(from, op)
	s := t.st
	switch {
	case s.owner != nil || t.node != nil:
		to.fail(op, []*Tensor{t}, "want a tensor outside of every Scope that no recorded op made")
	case t.leaf != nil && t.leaf.hasMemory():
		to.fail(op, []*Tensor{t}, "it has a gradient or a buffer for one: want none")
	}
	if t.leaf != nil {
		t.leaf.lowered.drop()
	}
	bytes := make([]byte, s.buf.Bytes())
	from.eng.stream.Read(bytes, s.buf, 0)
	buf, err := to.eng.stream.Alloc(len(bytes))
	if err != nil {
		panic(&Error{Op: op, Inputs: []string{describe(t)}, Msg: err.Error(), Where: to.where(), Cause: err})
	}
	to.eng.stream.Write(buf, 0, bytes)
	to.eng.stream.Sync()
	s.cleanup.Stop()
	s.dev.free(s.buf)
	s.dev, s.buf = to.eng.dev, buf
	s.ver++
	s.watch()
}

func (s *storage) origin() string { return fmt.Sprintf("made by %s in step %d", s.op, s.step) }

// orphan ends the owner's hold on a storage that something else refers to. The garbage collector frees it if that is
// forgotten.
func (s *storage) orphan() {
	if s.owner != nil {
		s.give(nil)
	}
	s.release()
}

// adopt makes scope the owner of an orphan.
func (s *storage) adopt(scope *scope) {
	s.retain()
	s.give(scope)
}
