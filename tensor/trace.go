// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// KernelSpan is one kernel that ran, for a profile.
type KernelSpan struct {
	Name  string // of the kernel, as "matmul"; the gradient of an op is a kernel or several of other names
	Path  string // of the module in whose forward or backward pass it ran, "" outside of any
	Shape [MaxDims]int
	Dims  int // of the first output, which Shape is of
	Start time.Time
	End   time.Time
	// FLOPs are the floating-point operations of matrix products, attention included, and 0 for other kernels. Bytes
	// are those of the operands' elements, each read or written once.
	FLOPs, Bytes float64
}

// labelled is a backend whose workers can carry labels for CPU profiles.
type labelled interface {
	SetLabels(ctx context.Context)
	ClearLabels()
}

// tracer watches an engine's kernels.
type tracer struct {
	f      func(KernelSpan)
	ctx    context.Context
	labels [backend.NumOps]context.Context // ctx with the kernel's label
}

// Trace calls f, on the launching goroutine, for every kernel that c or a related context launches until stop is
// called: contexts from which c was derived, and all that derive from these. Several functions may trace. Each kernel
// ends before the next is launched, so its time includes no other. While a kernel runs, the goroutines that work on it
// carry the pprof label op in addition to the labels of ctx (that of the last Trace), which the caller's goroutine gets
// back afterwards. Without a trace, a launch costs only one more comparison.
func (c *Ctx) Trace(ctx context.Context, f func(KernelSpan)) (stop func()) {
	t := &tracer{f: f, ctx: ctx}
	for op := range t.labels {
		t.labels[op] = pprof.WithLabels(ctx, pprof.Labels("op", backend.Op(op).String()))
	}
	e := c.eng
	e.tracers = append(slices.Clip(e.tracers), t)
	return func() {
		e.tracers = slices.DeleteFunc(slices.Clone(e.tracers), func(other *tracer) bool { return other == t })
	}
}

// submit launches k on the stream, traced if anybody listens.
func (c *Ctx) submit(k *backend.Call) {
	if c.counts != nil {
		c.counts.kernel(k, c.path)
	}
	if l := c.eng.dev.lacking; l != nil && c.compose(l, k) {
		return
	}
	if len(c.eng.tracers) > 0 {
		c.traced(c.eng.tracers, k)
		return
	}
	c.eng.stream.Launch(k)
}

func (c *Ctx) traced(tracers []*tracer, k *backend.Call) {
	t := tracers[len(tracers)-1]
	span := KernelSpan{Name: k.Op.String(), Path: c.path, Shape: k.Out[0].Shape, Dims: k.Out[0].NDim}
	span.FLOPs, span.Bytes = k.Cost()
	pprof.SetGoroutineLabels(t.labels[k.Op])
	workers, ok := c.eng.dev.be.(labelled)
	if ok {
		workers.SetLabels(t.labels[k.Op])
	}
	span.Start = time.Now()
	c.eng.stream.Launch(k)
	c.eng.stream.Sync()
	span.End = time.Now()
	if ok {
		workers.ClearLabels()
	}
	pprof.SetGoroutineLabels(t.ctx)
	for _, t := range tracers {
		t.f(span)
	}
}
