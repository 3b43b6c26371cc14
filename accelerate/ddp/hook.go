// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Bucket is what a Hook exchanges: the gradients of some parameters, side by side.
type Bucket struct {
	Index  int          // in the order in which buckets are sent, the same on all ranks
	Label  string       // names the first and the last parameter; calls should carry it
	DType  tensor.DType // of all elements
	Data   []byte       // in memory that the group reduces where it lies; there is padding between gradients
	Layout uint64       // hash of what lies where; calls should carry it, so that ranks compare it
}

// Buffer is the bucket as an operand of the group's calls.
func (b Bucket) Buffer() dist.Buffer { return dist.Bytes(b.Data, b.DType) }

// Hook is what happens to a complete bucket: the sum over all ranks, or something in its
// place. It follows PyTorch's DDP communication hooks. All ranks use the same hook.
type Hook interface {
	// Name stands in logs, and ranks compare it.
	Name() string
	// Lossy reports whether the result may differ from the specified sum. Bits then
	// depend on the number of ranks, and a log line says so.
	Lossy() bool
	// Begin starts the exchange of a bucket and returns the function that waits until
	// Data holds the result. It runs inside the backward pass and must not wait for
	// other ranks. Every rank calls it for the same buckets in the same order; wait is
	// called once, on the same goroutine.
	Begin(g *dist.Group, b Bucket) (wait func(ctx context.Context) error)
}

// AllReduce is the default hook: the sum by the group's specified tree.
var AllReduce Hook = allReduce{}

// BF16Compress sends float32 gradients as bfloat16, in half the bytes: each rank rounds its
// sum, the group adds in float32 and rounds once more. It is lossy: a relative error of up to
// 2⁻⁸ for each rounding, and bits that depend on the number of ranks. Buckets of other dtypes
// are summed as they are. It needs no memory of its own.
var BF16Compress Hook = bf16Compress{}

// HookByName returns the built-in hook of a name: "no" (AllReduce) or "bf16". It is for package accelerate; programs
// set the argument ddp_comm_hook.
func HookByName(name string) (Hook, error) {
	switch name {
	case "no":
		return AllReduce, nil
	case "bf16":
		return BF16Compress, nil
	}
	return nil, fmt.Errorf("ddp: unknown communication hook %q: want no or bf16", name)
}

type allReduce struct{}

func (allReduce) Name() string { return "no" }

func (allReduce) Lossy() bool { return false }

func (allReduce) Begin(g *dist.Group, b Bucket) func(context.Context) error {
	return g.AllReduce(b.Buffer(), dist.Sum, dist.Label(b.Label), dist.Layout(b.Layout)).Wait
}

type bf16Compress struct{}

func (bf16Compress) Name() string { return "bf16" }

func (bf16Compress) Lossy() bool { return true }

// Begin rounds into the first half of the bucket, where it lies.
func (bf16Compress) Begin(g *dist.Group, b Bucket) func(context.Context) error {
	if b.DType != tensor.Float32 || len(b.Data) == 0 {
		return AllReduce.Begin(g, b)
	}
	n := len(b.Data) / 4
	wide := unsafe.Slice((*float32)(unsafe.Pointer(&b.Data[0])), n)
	half := unsafe.Slice((*dtype.BF16)(unsafe.Pointer(&b.Data[0])), n)
	compress(half, wide)
	h := g.AllReduce(dist.Bytes(b.Data[:2*n], tensor.BFloat16), dist.Sum, dist.Label(b.Label), dist.Layout(b.Layout))
	return func(ctx context.Context) error {
		if err := h.Wait(ctx); err != nil {
			return err
		}
		expand(wide, half)
		return nil
	}
}

// piece is how many elements go through the buffer between two slices that share memory.
const piece = 2048

// compress rounds wide to half, which lies in the first half of the same memory.
func compress(half []dtype.BF16, wide []float32) {
	var part [piece]dtype.BF16
	for lo := 0; lo < len(wide); lo += piece { // a write covers what was read before
		hi := min(lo+piece, len(wide))
		vecmath.RoundBF16(part[:hi-lo], wide[lo:hi])
		copy(half[lo:hi], part[:])
	}
}

// expand is the inverse of compress.
func expand(wide []float32, half []dtype.BF16) {
	var part [piece]dtype.BF16
	for hi := len(half); hi > 0; hi = (hi - 1) / piece * piece { // a write covers what was read before
		lo := (hi - 1) / piece * piece
		n := copy(part[:], half[lo:hi])
		vecmath.WidenBF16(wide[lo:hi], part[:n])
	}
}
