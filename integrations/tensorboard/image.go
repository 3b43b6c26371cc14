// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"time"

	"github.com/lockstep-ml/lockstep/integrations/internal/protobuf"
)

// Field numbers of summary.proto's Image.
const (
	valueImage = 4

	imageHeight     = 1
	imageWidth      = 2
	imageColorspace = 3
	imageEncoded    = 4
)

// Numbers of channels in the colorspace of an Image.
const (
	gray = 1
	rgba = 4
)

// AddImage writes an image of one step, as a PNG.
func (w *Writer) AddImage(at time.Time, step int64, tag string, m image.Image) error {
	var encoded bytes.Buffer
	if err := png.Encode(&encoded, m); err != nil { // an image without pixels, or too large
		return fmt.Errorf("tensorboard: image %s: %w", tag, err)
	}
	channels := uint64(rgba)
	if model := m.ColorModel(); model == color.GrayModel || model == color.Gray16Model {
		channels = gray
	}
	size := m.Bounds().Size()
	b := protobuf.Varint(nil, imageHeight, uint64(size.Y))
	b = protobuf.Varint(b, imageWidth, uint64(size.X))
	b = protobuf.Varint(b, imageColorspace, channels)
	b = protobuf.Bytes(b, imageEncoded, encoded.Bytes())
	return w.add(summaryEvent(at, step, protobuf.Bytes(protobuf.String(nil, valueTag, tag), valueImage, b)))
}
