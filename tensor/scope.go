// SPDX-License-Identifier: Apache-2.0

package tensor

// scope owns the storages that are made while it is the innermost one.
type scope struct {
	parent *scope
	own    []*storage
	nodes  []*Node     // graph nodes recorded inside; they go with the outermost scope
	few    [8]*storage // the start of own: most scopes are those of one op's gradient
	inner  int         // scopes inside that OpenScope opened and nobody closed yet
	closed bool
}

// Scope runs body in a new memory scope. When body returns, everything that was allocated inside is freed, except the
// tensors that body returns (they move to the enclosing scope), those passed to Keep, and those that the autograd graph
// saved. The latter are freed when Backward has used them, or with the outermost scope. Use one scope per micro-batch.
// A panic in body frees them as well.
func (c *Ctx) Scope(body func(c *Ctx) []*Tensor) []*Tensor {
	in := c.enter()
	var out []*Tensor
	defer func() { in.leave(out) }()
	out = body(in)
	return out
}

// TryScope is Scope for a body that can fail. If body returns an error, everything that was allocated inside is freed,
// and the error returned.
func (c *Ctx) TryScope(body func(c *Ctx) ([]*Tensor, error)) (out []*Tensor, err error) {
	out = c.Scope(func(c *Ctx) []*Tensor {
		var results []*Tensor
		if results, err = body(c); err != nil {
			return nil
		}
		return results
	})
	return out, err
}

// OpenScope returns a context with a new memory scope, and the function that ends it: Scope for work that is not one
// call. The scopes of several micro-batches may be open side by side, so that their forward and backward passes take
// turns. close frees what the end of a Scope frees, except out, which moves to the enclosing scope; the scopes opened
// inside must have been closed. After that the context cannot be used, and close does nothing.
func (c *Ctx) OpenScope() (in *Ctx, close func(out ...*Tensor)) {
	in = c.enter()
	s := in.scope
	if s.parent != nil {
		s.parent.inner++
	}
	return in, func(out ...*Tensor) {
		if s.closed {
			return
		}
		if s.inner > 0 {
			in.fail("OpenScope", nil, "scopes that were opened inside are still open: want them closed first")
		}
		in.leave(out)
		s.closed = true
		if s.parent != nil {
			s.parent.inner--
		}
	}
}

// memory is the innermost scope, which owns what op makes; nil: none.
func (c *Ctx) memory(op string) *scope {
	if c.scope != nil && c.scope.closed {
		c.fail(op, nil, "the context's scope was closed")
	}
	return c.scope
}

// Scoped reports whether a Scope is open.
func (c *Ctx) Scoped() bool { return c.scope != nil }

// enter returns c with a new innermost scope; leave must follow.
func (c *Ctx) enter() *Ctx {
	in := &struct { // one object for the garbage collector
		Ctx
		memory scope
	}{Ctx: *c, memory: scope{parent: c.memory("Scope")}}
	in.memory.own = in.memory.few[:0]
	in.scope = &in.memory
	return &in.Ctx
}

// leave ends the scope that enter began; out moves to the enclosing scope.
func (c *Ctx) leave(out []*Tensor) {
	s := c.scope
	for _, t := range out {
		if t != nil && t.st.owner == s {
			t.st.give(s.parent)
		}
	}
	for _, st := range s.own {
		if st.owner == s {
			st.owner = nil
			if st.release(); st.outlives && st.buf != nil {
				st.watch()
			}
		}
	}
	clear(s.own)
	s.own = s.own[:0]
	if s.parent != nil {
		s.parent.nodes = append(s.parent.nodes, s.nodes...)
		s.nodes = nil
	}
	s.dropNodes()
}

// dropNodes releases the graph recorded in the scope, and what it saved.
func (s *scope) dropNodes() {
	for _, n := range s.nodes {
		n.drop()
	}
	s.nodes = nil
}

// Keep lets t outlive its scope; it then lives until Free or until the garbage
// collector finds it unused. It returns t.
func (c *Ctx) Keep(t *Tensor) *Tensor {
	t.check(c, "Keep")
	if t.st.owner != nil {
		t.st.give(nil)
	}
	return t
}
