// SPDX-License-Identifier: Apache-2.0

package images

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Image is a grey picture and its class.
type Image struct {
	Pixels        []uint8 // row-major; 0 is black
	Height, Width int
	Label         int64
}

// Dataset is labelled images of one size in memory. It is safe for concurrent use.
type Dataset struct {
	images, labels *IDX
}

// OpenIDX reads the images and labels of a split from a folder, SPLIT-images-idx3-ubyte and
// SPLIT-labels-idx1-ubyte, each possibly with .gz behind. MNIST's splits are train and
// t10k. A file that is not there is an error that wraps fs.ErrNotExist.
func OpenIDX(dir, split string) (*Dataset, error) {
	images, err := readEither(filepath.Join(dir, split+"-images-idx3-ubyte"))
	if err != nil {
		return nil, err
	}
	labels, err := readEither(filepath.Join(dir, split+"-labels-idx1-ubyte"))
	if err != nil {
		return nil, err
	}
	d, err := NewDataset(images, labels)
	if err != nil {
		return nil, fmt.Errorf("images: %s, split %s: %w", dir, split, err)
	}
	return d, nil
}

// readEither reads a plain or a compressed file.
func readEither(name string) (*IDX, error) {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(name + ".gz"); err == nil {
			name += ".gz"
		}
	}
	return ReadIDX(name)
}

// NewDataset joins images [N,H,W] and labels [N].
func NewDataset(images, labels *IDX) (*Dataset, error) {
	if len(images.Shape) != 3 || len(labels.Shape) != 1 || images.Shape[0] != labels.Shape[0] {
		return nil, fmt.Errorf("images of shape %v and labels of shape %v: want [N H W] and [N]", images.Shape,
			labels.Shape)
	}
	return &Dataset{images, labels}, nil
}

// Len implements data.Dataset.
func (d *Dataset) Len() int { return d.images.Shape[0] }

// Get implements data.Dataset. The pixels are the dataset's own.
func (d *Dataset) Get(i int) (Image, error) {
	if i < 0 || i >= d.Len() {
		return Image{}, fmt.Errorf("index %d is outside a dataset of %d images", i, d.Len())
	}
	h, w := d.images.Shape[1], d.images.Shape[2]
	return Image{Pixels: d.images.Data[i*h*w : (i+1)*h*w : (i+1)*h*w], Height: h, Width: w,
		Label: int64(d.labels.Data[i])}, nil
}

// Classes is the largest label plus one; 0 of nothing.
func (d *Dataset) Classes() int {
	n := 0
	for _, l := range d.labels.Data {
		n = max(n, int(l)+1)
	}
	return n
}

// Normalization maps a pixel v of [0, 255] to (v/255 − Mean)/Std.
type Normalization struct{ Mean, Std float64 }

// Normalization is that by which all of the dataset's pixels together get mean 0 and
// standard deviation 1.
func (d *Dataset) Normalization() Normalization {
	var counts [256]float64
	for _, v := range d.images.Data {
		counts[v]++
	}
	n := math.Max(float64(len(d.images.Data)), 1)
	var mean, square float64
	for v, count := range counts {
		mean += float64(v) / 255 * count / n
	}
	for v, count := range counts {
		square += (float64(v)/255 - mean) * (float64(v)/255 - mean) * count / n
	}
	if square == 0 {
		square = 1
	}
	return Normalization{mean, math.Sqrt(square)}
}

// Collate makes pixel_values [B,1,H,W] and labels [B] of images of one size. Count is the
// number of images.
func (n Normalization) Collate(c *tensor.Ctx, samples []Image) (*data.Batch, error) {
	var values [256]float32
	for v := range values {
		values[v] = float32((float64(v)/255 - n.Mean) / n.Std)
	}
	h, w := samples[0].Height, samples[0].Width
	pixels, labels := make([]float32, 0, len(samples)*h*w), make([]int64, len(samples))
	for i, s := range samples {
		if s.Height != h || s.Width != w || len(s.Pixels) != h*w {
			return nil, fmt.Errorf("image %d of the batch has %d×%d pixels, the first %d×%d: want one size", i,
				s.Height, s.Width, h, w)
		}
		for _, v := range s.Pixels {
			pixels = append(pixels, values[v])
		}
		labels[i] = s.Label
	}
	return &data.Batch{Count: float64(len(samples)), Tensors: map[string]*tensor.Tensor{
		data.PixelValues: tensor.FromSlice(c, pixels, len(samples), 1, h, w),
		data.Labels:      tensor.FromSlice(c, labels, len(samples)),
	}}, nil
}
