// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"testing"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/stretchr/testify/require"
)

// model is a few tensors of several dtypes and shapes, one of them a view.
func model(c *tensor.Ctx) []tensor.Named {
	wide := tensor.FromSlice(c, []float32{1, 2, 3, 4, float32(math.Inf(1)), float32(math.NaN())}, 2, 3)
	return []tensor.Named{
		{Name: "wte.weight", Tensor: wide},
		{Name: "ids", Tensor: tensor.FromSlice(c, []int64{-1, 1 << 40}, 2)},
		{Name: "scale", Tensor: tensor.FromSlice(c, []float64{0.1})},
		{Name: "half", Tensor: tensor.Cast(c, tensor.FromSlice(c, []float32{0.5, 1.5}, 2), tensor.BFloat16)},
		{Name: "transposed", Tensor: tensor.Transpose(c, wide, 0, 1)},
		{Name: "empty", Tensor: tensor.Zeros(c, tensor.Float32, 0, 3)},
	}
}

func bits(c *tensor.Ctx, list []tensor.Named) map[string]string {
	m := map[string]string{}
	for _, n := range list {
		m[n.Name] = fmt.Sprintf("%v %v %x", n.Tensor.DType(), n.Tensor.Shape(), tensor.ReadBytes(c, n.Tensor))
	}
	return m
}

// savedBits is bits of the tensors of a set.
func savedBits(t *testing.T, ck *checkpoint.Checkpoint, base string) map[string]string {
	set, err := ck.OpenTensors(base)
	require.NoError(t, err)
	m := map[string]string{}
	for _, name := range set.Names() {
		a, _ := set.Lookup(name)
		data, err := a.Read()
		require.NoError(t, err)
		m[name] = fmt.Sprintf("%v %v %x", a.DType, a.Shape, data)
	}
	require.NoError(t, set.Close())
	return m
}

func TestTensorsRoundTrip(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	want := model(c)
	part := checkpoint.Part{Name: "model.safetensors", Write: func(w io.Writer) error {
		return checkpoint.SaveTensors(c, w, want)
	}}
	s := quiet(vfs.NewMem(), "out")
	_, err := s.Save(ctx, 1, checkpoint.Content{Parts: []checkpoint.Part{part}})
	require.NoError(t, err)
	ck, err := s.Latest(ctx)
	require.NoError(t, err)
	require.Equal(t, bits(c, want), savedBits(t, ck, "model"))
	_, err = ck.OpenTensors("optimizer")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, checkpoint.SaveTensors(c, io.Discard, append(want, want[0])), "given twice")
}
