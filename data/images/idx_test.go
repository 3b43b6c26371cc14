// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The bytes of an IDX file of three images of 2×1 pixels, and of their labels.
var (
	pixels = []byte{0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 255, 51, 102, 255, 0}
	labels = []byte{0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 2}
)

func zipped(t testing.TB, raw []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(raw)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func write(t *testing.T, name string, raw []byte) {
	require.NoError(t, os.WriteFile(name, raw, 0o600))
}

// Plain and compressed files give the same dataset, whose batches are normalised.
func TestOpenIDX(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "train-images-idx3-ubyte.gz"), zipped(t, pixels))
	write(t, filepath.Join(dir, "train-labels-idx1-ubyte"), labels)
	d, err := images.OpenIDX(dir, "train")
	require.NoError(t, err)
	require.Equal(t, 3, d.Len())
	require.Equal(t, 5, d.Classes())
	x, err := d.Get(1)
	require.NoError(t, err)
	require.Equal(t, images.Image{Pixels: []byte{51, 102}, Channels: 1, Height: 2, Width: 1, Label: 0}, x)
	for _, i := range []int{-1, 3} {
		_, err = d.Get(i)
		require.ErrorContains(t, err, "is outside a dataset of 3 images")
	}
	n, err := images.NormalizationOf(d, 0)
	require.NoError(t, err)
	mean, std := n.Mean[0], n.Std[0]
	require.InDelta(t, (0+1+0.2+0.4+1+0)/6, mean, 1e-12)
	require.InDelta(t, math.Sqrt((2+0.04+0.16)/6-mean*mean), std, 1e-12)

	c := tensor.NewCtx(tensor.CPU())
	b, err := data.NewSource(d, n.Collate).Batch(c, []int64{2, 0})
	require.NoError(t, err)
	require.EqualValues(t, 2, b.Count)
	require.Equal(t, []int{2, 1, 2, 1}, b.Tensors[data.PixelValues].Shape())
	zero, one := float32(-mean/std), float32((1-mean)/std)
	require.Equal(t, []float32{one, zero, zero, one}, tensor.ToSlice[float32](c, b.Tensors[data.PixelValues]))
	require.Equal(t, []int64{2, 4}, tensor.ToSlice[int64](c, b.Tensors[data.Labels]))

	_, err = images.OpenIDX(dir, "t10k")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "t10k-images-idx3-ubyte")
	_, err = n.Collate(c, []images.Image{x, {Pixels: []byte{1}, Height: 1, Width: 1}})
	require.EqualError(t, err, "image 1 of the batch has 1×1 pixels in 1 channels, the first 2×1 in 1: want one size")
}

// Uniform images have a normalization that is finite.
func TestNormalizationOfOneColour(t *testing.T) {
	d, err := images.NewDataset(&images.IDX{Shape: []int{1, 1, 2}, Data: []byte{255, 255}},
		&images.IDX{Shape: []int{1}, Data: []byte{0}})
	require.NoError(t, err)
	n, err := images.NormalizationOf(d, 0)
	require.NoError(t, err)
	require.Equal(t, images.Normalization{Mean: []float64{1}, Std: []float64{1}}, n)
}

func TestReadIDXRefuses(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for want, raw := range map[string][]byte{
		"the file is too short: no IDX head":                   pixels[:10],
		"the file begins with 50 4b 03 04: want 00 00 08":      []byte("PK\x03\x04abcdefgh"),
		"the file begins with 00 00 0d 01: want":               {0, 0, 13, 1, 0, 0, 0, 1},
		"the file begins with 00 00 08 09":                     {0, 0, 8, 9},
		"the header says [3 2 1], 6 bytes, but there are 5":    pixels[:len(pixels)-1],
		"the header says [3 2 1], 6 bytes, but there are more": append(bytes.Clone(pixels), 7),
		"want at most 2^40 bytes":                              {0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255},
		"[65535], 65535 bytes, but there are 0":                {0, 0, 8, 1, 0, 0, 255, 255},
		"unexpected EOF":                                       zipped(t, pixels)[:30],
	} {
		write(t, name, raw)
		_, err := images.ReadIDX(name)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, name)
	}
	_, err := images.NewDataset(&images.IDX{Shape: []int{2, 1, 1}}, &images.IDX{Shape: []int{3}})
	require.EqualError(t, err, "images of shape [2 1 1] and labels of shape [3]: want [N H W] and [N]")
}

// A small compressed file that holds as much as its head says is refused once it holds too much for its size.
func TestImagesMadeToExhaustMemoryAreRefused(t *testing.T) {
	bomb := append([]byte{0, 0, 8, 1, 8, 0, 0, 0}, make([]byte, 128<<20)...)
	name := filepath.Join(t.TempDir(), "bomb")
	write(t, name, zipped(t, bomb))
	_, err := images.ReadIDX(name)
	require.ErrorContains(t, err, "holds more than 200 times its size")
	require.NoError(t, os.Symlink(os.DevNull, name+"-device"))
	_, err = images.ReadIDX(name + "-device")
	require.ErrorContains(t, err, "neither a file nor a folder")
}

// FuzzReadIDX: a file is refused by name, or its shape says how many bytes there are.
func FuzzReadIDX(f *testing.F) {
	f.Add(pixels)
	f.Add(labels)
	f.Add(zipped(f, labels))
	f.Add([]byte{0, 0, 8, 4, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, raw []byte) {
		name := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(name, raw, 0o600))
		x, err := images.ReadIDX(name)
		if err != nil {
			require.ErrorContains(t, err, name)
			return
		}
		n := 1
		for _, d := range x.Shape {
			n *= d
		}
		require.Len(t, x.Data, n)
		if d,
			err := images.NewDataset(x, &images.IDX{Shape: x.Shape[:1],
			Data: make([]byte, min(x.Shape[0], 1000))}); err == nil && d.Len() > 0 && d.Len() < 1000 {
			_, err = d.Get(d.Len() - 1)
			require.NoError(t, err)
		}
	})
}
