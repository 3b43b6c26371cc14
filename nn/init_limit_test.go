// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A parameter that no machine holds is refused before memory is taken, and a model without end too.
func TestInitRefusesWhatCannotBe(t *testing.T) {
	in := nn.NewInit(tensor.CPU(), 1)
	before := tensor.CPU().MemStats().Allocs
	err := tensor.Try(func() { in.Sub("head").Normal("weight", 1, 1<<30, 1<<30) })
	require.ErrorContains(t, err, "shape [1073741824 1073741824] of float32: with it the model has 4.612e+18 bytes")
	require.ErrorContains(t, err, "head.weight")
	require.ErrorContains(t, tensor.Try(func() { in.Buffer(tensor.Float64, 0, 1<<60) }),
		"with it the model has 9.223e+18 bytes")
	require.Equal(t, before, tensor.CPU().MemStats().Allocs)

	dry := in.Dry(2)
	dry.Full("a", 1, 1<<30)
	dry.Dry(0).Full("b", 1, 1<<30) // counts for itself
	dry.Sub("x").Full("b", 1, 1)
	require.ErrorContains(t, tensor.Try(func() { dry.As(tensor.Float16).Buffer(tensor.Bool, 1) }),
		"more than 2 parameters and buffers")
	require.Equal(t, before, tensor.CPU().MemStats().Allocs, "a dry model takes no memory")
}
