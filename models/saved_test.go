// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// put writes files into a file system.
func put(t testing.TB, disk vfs.FS, files []models.WeightFile) (names []string) {
	t.Helper()
	for _, f := range files {
		var b bytes.Buffer
		require.NoError(t, f.Write(&b))
		require.NoError(t, vfs.WriteFile(disk, f.Name, b.Bytes()))
		names = append(names, f.Name)
	}
	return names
}

// inPieces writes the parameters of m as n ranks would, whose pieces begin at odd places.
func inPieces(t testing.TB, m models.Model, n int) *vfs.Mem {
	t.Helper()
	disk := vfs.NewMem()
	index := safetensors.Pieces{models.WeightsBase: {}}
	files := make([][]safetensors.Tensor, n)
	for _, p := range nn.Walk(m).State() {
		data := tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor)
		a := safetensors.Pieced{DType: p.DType(), Shape: p.Shape()}
		for r := range n {
			lo, hi, width := p.Numel()*r/n, p.Numel()*(r+1)/n, p.DType().Size()
			if lo == hi {
				continue
			}
			a.Places = append(a.Places, safetensors.Place{Lo: lo, Hi: hi, File: fmt.Sprint("shard-", r)})
			files[r] = append(files[r], safetensors.PieceWriter(models.WeightsBase, p.Name, p.DType(), lo, hi,
				func(w io.Writer) error { _, err := w.Write(data[lo*width : hi*width]); return err }))
		}
		index[models.WeightsBase][p.Name] = a
	}
	for r, list := range files {
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b, list, nil))
		require.NoError(t, vfs.WriteFile(disk, fmt.Sprint("shard-", r), b.Bytes()))
	}
	text, err := index.Encode()
	require.NoError(t, err)
	require.NoError(t, vfs.WriteFile(disk, safetensors.PiecesFile, text))
	return disk
}

func openSet(t testing.TB, disk vfs.FS) *safetensors.Set {
	t.Helper()
	set, err := safetensors.OpenSet(disk, ".", models.WeightsBase)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, set.Close()) })
	return set
}

// equalModels requires that two models have the same bits.
func equalModels(t testing.TB, want, got models.Model) {
	t.Helper()
	state := nn.Walk(got).State()
	for i, p := range nn.Walk(want).State() {
		c := tensor.NewCtx(p.Device()).NoGrad()
		require.Equal(t, tensor.ReadBytes(c, p.Tensor), tensor.ReadBytes(c, state[i].Tensor), p.Name)
	}
}

func TestWeightsInSeveralFiles(t *testing.T) {
	m := newApart(1)
	disk := vfs.NewMem()
	files, err := models.WeightFiles(m, 150, nil)
	require.NoError(t, err)
	names := put(t, disk, files)
	require.Greater(t, len(names), 3)
	require.Equal(t, "model.safetensors.index.json", names[len(names)-1], "the index is written last")
	for _, f := range names[:len(names)-1] {
		require.Regexp(t, `^model-0000\d-of-0000`+fmt.Sprint(len(names)-1)+`\.safetensors$`, f)
	}
	index, err := vfs.ReadFile(disk, "model.safetensors.index.json", 1<<20)
	require.NoError(t, err)
	require.Contains(t, string(index), fmt.Sprintf(`"total_parameters": %d`, nn.NumParameters(m)))

	again := newApart(2)
	require.NoError(t, models.ReadWeights(openSet(t, disk), again))
	equalModels(t, m, again)

	whole, err := models.WeightFiles(m, 1<<30, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"model.safetensors"}, put(t, vfs.NewMem(), whole))

	fetched := map[string]int{}
	files, err = models.WeightFiles(m, 0, func(c *tensor.Ctx, p tensor.Named) (*tensor.Tensor, error) {
		fetched[p.Name]++
		return p.Tensor, nil
	})
	require.NoError(t, err)
	require.Empty(t, fetched, "before they are written")
	var b, direct bytes.Buffer
	require.NoError(t, files[0].Write(&b))
	require.NoError(t, models.WriteWeights(&direct, m))
	require.Equal(t, direct.Bytes(), b.Bytes())
	require.Len(t, fetched, len(nn.Walk(m).State()))
	for name, n := range fetched {
		require.Equal(t, 1, n, name)
	}
}

