// SPDX-License-Identifier: Apache-2.0

// Package imagestest writes small sets of labelled images for tests of code that reads images or trains on
// them. The images are not worth learning from.
package imagestest

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
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
