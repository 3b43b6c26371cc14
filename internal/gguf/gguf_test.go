// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

func golden(t testing.TB) []byte {
	data, err := os.ReadFile("testdata/types.gguf")
	require.NoError(t, err)
	return data
}

func readBytes(data []byte) (*File, error) {
	return Read(bytes.NewReader(data), int64(len(data)), "x.gguf")
}

// floats are the elements of a tensor in float32.
func floats(t *testing.T, f *File, tensor Tensor) []float32 {
	r, err := f.Elements(tensor)
	require.NoError(t, err)
	dt := tensor.Type.DType()
	raw := make([]byte, tensor.Numel()*dt.Size())
	_, err = io.ReadFull(io.NewSectionReader(r, 0, int64(len(raw))), raw)
	require.NoError(t, err)
	out := make([]float32, tensor.Numel())
	for i := range out {
		switch dt {
		case dtype.Float32:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		case dtype.Float16:
			out[i] = dtype.F16(binary.LittleEndian.Uint16(raw[2*i:])).Float32()
		case dtype.BFloat16:
			out[i] = dtype.BF16(binary.LittleEndian.Uint16(raw[2*i:])).Float32()
		}
	}
	return out
}

// Blocks of all types have the bits that the Python package gguf makes of them.
func TestElementsAreThoseOfPython(t *testing.T) {
	f, err := Open(vfs.OS, "testdata/types.gguf")
	require.NoError(t, err)
	defer f.Close()
	want, err := os.ReadFile("testdata/types.bin")
	require.NoError(t, err)
	for _, tensor := range f.Tensors[:8] {
		for i, got := range floats(t, f, tensor) {
			require.Equal(t, binary.LittleEndian.Uint32(want), math.Float32bits(got), "%s %d", tensor.Name, i)
			want = want[4:]
		}
	}
	require.Empty(t, want)
	require.Equal(t, []int{2, 3, 5}, f.Tensors[0].Shape)
	require.Equal(t, []int{3, 512}, f.Tensors[7].Shape)
	_, err = f.Elements(f.Tensors[8])
	require.ErrorContains(t, err, `tensor "Q5_K" is of Q5_K, which is not read: want F32, F16, BF16, Q8_0, Q4_0, `+
		"Q4_1, Q4_K or Q6_K")
}

// Any part of the elements is the same part of all.
func TestPartsOfElements(t *testing.T) {
	f, err := Open(vfs.OS, "testdata/types.gguf")
	require.NoError(t, err)
	defer f.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tensor := range f.Tensors[:8] {
		r, err := f.Elements(tensor)
		require.NoError(t, err)
		size := tensor.Numel() * tensor.Type.DType().Size()
		whole := make([]byte, size)
		_, err = io.ReadFull(io.NewSectionReader(r, 0, int64(size)), whole)
		require.NoError(t, err)
		for range 200 {
			from := rng.IntN(size)
			part := make([]byte, rng.IntN(size-from)+1)
			n, err := r.ReadAt(part, int64(from))
			require.Equal(t, len(part), n)
			require.True(t, err == nil || err == io.EOF)
			require.Equal(t, whole[from:from+n], part)
		}
		n, err := r.ReadAt(make([]byte, 8), int64(size)-3)
		require.Equal(t, 3, n)
		require.Equal(t, io.EOF, err)
	}
}

