// SPDX-License-Identifier: Apache-2.0

// Package imagestest writes small sets of labelled images for tests of code that reads images or trains on
// them. The images are not worth learning from.
package imagestest

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// Size is the width and height of the images, Classes their number of classes.
const (
	Size    = 12
	Classes = 4
)

// WriteIDX makes the folder dir with a training and a test set of noisy images in IDX files,
// the same at every call. The class is the quarter that is bright. The test set is
// compressed.
func WriteIDX(dir string, train, test int) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, split := range []struct {
		name string
		n    int
		pack func([]byte) ([]byte, error)
		end  string
	}{{"train", train, plain, ""}, {"t10k", test, zipped, ".gz"}} {
		images, labels := draw(r, split.n)
		for name, content := range map[string][]byte{"-images-idx3-ubyte": images, "-labels-idx1-ubyte": labels} {
			packed, err := split.pack(content)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, split.name+name+split.end), packed, 0o666); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteFolders makes the folder dir with n colored PNG files in two folders, round and square, the same at every call.
// Their sizes differ.
func WriteFolders(dir string, n int) error {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		class := []string{"round", "square"}[i%2]
		m := image.NewRGBA(image.Rect(0, 0, Size+r.IntN(3), Size))
		for y := range Size {
			for x := range m.Rect.Dx() {
				inside := (2*x-Size)*(2*x-Size)+(2*y-Size)*(2*y-Size) < Size*Size/2
				if class == "square" {
					inside = x > Size/4 && x < Size*3/4 && y > Size/4 && y < Size*3/4
				}
				c := color.RGBA{uint8(r.IntN(80)), uint8(r.IntN(80)), uint8(r.IntN(120)), 255}
				if inside {
					c.R += 150
				}
				m.SetRGBA(x, y, c)
			}
		}
		var b bytes.Buffer
		if err := png.Encode(&b, m); err != nil {
			return err
		}
		path := filepath.Join(dir, class, strconv.Itoa(i)+".png")
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// draw makes the contents of two IDX files.
func draw(r *rand.Rand, n int) (images, labels []byte) {
	images, labels = head(n, Size, Size), head(n)
	for range n {
		label := r.IntN(Classes)
		labels = append(labels, byte(label))
		for i := range Size * Size {
			v := r.IntN(160)
			if i/Size*2/Size*2+i%Size*2/Size == label {
				v += 95
			}
			images = append(images, byte(v))
		}
	}
	return images, labels
}

// head is the beginning of an IDX file of bytes.
func head(dims ...int) []byte {
	b := []byte{0, 0, 8, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	return b
}

func plain(b []byte) ([]byte, error) { return b, nil }

func zipped(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	err := z.Close()
	return out.Bytes(), err
}
