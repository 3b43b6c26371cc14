// SPDX-License-Identifier: Apache-2.0

package resnet

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The kinds of residual layers.
const (
	Basic      = "basic"      // two 3×3 convolutions, as in ResNet-18 and 34
	Bottleneck = "bottleneck" // 1×1, 3×3 and 1×1, as in ResNet-50 and deeper
)

// Config holds the fields of transformers' ResNetConfig that change what is computed,
// under the same JSON names and defaults.
type Config struct {
	NumChannels            int    `json:"num_channels"`
	EmbeddingSize          int    `json:"embedding_size"` // channels behind the first convolution
	HiddenSizes            []int  `json:"hidden_sizes"`   // channels of each stage
	Depths                 []int  `json:"depths"`         // layers of each stage
	LayerType              string `json:"layer_type"`
	HiddenAct              string `json:"hidden_act"` // of the first convolution, and behind each sum
	DownsampleInFirstStage bool   `json:"downsample_in_first_stage"`
	DownsampleInBottleneck bool   `json:"downsample_in_bottleneck"` // by its first convolution instead of its second
	// ID2Label names the classes, "0" and so on.
	ID2Label models.ID2Label `json:"id2label"`
}

// DefaultConfig is ResNet-50 (He et al. 2016) with two classes, transformers' default.
func DefaultConfig() Config {
	return Config{
		NumChannels: 3, EmbeddingSize: 64, HiddenSizes: []int{256, 512, 1024, 2048}, Depths: []int{3, 4, 6, 3},
		LayerType: Bottleneck, HiddenAct: "relu", ID2Label: models.Labels("LABEL_0", "LABEL_1"),
	}
}

// ResNet18 is the configuration of ResNet-18 (He et al. 2016) for the given classes.
func ResNet18(classes ...string) Config {
	cfg := DefaultConfig()
	cfg.LayerType, cfg.HiddenSizes, cfg.Depths = Basic, []int{64, 128, 256, 512}, []int{2, 2, 2, 2}
	cfg.ID2Label = models.Labels(classes...)
	return cfg
}

// ParseConfig reads a config.json. Fields that are missing keep their defaults; num_labels
// stands for names of classes that are missing. A head that is no classifier is an error.
func ParseConfig(raw []byte) (Config, error) {
	cfg := DefaultConfig()
	err := jsonfile.Unmarshal(raw, &cfg)
	if err != nil {
		return cfg, fmt.Errorf("resnet: config.json: %w", err)
	}
	if cfg.ID2Label, err = models.ParseID2Label(raw); err != nil {
		return cfg, fmt.Errorf("resnet: %w", err)
	}
	return cfg, cfg.Validate()
}

var activations = map[string]func(*tensor.Ctx, *tensor.Tensor) *tensor.Tensor{
	"relu": tensor.ReLU, "gelu": tensor.GELU, "silu": tensor.SiLU, "tanh": tensor.Tanh,
}

// reduction is how many times fewer channels a bottleneck's 3×3 convolution has.
const reduction = 4

// Validate reports all impossible fields together.
func (c Config) Validate() error {
	var bad models.Faults
	want := bad.Want
	want(c.NumChannels > 0, "num_channels = %d: want at least 1", c.NumChannels)
	want(c.EmbeddingSize > 0, "embedding_size = %d: want at least 1", c.EmbeddingSize)
	want(c.LayerType == Basic || c.LayerType == Bottleneck, "layer_type = %q: want basic or bottleneck", c.LayerType)
	want(len(c.HiddenSizes) > 0 && len(c.HiddenSizes) == len(c.Depths),
		"hidden_sizes = %v, depths = %v: want one of each for each stage", c.HiddenSizes, c.Depths)
	for _, n := range c.HiddenSizes {
		want(n > 0 && (c.LayerType != Bottleneck || n%reduction == 0),
			"hidden_sizes has %d: want a positive number of channels, of a bottleneck a multiple of %d", n, reduction)
	}
	for _, n := range c.Depths {
		want(n > 0, "depths has %d: want at least 1", n)
	}
	want(activations[c.HiddenAct] != nil, "hidden_act = %q: want relu, gelu, silu or tanh", c.HiddenAct)
	c.ID2Label.Check(&bad, 2)
	return bad.Err("resnet")
}
