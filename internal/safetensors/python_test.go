// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
)

func open(t *testing.T, name string) *safetensors.Reader {
	t.Helper()
	r, err := safetensors.Open(vfs.OS, name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// tensors turns what a reader has back into what a writer takes.
func tensors(t *testing.T, r *safetensors.Reader) []safetensors.Tensor {
	t.Helper()
	var list []safetensors.Tensor
	for _, e := range r.Entries() {
		data, err := r.ReadTensor(e.Name)
		require.NoError(t, err)
		list = append(list, safetensors.FromBytes(e.Name, e.DType, e.Shape, data))
	}
	return list
}

func TestReadsWhatPythonWrote(t *testing.T) {
	r := open(t, "testdata/fixture.safetensors")
	require.Equal(t, map[string]string{"format": "pt"}, r.Metadata())
	require.Len(t, r.Entries(), 11)

	ramp := func(width int, at func(i int, p []byte)) []byte {
		p := make([]byte, 24*width)
		for i := range 24 {
			at(i, p[i*width:])
		}
		return p
	}
	le := binary.LittleEndian
	want := map[string]struct {
		dtype dtype.DType
		shape []int
		data  []byte
	}{
		"f32": {dtype.Float32, []int{2, 3, 4},
			ramp(4, func(i int, p []byte) { le.PutUint32(p, math.Float32bits(float32(i)/8-1)) })},
		"f64": {dtype.Float64, []int{4, 6}, ramp(8, func(i int, p []byte) {
			le.PutUint64(p, math.Float64bits(float64(i)/3))
		})},
		"bf16": {dtype.BFloat16, []int{3, 8},
			ramp(2, func(i int, p []byte) { le.PutUint16(p, uint16(dtype.ToBF16(float32(i)/7))) })},
		"f16": {dtype.Float16, []int{8, 3}, ramp(2, func(i int, p []byte) {
			le.PutUint16(p, uint16(dtype.ToF16(float32(i)/7)))
		})},
		"i32": {dtype.Int32, []int{24}, ramp(4, func(i int, p []byte) { le.PutUint32(p, uint32(int32(i*1000-7))) })},
		"i64": {dtype.Int64, []int{24}, ramp(8, func(i int, p []byte) { le.PutUint64(p, uint64(i)*10_000_000_000) })},
		"u8":  {dtype.Uint8, []int{24}, ramp(1, func(i int, p []byte) { p[0] = byte(i) })},
		"bool": {dtype.Bool, []int{24}, ramp(1, func(i int, p []byte) {
			if i%3 == 0 {
				p[0] = 1
			}
		})},
		"scalar":         {dtype.Float32, nil, le.AppendUint32(nil, math.Float32bits(3.5))},
		"empty":          {dtype.Float32, []int{0, 5}, []byte{}},
		`odd "name" <é>`: {dtype.Float32, []int{3}, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x7f, 0, 0, 0xc0, 0x7f}},
	}
	require.Len(t, want, 11)
	for name, w := range want {
		e, ok := r.Lookup(name)
		require.True(t, ok, name)
		require.Equal(t, w.dtype, e.DType, name)
		require.Equal(t, w.shape, e.Shape, name)
		data, err := r.ReadTensor(name)
		require.NoError(t, err)
		require.Equal(t, w.data, data, name)
	}
}

func TestWritesTheBytesThatPythonWrites(t *testing.T) {
	for _, name := range []string{"fixture.safetensors", "sharded/model-00002-of-00003.safetensors"} {
		want, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		list := tensors(t, open(t, filepath.Join("testdata", name)))
		for range len(list) {
			list = append(list[1:], list[0]) // any order
			var got bytes.Buffer
			require.NoError(t, safetensors.Write(&got, list, safetensors.PyTorchMetadata()))
			require.Equal(t, want, got.Bytes(), name)
		}
	}
}

func TestForeignElementTypesCanBeReadPast(t *testing.T) {
	r := open(t, "testdata/foreign.safetensors")
	e, ok := r.Lookup("i8")
	require.True(t, ok)
	require.Equal(t, dtype.Invalid, e.DType)
	require.Equal(t, "I8", e.Raw)
	data, err := r.ReadTensor("i8")
	require.NoError(t, err)
	require.Equal(t, []byte{255, 2}, data)
	data, err = r.ReadTensor("f32")
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0x80, 0x3f}, data)

	err = safetensors.Write(&bytes.Buffer{}, tensors(t, r), nil)
	require.ErrorContains(t, err, `tensor "i8": dtype invalid cannot be written`)
}

func TestShardsAreThoseOfPython(t *testing.T) {
	set, err := safetensors.OpenSet(vfs.OS, "testdata/sharded", "model")
	require.NoError(t, err)
	defer func() { require.NoError(t, set.Close()) }()
	require.Equal(t, []string{"h.0.weight", "h.1.weight", "h.2.weight", "h.3.weight", "h.4.weight"}, set.Names())
	var list []safetensors.Tensor
	for i, name := range set.Names() {
		a, ok := set.Lookup(name)
		require.True(t, ok)
		require.Equal(t, []int{4, 4}, a.Shape)
		data, err := a.Read()
		require.NoError(t, err)
		require.Equal(t, math.Float32bits(float32(i)), binary.LittleEndian.Uint32(data[60:]))
		list = append(list, safetensors.FromBytes(name, a.DType, a.Shape, data))
	}
	shards, index, err := safetensors.Split("model", list, 130, nil)
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/sharded/model.safetensors.index.json")
	require.NoError(t, err)
	require.Equal(t, string(want), string(index))
	require.Len(t, shards, 3)
	for _, s := range shards {
		want, err := os.ReadFile(filepath.Join("testdata/sharded", s.File))
		require.NoError(t, err)
		var got bytes.Buffer
		require.NoError(t, safetensors.Write(&got, s.Tensors, safetensors.PyTorchMetadata()))
		require.Equal(t, want, got.Bytes())
	}
}
