// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// f32s are numbers as the elements of a tensor.
func f32s(xs ...float32) io.ReaderAt {
	raw := make([]byte, 0, 4*len(xs))
	for _, x := range xs {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return bytes.NewReader(raw)
}

func written(t testing.TB, metadata []Pair, tensors ...NewTensor) []byte {
	var out bytes.Buffer
	require.NoError(t, Write(context.Background(), &out, metadata, tensors, nil))
	return out.Bytes()
}

// Numbers become the bytes that the Python package gguf makes of them.
func TestTypesAreWrittenAsPythonWritesThem(t *testing.T) {
	data, err := os.ReadFile("testdata/quantized.bin")
	require.NoError(t, err)
	src := make([]float32, 64*32)
	decode(src, data, dtype.Float32)
	data = data[4*len(src):]
	for _, typ := range []Type{F16, BF16, Q8_0} {
		got, bad := encoders[typ](nil, src)
		require.Equal(t, -1, bad)
		require.Equal(t, data[:len(got)], got, typ)
		data = data[len(got):]
	}
	require.Empty(t, data)
}

// everyKind has a value of each kind that is written.
func everyKind() []Pair {
	return []Pair{{"a.uint32", Uint32(4_000_000_000)}, {"a.float32", Float32(1e-5)}, {"a.yes", Bool(true)},
		{"a.no", Bool(false)}, {"a.text", Text("naïve ▁\n")}, {"a.texts", Texts([]string{"", "a", "Ġb"})},
		{"a.int32s", Int32s([]int32{3, -1, 2})}, {"a.float32s", Float32s([]float32{0.5, -1000})},
		{"a.none", Texts(nil)}}
}

// What is written is read: keys, and tensors of each type from each dtype, across the parts in which they are
// converted.
func TestWrittenFilesAreRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]float32, part+3*32)
	for i := range src {
		src[i] = dtype.ToF16(float32(rng.NormFloat64())).Float32()
	}
	halves := make([]byte, 0, 2*len(src))
	for _, x := range src {
		halves = binary.LittleEndian.AppendUint16(halves, uint16(dtype.ToF16(x)))
	}
	shape := []int{len(src) / 32, 32}
	tensors := []NewTensor{{"one", []int{1}, F32, dtype.Float32, f32s(7)}}
	for _, typ := range []Type{F32, F16, BF16, Q8_0} {
		tensors = append(tensors, NewTensor{typ.String(), shape, typ, dtype.Float32, f32s(src...)},
			NewTensor{"half." + typ.String(), shape, typ, dtype.Float16, bytes.NewReader(halves)})
	}
	var done, total int64
	var out bytes.Buffer
	require.NoError(t, Write(context.Background(), &out, everyKind(), tensors, func(d, n int64) {
		require.Greater(t, d, done)
		done, total = d, n
	}))
	require.Equal(t, int64(1+8*len(src)), done)
	require.Equal(t, total, done)
	f, err := readBytes(out.Bytes())
	require.NoError(t, err)
	require.Len(t, f.Metadata, len(everyKind()))
	for _, p := range everyKind() {
		require.Equal(t, p.Value.append(nil), f.Metadata[p.Key].append(nil), p.Key)
	}
	require.Equal(t, []float32{7}, floats(t, f, f.Tensors[0]))
	for i, typ := range []Type{F32, F16, BF16, Q8_0} {
		encoded, _ := encoders[typ](nil, src)
		for _, tensor := range f.Tensors[1+2*i : 3+2*i] {
			require.Equal(t, shape, tensor.Shape)
			require.Zero(t, tensor.begin%32)
			require.Equal(t, encoded, out.Bytes()[tensor.begin:tensor.begin+tensor.size], tensor.Name)
		}
	}
	require.Equal(t, src, floats(t, f, f.Tensors[1]))
	require.Equal(t, src, floats(t, f, f.Tensors[3]))
}

