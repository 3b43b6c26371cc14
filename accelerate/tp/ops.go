// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// across is the exchange of a layer between the ranks that share it. Its methods panic with a *tensor.Error if a rank
// is lost.
type across struct {
	group *comm.Group // nil: one rank
	path  string      // of the layer's module, which the calls are labelled with
	width int         // features of each rank, of the last fewer
	size  int         // of all
}

// wait waits for a call.
func (a *across) wait(c *tensor.Ctx, what string, h *comm.Handle) {
	if err := h.Wait(context.Background()); err != nil {
		panic(&tensor.Error{Op: "tp." + what, Msg: fmt.Sprintf("%s: %v", a.path, err), Where: c.Path(), Cause: err})
	}
}

// sum begins to add t over the ranks, in place, and returns a function that waits for the sum.
func (a *across) sum(c *tensor.Ctx, t *tensor.Tensor) (wait func()) {
	h := a.group.AllReduce(comm.OfTensor(c, t), comm.Sum, comm.Label(a.path))
	return func() { a.wait(c, "Sum", h) }
}

// gathered puts together what ranks have of the last dim.
func (a *across) gathered(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	shape := t.Shape()
	if n := t.Size(-1); n < a.width { // calls have the same length on all ranks
		t = tensor.Pad(c, t, []int{0, a.width - n}, tensor.PadConstant, 0)
	}
	t = tensor.Reshape(c, t, -1, a.width)
	rows := t.Size(0)
	all := tensor.Reshape(c, a.stacked(c, t), a.group.Size(), rows, a.width)
	all = tensor.Reshape(c, tensor.Transpose(c, all, 0, 1), rows, -1)
	return tensor.Reshape(c, tensor.Slice(c, all, 1, 0, a.size), append(shape[:len(shape)-1:len(shape)-1], a.size)...)
}

// stacked puts what ranks have [n,m] one below the other.
func (a *across) stacked(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	t = tensor.Contiguous(c, t)
	all := tensor.Empty(c, t.DType(), a.group.Size()*t.Size(0), t.Size(1))
	a.wait(c, "Gather", a.group.AllGather(comm.OfTensor(c, all), comm.OfTensor(c, t), comm.Label(a.path)))
	return all
}

// own is what this rank has of the last dim.
func (a *across) own(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	start := a.group.Rank() * a.width
	return tensor.Contiguous(c, tensor.Slice(c, t, t.Dim()-1, start, min(start+a.width, a.size)))
}

// op is a differentiable op of one operand.
func (a *across) op(name string, forward, backward func(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor) func(*nn.Ctx,
	[]*tensor.Tensor) []*tensor.Tensor {
	return func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
		return tensor.Custom(c.Ctx, tensor.CustomOp{
			Name: name,
			Forward: func(c *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
				return []*tensor.Tensor{forward(c, in[0])}, nil
			},
			Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, need []bool) []*tensor.Tensor {
				if !need[0] || grads[0] == nil {
					return []*tensor.Tensor{nil}
				}
				return []*tensor.Tensor{backward(c, grads[0])}
			},
		}, ts[0])
	}
}

// gather gives each rank the whole output; each computes the same gradient of it and keeps its part. A loss is whole
// already, and so are log-probabilities.
func (a *across) gather() func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor {
	op := a.op("tp.gather", a.gathered, a.own)
	return func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
		if ts[0].Dim() == 0 || c.LogProbs {
			return ts
		}
		return op(c, ts)
	}
}

// split gives each rank its part of an input that all have. The parts of the gradient are put together.
func (a *across) split() func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor {
	return a.op("tp.split", a.own, a.gathered)
}