func TestMetadata(t *testing.T) {
	f, err := readBytes(golden(t))
	require.NoError(t, err)
	for key, want := range map[string]int64{"uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000,
		"uint32": 4_000_000_000, "int32": -2_000_000_000, "uint64": 1e18, "int64": -1e18} {
		n, ok := f.Metadata["test."+key].Int()
		require.True(t, ok)
		require.Equal(t, want, n)
	}
	x, ok := f.Metadata["test.float32"].Float()
	require.True(t, ok)
	require.Equal(t, 1e-5, x, "the digits of a float32")
	x, _ = f.Metadata["test.float64"].Float()
	require.Equal(t, 1/3., x)
	yes, ok := f.Metadata["test.bool"].Bool()
	require.True(t, ok && yes)
	text, _ := f.Metadata["test.string"].Text()
	require.Equal(t, "naïve ▁\n", text)
	texts, _ := f.Metadata["test.strings"].Texts()
	require.Equal(t, []string{"", "a", "Ġb"}, texts)
	ints, _ := f.Metadata["test.ints"].Ints()
	require.Equal(t, []int64{3, -1, 2}, ints)
	list, _ := f.Metadata["test.floats"].Floats()
	require.Equal(t, []float64{0.5, -1000}, list)
	ints, _ = f.Metadata["test.bools"].Ints()
	require.Equal(t, []int64{1, 0}, ints)
	require.Equal(t, "1e-05 missing an array of 3", f.Metadata["test.float32"].String()+" "+
		f.Metadata["test.none"].String()+" "+f.Metadata["test.strings"].String())
	_, ok = f.Metadata["test.none"].Int()
	require.False(t, ok)
}

// header builds files that the Python package would not write.
type header []byte

func (h header) u32(n uint32) header  { return binary.LittleEndian.AppendUint32(h, n) }
func (h header) u64(n uint64) header  { return binary.LittleEndian.AppendUint64(h, n) }
func (h header) text(s string) header { return append(h.u64(uint64(len(s))), s...) }

func begin(tensors, keys uint64) header { return header("GGUF").u32(3).u64(tensors).u64(keys) }

// tensor describes one of the type F32.
func (h header) tensor(name string, at uint64, dims ...uint64) header {
	h = h.text(name).u32(uint32(len(dims)))
	for _, d := range dims {
		h = h.u64(d)
	}
	return h.u32(0).u64(at)
}

func (h header) data(n int) header {
	for len(h)%32 != 0 {
		h = append(h, 0)
	}
	return append(h, make([]byte, n)...)
}

// What a file claims takes no memory before the file has it.
func TestHostileFiles(t *testing.T) {
	huge := uint64(1) << 62
	for name, c := range map[string]struct {
		file header
		want string
	}{
		"empty":         {nil, "its header ends in the middle, at byte 0"},
		"magic":         {header("GGML").u32(3), `it begins with "GGML": want "GGUF"`},
		"version 1":     {header("GGUF").u32(1), "GGUF version 1: this program reads versions 2 and 3"},
		"big-endian":    {header("GGUF").u32(3 << 24), "it is in big-endian order"},
		"counts":        {begin(huge, 1), "tensors and 1 keys: want at most"},
		"keys":          {begin(0, 2).text("a").u32(4).u32(1), "its header ends in the middle"},
		"twice":         {begin(0, 2).text("a").u32(4).u32(1).text("a").u32(4).u32(1), `have the key "a" twice`},
		"no key":        {begin(0, 1).text(""), "a key of the metadata has 0 bytes: want 1 to 255"},
		"long key":      {begin(0, 1).u64(huge), "a key of the metadata has 4611686018427387904 bytes"},
		"kind":          {begin(0, 1).text("a").u32(13), `metadata "a": a value of type 13: want 0 to 12`},
		"long string":   {begin(0, 1).text("a").u32(8).u64(huge), "its header ends in the middle"},
		"long array":    {begin(0, 1).text("a").u32(9).u32(4).u64(huge), "its header ends in the middle"},
		"array's kind":  {begin(0, 1).text("a").u32(9).u32(99).u64(0), "a value of type 99"},
		"nested arrays": {begin(0, 1).text("a").u32(9).u32(9).u64(1), "an array of arrays"},
		"strings":       {begin(0, 1).text("a").u32(9).u32(8).u64(3).text("x"), "its header ends in the middle"},
		"dims":          {begin(1, 0).tensor("x", 0), `tensor "x" has 0 dims: want 1 to 4`},
		"overflow":      {begin(1, 0).tensor("x", 0, huge, 4), `tensor "x" has a dim of 46`},
		"no elements":   {begin(1, 0).tensor("x", 0, 0), `tensor "x" has a dim of 0`},
		"type": {begin(1, 0).text("x").u32(1).u64(32).u32(4).u64(0),
			`tensor "x" is of type 4, which is unknown`},
		"block": {begin(1, 0).text("x").u32(1).u64(33).u32(2).u64(0),
			"want a multiple of the 32 of a block of Q4_0"},
		"truncated": {begin(1, 0).tensor("x", 0, 9).data(32),
			`file is truncated: it has 96 bytes, and tensor "x" has 36`},
		"far":       {begin(1, 0).tensor("x", 1<<63, 1).data(32), `tensor "x" begins at byte 9223372036854775807`},
		"unaligned": {begin(1, 0).tensor("x", 4, 1).data(32), "want a multiple of 32"},
		"overlap": {begin(2, 0).tensor("x", 0, 16).tensor("y", 32, 4).data(64),
			`tensors "x" and "y" have bytes in common`},
		"named twice": {begin(2, 0).tensor("x", 0, 1).tensor("x", 32, 1).data(64), `tensor "x" is there twice`},
		"alignment": {begin(0, 1).text("general.alignment").u32(4).u32(12),
			"general.alignment is 12: want a power of two"},
		"split": {begin(0, 1).text("split.count").u32(2).u32(3), "bytes: want 1 to 255"},
		"one of several": {append(begin(0, 1).text("split.count").u32(2), 3, 0),
			"it is one of 3 files of a model"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readBytes(c.file)
			runtime.ReadMemStats(&after)
			if name != "split" {
				require.ErrorContains(t, err, c.want)
			}
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		})
	}
}

