// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// Node is one recorded op in the autograd graph.
type Node struct {
	op       string
	path     string
	seq      uint64 // age; inputs are older than outputs
	in       []edge
	nOut     int
	saved    []savedRef
	backward func(b *Back)
	// recompute computes the first output again, with the same bits, from what the node saved; nil if that is not
	// cheap.
	recompute func(c *Ctx) *Tensor
	version   uint32  // of that output
	readers   int     // gradient functions that call recompute
	again     *Tensor // what it computed, for several of them, until the node has run; nil: nothing yet
	sum       *sumOf  // the first output is a sum that can be formed again; nil: no
	half      DType   // the gradient of the first output is also read rounded to this type; Invalid: it is not
	rounded   bool    // the outputs are float32 results that were rounded to a half type, or views of one: see sumsIn
	source    *Node   // whose recompute this node's calls; nil: none
	// recomputeAndStep computes the first output again and also passes its gradient g, contiguous, through the node's
	// last step (an activation). The result passed is the gradient of what that step was applied to, which is the
	// node's second output, in the memory of g. nil: no kernel does both at once.
	recomputeAndStep func(c *Ctx, g *Tensor) (out, passed *Tensor)

	// State of the Backward that is under way.
	run   *run // the Backward that needs this node's gradient
	grads []*Tensor
	sole  []bool  // grads[i] belongs to this Backward alone and may be added to in place
	sums  []DType // in which gradients of output i are added up; Invalid: none has arrived
	low   *Tensor // grads[0] rounded to half; nil: nobody has done that

	fewGrads [2]*Tensor // of most nodes: grads, sole and sums, without separate objects
	fewSole  [2]bool
	fewSums  [2]DType
}

// edge leads to what a node's input came from: another node, or a leaf; neither for
// inputs that need no gradient.
type edge struct {
	node *Node
	out  int
	leaf *Tensor
	sum  DType // in which the gradients of the node's output are added up
}

// edgeTo leads to what t, which may be nil, came from.
func edgeTo(t *Tensor) edge {
	switch {
	case t == nil:
	case t.node != nil:
		return edge{node: t.node, out: t.out, sum: t.sumsIn()}
	case t.IsLeaf():
		return edge{leaf: t}
	}
	return edge{}
}

// savedRef is a tensor that a gradient function reads, as it was when it was saved.
type savedRef struct {
	t   *Tensor
	ver uint32
}

// release frees the memory, unless it is gone already.
func (s savedRef) release() {
	if s.t.st.holds(s.t.gen) {
		s.t.st.release()
	}
}

// Back is the context of an op's gradient function, which reads the output gradients with
// Grad and sets the input gradients with Set.
type Back struct {
	*Ctx
	node   *Node
	in     []*Tensor
	passed int     // the input whose gradient was passed through the last step of the node that made it; -1: none
	total  int     // the input whose gradient has those in it that arrived before; -1: none
	low    *Tensor // the gradient of input 0, rounded; nil: it was not
	task   *task   // takes the gradients of leaves; nil: they are computed now
}

// Grad is the gradient of output i, or nil if none flows there.
func (b *Back) Grad(i int) *Tensor {
	n := b.node
	if g := n.grads[i]; g != nil && g.dtype != sumType(g, n.sums[i]) {
		n.grads[i], n.sole[i] = b.convert(n.op, g, Float32), false
		n.grads[i].st.retain()
		g.st.release()
	}
	return n.grads[i]
}

// Arrived is Grad without a conversion: where gradients are added up in float32, a single one may be of a half type.
func (b *Back) Arrived(i int) *Tensor { return b.node.grads[i] }

// Need reports whether the gradient of input i is wanted.
func (b *Back) Need(i int) bool { return b.node.in[i].wantedIn(b.node.run) }

// Set sets the gradient of input i; nil means zero.
func (b *Back) Set(i int, g *Tensor) { b.in[i] = g }

// separate calls f, which sets the gradient of input i, if that is wanted. With DelayWeightGrads f may run later, with
// another Back: it reads only the elements of reads, and the gradients of other inputs lie in other memory.
func (b *Back) separate(i int, f func(b *Back), reads ...*Tensor) {
	switch {
	case !b.Need(i):
	case b.delays(i):
		b.task.add(f, reads)
	default:
		f(b)
	}
}

