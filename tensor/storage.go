// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"runtime"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// storage is a handle on device memory. Several tensors may view one storage. It is
// held by reference counts: one for its owner (a scope, or the user), one for each
// graph node that saved it and each gradient in flight.
type storage struct {
	dev   *Device
	buf   backend.Buffer // nil once freed
	refs  int32
	gen   uint32 // grows when the memory is given up: a tensor of an older generation is dead
	ver   uint32 // grows with every write in place
	owner *scope // nil: the user owns it, and the garbage collector after him

	gradient bool // Backward made it, for a leaf

	op      string // what made it, and when: for messages
	step    int64
	cleanup runtime.Cleanup
}

// newStorage allocates n bytes, owned by c's scope if there is one.
func (c *Ctx) newStorage(op string, n int) *storage {
	buf, err := c.eng.dev.be.Alloc(n)
	if err != nil {
		c.fail(op, nil, "%v", err)
	}
	s := &storage{dev: c.eng.dev, buf: buf, refs: 1, op: op, step: c.eng.step}
	s.give(c.scope)
	return s
}

// give makes scope the owner; nil hands the storage to the garbage collector, which
// frees it when no tensor refers to it any more.
func (s *storage) give(to *scope) {
	s.owner = to
	if to != nil {
		to.own = append(to.own, s)
		return
	}
	s.cleanup = runtime.AddCleanup(s, s.dev.free, s.buf)
}

func (s *storage) retain() { s.refs++ }

func (s *storage) release() {
	if s.refs--; s.refs == 0 {
		s.free()
	}
}

func (s *storage) free() {
	if s.buf == nil {
		return
	}
	s.cleanup.Stop()
	s.dev.free(s.buf)
	s.buf, s.owner = nil, nil
	s.gen++
}

func (s *storage) origin() string { return fmt.Sprintf("made by %s in step %d", s.op, s.step) }

// orphan ends the owner's hold on a storage that something else refers to. The garbage collector frees it if that is forgotten.
func (s *storage) orphan() {
	if s.owner != nil {
		s.give(nil)
	}
	s.release()
}

// adopt makes scope the owner of an orphan.
func (s *storage) adopt(scope *scope) {
	s.cleanup.Stop()
	s.retain()
	s.give(scope)
}
