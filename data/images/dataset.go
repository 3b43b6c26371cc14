// SPDX-License-Identifier: Apache-2.0

package images

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Image is a picture and its class.
type Image struct {
	// Pixels are planes of Height rows, one after the other: one of grey, or red, green and blue. 0 is dark.
	Pixels        []uint8
	Channels      int // 0 is 1
	Height, Width int
	Label         int64
}

// planes is the number of channels.
func (x Image) planes() int { return max(x.Channels, 1) }

// Set is labelled images of one shape. It is safe for concurrent use.
type Set interface {
	data.Dataset[Image]
	// Classes is the number of classes: labels are 0 to Classes()-1.
	Classes() int
	// Names are those of the classes; nil if they have none.
	Names() []string
}

// Dataset is a Set in memory.
type Dataset struct {
	pixels                  []uint8
	labels                  []uint8
	channels, height, width int
	names                   []string
}

// Len implements data.Dataset.
func (d *Dataset) Len() int { return len(d.labels) }

// Get implements data.Dataset. The pixels are the dataset's own.
func (d *Dataset) Get(i int) (Image, error) {
	if i < 0 || i >= d.Len() {
		return Image{}, fmt.Errorf("index %d is outside a dataset of %d images", i, d.Len())
	}
	size := d.channels * d.height * d.width
	return Image{Pixels: d.pixels[i*size : (i+1)*size : (i+1)*size], Channels: d.channels, Height: d.height,
		Width: d.width, Label: int64(d.labels[i])}, nil
}

// Classes is the number of names, or else the largest label plus one; 0 of nothing.
func (d *Dataset) Classes() int {
	n := len(d.names)
	for _, l := range d.labels {
		n = max(n, int(l)+1)
	}
	return n
}

// Names implements Set.
func (d *Dataset) Names() []string { return d.names }

// Normalization maps a pixel v of [0, 255] in a channel to (v/255 − Mean)/Std.
type Normalization struct{ Mean, Std []float64 }

// NormalizationOf is that by which each channel of a set's images gets mean 0 and standard deviation 1. It looks at
// most images from all over the set, at all of them with 0. The error says which image could not be read, or has
// another number of channels than the first.
func NormalizationOf(set data.Dataset[Image], most int) (Normalization, error) {
	n := set.Len()
	if most > 0 {
		n = min(n, most)
	}
	var counts [][256]float64
	pixels := 0
	for i := range n {
		index := i * set.Len() / n
		x, err := set.Get(index)
		if err != nil {
			return Normalization{}, fmt.Errorf("images: image %d: %w", index, err)
		}
		if counts == nil {
			counts = make([][256]float64, x.planes())
		}
		if x.planes() != len(counts) || len(x.Pixels) != x.planes()*x.Height*x.Width {
			return Normalization{}, fmt.Errorf("images: image %d has %d pixels in %d channels: want %d channels "+
				"of %d×%d",
				index, len(x.Pixels), x.planes(), len(counts), x.Height, x.Width)
		}
		plane := x.Height * x.Width
		pixels += plane
		for c := range counts {
			for _, v := range x.Pixels[c*plane : (c+1)*plane] {
				counts[c][v]++
			}
		}
	}
	var out Normalization
	for c := range counts {
		mean, std := moments(counts[c], math.Max(float64(pixels), 1))
		out.Mean, out.Std = append(out.Mean, mean), append(out.Std, std)
	}
	return out, nil
}

// moments are the mean and the standard deviation of n pixels, divided by 255; the deviation of one colour is 1.
func moments(counts [256]float64, n float64) (mean, std float64) {
	var square float64
	for v, count := range counts {
		mean += float64(v) / 255 * count / n
	}
	for v, count := range counts {
		square += (float64(v)/255 - mean) * (float64(v)/255 - mean) * count / n
	}
	if square == 0 {
		square = 1
	}
	return mean, math.Sqrt(square)
}

// Collate makes pixel_values [B,C,H,W] and labels [B] of images of one shape. Count is the
// number of images.
func (n Normalization) Collate(c *tensor.Ctx, samples []Image) (*data.Batch, error) {
	ch, h, w := samples[0].planes(), samples[0].Height, samples[0].Width
	if len(n.Mean) != ch || len(n.Std) != ch {
		return nil, fmt.Errorf("a normalization of %d and %d channels, and images of %d", len(n.Mean), len(n.Std), ch)
	}
	values := make([][256]float32, ch)
	for k := range values {
		for v := range values[k] {
			values[k][v] = float32((float64(v)/255 - n.Mean[k]) / n.Std[k])
		}
	}
	pixels, labels := make([]float32, 0, len(samples)*ch*h*w), make([]int64, len(samples))
	for i, s := range samples {
		if s.planes() != ch || s.Height != h || s.Width != w || len(s.Pixels) != ch*h*w {
			return nil, fmt.Errorf("image %d of the batch has %d×%d pixels in %d channels, the first %d×%d in %d: "+
				"want one size", i, s.Height, s.Width, s.planes(), h, w, ch)
		}
		for k := range values {
			for _, v := range s.Pixels[k*h*w : (k+1)*h*w] {
				pixels = append(pixels, values[k][v])
			}
		}
		labels[i] = s.Label
	}
	return &data.Batch{Count: float64(len(samples)), Tensors: map[string]*tensor.Tensor{
		data.PixelValues: tensor.FromSlice(c, pixels, len(samples), ch, h, w),
		data.Labels:      tensor.FromSlice(c, labels, len(samples)),
	}}, nil
}