// record makes outs the outputs of a new graph node if gradients are on and an input
// takes part. saved are the tensors that backward reads: they stay alive until it ran,
// and a write to one of them in between is an error.
//
// The result is the node, or nil.
func (c *Ctx) record(op string, outs, ins, saved []*Tensor, backward func(b *Back)) *Node {
	if !c.records(ins) {
		return nil
	}
	n := &Node{op: op, path: c.path, seq: nodeSeq.Add(1), backward: backward}
	n.in = make([]edge, len(ins))
	for i, t := range ins {
		n.in[i] = edgeTo(t)
		n.rounded = n.rounded || t != nil && t.node != nil && t.node.rounded && outs[0].st == t.st
	}
	n.nOut = len(outs)
	for i, t := range outs {
		t.node, t.out = n, i
	}
	if len(saved) > 0 {
		n.saved = make([]savedRef, 0, len(saved))
		for _, t := range saved {
			if t != nil {
				t.st.retain()
				n.saved = append(n.saved, savedRef{t, t.st.ver})
			}
		}
	}
	if s := c.memory(op); s != nil {
		s.nodes = append(s.nodes, n)
	}
	return n
}

// recomputes says how out, the first output of n, is computed again; n may be nil.
func (n *Node) recomputes(out *Tensor, how func(c *Ctx) *Tensor) {
	if n != nil {
		n.recompute, n.version = how, out.st.ver
	}
}

// recomputable returns the node that can compute t again, so that a gradient function need not save t; nil if there is
// none.
func (t *Tensor) recomputable() *Node {
	n := t.node
	if n == nil || n.recompute == nil || t.out != 0 || t.st.ver != n.version || !t.IsContiguous() {
		return nil
	}
	return n
}

// recompute computes the first output of n again, once for all gradient functions of a Backward that read it.
func (b *Back) recompute(n *Node) *Tensor {
	if n.again != nil {
		return n.again
	}
	for at := n; at != nil; at = at.source {
		b.node.run.checkSaved(at)
	}
	t := n.recompute(b.Ctx)
	if n.readers > 1 && n.run == b.node.run {
		t.st.retain()
		n.again = t
	}
	return t
}

// recomputeAndStep computes input i again, which n made, and sets its gradient: g, which was made for this input alone,
// passed through n's last step. It returns false and does nothing if n cannot do both at once, or if the gradient of
// the input itself is wanted.
func (b *Back) recomputeAndStep(n *Node, i int, g *Tensor) (out *Tensor, ok bool) {
	e, r := b.node.in[i], b.node.run
	if n.recomputeAndStep == nil || !r.accumulate || r.wantsOutput(n, e.out) || e.node != n || n.run != r {
		return nil, false
	}
	r.checkSaved(n)
	out, g = n.recomputeAndStep(b.Ctx, g)
	b.Set(i, g)
	b.passed = i
	return out, true
}

// records reports whether an op of these inputs makes a node of the graph.
func (c *Ctx) records(ins []*Tensor) bool {
	return c.grad && slices.ContainsFunc(ins, (*Tensor).takesPart)
}

// sumsIn is the dtype in which the gradients that reach t are added up: GradDType, but float32 for a result that was
// rounded to a half type in the op that made it, as if each of t's users had rounded it.
func (t *Tensor) sumsIn() DType {
	if t.node != nil && t.node.rounded && t.dtype.IsHalf() {
		return Float32
	}
	return t.GradDType()
}

// sumType is the dtype of a sum of gradients like g where sums are made in dt.
func sumType(g *Tensor, dt DType) DType {
	if g.dtype.IsHalf() && dt == Float32 {
		return dt
	}
	return g.dtype
}

func (t *Tensor) takesPart() bool { return t != nil && (t.IsLeaf() || t.node != nil) }

// drop releases what the node saved. It cannot run again afterwards.
func (n *Node) drop() {
	for _, s := range n.saved {
		s.release()
	}
	n.saved, n.backward, n.recompute, n.recomputeAndStep, n.source, n.sum = nil, nil, nil, nil, nil, nil
}

// BackwardOption changes what Backward does.
type BackwardOption func(*run)

