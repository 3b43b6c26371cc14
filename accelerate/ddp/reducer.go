// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/flatten"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// Default sizes of buckets, PyTorch's.
const (
	FirstBucketBytes = 1 << 20
	BucketBytes      = 25 << 20
)

// Options are the settings of a Reducer; all ranks must give the same, Trace excepted. They are for package
// accelerate.
type Options struct {
	strategy.Exchange // BucketBytes is the size of a bucket but the first; 0 is 25 MiB
	// Hook replaces the sum of a bucket; nil is AllReduce.
	Hook Hook
	// Trace, if not nil, is told of each step's buckets, on the goroutine that calls Finish.
	Trace *trace.Listeners
}

// Reducer sums the gradients of a step over the ranks of a group. It belongs to one
// goroutine. The life of a step: gradients become complete and are announced by Ready, in
// any order; Finish waits for the sums. It is for package accelerate.
type Reducer struct {
	c      *tensor.Ctx
	group  *comm.Group
	params []tensor.Named
	limit  int
	hook   Hook
	trace  *trace.Listeners

	memory  *comm.Memory
	buckets []*bucket
	place   []int            // of each parameter: its bucket
	views   []*tensor.Tensor // of each parameter: its gradient's place
	// buckets lie in the group's memory; else they are on the device, and are copied through it
	host bool

	ready     []bool
	usage     *Usage
	next      int   // first bucket that is not sent yet
	twice     error // a gradient that was announced a second time
	announced int   // gradients of the step that Ready announced
	order     []int // order in which gradients became complete in the last step; nil once the buckets are rebuilt
}

// New makes a reducer for parameters that are the same on all ranks (see Verify), and
// makes their gradients views of its buckets. It is collective. It is for package accelerate.
func New(c *tensor.Ctx, g *comm.Group, params []tensor.Named, o Options) (*Reducer, error) {
	if o.BucketBytes <= 0 {
		o.BucketBytes = BucketBytes
	}
	o.Hook = cmp.Or(o.Hook, AllReduce)
	n := len(params)
	r := &Reducer{
		c: c.NoGrad(), group: g, params: params, limit: o.BucketBytes, hook: o.Hook, trace: o.Trace,
		place: make([]int, n), views: make([]*tensor.Tensor, n),
		ready: make([]bool, n), usage: NewUsage(params, o.Exchange), order: make([]int, 0, n),
	}
	total := 0
	for _, p := range params {
		total += flatten.Bytes(p)
	}
	var err error
	// To count what a device without values would send takes no memory.
	if counts := g.CountsOnly() && !c.Device().HostMemory(); !counts && !g.OnDevice(c.Device()) {
		if r.memory, err = g.Alloc(total); err != nil {
			return nil, fmt.Errorf("ddp: memory for gradients: %w", err)
		}
	}
	return r, tensor.Try(func() { r.build(reversed(n)) })
}

// build cuts the memory into buckets in the given order and points the gradients there.
func (r *Reducer) build(order []int) {
	if r.memory != nil {
		clear(r.memory.Bytes) // the padding is summed too
	}
	r.drop()
	r.buckets = plan(r.params, order, min(FirstBucketBytes, r.limit), r.limit)
	for n, b := range r.buckets {
		b.flat, r.host = flatten.Vector(r.c, r.bytes(b), b.DType, b.Numel())
		for at, i := range b.List {
			p := r.params[i]
			r.place[i], r.views[i] = n, b.View(r.c, b.flat, at, p.Shape()...)
			p.SwapGrad(r.views[i], false)
		}
	}
	r.begin()
}

// drop frees the buckets that are on the device, and with them all gradients there.
func (r *Reducer) drop() {
	if r.host {
		return
	}
	for _, b := range r.buckets {
		if b.flat != nil {
			b.flat.Free()
		}
	}
}

// bytes are a bucket's in the group's memory; nil if sums stay on the device.
func (r *Reducer) bytes(b *bucket) []byte {
	if r.memory == nil {
		return nil
	}
	return r.memory.Bytes[b.offset : b.offset+b.Bytes() : b.offset+b.Bytes()]
}

// begin readies the next step.
func (r *Reducer) begin() {
	clear(r.ready)
	clear(r.usage.Here)
	r.next, r.announced, r.twice = 0, 0, nil
	for _, b := range r.buckets {
		b.pending, b.wait = len(b.List), nil
	}
}

// Views are the places of the parameters' gradients. They are void after a Rebuild that did
// something, and belong to the reducer.
func (r *Reducer) Views() []*tensor.Tensor { return slices.Clone(r.views) }

