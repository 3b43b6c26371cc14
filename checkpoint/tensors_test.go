// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/stretchr/testify/require"
)

// model is a few tensors of several dtypes and shapes, one of them a view.
func model(c *tensor.Ctx) []checkpoint.Named {
	wide := tensor.FromSlice(c, []float32{1, 2, 3, 4, float32(math.Inf(1)), float32(math.NaN())}, 2, 3)
	return []checkpoint.Named{
		{"wte.weight", wide},
		{"ids", tensor.FromSlice(c, []int64{-1, 1 << 40}, 2)},
		{"scale", tensor.FromSlice(c, []float64{0.1})},
		{"half", tensor.Cast(c, tensor.FromSlice(c, []float32{0.5, 1.5}, 2), tensor.BFloat16)},
		{"transposed", tensor.Transpose(c, wide, 0, 1)},
		{"empty", tensor.Zeros(c, tensor.Float32, 0, 3)},
	}
}

// blank is tensors of the same names, dtypes and shapes, all zero.
func blank(c *tensor.Ctx, like []checkpoint.Named) []checkpoint.Named {
	var list []checkpoint.Named
	for _, n := range like {
		list = append(list, checkpoint.Named{Name: n.Name, Tensor: tensor.Zeros(c, n.Tensor.DType(), n.Tensor.Shape()...)})
	}
	return list
}

func bits(c *tensor.Ctx, list []checkpoint.Named) map[string]string {
	m := map[string]string{}
	for _, n := range list {
		m[n.Name] = fmt.Sprintf("%v %v %x", n.Tensor.DType(), n.Tensor.Shape(), tensor.ReadBytes(c, n.Tensor))
	}
	return m
}

func saveModel(t *testing.T, c *tensor.Ctx, list []checkpoint.Named, maxBytes int64) *checkpoint.Checkpoint {
	t.Helper()
	s := quiet(vfs.NewMem(), "out")
	parts, err := checkpoint.TensorParts(c, "model", list, maxBytes)
	require.NoError(t, err)
	_, err = s.Save(ctx, 1, checkpoint.Content{Parts: parts})
	require.NoError(t, err)
	ck, err := s.Latest(ctx)
	require.NoError(t, err)
	return ck
}

func TestTensorsRoundTrip(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	want := model(c)
	for maxBytes, files := range map[int64]int{0: 1, 1 << 20: 1, 40: 3} {
		ck := saveModel(t, c, want, maxBytes)
		require.Len(t, ck.Files, files)
		got := blank(c, want)
		require.NotEqual(t, bits(c, want), bits(c, got))
		require.NoError(t, ck.LoadTensors(c, "model", got))
		require.Equal(t, bits(c, want), bits(c, got))

		all, err := ck.ReadTensors(c, "model")
		require.NoError(t, err)
		require.Equal(t, bits(c, want), bits(c, all))
	}
}

func TestSaveTensorsAndLoadFromAnyFolder(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	dir := t.TempDir()
	want := model(c)
	var b bytes.Buffer
	require.NoError(t, checkpoint.SaveTensors(c, &b, want))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), b.Bytes(), 0o644))
	got := blank(c, want)
	require.NoError(t, checkpoint.LoadTensors(c, dir, "model", got))
	require.Equal(t, bits(c, want), bits(c, got))
	require.ErrorIs(t, checkpoint.LoadTensors(c, dir, "optimizer", got), fs.ErrNotExist)
	require.ErrorContains(t, checkpoint.SaveTensors(c, &b, append(want, want[0])), "given twice")
}