// RetainGraph keeps the graph and its saved tensors, so that Backward can run again, for other roots or another wrt.
func RetainGraph() BackwardOption { return func(r *run) { r.retain = true } }

// Reaching calls f once, before the first gradient is computed, with a function that
// reports whether the graph reaches a leaf. Other leaves get no gradient; a leaf that is
// reached may still get none.
func Reaching(f func(reached func(leaf *Tensor) bool)) BackwardOption {
	return func(r *run) { r.reaching = f }
}

// DroppingLowered frees the copy of a parameter that Autocast made as soon as the parameter's gradient is complete. It
// is for the last Backward before the parameters change, after which the copies are of no use.
func DroppingLowered() BackwardOption { return func(r *run) { r.dropLowered = true } }

// Accumulating makes a Backward with wrt also accumulate the gradients of the reached leaves that wrt does not name,
// and run their hooks, as one without wrt does. A stage of a pipeline gets the gradient of its input and those of its
// weights in one walk this way.
func Accumulating() BackwardOption { return func(r *run) { r.accumulate = true } }

// Completing passes the gradients of leaves in wrt to f, by their index in wrt, as soon as each is complete; the result
// of Backward has nil in their place. They live until they are freed. With it the gradients of several graphs of the
// same leaves, whose Backwards take turns, need not all be held until the ends.
func Completing(f func(i int, grad *Tensor)) BackwardOption { return func(r *run) { r.completing = f } }

// run is one Backward under way.
type run struct {
	c           *Ctx
	retain      bool
	accumulate  bool // gradients of leaves that wrt does not name are accumulated in them
	dropLowered bool
	reaching    func(reached func(leaf *Tensor) bool)
	completing  func(i int, grad *Tensor)
	wrt         []*Tensor
	store       *WeightGradStore // gets delayed when the walk ends; nil: an outer run has it
	delayed     *weightPass      // takes the gradients of leaves that wrt does not name; nil: they are computed now
	wrtDelayed  []*Tensor        // leaves whose gradients results returns in the weight pass, when they are complete
	leaves      map[*Tensor]int  // pending contributions of each wanted leaf
	// what takes the gradients of tables, see SparseGrads
	sparse map[*Tensor]func(rows, values *Tensor)
	sums   map[*Tensor]*pending
	order  []*Node
	spans  []span
	back   Back // what gradient functions work with, one after the other: its context and scope are used again
}

// pending is the gradient of a leaf or of a wrt tensor as it is put together.
type pending struct {
	g       *Tensor
	sole    bool // g belongs to this Backward alone
	adopted bool
	buffer  bool // g is the leaf's own buffer
}

// Backward computes the gradients of Σᵢ ⟨grads[i], roots[i]⟩. A nil grads, or a nil
// entry, stands for ones (the root must then have one element).
//
// With a nil wrt the gradient of every reached leaf is accumulated in it (see Grad and
// OnGrad), and the result is nil. With wrt, which may name leaves and results of ops,
// nothing is accumulated and no hook runs: the gradients are returned in wrt's order, each of
// its GradDType, nil where none flows, and only gradients on the way to wrt are computed. So input and
// weight gradients can be computed separately (with RetainGraph for all calls but the
// last), or together: see Accumulating.
//
// The graph is walked from the youngest op to the oldest, so the order of additions
// depends only on the program.
func Backward(c *Ctx, roots, grads, wrt []*Tensor, opts ...BackwardOption) []*Tensor {
	r := newRun(c)
	r.wrt, r.accumulate = wrt, wrt == nil
	for _, o := range opts {
		o(r)
	}
	if len(grads) != 0 && len(grads) != len(roots) {
		c.fail("Backward", roots, "%d gradients for %d roots: want one for each, or none", len(grads), len(roots))
	}
	if out := r.walk(roots, grads); wrt != nil {
		return out
	}
	return nil
}

func newRun(c *Ctx) *run {
	return &run{c: c.NoGrad().plain().uncounted(), leaves: map[*Tensor]int{}, sums: map[*Tensor]*pending{}}
}

