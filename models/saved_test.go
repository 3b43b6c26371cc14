// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/placement"
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

// scattered writes the parameters of m as n ranks would, whose parts begin at odd places. Of matrices with an even
// number of columns two halves of the ranks have a half of the columns each, if n is even.
func scattered(t testing.TB, m models.Model, n int) *vfs.Mem {
	t.Helper()
	disk := vfs.NewMem()
	index := safetensors.Placements{models.WeightsBase: {}}
	files := make([][]safetensors.Tensor, n)
	for _, p := range nn.Walk(m).State() {
		data := tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor)
		a := safetensors.Scattered{DType: p.DType(), Shape: p.Shape()}
		for r := range n {
			at := part(p, r, n)
			if at.Numel() == 0 {
				continue
			}
			a.Stored = append(a.Stored, safetensors.Stored{Placement: at, File: fmt.Sprint("shard-", r)})
			own := make([]byte, at.Numel()*p.DType().Size())
			placement.Copy(own, at, data, p.Placed().Placement, p.DType().Size())
			files[r] = append(files[r], safetensors.StoredTensor(models.WeightsBase, p.DType(), at,
				func(w io.Writer) error { _, err := w.Write(own); return err }))
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
	require.NoError(t, vfs.WriteFile(disk, safetensors.PlacementsFile, text))
	return disk
}

// part is rank r's of n.
func part(p tensor.Named, r, n int) tensor.Placement {
	at := p.Placed().Placement
	if shape := p.Shape(); len(shape) == 2 && shape[1]%2 == 0 && n%2 == 0 {
		half, of := shape[1]/2, r/(n/2)
		at, r, n = at.Along(1, tensor.Range{Start: of * half, Stop: (of + 1) * half}), r%(n/2), n/2
	}
	return at.Slice(at.Numel()*r/n, at.Numel()*(r+1)/n)
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
}

// A process that helps another one to save gives its parts of the parameters in the order of the files, and makes no
// arrays of them. The one that writes makes those that differ from the parameters.
func TestWeightsThatAnotherProcessWrites(t *testing.T) {
	m := newApart(1)
	layout, err := models.Layout(m)
	require.NoError(t, err)
	order := func(elsewhere bool) (names []string) {
		files, err := models.WeightFiles(m, 150, func(p tensor.Named) ([]byte, error) {
			names = append(names, p.Name)
			if elsewhere {
				return nil, nil
			}
			return make([]byte, p.Bytes()), nil
		})
		require.NoError(t, err)
		before := tensor.CPU().MemStats().Allocs
		for _, f := range files {
			if elsewhere {
				require.NoError(t, f.Write(safetensors.Elsewhere))
			} else {
				require.NoError(t, f.Write(io.Discard))
			}
		}
		arrays := 0
		for _, a := range layout.Arrays {
			if !elsewhere && (len(a.Params) > 1 || a.Transpose) {
				arrays += len(a.Params) + 1
			}
		}
		require.LessOrEqual(t, tensor.CPU().MemStats().Allocs-before, int64(arrays))
		return names
	}
	want := order(false)
	require.Len(t, want, len(nn.Walk(m).State()))
	require.Equal(t, want, order(true))
}

// safetensorsOf is the model.safetensors of a model.
func safetensorsOf(t *testing.T, m nn.Module) []byte {
	files, err := models.WeightFiles(m, 0, nil)
	require.NoError(t, err)
	require.Len(t, files, 1)
	var b bytes.Buffer
	require.NoError(t, files[0].Write(&b))
	return b.Bytes()
}

// What ranks wrote in pieces is loaded as it is, and merged into the file that one rank would have written.
func TestScatteredModel(t *testing.T) {
	m := newApart(1)
	want := safetensorsOf(t, m)
	text, err := models.WeightsLayoutJSON(m)
	require.NoError(t, err)
	for _, n := range []int{1, 2, 3, 8} {
		set := openSet(t, scattered(t, m, n))
		again := newApart(2)
		require.NoError(t, models.ReadWeights(set, again))
		equalModels(t, m, again)

		l, err := models.ParseWeightsLayout(text)
		require.NoError(t, err)
		files, err := models.MergeSet(set, l, 0)
		require.NoError(t, err)
		require.Len(t, files, 1)
		var b bytes.Buffer
		require.NoError(t, files[0].Write(&b))
		require.Equal(t, want, b.Bytes())

		l.Arrays = l.Arrays[1:]
		_, err = models.MergeSet(set, l, 0)
		require.ErrorContains(t, err, "does not describe what")
		l.Arrays[0].Params = []string{"x"}
		l.Arrays = append(l.Arrays, models.SavedArray{Name: "y", Params: set.Names()})
		_, err = models.MergeSet(set, l, 0)
		require.ErrorContains(t, err, "is made of x, which is missing")
	}
	_, err = models.ParseWeightsLayout([]byte(`{"format_version": 2}`))
	require.ErrorContains(t, err, "format version 2")
	_, err = models.ParseWeightsLayout([]byte(`[]`))
	require.ErrorContains(t, err, "weights_layout.json")
}

// A rank's part has the same elements whether they come from whole arrays, renamed, joined and transposed, or from the
// parts of another number of ranks.
func TestReadParts(t *testing.T) {
	m := newApart(1)
	shards := vfs.NewMem()
	files, err := models.WeightFiles(m, 150, nil)
	require.NoError(t, err)
	put(t, shards, files)
	for from, disk := range map[string]vfs.FS{"shards": shards, "3 ranks": scattered(t, m, 3),
		"2 columns of 2": scattered(t, m, 4)} {
		w, err := models.FitWeights(openSet(t, disk), newApart(2))
		require.NoError(t, err)
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		for _, p := range nn.Walk(m).State() {
			whole := p.Placed().Placement
			data := tensor.ReadBytes(c, p.Tensor)
			boxes := []tensor.Placement{whole}
			if shape := p.Shape(); len(shape) == 2 {
				columns := whole.Along(1, tensor.Range{Start: 1, Stop: shape[1]})
				rows := whole.Along(0, tensor.Range{Stop: 1}, tensor.Range{Start: 2, Stop: shape[0]})
				boxes = append(boxes, columns, rows, rows.Along(1, tensor.Range{Start: 1, Stop: 2}))
			}
			for _, box := range boxes {
				for lo := 0; lo <= box.Numel(); lo += 3 {
					for hi := lo; hi <= box.Numel(); hi += 5 {
						at := box.Slice(lo, hi)
						want := make([]byte, 4*at.Numel())
						placement.Copy(want, at, data, whole, 4)
						into := tensor.Zeros(c, tensor.Float32, hi-lo)
						_, err := w.Read(c, tensor.Placed{Placement: at, Tensor: into})
						require.NoError(t, err)
						require.Equal(t, want, append([]byte{}, tensor.ReadBytes(c, into)...), "%v from %s", at, from)
					}
				}
			}
		}
		bias := tensor.WholePlacement("norm.bias", 4)
		for want, p := range map[string]tensor.Placed{
			"models: x: the model has no such parameter": {
				Placement: tensor.WholePlacement("x", 1), Tensor: tensor.Zeros(c, tensor.Float32, 1)},
			"norm.bias: elements [3, 5) of 4": {
				Placement: bias.Slice(3, 5), Tensor: tensor.Zeros(c, tensor.Float32, 2)},
			"norm.bias: a part of 2 elements for a tensor of 3": {
				Placement: bias.Slice(0, 2), Tensor: tensor.Zeros(c, tensor.Float32, 3)},
			"norm.bias: a part of shape [5]: the model has [4]": {
				Placement: tensor.WholePlacement("norm.bias", 5), Tensor: tensor.Zeros(c, tensor.Float32, 5)},
		} {
			_, err = w.Read(c, p)
			require.ErrorContains(t, err, want)
		}
	}
	other := newApart(1)
	other.Map = nil
	_, err = models.FitWeights(openSet(t, shards), other)
	require.ErrorContains(t, err, "do not fit")
}

func TestStaleWeights(t *testing.T) {
	one, two := "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	index, single, third := "model.safetensors.index.json", "model.safetensors", "model-00003-of-00003.safetensors"
	for _, c := range []struct{ existing, files, before, after string }{
		{"", single, "", ""},
		{single + " config.json model-1.safetensors", single, "", ""},
		{third + " " + index, single, "", index + " " + third},
		{third + " " + single, one + " " + two + " " + index, "", single + " " + third},
		{third + " " + index, one + " " + two + " " + index, index, third},
	} {
		before, after := models.StaleWeights(strings.Fields(c.existing), strings.Fields(c.files))
		require.Equal(t, c.before, strings.Join(before, " "), c)
		require.Equal(t, c.after, strings.Join(after, " "), c)
	}
}
