// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// file makes a file of a JSON header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func parse(b []byte) (*safetensors.Reader, error) {
	return safetensors.NewReader(bytes.NewReader(b), int64(len(b)), "f")
}

func TestHeadersThatAreAccepted(t *testing.T) {
	for _, c := range []struct {
		header string
		data   int
	}{
		{`{}`, 0},
		{`{}      `, 0},
		{`{"__metadata__":{}}`, 0},
		{`{"a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}`, 4},
		{`{"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`,
			5},
		{`{"a":{"dtype":"F32","shape":[0,4000000000,4000000000],"data_offsets":[0,0]}}`, 0},
		{`{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}`, 3},
		{"{ \"a\" :\n{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2},
	} {
		_, err := parse(file(c.header, c.data))
		require.NoError(t, err, c.header)
	}
}

func TestHeadersThatAreRefused(t *testing.T) {
	a := `"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}`
	for _, c := range []struct {
		header string
		data   int
		want   string
	}{
		{``, 0, `header begins with "": want '{'`},
		{` {}`, 0, `header begins with " {}": want '{'`},
		{`[]`, 0, `header begins with "[]": want '{'`},
		{`{`, 0, "not JSON"},
		{`{"a"`, 0, "not JSON"},
		{`{"a":{"dtype":"U8"`, 0, "not JSON"},
		{`{1:2}`, 0, "not JSON"},
		{`{}{}`, 0, `after its end`},
		{"{}\n", 0, `after its end`},
		{"{\"\xff\":1}", 0, "not UTF-8"},
		{`{"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, "not half of a pair"},
		{`{"__metadata__":{"a":"\udc00"}}`, 0, "not half of a pair"},
		{`{` + a + `,` + a + `}`, 4, `the key "a" twice`},
		{`{"__metadata__":{"x":"1","x":"2"}}`, 0, `the key "x" twice`},
		{`{"__metadata__":{"x":1}}`, 0, "want a string"},
		{`{"__metadata__":[]}`, 0, "want {"},
		{`{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4, `the key "dtype" twice`},
		{`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}}`, 4, `unknown key "x"`},
		{`{"a":{"dtype":"Q8","shape":[4],"data_offsets":[0,4]}}`, 4, `unknown dtype "Q8"`},
		{`{"a":{"shape":[4],"data_offsets":[0,4]}}`, 4, `unknown dtype ""`},
		{`{"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}}`, 4, `want a string`},
		{`{"a":{"dtype":"U8","data_offsets":[0,4]}}`, 4, "no shape"},
		{`{"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}}`, 4, "want ["},
		{`{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}`, 4, "want an integer"},
		{`{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}`, 4, "want an integer"},
		{`{"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}}`, 4, "want an integer"},
		{`{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4]}}`, 4, "want an integer"},
		{`{"a":{"dtype":"U8","shape":[4]}}`, 4, "want [begin, end]"},
		{`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}}`, 4, "want [begin, end]"},
		{`{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}`, 4, "want [begin, end]"},
		{`{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}}`, 4, "shape [5] of uint8 needs 5"},
		{`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1, "not a whole number of bytes"},
		{`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "more bytes than an int64"},
		{`{"a":{"dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,0]}}`, 0, "more bytes than an int64"},
		{`{"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}`, 5, "nothing uses bytes [0, 1)"},
		{`{` + a + `,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}}`, 9, "nothing uses bytes [4, 5)"},
		{`{` + a + `,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}`, 7, `"b" at bytes [3, 7) overlaps "a"`},
		{`{` + a + `,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4, "overlaps"},
		{`{` + a + `}`, 3, "truncated: it has 3 bytes of tensors, its header describes 4"},
		{`{` + a + `}`, 5, "1 bytes after its last tensor"},
	} {
		_, err := parse(file(c.header, c.data))
		require.ErrorContains(t, err, c.want, c.header)
		require.ErrorContains(t, err, "f: ", "the file is named")
	}
}

// A header of some megabytes must not become a gigabyte in memory.
func TestHeadersAreBounded(t *testing.T) {
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for want, header := range map[string]string{
		"__metadata__ has more than 10000 keys": `{"__metadata__":{` + list(10_001, `"%d":""`) + `}}`,
		"describes more than 200000 tensors": `{` +
			list(200_001, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`) + `}`,
		"more than 64 numbers": `{"a":{"dtype":"U8","shape":[` + list(1_000_000, `1%.0d`) + `],"data_offsets":[0,1]}}`,
	} {
		_, err := parse(file(header, 1))
		require.ErrorContains(t, err, want)
	}
}

func TestFilesThatAreTooShort(t *testing.T) {
	_, err := parse(nil)
	require.ErrorContains(t, err, "f: file has 0 bytes")
	_, err = parse([]byte{2, 0, 0, 0, 0, 0, 0})
	require.ErrorContains(t, err, "file has 7 bytes")
	_, err = parse(file(`{}`, 0)[:9])
	require.ErrorContains(t, err, "truncated: header of 2 bytes in a file of 9")
	_, err = parse([]byte("hello, I am not a safetensors file"))
	require.ErrorContains(t, err, "is this a safetensors file?")

	whole, err := os.ReadFile("testdata/fixture.safetensors")
	require.NoError(t, err)
	for n := range whole {
		_, err := parse(whole[:n])
		require.Error(t, err, "%d bytes", n)
	}
	_, err = safetensors.Open(vfs.OS, filepath.Join(t.TempDir(), "x"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "count")
		var list []safetensors.Tensor
		data := map[string][]byte{}
		for range n {
			name := rapid.String().Filter(func(s string) bool {
				return data[s] == nil && s != "__metadata__"
			}).Draw(t, "name")
			dt := rapid.SampledFrom(dtype.All()).Draw(t, "dtype")
			shape := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 4).Draw(t, "shape")
			size := dt.Size()
			for _, s := range shape {
				size *= s
			}
			data[name] = rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "data")
			list = append(list, safetensors.FromBytes(name, dt, shape, data[name]))
		}
		metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b, list, metadata))
		require.Zero(t, (8+binary.LittleEndian.Uint64(b.Bytes()))%8, "aligned")
		r, err := parse(b.Bytes())
		require.NoError(t, err)
		require.Len(t, r.Entries(), n)
		for k, v := range metadata {
			require.Equal(t, v, r.Metadata()[k])
		}
		for _, want := range list {
			e, ok := r.Lookup(want.Name)
			require.True(t, ok)
			require.Equal(t, want.DType, e.DType)
			require.True(t, slices.Equal(want.Shape, e.Shape))
			got, err := r.ReadTensor(want.Name)
			require.NoError(t, err)
			require.Equal(t, data[want.Name], got)
		}
	})
}

