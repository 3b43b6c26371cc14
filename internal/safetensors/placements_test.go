// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// scattered writes x [3,4], 12 bytes 0 to 11, in three pieces of two files, y without elements, and an optimizer's x of
// other values.
func scattered(t testing.TB) *vfs.Mem {
	disk := vfs.NewMem()
	ramp := func(lo, hi, plus int) (data []byte) {
		for i := lo; i < hi; i++ {
			data = append(data, byte(i+plus))
		}
		return data
	}
	type place struct {
		set    string
		lo, hi int
	}
	places := map[string][]place{
		"shard-1": {{"model", 0, 5}, {"model", 11, 12}, {"optimizer", 0, 12}}, "shard-2": {{"model", 5, 11}}}
	index := safetensors.Placements{"model": {"y": {DType: dtype.Float32, Shape: []int{0, 3}}}, "optimizer": {}}
	for _, file := range []string{"shard-1", "shard-2"} {
		var list []safetensors.Tensor
		for _, p := range places[file] {
			data := ramp(p.lo, p.hi, len(p.set)-len("model"))
			at := placement.Whole("x", 3, 4).Slice(p.lo, p.hi)
			list = append(list, safetensors.StoredTensor(p.set, dtype.Uint8, at,
				func(w io.Writer) error { _, err := w.Write(data); return err }))
			a := index[p.set]["x"]
			a.DType, a.Shape = dtype.Uint8, []int{3, 4}
			a.Stored = append(a.Stored, safetensors.Stored{Placement: at, File: file})
			slices.SortFunc(a.Stored, func(a, b safetensors.Stored) int {
				return placement.Compare(a.Placement, b.Placement)
			})
			index[p.set]["x"] = a
		}
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b, list, nil))
		require.NoError(t, vfs.WriteFile(disk, file, b.Bytes()))
	}
	text, err := index.Encode()
	require.NoError(t, err)
	require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile, text))
	return disk
}

func TestPiecesAreReadAsOneArray(t *testing.T) {
	disk := scattered(t)
	set, err := safetensors.OpenSet(disk, ".", "model")
	require.NoError(t, err)
	defer func() { require.NoError(t, set.Close()) }()
	require.True(t, set.Scattered())
	require.Equal(t, []string{"x", "y"}, set.Names())
	x, _ := set.Lookup("x")
	require.Equal(t, []int{3, 4}, x.Shape)
	require.EqualValues(t, 12, x.Bytes())
	data, err := x.Read()
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, data)
	for lo := range 13 {
		for hi := lo; hi <= 12; hi++ {
			section, err := x.Section(x.Placement().Slice(lo, hi))
			require.NoError(t, err)
			got, err := io.ReadAll(section)
			require.NoError(t, err)
			require.Equal(t, data[lo:hi:hi], append([]byte{}, got...), "[%d, %d)", lo, hi)
		}
	}
	column, err := x.ReadSlice(placement.Range{Start: 0, Stop: 3}, placement.Range{Start: 1, Stop: 2})
	require.NoError(t, err)
	require.Equal(t, []byte{1, 5, 9}, column)
	for _, bad := range [][2]int{{-1, 2}, {3, 2}, {0, 13}} {
		_, err := x.Section(x.Placement().Slice(bad[0], bad[1]))
		require.ErrorContains(t, err, `tensor "x": elements`)
	}
	y, _ := set.Lookup("y")
	data, err = y.Read()
	require.NoError(t, err)
	require.Empty(t, data)

	moments, err := safetensors.OpenSet(disk, ".", "optimizer")
	require.NoError(t, err)
	defer func() { require.NoError(t, moments.Close()) }()
	x, _ = moments.Lookup("x")
	data, err = x.Read()
	require.NoError(t, err)
	require.EqualValues(t, 4, data[0], "another set's array of the name")

	_, err = safetensors.OpenSet(disk, ".", "scaler")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "neither scaler.safetensors")
}