// walk runs the graph backward and returns the gradients of what wrt names.
func (r *run) walk(roots, grads []*Tensor) []*Tensor {
	defer r.abandon()
	r.collect(roots, grads)
	if r.reaching != nil {
		r.reaching(func(leaf *Tensor) bool { return r.leaves[leaf] > 0 })
	}
	for _, n := range r.order {
		r.endSpans(n.seq)
		r.visit(n)
	}
	r.endSpans(0)
	out := r.results(r.c, r.wrt)
	if r.store != nil {
		r.store.passes = append(r.store.passes, r.delayed)
	}
	r.delayed = nil // so that abandon leaves it alone
	return out
}

// results hands the gradients of tensors that wrt or wrtDelayed name to c's scope.
func (r *run) results(c *Ctx, of []*Tensor) []*Tensor {
	out := make([]*Tensor, len(of))
	for i, t := range of {
		if p := r.sums[t]; p != nil {
			out[i] = p.adopt(c)
		}
	}
	return out
}

// abandon frees the gradients that are not delivered yet, and what is delayed, if Backward panics.
func (r *run) abandon() {
	if r.delayed != nil {
		r.delayed.drop()
	}
	for _, n := range r.order {
		if n.run == r {
			n.releaseGrads()
			n.run = nil
		}
	}
	for t, p := range r.sums {
		switch {
		case p.buffer:
			t.leaf.freeUnused()
		case !p.adopted:
			p.g.st.release()
		}
	}
	r.order = nil
	clear(r.sums)
}

// movable reports whether g may become the gradient of leaf t without a copy: it is the only tensor in its memory, and
// nothing else refers to that.
func (p *pending) movable(t *Tensor) bool {
	st := p.g.st
	return !t.leaf.hasMemory() && st.refs == 1 && st.owner == nil && p.g.IsContiguous() &&
		p.g.Bytes() == st.buf.Bytes() &&
		p.g.dtype == t.GradDType() && slices.Equal(p.g.Shape(), t.Shape())
}

// adopt hands a finished gradient to c's scope.
func (p *pending) adopt(c *Ctx) *Tensor {
	switch {
	case p.adopted:
	case p.sole:
		p.g.st.give(c.scope)
	default: // it may be a view of something that goes away
		view := p.g
		p.g = c.emptyLike("Backward", view)
		c.launch(backend.OpCopy, p.g, view)
		view.st.release()
	}
	p.adopted = true
	return p.g
}

// collect finds the nodes to run, youngest first, and counts what each leaf awaits. The first of them is the end of all
// roots.
func (r *run) collect(roots, grads []*Tensor) {
	end := r.end(roots, grads)
	seen := map[*Node]bool{end: true}
	stack := []*Node{end}
	var all []*Node
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		all = append(all, n)
		for _, e := range n.in {
			if e.node != nil && !seen[e.node] {
				seen[e.node] = true
				stack = append(stack, e.node)
			}
		}
	}
	slices.SortFunc(all, func(a, b *Node) int { return int(int64(a.seq - b.seq)) })
	for _, n := range all { // oldest first: wanted flows from inputs to outputs
		n.run = nil
		if n == end {
			n.run = r
		}
		for _, e := range n.in {
			if e.wantedIn(r) {
				n.run = r
				if e.leaf != nil {
					r.leaves[e.leaf]++
				}
			}
		}
		if n.run == r {
			n.ready()
			r.order = append(r.order, n)
		}
	}
	slices.Reverse(r.order)
}

// end is a node whose inputs are the roots, and whose gradient function sets their gradients.
func (r *run) end(roots, grads []*Tensor) *Node {
	n := &Node{op: "Backward", path: r.c.path, seq: nodeSeq.Add(1), in: make([]edge, len(roots))}
	for i, t := range roots {
		t.check(r.c, n.op)
		if !t.takesPart() {
			r.c.fail(n.op, roots, "a root does not require grad: nothing that was recorded leads to it")
		}
		n.in[i] = edgeTo(t)
	}
	n.backward = func(b *Back) {
		for i, t := range roots {
			var g *Tensor
			if len(grads) > 0 {
				g = grads[i]
			}
			b.Set(i, rootGrad(b.Ctx, t, g))
		}
	}
	return n
}