func TestWriterRefuses(t *testing.T) {
	boom := errors.New("boom")
	give := func(n int, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			if _, err := w.Write(make([]byte, n)); err != nil {
				return err
			}
			return err
		}
	}
	two := func(write func(io.Writer) error) safetensors.Tensor {
		return safetensors.Tensor{Name: "x", DType: dtype.Uint8, Shape: []int{2}, Write: write}
	}
	for _, c := range []struct {
		list []safetensors.Tensor
		want string
	}{
		{[]safetensors.Tensor{two(give(2, nil)), two(give(2, nil))}, `tensor "x" is given twice`},
		{[]safetensors.Tensor{two(give(1, nil))}, `tensor "x": 1 of 2 bytes were not given`},
		{[]safetensors.Tensor{two(give(3, nil))}, `tensor "x": more bytes are given`},
		{[]safetensors.Tensor{two(give(2, boom))}, `tensor "x": boom`},
		{[]safetensors.Tensor{{Name: "__metadata__", DType: dtype.Uint8}}, "cannot be a tensor's name"},
		{[]safetensors.Tensor{{Name: "\xff", DType: dtype.Uint8}}, "cannot be a tensor's name"},
		{[]safetensors.Tensor{{Name: "x"}}, "dtype invalid cannot be written"},
		{[]safetensors.Tensor{{Name: "x", DType: dtype.Uint8, Shape: []int{-1}}}, "negative size"},
		{[]safetensors.Tensor{{Name: "x", DType: dtype.Uint8, Shape: []int{math.MaxInt, 3}}},
			"more bytes than an int64"},
	} {
		require.ErrorContains(t, safetensors.Write(io.Discard, c.list, nil), c.want)
	}
	require.ErrorIs(t, safetensors.Write(failing{boom}, []safetensors.Tensor{two(give(2, nil))}, nil), boom)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestReadSlice(t *testing.T) {
	shape := []int{3, 4, 5}
	data := make([]byte, 2*3*4*5)
	for i := range data {
		data[i] = byte(i)
	}
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, []safetensors.Tensor{
		safetensors.FromBytes("x", dtype.Float16, shape, data),
		safetensors.FromBytes("first", dtype.Float32, nil, []byte{1, 2, 3, 4}),
	}, nil))
	disk := vfs.NewMem()
	require.NoError(t, vfs.WriteFile(disk, "f.safetensors", b.Bytes()))
	set, err := safetensors.OpenSet(disk, ".", "f")
	require.NoError(t, err)
	defer func() { require.NoError(t, set.Close()) }()
	x, _ := set.Lookup("x")
	first, _ := set.Lookup("first")

	rapid.Check(t, func(t *rapid.T) {
		full := []placement.Range{{Start: 0, Stop: 3}, {Start: 0, Stop: 4}, {Start: 0, Stop: 5}}
		ranges := make([]placement.Range, rapid.IntRange(0, 3).Draw(t, "ranges"))
		for d := range ranges {
			ranges[d].Start = rapid.IntRange(0, shape[d]).Draw(t, "start")
			ranges[d].Stop = rapid.IntRange(ranges[d].Start, shape[d]).Draw(t, "stop")
			full[d] = ranges[d]
		}
		want := []byte{}
		for i := full[0].Start; i < full[0].Stop; i++ {
			for j := full[1].Start; j < full[1].Stop; j++ {
				for k := full[2].Start; k < full[2].Stop; k++ {
					at := 2 * ((i*4+j)*5 + k)
					want = append(want, data[at:at+2]...)
				}
			}
		}
		got, err := x.ReadSlice(ranges...)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
	got, err := first.ReadSlice()
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 3, 4}, got)

	for _, c := range []struct {
		of     *safetensors.Array
		ranges []placement.Range
		want   string
	}{
		{first, []placement.Range{{Start: 0, Stop: 1}}, "1 ranges for shape []"},
		{x, []placement.Range{{Start: 0, Stop: 4}}, "range [0, 4) of dim 0: want one in [0, 3)"},
		{x, []placement.Range{{Start: -1, Stop: 2}}, "range [-1, 2)"},
		{x, []placement.Range{{Start: 2, Stop: 1}}, "range [2, 1)"},
	} {
		_, err := c.of.ReadSlice(c.ranges...)
		require.ErrorContains(t, err, c.want)
	}
}

