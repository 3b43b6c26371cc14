// SPDX-License-Identifier: Apache-2.0

package images

import "math"

// Resize makes an image of another size by the triangle filter, widened where the image gets smaller, first in width,
// then in height: Pillow's BILINEAR, which transformers' image processors use by default (resample 2). Pixels are
// Pillow's where it takes the same order, and differ by 1 at most where Pillow 13 begins with the height. It returns x
// itself if it has the size.
func Resize(x Image, height, width int) Image {
	if x.Height == height && x.Width == width {
		return x
	}
	if x.Width != width {
		x.Pixels, x.Width = resizeRows(x.Pixels, x.planes()*x.Height, x.Width, width), width
	}
	if x.Height != height {
		x.Pixels, x.Height = resizeColumns(x.Pixels, x.planes(), x.Height, height, width), height
	}
	return x
}

// Resized is a set whose images get a height and a width, by Resize.
func Resized(s Set, height, width int) Set { return resized{s, height, width} }

type resized struct {
	Set
	height, width int
}

func (r resized) Get(i int) (Image, error) {
	x, err := r.Set.Get(i)
	if err != nil {
		return x, err
	}
	return Resize(x, r.height, r.width), nil
}

// precision is the number of bits of a weight behind the point: 8 of 32 hold the sum, 2 its overshoot.
const precision = 32 - 8 - 2

// window is the pixels that one of the result is made of.
type window struct {
	first   int
	weights []int32
}

// windows are those of a row of n pixels that becomes one of m.
func windows(n, m int) []window {
	scale := float64(n) / float64(m)
	filter := math.Max(scale, 1)
	list := make([]window, m)
	for i := range list {
		center := (float64(i) + 0.5) * scale
		first := max(int(center-filter+0.5), 0)
		last := min(int(center+filter+0.5), n)
		weights, sum := make([]float64, last-first), 0.0
		for k := range weights {
			away := math.Abs((float64(k+first) - center + 0.5) * (1 / filter))
			weights[k] = math.Max(1-away, 0)
			sum += weights[k]
		}
		list[i] = window{first, make([]int32, len(weights))}
		for k, w := range weights {
			if sum != 0 {
				w /= sum
			}
			list[i].weights[k] = int32(w*(1<<precision) + 0.5)
		}
	}
	return list
}

// of is the weighted sum of the window's pixels, which lie stride apart in p.
func (w window) of(p []uint8, stride int) uint8 {
	sum := int32(1 << (precision - 1))
	for k, weight := range w.weights {
		sum += int32(p[(w.first+k)*stride]) * weight
	}
	return uint8(min(max(sum>>precision, 0), 255))
}

// resizeRows makes rows of m pixels of rows of n.
func resizeRows(in []uint8, rows, n, m int) []uint8 {
	out, list := make([]uint8, 0, rows*m), windows(n, m)
	for r := range rows {
		for _, w := range list {
			out = append(out, w.of(in[r*n:(r+1)*n], 1))
		}
	}
	return out
}

// resizeColumns makes planes of m rows of planes of n.
func resizeColumns(in []uint8, planes, n, m, width int) []uint8 {
	out, list := make([]uint8, 0, planes*m*width), windows(n, m)
	for p := range planes {
		plane := in[p*n*width : (p+1)*n*width]
		for _, w := range list {
			for x := range width {
				out = append(out, w.of(plane[x:], width))
			}
		}
	}
	return out
}
