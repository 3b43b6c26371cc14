// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// TryScope frees what a body that fails has made, and passes on what one that does not returns.
func TestTryScope(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	c := tensor.NewCtx(dev)
	broken := errors.New("no luck")
	body := func(err error) func(*tensor.Ctx) ([]*tensor.Tensor, error) {
		return func(c *tensor.Ctx) ([]*tensor.Tensor, error) {
			tensor.Zeros(c, tensor.Float32, 64)
			return []*tensor.Tensor{tensor.Full(c, tensor.Float32, 3, 2)}, err
		}
	}
	before := dev.MemStats().InUse
	out, err := c.TryScope(body(broken))
	require.ErrorIs(t, err, broken)
	require.Nil(t, out)
	require.Equal(t, before, dev.MemStats().InUse)
	out, err = c.TryScope(body(nil))
	require.NoError(t, err)
	require.Equal(t, []float32{3, 3}, tensor.ToSlice[float32](c, out[0]))
	out[0].Free()
	require.Equal(t, before, dev.MemStats().InUse)
}

// Recover returns any panic with its stack; a misuse keeps its text.
func TestRecover(t *testing.T) {
	require.NoError(t, tensor.Recover(func() {}))
	broken := errors.New("no luck")
	err := tensor.Recover(func() { panic(broken) })
	require.EqualError(t, err, "panic: no luck")
	require.ErrorIs(t, err, broken)
	var p *tensor.PanicError
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), "TestRecover")
	c := tensor.NewCtx(tensor.CPU())
	err = tensor.Recover(func() { tensor.Reshape(c, tensor.Zeros(c, tensor.Float32, 2), 3) })
	var misuse *tensor.Error
	require.ErrorAs(t, err, &misuse)
	require.EqualError(t, err, misuse.Error())
	require.EqualError(t, &tensor.Error{Op: "nn.Walk", Msg: "no"}, "nn.Walk: no")
	require.EqualError(t, &tensor.Error{Op: "matmul", Msg: "no"}, "tensor.matmul: no")
}
