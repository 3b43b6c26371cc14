// SPDX-License-Identifier: Apache-2.0

// Package gguf reads and writes GGUF, the file format of llama.cpp and compatible programs: a header, metadata by key
// (the sizes of a model, its tokenizer, its chat template), a list of tensors, and their elements, of which most are
// quantized in blocks. Use it to inspect a file, or to make one.
//
// The reader trusts nothing: counts, lengths, names, types, shapes and offsets are checked against the file before
// memory is taken for them, and metadata is parsed on access. Elements are read and dequantized on access too, so
// reading needs no memory beyond the tensors.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
package gguf
