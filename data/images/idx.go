// SPDX-License-Identifier: Apache-2.0

// Package images reads labelled images, augments them and makes batches of them, pixel_values and labels. Use it for
// folders of PNG and JPEG files, one for each class, for CIFAR's binary files, and for the IDX files of MNIST and its
// successors. Start with [Open], whose sets go into data.NewSource with [Normalization.Collate]; training sets go into
// data.NewAugmentedSource with an [Augmentation].
//
// It has only random crops and flips: write a data.Augment for others, and implement data.Dataset for other formats.
package images

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/internal/compressed"
)

// OpenIDX reads the images and labels of a split from a folder, SPLIT-images-idx3-ubyte and SPLIT-labels-idx1-ubyte, or
// as Kaggle names them, SPLIT-images.idx3-ubyte, each possibly with .gz behind, or in a folder of the same name.
// MNIST's splits are train and t10k. A file that is not there is an error that wraps fs.ErrNotExist.
func OpenIDX(dir, split string) (*Dataset, error) {
	images, err := readAny(dir, split+"-images", "idx3-ubyte")
	if err != nil {
		return nil, err
	}
	labels, err := readAny(dir, split+"-labels", "idx1-ubyte")
	if err != nil {
		return nil, err
	}
	d, err := NewDataset(images, labels)
	if err != nil {
		return nil, fmt.Errorf("images: %s, split %s: %w", dir, split, err)
	}
	return d, nil
}

// readAny reads the first file that there is of a part of a split.
func readAny(dir, part, ending string) (*IDX, error) {
	usual := part + "-" + ending
	for _, name := range []string{usual, usual + ".gz", part + "." + ending, part + "." + ending + ".gz",
		filepath.Join(usual, usual), filepath.Join(usual, part+"."+ending)} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return ReadIDX(path)
		}
	}
	return nil, fmt.Errorf("images: open %s: %w", filepath.Join(dir, usual), fs.ErrNotExist)
}

// NewDataset joins images [N,H,W] and labels [N].
func NewDataset(images, labels *IDX) (*Dataset, error) {
	if len(images.Shape) != 3 || len(labels.Shape) != 1 || images.Shape[0] != labels.Shape[0] {
		return nil, fmt.Errorf("images of shape %v and labels of shape %v: want [N H W] and [N]", images.Shape,
			labels.Shape)
	}
	return &Dataset{pixels: images.Data, labels: labels.Data, channels: 1, height: images.Shape[1],
		width: images.Shape[2]}, nil
}

// IDX is an array of bytes from an IDX file.
type IDX struct {
	Shape []int
	Data  []uint8 // row-major
}

// The head of an IDX file: two zeros, the type of the elements, the number of dims; then the
// dims, big-endian. See the page of the MNIST database (LeCun, Cortes, Burges 1998).
const (
	idxUint8   = 0x08
	idxMaxDims = 4
)

// ReadIDX reads an IDX file of unsigned bytes, decompressing it if it is gzip's. A file that
// is of another kind, or shorter or longer than its head says, is an error that says so; so is a compressed one that
// holds more than 200 times its size and 64 MiB.
func ReadIDX(name string) (*IDX, error) {
	f, err := compressed.OpenSniffed(name)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	defer f.Close()
	x, err := decodeIDX(f)
	if err != nil {
		return nil, fmt.Errorf("images: %s: %w", name, err)
	}
	return x, nil
}

func decodeIDX(in io.Reader) (*IDX, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, tooShort(err, "no IDX head")
	}
	if head[0] != 0 || head[1] != 0 || head[2] != idxUint8 || head[3] == 0 || head[3] > idxMaxDims {
		return nil,
			fmt.Errorf("the file begins with % x: want 00 00 08 and 1 to %d dims, an IDX file of unsigned bytes", head,
				idxMaxDims)
	}
	dims := make([]uint32, head[3])
	if err := binary.Read(in, binary.BigEndian, dims); err != nil {
		return nil, tooShort(err, "no IDX head")
	}
	x, size := &IDX{}, int64(1)
	for _, d := range dims {
		if d > 0 && size > (1<<40)/int64(d) {
			return nil, fmt.Errorf("the header says %d: want at most 2^40 bytes", dims)
		}
		x.Shape, size = append(x.Shape, int(d)), size*int64(d)
	}
	var err error
	// grows with what is there, whatever the header says
	if x.Data, err = io.ReadAll(io.LimitReader(in, size+1)); err != nil {
		return nil, err
	}
	if int64(len(x.Data)) != size {
		return nil, fmt.Errorf("the header says %v, %d bytes, but %s", x.Shape, size, found(int64(len(x.Data)), size))
	}
	return x, nil
}

func found(n, want int64) string {
	if n > want {
		return "there are more"
	}
	return fmt.Sprintf("there are %d", n)
}

// tooShort is what the end of a file means where a head was to be.
func tooShort(err error, what string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is too short: %s", what)
	}
	return err
}
