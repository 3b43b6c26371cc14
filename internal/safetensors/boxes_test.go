// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
)

// projection is a fused projection of queries, keys and values, 4 of each, for 6 inputs.
var projection = placement.Whole("x", 6, 12)

// projectionData are its elements, of two bytes.
func projectionData() (data []byte) {
	for i := range projection.Numel() {
		data = append(data, byte(i), 100+byte(i%7))
	}
	return data
}

// meshPart is what a rank of 2 tensor-parallel by 3 fully sharded ones has of the projection.
func meshPart(tp, shard int) placement.Placement {
	var columns []placement.Range
	for at := 0; at < 12; at += 4 {
		columns = append(columns, placement.Range{Start: at + 2*tp, Stop: at + 2*tp + 2})
	}
	p := projection.Along(1, columns...)
	return p.Slice(p.Numel()*shard/3+shard%2, p.Numel()*(shard+1)/3+(shard+1)%2*(2-shard)/2)
}

// onMesh writes the projection as the ranks of the mesh do.
func onMesh(t testing.TB) *vfs.Mem {
	disk, whole := vfs.NewMem(), projectionData()
	a := safetensors.Scattered{DType: dtype.BFloat16, Shape: projection.Shape}
	for tp := range 2 {
		for shard := range 3 {
			p := meshPart(tp, shard)
			data := make([]byte, 2*p.Numel())
			placement.Copy(data, p, whole, projection, 2)
			file := fmt.Sprint("shard-", 3*tp+shard)
			var b bytes.Buffer
			require.NoError(t, safetensors.WriteStored(&b, []safetensors.Tensor{safetensors.StoredTensor("model",
				dtype.BFloat16, p, func(w io.Writer) error { _, err := w.Write(data); return err })},
				safetensors.Save{Run: "r", ID: "1"}))
			require.NoError(t, vfs.WriteFile(disk, file, b.Bytes()))
			a.Stored = append(a.Stored, safetensors.Stored{Placement: p, File: file})
		}
	}
	text, err := safetensors.Placements{"model": {"x": a}}.Encode()
	require.NoError(t, err)
	require.Contains(t, string(text), `"format_version": 2`)
	require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile, text))
	return disk
}

// A rank reads its part from a whole file, and from the files of another mesh: the bytes of the part and no others, in
// as few reads as there are runs.
func TestPartsAreReadFromWholeFilesAndFromParts(t *testing.T) {
	data := projectionData()
	single := vfs.NewMem()
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, []safetensors.Tensor{safetensors.FromBytes("x", dtype.BFloat16,
		projection.Shape, data)}, nil))
	require.NoError(t, vfs.WriteFile(single, "model.safetensors", b.Bytes()))

	wanted := []placement.Placement{projection, projection.Slice(7, 7), projection.Slice(5, 31),
		projection.Along(1, placement.Range{Start: 3, Stop: 4}),
		projection.Along(0, placement.Range{Start: 2, Stop: 5}),
		projection.Along(1, placement.Range{Start: 3, Stop: 9}).Slice(4, 29)}
	for tp := range 2 {
		for shard := range 3 {
			wanted = append(wanted, meshPart(tp, shard))
		}
	}
	for name, disk := range map[string]*vfs.Mem{"whole": single, "mesh": onMesh(t)} {
		read, reads := 0, 0
		watch := errorfs.Wrap(disk, func(op errorfs.Op) error {
			if op.Kind == errorfs.Read {
				read, reads = read+op.Size, reads+1
			}
			return nil
		})
		set, err := safetensors.OpenSet(watch, ".", "model")
		require.NoError(t, err)
		x, _ := set.Lookup("x")
		for _, p := range wanted {
			want := make([]byte, 2*p.Numel())
			placement.Copy(want, p, data, projection, 2)
			runs := slices.Collect(p.Intersect(projection))
			if name == "mesh" {
				runs = nil
				for rank := range 6 {
					runs = slices.AppendSeq(runs, p.Intersect(meshPart(rank/3, rank%3)))
				}
			}
			section, err := x.Section(p)
			require.NoError(t, err)
			got := make([]byte, len(want))
			read, reads = 0, 0
			_, err = io.ReadFull(section, got)
			require.NoError(t, err)
			require.Equal(t, want, got, "%v from %s", p, name)
			require.Equal(t, len(want), read, "%v from %s", p, name)
			require.Equal(t, len(runs), reads, "%v from %s", p, name)
			for _, size := range []int{1, 3, 7} { // not whole elements
				_, err := section.Seek(0, io.SeekStart)
				require.NoError(t, err)
				var b bytes.Buffer
				_, err = io.CopyBuffer(struct{ io.Writer }{&b}, struct{ io.Reader }{section}, make([]byte, size))
				require.NoError(t, err)
				require.Equal(t, want, append([]byte{}, b.Bytes()...), "%v from %s", p, name)
			}
		}
		_, err = x.Section(placement.Whole("x", 12, 6))
		require.ErrorContains(t, err, "a part of an array of shape [12 6]: want one of shape [6 12]")
		require.NoError(t, set.Close())
	}
}