// ready allocates the lists of the gradients of n's outputs.
func (n *Node) ready() {
	if n.nOut <= len(n.fewGrads) {
		n.fewGrads, n.fewSole, n.fewSums = [2]*Tensor{}, [2]bool{}, [2]DType{}
		n.grads, n.sole, n.sums = n.fewGrads[:n.nOut], n.fewSole[:n.nOut], n.fewSums[:n.nOut]
		return
	}
	n.grads, n.sole, n.sums = make([]*Tensor, n.nOut), make([]bool, n.nOut), make([]DType, n.nOut)
}

// wantedIn reports whether the run needs the gradient that flows along e.
func (e edge) wantedIn(r *run) bool {
	switch {
	case e.leaf != nil:
		// SetRequiresGrad(false) may have been called since
		return r.accumulate && e.leaf.IsLeaf() || slices.Contains(r.wrt, e.leaf) ||
			slices.Contains(r.wrtDelayed, e.leaf)
	case e.node != nil:
		return e.node.run == r || r.wantsOutput(e.node, e.out)
	}
	return false
}

// accumulates reports whether the gradient of a leaf is accumulated in it: otherwise it is returned, or not wanted.
func (r *run) accumulates(leaf *Tensor) bool {
	return leaf != nil && r.accumulate && !slices.Contains(r.wrt, leaf)
}

// wantsOutput reports whether wrt names output out of n.
func (r *run) wantsOutput(n *Node, out int) bool {
	for _, t := range r.wrt {
		if t.node == n && t.out == out {
			return true
		}
	}
	return false
}

// rootGrad checks the gradient g given for root t; nil means one.
func rootGrad(c *Ctx, t, g *Tensor) *Tensor {
	if g == nil {
		if t.Numel() != 1 {
			c.fail("Backward", []*Tensor{t}, "a root of %d elements needs a gradient: want one of its shape", t.Numel())
		}
		return Full(c, t.dtype, 1, t.Shape()...)
	}
	g.check(c, "Backward")
	if g.dtype != t.dtype && g.dtype != t.sumsIn() || !slices.Equal(g.Shape(), t.Shape()) {
		c.fail("Backward", []*Tensor{t, g}, "gradient and root differ in shape or dtype")
	}
	return g
}

// visit runs the gradient function of n if a gradient flows to it, and announces the leaves whose last contribution
// came from n.
func (r *run) visit(n *Node) {
	r.back.task = r.taskOf(n)
	if n.nOut == 0 || slices.ContainsFunc(n.grads, func(g *Tensor) bool { return g != nil }) {
		r.checkSaved(n)
		r.pullBack(n, n.backward)
	}
	r.settle(n)
	if t := r.back.task; t != nil {
		r.delayed.tasks = append(r.delayed.tasks, t)
		return
	}
	r.announce(n)
}

// checkSaved refuses to run n when what it saved is not there as it was.
func (r *run) checkSaved(n *Node) {
	if n.backward == nil {
		r.c.fail("Backward", nil, "the graph of %s is gone: an earlier Backward used it (pass RetainGraph() to that "+
			"one), or its outermost Scope ended", n.op)
	}
	r.checkUnchanged(n, n.saved)
}

// checkUnchanged refuses to continue when what was saved for n's gradient is not there as it was.
func (r *run) checkUnchanged(n *Node, saved []savedRef) {
	for _, s := range saved {
		s.t.check(r.c, "Backward")
		if s.t.st.ver != s.ver {
			r.c.fail("Backward", []*Tensor{s.t}, "a tensor that %s saved for its gradient was changed in place since",
				n.op)
		}
	}
}

// pullBack runs f, the gradient function of n or a part of it, and delivers what it computed. Graphs that f itself
// recorded end with it.
func (r *run) pullBack(n *Node, f func(b *Back)) {
	b := &r.back
	if b.Ctx == nil {
		b.Ctx = r.c.enter()
	}
	c := b.Ctx
	defer c.leave(nil)
	defer c.scope.dropNodes()
	c.path, b.node = n.path, n
	b.in, b.passed, b.total = append(b.in[:0], make([]*Tensor, len(n.in))...), -1, -1
	b.low = nil
	f(b)
	for i, g := range b.in {
		if g == nil || !n.in[i].wantedIn(r) {
			continue
		}
		e := n.in[i]
		switch {
		case i == b.passed:
			e.out = 1
		case i == b.total:
			r.replace(e, g)
			continue
		case b.delays(i):
			b.task.add(func(b *Back) { b.Set(i, g) }, []*Tensor{g})
			continue
		}
		r.deliver(c, e, g, b.fresh(i))
	}
	b.keepLow()
}

