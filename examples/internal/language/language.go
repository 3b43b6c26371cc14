// SPDX-License-Identifier: Apache-2.0

// Package language is what the examples that train language models share: the models that they take, and the dtype of
// their parameters. It is no example itself.
package language

import (
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Model is a model that is trained and saved, and that writes text.
type Model interface {
	models.Configured
	models.Generator
	ContextLength() int // tokens that it can read
	EndTokens() []int   // those that end a text
}

// Open loads a saved language model with its tokenizer and the files beside its weights, for a trainer, which takes it
// to the device where it is trained.
func Open(dir string, opts ...models.LoadOption) (*models.Pretrained[Model], error) {
	return OpenOn(tensor.CPU(), dir, opts...)
}

// OpenOn is Open for a program that computes on dev.
func OpenOn(dev *tensor.Device, dir string, opts ...models.LoadOption) (*models.Pretrained[Model], error) {
	return models.OpenPretrained[Model](dev, dir, "a language model, such as LlamaForCausalLM", opts...)
}

// DType names a dtype of parameters, by run_clm.py's names.
type DType string

// Auto is the dtype of the weights as they are saved.
const Auto DType = "auto"

// Q8 keeps the weights frozen, as 8-bit numbers: see models.Quantize.
const Q8 DType = "q8_0"

// Loading is the option that loads a model in the dtype.
func (d DType) Loading() models.LoadOption {
	switch d {
	case Auto:
		return models.WithSavedDType()
	case Q8:
		return models.Quantized()
	}
	return models.WithDType(d.New())
}

// New is the dtype of a new model.
func (d DType) New() tensor.DType {
	switch d {
	case "bfloat16":
		return tensor.BFloat16
	case "float16":
		return tensor.Float16
	}
	return tensor.Float32
}