func TestSplit(t *testing.T) {
	sized := func(sizes ...int) (list []safetensors.Tensor) {
		for i, n := range sizes {
			list = append(list, safetensors.FromBytes(fmt.Sprint(i), dtype.Uint8, []int{n}, make([]byte, n)))
		}
		return list
	}
	for _, c := range []struct {
		sizes []int
		max   int64
		want  string
	}{
		{nil, 10, "model.safetensors="},
		{[]int{4, 6}, 10, "model.safetensors=0,1"},
		{[]int{4, 7}, 0, "model.safetensors=0,1"},
		{[]int{4, 7}, 10, "model-00001-of-00002.safetensors=0 model-00002-of-00002.safetensors=1"},
		{[]int{4, 70, 5, 5}, 10, "model-00001-of-00003.safetensors=1 model-00002-of-00003.safetensors=0,2 " +
			"model-00003-of-00003.safetensors=3"},
	} {
		shards, index, err := safetensors.Split("model", sized(c.sizes...), c.max, nil)
		require.NoError(t, err)
		var got []string
		for _, s := range shards {
			var names []string
			for _, x := range s.Tensors {
				names = append(names, x.Name)
			}
			got = append(got, s.File+"="+strings.Join(names, ","))
		}
		require.Equal(t, c.want, strings.Join(got, " "))
		require.Equal(t, len(shards) > 1, index != nil)
	}
	x := sized(5)[0]
	_, _, err := safetensors.Split("model", []safetensors.Tensor{x, x}, 6, nil)
	require.ErrorContains(t, err, "given twice")
}

// writeSet puts a set of three files on a file system in memory.
func writeSet(t *testing.T) (fsys *vfs.Mem, index string) {
	t.Helper()
	fsys = vfs.NewMem()
	var list []safetensors.Tensor
	for _, name := range []string{"a", "b", "c"} {
		list = append(list, safetensors.FromBytes(name, dtype.Uint8, []int{1}, []byte(name)))
	}
	shards, indexJSON, err := safetensors.Split("model", list, 1, nil)
	require.NoError(t, err)
	for _, s := range shards {
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b, s.Tensors, nil))
		require.NoError(t, vfs.WriteFile(fsys, s.File, b.Bytes()))
	}
	require.NoError(t, vfs.WriteFile(fsys, safetensors.IndexFile("model"), indexJSON))
	return fsys, string(indexJSON)
}