// A header may be as large as the limit, whatever the file has behind it.
func TestHeaderThatIsTooLarge(t *testing.T) {
	h := begin(0, 1).text("a").u32(8).u64(maxHeader)
	_, err := Read(io.NewSectionReader(bytes.NewReader(h), 0, int64(len(h))), 1<<40, "x.gguf")
	require.ErrorContains(t, err, "header has more than 67108864 bytes: want at most as many")
}

// What is cut off after the header was read is an error, and so is a folder.
func TestFilesThatCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	require.NoError(t, os.WriteFile(path, golden(t), 0o600))
	f, err := Open(vfs.OS, path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Truncate(path, f.Tensors[5].begin+40))
	r, err := f.Elements(f.Tensors[5])
	require.NoError(t, err)
	_, err = r.ReadAt(make([]byte, 4*512), 0)
	require.ErrorContains(t, err, `tensor "Q8_0": unexpected EOF`)
	_, err = Open(vfs.OS, filepath.Dir(path))
	require.ErrorContains(t, err, "is a folder")
}

// FuzzRead: a file is refused, or all of its values and elements can be read, in memory that follows from its size.
func FuzzRead(f *testing.F) {
	f.Add(golden(f))
	f.Add(written(f, everyKind(), first(1, 2, F32), NewTensor{"y", []int{2, 32}, Q8_0, dtype.Float32, zeros{}}))
	f.Add([]byte(begin(1, 1).text("general.alignment").u32(4).u32(8).tensor("x", 0, 2, 3).data(64)))
	f.Add([]byte(begin(0, 1).text("a").u32(9).u32(8).u64(2).text("x").text("")))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := readBytes(data)
		if err != nil {
			return
		}
		for _, v := range file.Metadata {
			_, _ = v.Int()
			_, _ = v.Float()
			_, _ = v.Bool()
			_, _ = v.Text()
			texts, _ := v.Texts()
			ints, _ := v.Ints()
			numbers, _ := v.Floats()
			require.LessOrEqual(t, max(len(texts), len(ints), len(numbers)), len(data))
			require.NotEmpty(t, v.String())
		}
		for _, tensor := range file.Tensors {
			r, err := file.Elements(tensor)
			if err != nil {
				continue
			}
			size := tensor.Numel() * tensor.Type.DType().Size()
			require.LessOrEqual(t, size, 8*len(data))
			n, err := io.ReadFull(io.NewSectionReader(r, 0, int64(size)), make([]byte, size))
			require.NoError(t, err)
			require.Equal(t, size, n)
		}
	})
}
