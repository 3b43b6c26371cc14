// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"image"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/images"
)

type picture struct {
	Width, Height int
	Pixels        string
	Resized       []string
}

// pictures are the files of testdata/folder as Pillow reads them: see testdata/make_folder.py.
func pictures(t *testing.T) (files map[string]picture, sizes [][2]int) {
	var golden struct {
		Sizes [][2]int
		Files map[string]picture
	}
	raw, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.Len(t, golden.Files, 6)
	return golden.Files, golden.Sizes
}

// PNG of every kind has Pillow's pixels, and after a resize too; JPEG has them except for the rounding of its decoders.
func TestPixelsAreThoseOfPillow(t *testing.T) {
	files, sizes := pictures(t)
	for name, want := range files {
		x, err := images.ReadFile(filepath.Join("testdata", "folder", filepath.FromSlash(name)))
		require.NoError(t, err)
		require.Equal(t, []int{3, want.Height, want.Width}, []int{x.Channels, x.Height, x.Width}, name)
		check := func(want string, got images.Image, most int) {
			t.Helper()
			pixels, err := hex.DecodeString(want)
			require.NoError(t, err)
			require.Len(t, got.Pixels, len(pixels))
			if filepath.Ext(name) == ".jpg" {
				most = 10 // decoders fill in colors in different ways
			}
			for i := range pixels {
				require.InDelta(t, pixels[i], got.Pixels[i], float64(most), "%s: %d", name, i)
			}
		}
		check(want.Pixels, x, 0)
		for i, size := range sizes {
			other := images.Resize(x, size[1], size[0])
			require.Equal(t, []int{size[1], size[0]}, []int{other.Height, other.Width})
			most := 1
			if size[0] >= x.Width && size[1] >= x.Height {
				most = 0 // the order of width and height is Pillow's
			}
			check(want.Resized[i], other, most)
		}
		require.Equal(t, x, images.Resize(x, x.Height, x.Width))
	}
}