func TestBrokenSets(t *testing.T) {
	fsys, _ := writeSet(t)
	set, err := safetensors.OpenSet(fsys, ".", "model")
	require.NoError(t, err)
	a, ok := set.Lookup("b")
	require.True(t, ok)
	data, err := a.Read()
	require.NoError(t, err)
	require.Equal(t, "b", string(data))
	_, ok = set.Lookup("d")
	require.False(t, ok)
	require.NoError(t, set.Close())

	_, err = safetensors.OpenSet(vfs.NewMem(), ".", "model")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "neither model.safetensors nor model.safetensors.index.json")

	for _, c := range []struct{ old, new, want string }{
		{`"model-00002-of-00003.safetensors"`, `"../model-00002-of-00003.safetensors"`,
			"not the name of a file in the same folder"},
		{`"model-00002-of-00003.safetensors"`, `"C:x"`, "not the name of a file in the same folder"},
		{`"model-00002-of-00003.safetensors"`, `".."`, "not the name of a file in the same folder"},
		{`"model-00002-of-00003.safetensors"`, `""`, "not the name of a file in the same folder"},
		{`"model-00002-of-00003.safetensors"`, `"x"`, "x"},
		{`"b": "model-00002`, `"b": "model-00001`, `tensor "b" is not in model-00001-of-00003.safetensors`},
		{`"b": "model-00002`, `"z": "model-00002`, `tensor "z" is not in`},
		{`"weight_map": {`, `"weight_map": {"d": "model-00001-of-00003.safetensors",`, `tensor "d" is not in`},
		{`"c": "model-00003-of-00003.safetensors"`, `"a": "model-00003-of-00003.safetensors"`,
			`weight_map has the key "a" twice`},
		{`"weight_map"`, `"weights"`, "no weight_map"},
		{`{`, ``, "model.safetensors.index.json: "},
	} {
		fsys, index := writeSet(t)
		require.Contains(t, index, c.old)
		require.NoError(t, fsys.Remove(safetensors.IndexFile("model")))
		require.NoError(t, vfs.WriteFile(fsys, safetensors.IndexFile("model"),
			[]byte(strings.Replace(index, c.old, c.new, 1))))
		_, err := safetensors.OpenSet(fsys, ".", "model")
		require.ErrorContains(t, err, c.want, c.new)
	}
	fsys, _ = writeSet(t)
	require.NoError(t, fsys.Remove("model-00003-of-00003.safetensors"))
	_, err = safetensors.OpenSet(fsys, ".", "model")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err,
		"model.safetensors.index.json: 1 of 3 files are missing: model-00003-of-00003.safetensors")

	fsys, _ = writeSet(t)
	copied, err := vfs.ReadFile(fsys, "model-00001-of-00003.safetensors", 1<<10)
	require.NoError(t, err)
	require.NoError(t, fsys.Remove("model-00002-of-00003.safetensors"))
	require.NoError(t, vfs.WriteFile(fsys, "model-00002-of-00003.safetensors", copied))
	_, err = safetensors.OpenSet(fsys, ".", "model")
	require.ErrorContains(t, err, `tensor "a" is both in`)
}

func FuzzReader(f *testing.F) {
	for _, name := range []string{"fixture", "foreign"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".safetensors"))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(file(`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b)
		if err != nil {
			return
		}
		var total int64
		var list []safetensors.Tensor
		foreign := false
		for _, e := range r.Entries() {
			data, err := r.ReadTensor(e.Name)
			require.NoError(t, err, "a header that is accepted describes readable arrays")
			require.Len(t, data, int(e.Bytes()))
			total += e.Bytes()
			foreign = foreign || e.DType == dtype.Invalid
			list = append(list, safetensors.FromBytes(e.Name, e.DType, e.Shape, data))
		}
		require.EqualValues(t, len(b), 8+binary.LittleEndian.Uint64(b)+uint64(total), "every byte is accounted for")
		if foreign {
			return
		}
		var out bytes.Buffer
		require.NoError(t, safetensors.Write(&out, list, r.Metadata()))
		again, err := parse(out.Bytes())
		require.NoError(t, err)
		require.Len(t, again.Entries(), len(list))
	})
}

// The texts and values are those of huggingface_hub's parse_size_to_int, beside numbers, which it takes as integers.
func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"5GB": 5_000_000_000, " 1.5 mb ": 1_500_000, "10kb": 10_000, "2TB": 2e12,
		"0.5KB": 500, "1e1MB": 10_000_000, "5000000000": 5_000_000_000, "9223372036854775807": math.MaxInt64} {
		n, err := safetensors.ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "GB", "5", "5GiB", "5B", "-5GB", "0", "-1", "1.5", "NaNGB", "infKB", "1e30GB",
		"0.1KB x"} {
		_, err := safetensors.ParseSize(text)
		if text == "5" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, fmt.Sprintf("size %q: want", text))
	}
}