// What cannot be in a file is refused before anything of it is written, and numbers that cannot be when they come.
func TestRefusedTensors(t *testing.T) {
	ok := NewTensor{"x", []int{1, 32}, F32, dtype.Float32, f32s(make([]float32, 32)...)}
	with := func(change func(*NewTensor)) []NewTensor {
		c := ok
		change(&c)
		return []NewTensor{c}
	}
	for want, tensors := range map[string][]NewTensor{
		`tensor "x" is there twice`:                 {ok, ok},
		"its name has 0 bytes":                      with(func(x *NewTensor) { x.Name = "" }),
		"shape [32 0]: want dims of at least 1":     with(func(x *NewTensor) { x.Shape = []int{32, 0} }),
		"shape []: want 1 to 4 dims":                with(func(x *NewTensor) { x.Shape = nil }),
		"type Q4_0 is not written: want F32, F16":   with(func(x *NewTensor) { x.Type = Q4_0 }),
		"rows of 16 elements: want a multiple":      with(func(x *NewTensor) { x.Shape, x.Type = []int{2, 16}, Q8_0 }),
		"elements of int32: want a floating-point":  with(func(x *NewTensor) { x.DType = dtype.Int32 }),
		`tensor "x": unexpected EOF`:                with(func(x *NewTensor) { x.Elements = f32s(1) }),
		"element 1 is NaN: want finite numbers":     {first(0, float32(math.NaN()), F32)},
		"element 1 is -Inf: want finite numbers":    {first(0, float32(math.Inf(-1)), Q8_0)},
		"element 1 is 70000, which is beyond F16":   {first(0, 70000, F16)},
		"element 1 is 1e+07, which is beyond Q8_0":  {first(0, 1e7, Q8_0)},
		"element 1 is 3.4e+38, which is beyond BF1": {first(0, 3.4e38, BF16)},
	} {
		var out bytes.Buffer
		err := Write(context.Background(), &out, nil, tensors, nil)
		require.ErrorContains(t, err, want)
		require.Empty(t, out.Bytes())
	}
	for _, pairs := range [][]Pair{{{"", Bool(true)}}, {{"a", Bool(true)}, {"a", Bool(true)}}} {
		require.ErrorContains(t, Write(context.Background(), io.Discard, pairs, nil, nil), "want each once")
	}
}

// first is a tensor that begins with two numbers.
func first(a, b float32, typ Type) NewTensor {
	xs := make([]float32, 32)
	xs[0], xs[1] = a, b
	return NewTensor{"x", []int{32}, typ, dtype.Float32, f32s(xs...)}
}

// zeros are elements without memory.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// Memory does not grow with the tensors, and a canceled context ends the writing.
func TestMemoryOfWriting(t *testing.T) {
	large := NewTensor{"x", []int{1 << 14, 1 << 10}, Q8_0, dtype.Float32, zeros{}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, Write(context.Background(), io.Discard, nil, []NewTensor{large}, nil))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))

	ctx, cancel := context.WithCancelCause(context.Background())
	stopped := errors.New("stopped")
	err := Write(ctx, io.Discard, nil, []NewTensor{large}, func(done, _ int64) {
		cancel(stopped)
		require.LessOrEqual(t, done, int64(part))
	})
	require.ErrorIs(t, err, stopped)
}

// failing fails after some bytes, as a full disk does.
type failing struct{ left int }

var errFull = errors.New("no space left on device")

func (f *failing) Write(p []byte) (int, error) {
	n := min(f.left, len(p))
	if f.left -= n; n < len(p) {
		return n, errFull
	}
	return n, nil
}

func TestFullDisk(t *testing.T) {
	tensors := []NewTensor{{"x", []int{4, 1 << 10}, F32, dtype.Float32, zeros{}}}
	size := len(written(t, everyKind(), tensors...))
	for _, left := range []int{0, 1, 100, size / 2, size - 1} {
		err := Write(context.Background(), &failing{left}, everyKind(), tensors, nil)
		require.ErrorIs(t, err, errFull)
	}
	require.NoError(t, Write(context.Background(), &failing{size}, everyKind(), tensors, nil))
}
