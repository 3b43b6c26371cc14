package ddp

import (
	"context"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Default sizes of buckets, PyTorch's.
const (
	FirstBucketBytes = 1 << 20
	BucketBytes      = 25 << 20
)

// Options are the settings of a Reducer; all ranks must give the same.
type Options struct {
	// BucketBytes is the size of a bucket but the first; 0 is 25 MiB.
	BucketBytes int
}

// Reducer sums the gradients of a step over the ranks of a group. It belongs to one
// goroutine. The life of a step: gradients become complete and are announced by Ready, in
// any order; Finish waits for the sums.
type Reducer struct {
	c      *tensor.Ctx
	group  *dist.Group
	params []optim.Param
	limit  int

	memory  *dist.Memory
	buckets []*bucket
	place   []int            // of each parameter: its bucket
	views   []*tensor.Tensor // of each parameter: its gradient's place
	host    bool             // buckets lie in host memory and need no copy

	ready    []bool
	used     []uint8 // whether a parameter had a gradient here, after Finish on any rank
	arrivals []int   // order of announcements in the first step
	next     int     // first bucket that is not sent yet
	rebuilt  bool
}

// New makes a reducer for parameters that are the same on all ranks (see Verify), and
// makes their gradients views of its buckets. It is collective.
func New(c *tensor.Ctx, g *dist.Group, params []optim.Param, o Options) (*Reducer, error) {
	if o.BucketBytes <= 0 {
		o.BucketBytes = BucketBytes
	}
	r := &Reducer{
		c: c.NoGrad(), group: g, params: params, limit: o.BucketBytes, place: make([]int, len(params)), views: make([]*tensor.Tensor, len(params)),
		ready: make([]bool, len(params)), used: make([]uint8, len(params)),
	}
	total := 0
	for _, p := range params {
		total += align(p.Bytes())
	}
	var err error
	if r.memory, err = g.Alloc(total); err != nil {
		return nil, fmt.Errorf("ddp: memory for gradients: %w", err)
	}
	return r, tensor.Try(func() { r.build(reversed(len(params))) })
}

// build cuts the memory into buckets in the given order and points the gradients there.
func (r *Reducer) build(order []int) {
	r.buckets = plan(r.params, order, min(FirstBucketBytes, r.limit), r.limit)
	for n, b := range r.buckets {
		at := b.offset
		for _, i := range b.params {
			p := r.params[i]
			r.place[i], r.views[i] = n, r.view(at, p)
			p.SwapGrad(r.views[i], false)
			at += align(p.Bytes())
		}
	}
	r.begin()
}

// view is a gradient's place: in the group's memory if the device computes there.
func (r *Reducer) view(at int, p optim.Param) *tensor.Tensor {
	v, ok := tensor.FromHost(r.c, r.memory.Bytes[at:at+p.Bytes()], p.DType(), p.Shape()...)
	r.host = ok
	if !ok {
		v = tensor.Zeros(r.c, p.DType(), p.Shape()...)
	}
	return v
}

// begin readies the next step.
func (r *Reducer) begin() {
	clear(r.ready)
	clear(r.used)
	r.next = 0
	for _, b := range r.buckets {
		b.pending, b.handle = len(b.params), nil
	}
}

// Ready announces that the gradient of parameter i is complete for this step, or that it
// has none here. When a bucket is complete and all before it are sent, it is sent.
func (r *Reducer) Ready(i int) {
	if r.ready[i] {
		return
	}
	r.ready[i] = true
	if !r.rebuilt {
		r.arrivals = append(r.arrivals, i)
	}
	p, v := r.params[i], r.views[i]
	switch g := p.Grad(); {
	case g == nil: // −0 changes no sum
		tensor.FillInto(r.c, v, math.Copysign(0, -1))
	default:
		r.used[i] = 1
		if g != v {
			tensor.CopyInto(r.c, v, g)
			p.SwapGrad(v, true)
		}
	}
	r.buckets[r.place[i]].pending--
	for r.next < len(r.buckets) && r.buckets[r.next].pending == 0 {
		r.send(r.buckets[r.next])
		r.next++
	}
}

// send begins the sum of a bucket.
func (r *Reducer) send(b *bucket) {
	if !r.host {
		at := b.offset
		for _, i := range b.params {
			copy(r.memory.Bytes[at:], tensor.ReadBytes(r.c, r.views[i]))
			at += align(r.params[i].Bytes())
		}
	}
	r.c.Sync()
	b.handle = r.group.AllReduce(dist.Bytes(r.memory.Bytes[b.offset:b.offset+b.bytes], b.dtype), dist.Sum, dist.Label(b.label), dist.Layout(b.layout))
}

// Finish announces all gradients that were not, waits until every bucket is summed, and
// leaves the sums in the parameters' gradients, on every rank alike. A parameter that had
// a gradient on no rank has none afterwards.
func (r *Reducer) Finish(ctx context.Context) error {
	for i := range r.params {
		r.Ready(i)
	}
	usage := r.group.AllReduce(dist.Of(r.used), dist.Max, dist.Label("parameters in use"))
	for _, b := range r.buckets {
		if err := b.handle.Wait(ctx); err != nil {
			return fmt.Errorf("ddp: %s: %w", b.label, err)
		}
	}
	if err := usage.Wait(ctx); err != nil {
		return fmt.Errorf("ddp: %w", err)
	}
	for i, p := range r.params {
		if !r.host && r.used[i] == 1 {
			b := r.buckets[r.place[i]]
			at := b.offset
			for _, k := range b.params {
				if k == i {
					break
				}
				at += align(r.params[k].Bytes())
			}
			tensor.WriteBytes(r.c, r.views[i], r.memory.Bytes[at:at+p.Bytes()])
		}
		p.SwapGrad(r.views[i], r.used[i] == 1)
	}
	r.begin()
	return nil
}

// Rebuild cuts the buckets anew, once, in the order in which rank 0's gradients became
// complete in the first step, so that sums begin as early as they can. It is collective and
// must be called between steps, when no gradient is held; it reports whether it did, and
// views of the buckets so far are then void.
func (r *Reducer) Rebuild(ctx context.Context) (rebuilt bool, err error) {
	if r.rebuilt || len(r.arrivals) != len(r.params) {
		return false, nil
	}
	r.rebuilt = true
	order := r.arrivals
	r.arrivals = nil
	if err := dist.BroadcastObject(ctx, r.group, &order, 0); err != nil {
		return false, fmt.Errorf("ddp: order of buckets: %w", err)
	}
	if err := checkOrder(order, len(r.params)); err != nil {
		return false, err
	}
	return true, tensor.Try(func() { r.build(order) })
}

// Close takes the gradients out of the buckets and gives the memory back. The group must be
// done with it: call it after a barrier, or when the group is dead or closed.
func (r *Reducer) Close() error {
	for _, p := range r.params {
		p.SwapGrad(nil, false)
	}
	r.views = nil
	return r.memory.Free()
}

// Buckets lists the sizes of the buckets in bytes, in the order in which they are sent.
func (r *Reducer) Buckets() []int {
	sizes := make([]int, len(r.buckets))
	for i, b := range r.buckets {
		sizes[i] = b.bytes
	}
	return sizes
}
