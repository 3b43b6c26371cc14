// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// newCtx returns a context on a device of the test's own, whose memory nobody else uses.
func newCtx(t *testing.T) *tensor.Ctx {
	dev := tensor.NewCPU(2)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return tensor.NewCtx(dev)
}

// vec makes a 1-D float64 tensor.
func vec(c *tensor.Ctx, v ...float64) *tensor.Tensor { return tensor.FromSlice(c, v, len(v)) }

// leaf makes a 1-D float64 leaf.
func leaf(c *tensor.Ctx, v ...float64) *tensor.Tensor { return vec(c, v...).SetRequiresGrad(true) }

// total is the sum of all elements.
func total(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor { return tensor.Sum(c, t, nil, false) }

// backward is Backward from one root of one element.
func backward(c *tensor.Ctx, root *tensor.Tensor, opts ...tensor.BackwardOption) {
	tensor.Backward(c, []*tensor.Tensor{root}, nil, nil, opts...)
}

// gradOf is the gradient accumulated in a leaf; nil if there is none.
func gradOf(c *tensor.Ctx, t *tensor.Tensor) []float64 {
	if t.Grad() == nil {
		return nil
	}
	return values(c, t.Grad())
}

// misuse runs f, which must panic with *Error, and returns that.
func misuse(t *testing.T, f func()) *tensor.Error {
	t.Helper()
	var e *tensor.Error
	require.ErrorAs(t, tensor.Try(f), &e)
	return e
}

// inUse is the device memory in use after everything unreachable was collected.
func inUse(c *tensor.Ctx) int64 { return c.Device().MemStats().InUse }
