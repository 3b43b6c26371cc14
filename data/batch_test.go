// SPDX-License-Identifier: Apache-2.0

package data_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A name that the batch does not have is answered with those that it has.
func TestBatchRequired(t *testing.T) {
	x := tensor.Ones(tensor.NewCtx(tensor.CPU()), tensor.Float32, 1)
	b := &data.Batch{Tensors: map[string]*tensor.Tensor{"label": x, "inputs": x}}
	require.Equal(t, x, b.Required("inputs"))
	require.EqualError(t, tensor.Try(func() { b.Required(data.Labels) }),
		"data.Batch: the batch has no labels: it has inputs, label")
	require.ErrorContains(t, tensor.Try(func() { (&data.Batch{}).Required(data.Labels) }), "it has nothing")
}
