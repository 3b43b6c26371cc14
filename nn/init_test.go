// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Parameters without values have the shapes and dtypes of others, and buffers their values.
func TestUnfilled(t *testing.T) {
	in := nn.NewInit(tensor.CPU(), 1).As(tensor.BFloat16).Unfilled()
	p := in.Sub("a").Normal("weight", 1, 3, 4)
	require.Equal(t, []int{3, 4}, p.Shape())
	require.Equal(t, tensor.BFloat16, p.DType())
	later := in.Deferred().Full("bias", 1, 2)
	require.NotNil(t, later.Deferred())
	buffer := in.Buffer(tensor.Float32, 2, 2).Tensor
	require.Equal(t, []float32{2, 2}, tensor.ToSlice[float32](tensor.NewCtx(tensor.CPU()), buffer))
}