func TestBrokenBoxes(t *testing.T) {
	const box = `[[[0,6]],[[0,2],[4,6],[8,10]]]`
	for _, c := range []struct{ old, new, want string }{
		{`"format_version": 2`, `"format_version": 1`, "format version 1 with boxes: want version 2"},
		{`"format_version": 2`, `"format_version": 3`, "format version 3: this program reads versions 1 to 2"},
		{box, `[[[0,6]]]`, "a box of 1 dims in an array of shape [6 12]: want 2"},
		{box, `[[[0,7]],[[0,2]]]`, "range [0, 7) of dim 0: want one in [0, 6)"},
		{box, `[[[0,6]],[[0,2],[4,6],[8,13]]]`, "range [8, 13) of dim 1: want one in [0, 12)"},
		{box, `[[[0,6]],[[0,2],[2,6]]]`, "want it to begin behind a gap"},
		{box, `[[[0,6]],[[4,6],[0,2]]]`, "want it to begin behind a gap"},
		{box, `[[[0,6]],[[0,2],[4,4],[8,10]]]`, "range [4, 4) of dim 1 is empty"},
		{box, `[[[0,6]],[[0,2],[4,6],[8,10,12]]]`, "range [8 10 12]: want [start, stop]"},
		{box, `[[[0,6]],[[0,2],[4,6],[8,-10]]]`, "want an integer from 0"},
		{box, `[[[0,6]],[[0,2],[4,6],[8,18446744073709551616]]]`, "want an integer from 0"},
		{box, `[[0,6],[0,2]]`, "want ["},
		{box, `5`, "want ["},
		{`[[[0,6]],[[2,4],[6,8],[10,12]]]`, `[[[0,6]],[[1,3],[6,8],[10,12]]]`, "have elements in common"},
		{box, `[[[0,6]],[[0,3],[4,6],[8,10]]]`, "nobody has the elements [36, 42) of x[0:6,0:3+4:6+8:10]"},
		{box, `[[[0,6]],[[0,2],[4,6]]]`, "elements [24, 36) of 24: want a range inside"},
		{`[[[0,6]],[[2,4],[6,8],[10,12]]]`, `[[[0,6]],[[2,4],[6,8],[10,11]]]`, "elements [24, 36) of 30"},
	} {
		disk := onMesh(t)
		text, err := vfs.ReadFile(disk, safetensors.PlacementsFile, 1<<20)
		require.NoError(t, err)
		require.Contains(t, string(text), c.old)
		require.NoError(t, disk.Remove(safetensors.PlacementsFile))
		require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile,
			[]byte(strings.ReplaceAll(string(text), c.old, c.new))))
		_, err = safetensors.OpenSet(disk, ".", "model")
		require.ErrorContains(t, err, c.want, c.new)
	}
}

// Boxes that leave elements out are refused.
func TestBoxesAreTheWholeArray(t *testing.T) {
	left := projection.Along(1, placement.Range{Stop: 5})
	a := safetensors.Scattered{DType: dtype.Uint8, Shape: projection.Shape, Stored: []safetensors.Stored{
		{Placement: left.Slice(0, 7), File: "a"}, {Placement: left.Slice(7, 30), File: "b"}}}
	require.EqualError(t, safetensors.Placements{"model": {"x": a}}.Check(),
		`tensor "x" of model: nobody has 42 of 72 elements`)
	a.Stored = append(a.Stored, safetensors.Stored{
		Placement: projection.Along(1, placement.Range{Start: 5, Stop: 12}), File: "b"})
	require.NoError(t, safetensors.Placements{"model": {"x": a}}.Check())
}

// Files that name very many boxes are refused before each is compared with all others.
func TestBoxesAreBounded(t *testing.T) {
	const n = 1001
	x := placement.Whole("x", n, n)
	a := safetensors.Scattered{DType: dtype.Uint8, Shape: x.Shape}
	for i := range n {
		a.Stored = append(a.Stored, safetensors.Stored{Placement: x.Along(1, placement.Range{Start: i, Stop: i + 1}),
			File: "shard"})
	}
	require.ErrorContains(t, safetensors.Placements{"model": {"x": a}}.Check(), "more than 1000 boxes")
}