func TestBrokenPieces(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`[5,11,"shard-2"]`, `[5,11,"shard-1"]`, `shard-1 has no part "model/x[5:11]"`},
		{`[5,11,"shard-2"],`, ``, "nobody has the elements [5, 11) of x[0:12]"},
		{`,[11,12,"shard-1"]`, ``, "nobody has the elements [11, 12) of x[0:12]"},
		{`[0,5,"shard-1"]`, `[0,6,"shard-1"]`, "two parts have the elements [5, 6) of x[0:12]"},
		{`[0,5,"shard-1"]`, `[0,0,"shard-1"],[0,5,"shard-1"]`, "x[0:0] has no elements"},
		{`[0,5,"shard-1"]`, `[-1,5,"shard-1"]`, "want [from, to, file]"},
		{`[0,5,"shard-1"]`, `[0,5]`, "want [from, to, file]"},
		{`[0,5,"shard-1"]`, `[0,5,"../shard-1"]`, "not the name of a file in the same folder"},
		{`[5,11,"shard-2"]`, `[5,11,"shard-3"]`, "shard-3"},
		{`"U8", "shape": [3,4], "pieces": [[0,5`, `"I8", "shape": [3,4], "pieces": [[0,5`, `unknown dtype "I8"`},
		{`"U8", "shape": [3,4], "pieces": [[0,5`, `"BOOL", "shape": [3,4], "pieces": [[0,5`,
			`is uint8[5]: want bool[5]`},
		{`"shape": [3,4], "pieces": [[0,5`, `"pieces": [[0,5`, "want a dtype and a shape"},
		{`"shape": [3,4], "pieces": [[0,5,"shard-1"],[5,11,"shard-2"],[11,12,"shard-1"]]`,
			`"shape": [5], "pieces": [[0,5,"shard-1"]]`, "names 1 parts of model in shard-1, which has 2"},
		{`"model": {`, `"other": {`, "neither model.safetensors"},
		{`"format_version": 1`, `"format_version": 3`, "format version 3: this program reads versions 1 to 2"},
		{`"format_version": 1`, `"format_version": 0`, "format version 0: this program reads versions 1 to 2"},
		{`"format_version": 1,`, ``, "no format_version"},
		{`"tensors": {`, `"tensors": {}, "x": {`, `unknown key "x"`},
		{"\n}\n", "\n} x\n", "more text after the JSON object"},
	} {
		disk := scattered(t)
		text, err := vfs.ReadFile(disk, safetensors.PlacementsFile, 1<<20)
		require.NoError(t, err)
		require.Contains(t, string(text), c.old)
		require.NoError(t, disk.Remove(safetensors.PlacementsFile))
		require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile,
			[]byte(strings.Replace(string(text), c.old, c.new, 1))))
		_, err = safetensors.OpenSet(disk, ".", "model")
		require.ErrorContains(t, err, c.want, c.new)
	}

	disk := scattered(t)
	require.NoError(t, disk.Remove("shard-2"))
	_, err := safetensors.OpenSet(disk, ".", "model")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "shard-2")

	_, err = (safetensors.Placements{"a/b": {}}).Encode()
	require.ErrorContains(t, err, "cannot be the name of a set")
}

// FuzzPlacements: pieces.json is refused by name, or every tensor that it names can be read, and has the size of its
// shape.
func FuzzPlacements(f *testing.F) {
	text, err := vfs.ReadFile(scattered(f), safetensors.PlacementsFile, 1<<20)
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"format_version":1,"tensors":{"model":{"z":{"dtype":"F32","shape":[],"pieces":[[0,1,"shard-1"]]}}}}`))
	f.Add([]byte(`{"format_version":1,"tensors":{"model":{"z":{"dtype":"F64","shape":[9223372036854775807,2],"pieces":[]}}}}`))
	boxes, err := vfs.ReadFile(onMesh(f), safetensors.PlacementsFile, 1<<20)
	require.NoError(f, err)
	f.Add(boxes)
	f.Fuzz(func(t *testing.T, text []byte) {
		disk := scattered(t)
		if bytes.Contains(text, []byte("shard-0")) {
			disk = onMesh(t)
		}
		require.NoError(t, disk.Remove(safetensors.PlacementsFile))
		require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile, text))
		set, err := safetensors.OpenSet(disk, ".", "model")
		if err != nil {
			return
		}
		for _, name := range set.Names() {
			a, ok := set.Lookup(name)
			require.True(t, ok)
			data, err := a.Read()
			require.NoError(t, err, fmt.Sprintf("%q", text))
			require.Len(t, data, a.Numel()*a.DType.Size())
		}
		require.NoError(t, set.Close())
		index, err := safetensors.ReadPlacements(disk, ".")
		require.NoError(t, err)
		again, err := index.Encode()
		require.NoError(t, err)
		require.NoError(t, disk.Remove(safetensors.PlacementsFile))
		require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile, again))
		back, err := safetensors.ReadPlacements(disk, ".")
		require.NoError(t, err)
		require.Equal(t, index, back, "what is written is what was read")
	})
}
