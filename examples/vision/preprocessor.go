// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data/images"
)

// preprocessorFile says how pixels become a saved model's inputs, with transformers' keys: its AutoImageProcessor reads
// it. (A pipeline of transformers makes RGB of every image first, which a model of grey ones refuses.)
const preprocessorFile = "preprocessor_config.json"

// preprocessor is its content.
type preprocessor struct {
	ImageProcessorType string     `json:"image_processor_type"`
	DoResize           bool       `json:"do_resize"`
	Size               imageSize  `json:"size"`
	Resample           int        `json:"resample"`
	DoRescale          bool       `json:"do_rescale"`
	RescaleFactor      float64    `json:"rescale_factor"`
	DoNormalize        bool       `json:"do_normalize"`
	ImageMean          [1]float64 `json:"image_mean"`
	ImageStd           [1]float64 `json:"image_std"`
}

type imageSize struct {
	Height int `json:"height"`
	Width  int `json:"width"`
}

// bilinear is how images of another size are resized, in PIL's numbering.
const bilinear = 2

// preprocessorPart is the file of images of a size.
func preprocessorPart(n images.Normalization, height, width int) checkpoint.Part {
	text, _ := json.MarshalIndent(preprocessor{ // numbers always marshal
		ImageProcessorType: "ViTImageProcessor", DoResize: true, Size: imageSize{height, width}, Resample: bilinear,
		DoRescale: true, RescaleFactor: 1.0 / 255, DoNormalize: true, ImageMean: [1]float64{n.Mean},
		ImageStd: [1]float64{n.Std},
	}, "", "  ")
	return checkpoint.BytesPart(preprocessorFile, append(text, '\n'))
}

// loadNormalization reads the file of a saved model.
func loadNormalization(dir string) (images.Normalization, error) {
	path := filepath.Join(dir, preprocessorFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return images.Normalization{}, err
	}
	var p preprocessor
	if err := json.Unmarshal(text, &p); err != nil {
		return images.Normalization{}, fmt.Errorf("%s: %w", path, err)
	}
	if p.ImageStd[0] <= 0 {
		return images.Normalization{}, fmt.Errorf("%s: image_std = %g: want a positive number", path, p.ImageStd[0])
	}
	return images.Normalization{Mean: p.ImageMean[0], Std: p.ImageStd[0]}, nil
}
