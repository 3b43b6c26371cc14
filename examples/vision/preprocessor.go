// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
)

// preprocessorFile says how pixels become a saved model's inputs, with transformers' keys: its AutoImageProcessor reads
// it. (A pipeline of transformers makes RGB of every image first, which a model of grey ones refuses.)
const preprocessorFile = "preprocessor_config.json"

// preprocessor is its content.
type preprocessor struct {
	ImageProcessorType string    `json:"image_processor_type"`
	DoResize           bool      `json:"do_resize"`
	Size               imageSize `json:"size"`
	Resample           int       `json:"resample"`
	DoRescale          bool      `json:"do_rescale"`
	RescaleFactor      float64   `json:"rescale_factor"`
	DoNormalize        bool      `json:"do_normalize"`
	ImageMean          []float64 `json:"image_mean"`
	ImageStd           []float64 `json:"image_std"`
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
		DoRescale: true, RescaleFactor: 1.0 / 255, DoNormalize: true, ImageMean: n.Mean, ImageStd: n.Std,
	}, "", "  ")
	return checkpoint.BytesPart(preprocessorFile, append(text, '\n'))
}

// loadPreprocessor reads the file of a saved model.
func loadPreprocessor(saved *models.Pretrained[*resnet.Model]) (n images.Normalization, size imageSize, err error) {
	path := filepath.Join(saved.Dir, preprocessorFile)
	text, err := saved.File(preprocessorFile)
	if err != nil {
		return n, size, err
	}
	var p preprocessor
	if err := jsonfile.Unmarshal(text, &p); err != nil {
		return n, size, fmt.Errorf("%s: %w", path, err)
	}
	if len(p.ImageMean) != len(p.ImageStd) {
		return n, size, fmt.Errorf("%s: image_mean has %d values, and image_std %d", path, len(p.ImageMean),
			len(p.ImageStd))
	}
	for _, std := range p.ImageStd {
		if std <= 0 {
			return n, size, fmt.Errorf("%s: image_std = %g: want a positive number", path, std)
		}
	}
	return images.Normalization{Mean: p.ImageMean, Std: p.ImageStd}, p.Size, nil
}
