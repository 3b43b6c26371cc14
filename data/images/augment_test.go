// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/tensor"
)

// An augmented image is one of the crops of the image with a black border, turned around or not, in all channels alike;
// all of them come about equally often, and the dataset's image stays.
func TestAugmentation(t *testing.T) {
	const h, w, ch, padding = 2, 3, 2, 1
	x := images.Image{Pixels: []uint8{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16}, Channels: ch, Height: h, Width: w}
	original := append([]uint8{}, x.Pixels...)
	at := func(c, y, i int) uint8 {
		if y < 0 || y >= h || i < 0 || i >= w {
			return 0
		}
		return original[(c*h+y)*w+i]
	}
	possible := map[string]int{}
	for top := -padding; top <= padding; top++ {
		for left := -padding; left <= padding; left++ {
			for _, flip := range []bool{false, true} {
				var p []uint8
				for c := range ch {
					for y := range h {
						for i := range w {
							if flip {
								i = w - 1 - i
							}
							p = append(p, at(c, y+top, i+left))
						}
					}
				}
				possible[string(p)] = 0
			}
		}
	}
	require.Len(t, possible, 18)
	c := tensor.NewCtx(tensor.CPU())
	n := images.Normalization{Mean: []float64{0, 0}, Std: []float64{1. / 255, 1. / 255}}
	augmented := func(a images.Augmentation) data.PositionedSource {
		return data.NewAugmentedSource(data.Slice[images.Image]{x}, 3, a.Apply, n.Collate).(data.PositionedSource)
	}
	pixels := func(s data.PositionedSource, position int64) string {
		b, err := s.BatchAt(c, position, []int64{0})
		require.NoError(t, err)
		defer b.Free()
		var p []uint8
		for _, v := range tensor.ToSlice[float32](c, b.Tensors[data.PixelValues]) {
			p = append(p, uint8(v+0.5))
		}
		return string(p)
	}
	const draws = 1800
	s := augmented(images.Augmentation{CropPadding: padding, HorizontalFlip: true})
	for i := range int64(draws) {
		p := pixels(s, i)
		require.Contains(t, possible, p)
		possible[p]++
	}
	for _, n := range possible {
		require.InDelta(t, draws/18, n, 45)
	}
	require.Equal(t, original, x.Pixels)
	flips := map[string]bool{}
	for i := range int64(50) {
		require.Equal(t, string(original), pixels(augmented(images.Augmentation{}), i))
		flips[pixels(augmented(images.Augmentation{HorizontalFlip: true}), i)] = true
	}
	require.Len(t, flips, 2)
}
