// SPDX-License-Identifier: Apache-2.0

package images

import "github.com/lockstep-ml/lockstep/data"

// Augmentation changes images of a training set at random, as torchvision's RandomCrop and RandomHorizontalFlip do:
// what ResNets are trained with on CIFAR (He et al. 2016). Its Apply is a data.Augment.
type Augmentation struct {
	// CropPadding is the number of black pixels on each side of an image, out of which one of its size is cut; 0 for
	// none.
	CropPadding int
	// HorizontalFlip turns every second image, on average, around.
	HorizontalFlip bool
}

// Apply changes a copy of the image.
func (a Augmentation) Apply(r *data.Random, x Image) (Image, error) {
	top, left, flip := r.IntN(2*a.CropPadding+1), r.IntN(2*a.CropPadding+1), r.IntN(2) == 1 && a.HorizontalFlip
	out := make([]uint8, len(x.Pixels))
	for row := range x.planes() * x.Height {
		y := row%x.Height + top - a.CropPadding
		if y < 0 || y >= x.Height {
			continue // black
		}
		from := x.Pixels[(row-row%x.Height+y)*x.Width:][:x.Width]
		to := out[row*x.Width:][:x.Width]
		for i := range to {
			at := i + left - a.CropPadding
			if flip {
				at = x.Width - 1 - i + left - a.CropPadding
			}
			if at >= 0 && at < x.Width {
				to[i] = from[at]
			}
		}
	}
	x.Pixels = out
	return x, nil
}