func (n *Node) releaseGrads() {
	for i, g := range n.grads {
		if g != nil {
			g.st.release()
			n.grads[i] = nil
		}
	}
	n.dropLow()
	if n.again != nil {
		n.again.st.release()
		n.again = nil
	}
}

// settle frees n's output gradients and saved tensors.
func (r *run) settle(n *Node) {
	n.releaseGrads()
	if !r.retain {
		n.drop()
	}
	n.run = nil
}

// announce counts the contributions of n to leaves.
func (r *run) announce(n *Node) {
	for _, e := range n.in {
		if e.leaf != nil && e.wantedIn(r) {
			r.contributed(e.leaf)
		}
	}
}

// contributed counts one contribution to a leaf; after the last one the gradient is
// complete, is added to the leaf's and announced.
func (r *run) contributed(t *Tensor) {
	if r.leaves[t]--; r.leaves[t] > 0 {
		return
	}
	p := r.sums[t]
	switch {
	case p == nil:
		return
	case !r.accumulates(t):
		r.complete(t, p)
		return
	}
	if r.sparse[t] != nil {
		r.c.fail("Backward", []*Tensor{t}, "a table of SparseGrads has a gradient from another op than Embedding, or "+
			"from a Checkpoint")
	}
	delete(r.sums, t)
	switch {
	case p.buffer:
		t.accumulated()
	case p.movable(t):
		t.adoptGrad(p.g)
	default:
		t.accumulate(r.c, p.g)
		p.g.st.release()
	}
	if r.dropLowered {
		t.leaf.lowered.drop()
	}
	for _, hooks := range [][]func(*Ctx, *Tensor){t.leaf.hooks, t.leaf.after} {
		for _, hook := range hooks {
			if hook != nil {
				hook(r.c, t)
			}
		}
	}
}

// complete gives the gradient p of a leaf that wrt names away.
func (r *run) complete(t *Tensor, p *pending) {
	i := slices.Index(r.wrt, t)
	if r.completing == nil || i < 0 {
		return
	}
	delete(r.sums, t)
	c := *r.c
	c.scope = nil
	r.completing(i, p.adopt(&c))
}

// into returns the buffer, contiguous, into which a gradient function may write the gradient of input i instead of
// calling Set, and whether the buffer holds something that the gradient must be added to: the gradient of a leaf, or
// the sum of its contributions so far. nil means that there is no such buffer. The buffer of an earlier Backward is
// only added to if this gradient is the leaf's only one, so that an unfinished sum stays apart.
func (b *Back) into(i int) (sum *Tensor, filled bool) {
	e, r := b.node.in[i], b.node.run
	if !r.accumulates(e.leaf) {
		return nil, false
	}
	if p := r.sums[e.leaf]; p != nil {
		if !p.sole || !p.g.IsContiguous() {
			return nil, false
		}
		return p.g, true
	}
	sum = e.leaf.gradBuffer(r.c)
	filled = e.leaf.leaf.filled
	if filled && r.leaves[e.leaf] > 1 {
		return nil, false
	}
	r.sums[e.leaf] = &pending{g: sum, sole: true, buffer: true}
	return sum, filled
}

// arrivedBefore is the sum of the gradients that other ops sent to what input i came from, contiguous and of the dtype
// that sums have there, so that a kernel can add to it: see totalOf. nil: there is none.
func (b *Back) arrivedBefore(i int) *Tensor {
	e, r := b.node.in[i], b.node.run
	if e.node == nil || e.node.run != r || r.wantsOutput(e.node, e.out) {
		return nil
	}
	for j, other := range b.node.in {
		if j != i && other.node == e.node {
			return nil
		}
	}
	if g := e.node.grads[e.out]; g != nil && g.dtype == e.sum && g.IsContiguous() {
		return g
	}
	return nil
}