// Ready announces that the gradient of parameter i is complete for this step, or that it
// has none here. When a bucket is complete and all before it are sent, it is sent: nothing may
// be added to the gradient until Finish. Announced twice, a parameter makes Finish fail.
func (r *Reducer) Ready(i int) {
	if r.ready[i] {
		r.twice = fmt.Errorf("ddp: the gradient of %s was announced twice in one step, the second time after it may "+
			"have been sent", r.params[i].Name)
		return
	}
	if r.announced == 0 && r.order != nil {
		r.order = r.order[:0]
	}
	r.announced++
	r.announce(i)
}

// announce is Ready for a gradient that was not announced yet.
func (r *Reducer) announce(i int) {
	r.ready[i] = true
	if r.order != nil && len(r.order) < len(r.params) {
		r.order = append(r.order, i)
	}
	p, v := r.params[i], r.views[i]
	g := p.Grad()
	flatten.Fill(r.c, v, g)
	if g != nil {
		r.usage.Here[i] = true
		if g != v {
			p.SwapGrad(v, true)
		}
	}
	r.buckets[r.place[i]].pending--
	for r.next < len(r.buckets) && r.buckets[r.next].pending == 0 {
		r.send(r.next)
		r.next++
	}
}

// send begins the exchange of a bucket.
func (r *Reducer) send(n int) {
	b := r.buckets[n]
	b.wait = r.hook.Begin(r.group, Bucket{n, b.label, b.flat, b.layout, r.c, r.parts(b), r.bytes(b)})
}

// parts are a bucket's gradients one by one.
func (r *Reducer) parts(b *bucket) []Part {
	list := make([]Part, len(b.List))
	for n, i := range b.List {
		list[n] = Part{r.params[i].Name, r.views[i]}
	}
	return list
}

// Finish announces all gradients that were not, waits until every bucket is summed, and
// leaves the sums in the parameters' gradients, on every rank alike. A parameter that had
// a gradient on no rank has none afterwards. It is collective. After an error the group is
// of no more use.
func (r *Reducer) Finish(ctx context.Context) error {
	if r.twice != nil {
		return r.twice
	}
	for i, ready := range r.ready {
		if !ready {
			r.announce(i)
		}
	}
	if err := r.usage.Send(r.group, r.announced > 0); err != nil {
		return err
	}
	for _, b := range r.buckets {
		if err := b.wait(ctx); err != nil {
			return fmt.Errorf("ddp: %s: %w", b.label, err)
		}
	}
	if err := r.usage.Agree(ctx); err != nil {
		return err
	}
	r.report()
	for i, p := range r.params {
		v := r.views[i]
		p.SwapGrad(v, r.usage.All[i])
	}
	if r.announced == 0 && r.order != nil { // nothing was learnt about the order
		r.order = r.order[:0]
	}
	r.begin()
	return nil
}

// Rebuild forms the buckets again, once, in the order in which rank 0's gradients became complete in the last step, so
// that sums begin as early as they can. It is collective and must be called between steps, when no gradient is wanted
// any more; it reports whether it did, and views of the buckets so far are then void. Before the first step, and as
// long as rank 0 had no gradient, it does nothing.
func (r *Reducer) Rebuild(ctx context.Context) (rebuilt bool, err error) {
	if r.order == nil {
		return false, nil
	}
	order := r.order
	if err := comm.BroadcastObject(ctx, r.group, &order, 0); err != nil {
		return false, fmt.Errorf("ddp: order of buckets: %w", err)
	}
	if len(order) == 0 && len(r.params) > 0 {
		return false, nil
	}
	if err := checkOrder(order, len(r.params)); err != nil {
		return false, err
	}
	r.order = nil
	return true, tensor.Try(func() { r.build(order) })
}

// Close takes the gradients out of the buckets and gives the memory back. The group must be
// done with it: call it after a barrier, or when the group is dead or closed.
func (r *Reducer) Close() error {
	for _, p := range r.params {
		p.SwapGrad(nil, false)
	}
	clear(r.views)
	r.drop()
	if r.memory == nil {
		return nil
	}
	return r.memory.Free()
}

// Buckets lists the sizes of the buckets in bytes, in the order in which they are sent.
func (r *Reducer) Buckets() []int {
	sizes := make([]int, len(r.buckets))
	for i, b := range r.buckets {
		sizes[i] = b.Bytes()
	}
	return sizes
}