// Folders are classes in the order of their names, with all images below them.
func TestOpenFolder(t *testing.T) {
	f, err := images.OpenFolder(filepath.Join("testdata", "folder"))
	require.NoError(t, err)
	require.Equal(t, []string{"cat", "dog"}, f.Names())
	require.Equal(t, []int{6, 2}, []int{f.Len(), f.Classes()})
	small := images.Resized(f, 6, 5)
	require.Equal(t, f.Names(), small.Names())
	for i := range small.Len() {
		x, err := small.Get(i)
		require.NoError(t, err)
		require.Equal(t, []int{3, 6, 5, int(x.Label)}, []int{x.Channels, x.Height, x.Width, i / 3})
	}
	_, err = small.Get(6)
	require.ErrorContains(t, err, "is outside a folder of 6 images")
	n, err := images.NormalizationOf(f, 4)
	require.NoError(t, err)
	require.Len(t, n.Mean, 3)

	dir := t.TempDir()
	make := func(names ...string) string {
		root := filepath.Join(dir, "set")
		require.NoError(t, os.RemoveAll(root))
		for _, name := range names {
			path := filepath.Join(root, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
			require.NoError(t, os.WriteFile(path, []byte("no picture"), 0o600))
		}
		return root
	}
	for want, names := range map[string][]string{
		"set has no folders with .png or .jpg files":             {"a/text.txt", "b/.hidden.png", ".c/x.png"},
		"the folders of the classes b have no .png or .jpg file": {"a/x.png", "b/x.gif"},
		"set has one folder, a: want one for each of at least 2": {"a/x.png", "y.png"},
	} {
		_, err := images.OpenFolder(make(names...))
		require.ErrorContains(t, err, want)
	}
	f, err = images.OpenFolder(make("a/x.png", "b/y.jpeg"))
	require.NoError(t, err)
	_, err = f.Get(0)
	require.ErrorContains(t, err, filepath.Join("a", "x.png")+": it is neither PNG nor JPEG, although its name says so")
}

// An image of more pixels than can be meant is refused before they have memory.
func TestImagesOfTooManyPixelsAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.png")
	size := append([]byte("IHDR\x00\x10\x00\x00\x00\x00\x00\x41\x08\x00\x00\x00\x00"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(size[17:], crc32.ChecksumIEEE(size[:17]))
	write(t, path, append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0d"), size...))
	_, err := images.ReadFile(path)
	require.ErrorContains(t, err, "large.png: it has 1048576×65 pixels in 33 bytes: want at most 16777216 pixels")
}

// The layouts of a data set in a folder are told apart.
func TestOpen(t *testing.T) {
	copied := func(to ...string) string {
		dir := t.TempDir()
		for _, name := range to {
			require.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("testdata", "folder"))))
		}
		return dir
	}
	train, test, err := images.Open(copied("."))
	require.NoError(t, err)
	require.Nil(t, test)
	require.Equal(t, 6, train.Len())
	for _, names := range [][]string{{"train", "val"}, {"Training", "test"}, {"training_set", "test_set"}} {
		train, test, err = images.Open(copied(names...))
		require.NoError(t, err)
		require.Equal(t, []int{6, 6}, []int{train.Len(), test.Len()})
	}
	train, test, err = images.Open(copied("train"))
	require.NoError(t, err)
	require.Nil(t, test)
	require.Equal(t, 6, train.Len())
	dir := copied("train", "val")
	require.NoError(t, os.Rename(filepath.Join(dir, "val", "dog"), filepath.Join(dir, "val", "fox")))
	_, _, err = images.Open(dir)
	require.ErrorContains(t, err, "the classes of the training images are cat, dog, those of the others cat, fox")

	vehicles := t.TempDir()
	for _, class := range []string{"bus", "train"} {
		require.NoError(t, os.CopyFS(filepath.Join(vehicles, class),
			os.DirFS(filepath.Join("testdata", "folder", "cat"))))
	}
	train, _, err = images.Open(vehicles)
	require.NoError(t, err)
	require.Equal(t, []string{"bus", "train"}, train.Names(), "train is a class")

	_, _, err = images.Open(t.TempDir())
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "want MNIST's IDX files")
	_, _, err = images.Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	archive := t.TempDir()
	write(t, filepath.Join(archive, "cifar-10-binary.tar.gz"), zipped(t, pixels))
	_, _, err = images.Open(archive)
	require.ErrorContains(t, err, "has no images that are read (unpack cifar-10-binary.tar.gz): want MNIST's IDX files")

	kaggle := t.TempDir()
	for _, split := range []string{"train", "t10k"} {
		write(t, filepath.Join(kaggle, split+"-images.idx3-ubyte"), pixels)
		folder := filepath.Join(kaggle, split+"-labels-idx1-ubyte")
		require.NoError(t, os.Mkdir(folder, 0o777))
		write(t, filepath.Join(folder, split+"-labels-idx1-ubyte"), labels)
	}
	train, test, err = images.Open(kaggle)
	require.NoError(t, err)
	require.Equal(t, []int{3, 3}, []int{train.Len(), test.Len()})
}

// FuzzReadFile: a file is an image of as many pixels as it says, or is refused by name.
func FuzzReadFile(f *testing.F) {
	for _, name := range []string{"cat/color.png", "cat/photo.jpg", "dog/palette.png", "dog/more/alpha.png"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "folder", filepath.FromSlash(name)))
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "x.png")
		require.NoError(t, os.WriteFile(path, raw, 0o600))
		if size, _, err := image.DecodeConfig(bytes.NewReader(raw)); err == nil && size.Width*size.Height > 1<<18 {
			return // it would take long
		}
		x, err := images.ReadFile(path)
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		require.Len(t, x.Pixels, 3*x.Height*x.Width)
		require.Len(t, images.Resize(x, 3, 4).Pixels, 36)
	})
}