func TestEveryMismatchIsListed(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	ck := saveModel(t, c, model(c), 0)
	got := []checkpoint.Named{
		{"wte.weight", tensor.Zeros(c, tensor.Float32, 3, 2)},
		{"ids", tensor.Zeros(c, tensor.Int32, 2)},
		{"scale", tensor.Zeros(c, tensor.Float64)},
		{"half", tensor.Zeros(c, tensor.Float32, 2)},
		{"z", tensor.Zeros(c, tensor.Float32, 2)},
		{"bias", tensor.Zeros(c, tensor.Float32, 2)},
	}
	before := bits(c, got)
	err := ck.LoadTensors(c, "model", got)
	var bad *checkpoint.MismatchError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, []string{"bias", "z"}, bad.Missing)
	require.Equal(t, []string{"empty", "transposed"}, bad.Unexpected)
	require.Equal(t, []string{
		"half: file bfloat16 [2], want float32 [2]",
		"ids: file int64 [2], want int32 [2]",
		"wte.weight: file float32 [2 3], want float32 [3 2]",
	}, bad.Differing)
	require.EqualError(t, err, "tensors in "+ck.Path+` do not fit:
  2 missing: bias; z
  2 unexpected: empty; transposed
  3 differing: half: file bfloat16 [2], want float32 [2]; ids: file int64 [2], want int32 [2]; wte.weight: file float32 [2 3], want float32 [3 2]`)
	require.Equal(t, before, bits(c, got), "nothing is written")
	require.ErrorContains(t, ck.LoadTensors(c, "model", []checkpoint.Named{got[0], got[0]}), `"wte.weight" is requested twice`)

	var many []checkpoint.Named
	for i := range 25 {
		many = append(many, checkpoint.Named{Name: fmt.Sprint(i), Tensor: got[2].Tensor})
	}
	require.ErrorContains(t, ck.LoadTensors(c, "model", many), "; and 5 more")
}

func TestLoadOptions(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	ck := saveModel(t, c, model(c), 0)
	half := tensor.Zeros(c, tensor.Float32, 2)
	others := checkpoint.IgnoreUnexpected(func(name string) bool { return name != "half" && name != "ids" })
	require.ErrorContains(t, ck.LoadTensors(c, "model", []checkpoint.Named{{"half", half}}, checkpoint.CastFloats(), others), "1 unexpected: ids")
	ids := tensor.Zeros(c, tensor.Int64, 2)
	require.NoError(t, ck.LoadTensors(c, "model", []checkpoint.Named{{"half", half}, {"ids", ids}}, checkpoint.CastFloats(), others))
	require.Equal(t, []float32{0.5, 1.5}, tensor.ToSlice[float32](c, half))
	require.Equal(t, []int64{-1, 1 << 40}, tensor.ToSlice[int64](c, ids))

	wrong := tensor.Zeros(c, tensor.Float32, 2)
	require.ErrorContains(t, ck.LoadTensors(c, "model", []checkpoint.Named{{"half", half}, {"ids", wrong}}, checkpoint.CastFloats(), others),
		"ids: file int64 [2], want float32 [2]", "integers are never cast")
}

// Parameters of transformers' own files, of types that the engine lacks, are told.
func TestForeignElementTypes(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	foreign, err := os.ReadFile(filepath.Join("..", "internal", "safetensors", "testdata", "foreign.safetensors"))
	require.NoError(t, err)
	s := quiet(vfs.NewMem(), "out")
	_, err = s.Save(ctx, 1, checkpoint.Content{Parts: []checkpoint.Part{checkpoint.BytesPart("model.safetensors", foreign)}})
	require.NoError(t, err)
	ck, err := s.Latest(ctx)
	require.NoError(t, err)
	_, err = ck.ReadTensors(c, "model")
	require.ErrorContains(t, err, `tensor "i8" has elements of type I8`)
	named := []checkpoint.Named{{"i8", tensor.Zeros(c, tensor.Uint8, 2)}, {"f32", tensor.Zeros(c, tensor.Float32, 1)}}
	require.ErrorContains(t, ck.LoadTensors(c, "model", named), "i8: file I8 [2], want uint8 [2]")
	skip := checkpoint.IgnoreUnexpected(func(name string) bool { return name == "i8" })
	require.NoError(t, ck.LoadTensors(c, "model", named[1:], skip))
	require.Equal(t, []float32{1}, tensor.ToSlice[float32](c, named[1].Tensor))
}