// totalOf is where a kernel writes the sum of before, the result of arrivedBefore(i), and the gradient that it
// computes: in before's memory if nothing else needs that. It sets the gradient of input i.
func (b *Back) totalOf(op string, i int, before *Tensor) *Tensor {
	e := b.node.in[i]
	t := before
	if !e.node.sole[e.out] {
		t = b.emptyLike(op, before)
	}
	b.total = i
	b.Set(i, t)
	return t
}

// replace makes g, which has it in it, the gradient that has arrived along e.
func (r *run) replace(e edge, g *Tensor) {
	n, i := e.node, e.out
	n.dropLow()
	if old := n.grads[i]; old != g {
		g.st.retain()
		n.grads[i], n.sole[i] = g, true
		old.st.release()
	}
}

// lowOf is memory for the gradient of input 0, of dtype half, if the op that made that input reads its gradient in it
// too; else nil.
func (b *Back) lowOf(op string, half DType, shape []int) *Tensor {
	e := b.node.in[0]
	if e.node == nil || e.node.run != b.node.run || e.out != 0 || e.node.half != half {
		return nil
	}
	b.low = b.empty(op, half, shape...)
	return b.low
}

// keepLow leaves the rounded gradient of input 0 where it will be read, if it is all of the gradient so far.
func (b *Back) keepLow() {
	if b.low == nil {
		return
	}
	n := b.node.in[0].node
	if n.grads[0] == b.in[0] {
		n.dropLow()
		n.low = b.low
		n.low.st.retain()
	}
	b.low = nil
}

// dropLow releases the rounded gradient, which another has been added to or which has been read.
func (n *Node) dropLow() {
	if n.low != nil {
		n.low.st.release()
		n.low = nil
	}
}

// begins reports whether the gradient of input i, passed to Set, becomes a leaf's gradient without a copy, since the
// leaf has no memory for one yet.
func (b *Back) begins(i int) bool {
	e, r := b.node.in[i], b.node.run
	return r.accumulates(e.leaf) && r.sums[e.leaf] == nil && !e.leaf.leaf.hasMemory()
}

// fresh reports whether the gradient of input i was made by this node for that input
// alone, so that more may be added to it in place.
func (b *Back) fresh(i int) bool {
	g := b.in[i]
	if g.st.owner != b.scope || !g.IsContiguous() {
		return false
	}
	for j, o := range b.in {
		if j != i && o != nil && o.st == g.st {
			return false
		}
	}
	return true
}

// deliver adds g to the gradient that flows along e. c's scope is left soon after.
func (r *run) deliver(c *Ctx, e edge, g *Tensor, fresh bool) {
	if e.leaf != nil {
		r.addTo(c, e.leaf, g, fresh)
		return
	}
	for _, t := range r.wrt {
		if t.node == e.node && t.out == e.out {
			r.addTo(c, t, g, false)
			fresh = false
			break // wrt may name it twice
		}
	}
	if e.node.run == r {
		n, i := e.node, e.out
		n.dropLow()
		n.grads[i], n.sole[i] = add(c, n.grads[i], n.sole[i], g, fresh, e.sum)
		n.sums[i] = e.sum
	}
}

func (r *run) addTo(c *Ctx, t *Tensor, g *Tensor, fresh bool) {
	dt, p := t.GradDType(), r.sums[t]
	if p == nil {
		p = &pending{}
		r.sums[t] = p
	}
	if g.dtype != dt && (p.g == nil || sumType(g, dt) != dt) { // a sum takes half types as they are
		g, fresh = c.convert("Backward", g, dt), true
	}
	p.g, p.sole = add(c, p.g, p.sole, g, fresh, dt)
}

// add returns sum + g, held by one reference, and whether it is nobody else's. The
// first gradient is kept as it is, since it may be a view of another, and of a half type where sums are float32; the
// second makes a sum of our own in dtype dt, more are added to that in place.
func add(c *Ctx, sum *Tensor, sole bool, g *Tensor, fresh bool, dt DType) (*Tensor, bool) {
	if sum == nil {
		g.st.retain()
		return g, fresh
	}
	if dt = sumType(sum, dt); sole && sum.dtype == dt {
		c.launch(backend.OpAdd, sum, sum, g)
		return sum, true
	}
	total := c.empty("Backward", dt, sum.Shape()...)
	c.launch(backend.OpAdd, total, sum, g)
	total.st.retain()
	sum.st.release()
	return total, true
}
