// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Type is the type of a tensor's elements.
type Type uint32

// Types that are read.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q8_0 Type = 8
	Q4_K Type = 12
	Q6_K Type = 14
	BF16 Type = 30
)

// layout is how elements of a type lie in a file.
type layout struct {
	name  string
	block int // elements
	size  int // bytes of a block
	// values writes the float32 of a block; nil: the elements are read as they are, or not at all.
	values func(dst []float32, block []byte)
	// dtype is what elements are read as; Invalid: they are not read.
	dtype dtype.DType
}

// layouts are the types that llama.cpp has. What is not read is there for the names and sizes of its tensors.
var layouts = map[Type]layout{
	F32:  {"F32", 1, 4, nil, dtype.Float32},
	F16:  {"F16", 1, 2, nil, dtype.Float16},
	BF16: {"BF16", 1, 2, nil, dtype.BFloat16},
	Q4_0: {"Q4_0", 32, 18, q4_0, dtype.Float32},
	Q4_1: {"Q4_1", 32, 20, q4_1, dtype.Float32},
	Q8_0: {"Q8_0", 32, 34, q8_0, dtype.Float32},
	Q4_K: {"Q4_K", 256, 144, q4_K, dtype.Float32},
	Q6_K: {"Q6_K", 256, 210, q6_K, dtype.Float32},

	6: {name: "Q5_0", block: 32, size: 22}, 7: {name: "Q5_1", block: 32, size: 24},
	9: {name: "Q8_1", block: 32, size: 36}, 10: {name: "Q2_K", block: 256, size: 84},
	11: {name: "Q3_K", block: 256, size: 110}, 13: {name: "Q5_K", block: 256, size: 176},
	15: {name: "Q8_K", block: 256, size: 292}, 16: {name: "IQ2_XXS", block: 256, size: 66},
	17: {name: "IQ2_XS", block: 256, size: 74}, 18: {name: "IQ3_XXS", block: 256, size: 98},
	19: {name: "IQ1_S", block: 256, size: 50}, 20: {name: "IQ4_NL", block: 32, size: 18},
	21: {name: "IQ3_S", block: 256, size: 110}, 22: {name: "IQ2_S", block: 256, size: 82},
	23: {name: "IQ4_XS", block: 256, size: 136}, 24: {name: "I8", block: 1, size: 1},
	25: {name: "I16", block: 1, size: 2}, 26: {name: "I32", block: 1, size: 4},
	27: {name: "I64", block: 1, size: 8}, 28: {name: "F64", block: 1, size: 8},
	29: {name: "IQ1_M", block: 256, size: 56}, 34: {name: "TQ1_0", block: 256, size: 54},
	35: {name: "TQ2_0", block: 256, size: 66}, 39: {name: "MXFP4", block: 32, size: 17},
	40: {name: "NVFP4", block: 64, size: 36}, 41: {name: "Q1_0", block: 128, size: 18},
}

// String is the name that llama.cpp has for the type.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// DType is what the elements are read as: those of quantized types as float32. Invalid: they are not read.
func (t Type) DType() dtype.DType { return layouts[t].dtype }

// Readable are the types that are read, for messages.
const Readable = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K"