// What ranks wrote in pieces is loaded as it is, and merged into the file that one rank would have written.
func TestPiecesOfAModel(t *testing.T) {
	m := newApart(1)
	var want bytes.Buffer
	require.NoError(t, models.WriteWeights(&want, m))
	text, err := models.LayoutJSON(m)
	require.NoError(t, err)
	for _, n := range []int{1, 2, 3, 8} {
		set := openSet(t, inPieces(t, m, n))
		again := newApart(2)
		require.NoError(t, models.ReadWeights(set, again))
		equalModels(t, m, again)

		l, err := models.ParseLayout(text)
		require.NoError(t, err)
		files, err := models.MergePieces(set, l, 0)
		require.NoError(t, err)
		require.Len(t, files, 1)
		var b bytes.Buffer
		require.NoError(t, files[0].Write(&b))
		require.Equal(t, want.Bytes(), b.Bytes())

		l.Arrays = l.Arrays[1:]
		_, err = models.MergePieces(set, l, 0)
		require.ErrorContains(t, err, "does not say what becomes of")
		l.Arrays[0].Params = []string{"x"}
		l.Arrays = append(l.Arrays, models.SavedArray{Name: "y", Params: set.Names()})
		_, err = models.MergePieces(set, l, 0)
		require.ErrorContains(t, err, "is made of x, which is missing")
	}
	_, err = models.ParseLayout([]byte(`{"format_version": 2}`))
	require.ErrorContains(t, err, "format version 2")
	_, err = models.ParseLayout([]byte(`[]`))
	require.ErrorContains(t, err, "weights_layout.json")
}

// A rank's piece has the same elements whether they come from whole arrays, renamed, joined and transposed, or from
// pieces of another number of ranks.
func TestReadPiece(t *testing.T) {
	m := newApart(1)
	shards := vfs.NewMem()
	files, err := models.WeightFiles(m, 150, nil)
	require.NoError(t, err)
	put(t, shards, files)
	for from, disk := range map[string]vfs.FS{"shards": shards, "pieces": inPieces(t, m, 3)} {
		w, err := models.FitWeights(openSet(t, disk), newApart(2))
		require.NoError(t, err)
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		for _, p := range nn.Walk(m).State() {
			want := tensor.ToSlice[float32](c, p.Tensor)
			for lo := 0; lo <= p.Numel(); lo += 3 {
				for hi := lo; hi <= p.Numel(); hi += 5 {
					piece := tensor.Zeros(c, tensor.Float32, hi-lo)
					_, err := w.ReadPiece(c, p.Name, lo, piece)
					require.NoError(t, err)
					require.Equal(t, want[lo:hi], append([]float32{}, tensor.ToSlice[float32](c, piece)...),
						"%s [%d, %d) from %s", p.Name, lo, hi, from)
				}
			}
		}
		_, err = w.ReadPiece(c, "x", 0, tensor.Zeros(c, tensor.Float32, 1))
		require.ErrorContains(t, err, "no parameter or buffer x")
		_, err = w.ReadPiece(c, "norm.bias", 3, tensor.Zeros(c, tensor.Float32, 2))
		require.ErrorContains(t, err, "elements [3, 5) of norm.bias, which has 4")
	}
	other := newApart(1)
	other.Map = nil
	_, err = models.FitWeights(openSet(t, shards), other)
	require.ErrorContains(t, err, "do not fit")
}

func TestStaleWeights(t *testing.T) {
	files := func(names ...string) (list []models.WeightFile) {
		for _, n := range names {
			list = append(list, models.WeightFile{Name: n})
		}
		return list
	}
	one, two := "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	index, single, third := "model.safetensors.index.json", "model.safetensors", "model-00003-of-00003.safetensors"
	for _, c := range []struct{ existing, files, before, after string }{
		{"", single, "", ""},
		{single + " config.json model-1.safetensors", single, "", ""},
		{third + " " + index, single, "", index + " " + third},
		{third + " " + single, one + " " + two + " " + index, "", single + " " + third},
		{third + " " + index, one + " " + two + " " + index, index, third},
	} {
		before, after := models.StaleWeights(strings.Fields(c.existing), files(strings.Fields(c.files)...))
		require.Equal(t, c.before, strings.Join(before, " "), c)
		require.Equal(t, c.after, strings.Join(after, " "), c)
	}
}
