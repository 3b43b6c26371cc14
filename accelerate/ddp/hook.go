// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Bucket is what a Hook exchanges: the gradients of some parameters, side by side.
type Bucket struct {
	Index  int            // in the order in which buckets are sent, the same on all ranks
	Label  string         // names the first and the last parameter; calls should carry it
	Grads  *tensor.Tensor // a vector of all gradients, on the device where they are; there is padding between them
	Layout uint64         // hash of what lies where; calls should carry it, so that ranks compare it
	Ctx    *tensor.Ctx    // of the rank: ops of the hook belong there, since Grads holds what its kernels so far leave
	Parts  []Part         // the gradients one by one, in their order in Grads

	host []byte // the group's memory for the bucket: where Grads lies, or is staged; nil: it never visits the host
}

// Part is one parameter's gradient in a bucket. The memory is that of Bucket.Grads.
type Part struct {
	Name  string         // of the parameter
	Grads *tensor.Tensor // in the parameter's shape
}

// Buffer is the bucket as an operand of the group's calls. They wait until Grads is ready, wherever it lies.
func (b Bucket) Buffer() comm.Buffer { return comm.OfTensor(b.Ctx, b.Grads).Via(b.host) }

// Hook is what happens to a complete bucket: the sum over all ranks, or something in its
// place. It follows PyTorch's DDP communication hooks. All ranks use the same hook.
type Hook interface {
	// Name stands in logs, and ranks compare it.
	Name() string
	// Lossy reports whether the result may differ from the specified sum. Bits then
	// depend on the number of ranks, and a log line says so.
	Lossy() bool
	// Begin starts the exchange of a bucket and returns the function that waits until
	// Grads holds the result. It runs inside the backward pass and must not wait for
	// other ranks. Every rank calls it for the same buckets in the same order; wait is
	// called once, on the same goroutine.
	Begin(g *comm.Group, b Bucket) (wait func(ctx context.Context) error)
}

// AllReduce is the default hook: the sum by the group's specified tree.
var AllReduce Hook = allReduce{}

// BF16Compress and FP16Compress send float32 gradients as bfloat16 or float16, in half the bytes: each rank rounds its
// sum, the group adds in float32 and rounds once more. They are lossy: a relative error of up to 2⁻⁸ (2⁻¹¹ for float16)
// for each rounding, and bits that depend on the number of ranks. Sums beyond 65504 overflow in float16. Buckets of
// other dtypes are summed as they are.
var (
	BF16Compress Hook = castCompress{"bf16", tensor.BFloat16}
	FP16Compress Hook = castCompress{"fp16", tensor.Float16}
)

type allReduce struct{}

func (allReduce) Name() string { return "no" }

func (allReduce) Lossy() bool { return false }

func (allReduce) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	return g.AllReduce(b.Buffer(), comm.Sum, comm.Label(b.Label), comm.Layout(b.Layout)).Wait
}

// lossy is the name of a hook whose result may differ from the specified sum.
type lossy string

func (name lossy) Name() string { return string(name) }

func (lossy) Lossy() bool { return true }

type castCompress struct {
	lossy
	half tensor.DType
}

// Begin rounds into the first half of the bucket, where it lies.
func (h castCompress) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	n := b.Grads.Numel()
	if b.Grads.DType() != tensor.Float32 || n == 0 {
		return AllReduce.Begin(g, b)
	}
	half := tensor.Slice(b.Ctx, b.Grads.Bits(h.half), 0, 0, n)
	compress(b.Ctx, half, b.Grads)
	sum := g.AllReduce(comm.OfTensor(b.Ctx, half).Via(b.host[:min(2*n, len(b.host))]), comm.Sum, comm.Label(b.Label),
		comm.Layout(b.Layout))
	return func(ctx context.Context) error {
		if err := sum.Wait(ctx); err != nil {
			return err
		}
		return tensor.Try(func() { expand(b.Ctx, b.Grads, half) })
	}
}

// piece is how many elements are copied between two tensors that share memory.
const piece = 1 << 16

// compress rounds wide to half, which lies in the first half of the same memory.
func compress(c *tensor.Ctx, half, wide *tensor.Tensor) {
	for lo := 0; lo < wide.Numel(); lo += piece { // a write covers what was read before
		recast(c, half, wide, lo)
	}
}

// expand is the inverse of compress.
func expand(c *tensor.Ctx, wide, half *tensor.Tensor) {
	for hi := wide.Numel(); hi > 0; hi = (hi - 1) / piece * piece { // a write covers what was read before
		recast(c, wide, half, (hi-1)/piece*piece)
	}
}

// recast converts a piece from one tensor to another, through a scratch buffer.
func recast(c *tensor.Ctx, to, from *tensor.Tensor, lo int) {
	hi := min(lo+piece, to.Numel())
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		part := tensor.Cast(c, tensor.Slice(c, from, 0, lo, hi), to.DType())
		tensor.CopyInto(c, tensor.Slice(c, to, 0, lo, hi), part)
		return nil
	})
}
