// SPDX-License-Identifier: Apache-2.0

// Package safetensors reads and writes HuggingFace's file format of named arrays:
// an 8-byte little-endian length, that many bytes of JSON header, then the elements of
// the arrays, little-endian, row-major, without gaps. A large set may be split into
// several files with a JSON index beside them.
//
// The reader trusts nothing: a header that is too large, is not strict JSON, repeats a
// key, overflows, or whose arrays overlap, leave holes or do not end with the file, is
// refused before any array is read. Nothing in a file is ever executed. The writer's
// bytes are those of the Python package safetensors for the same arrays.
//
// The package handles bytes and dtypes, not tensors: package checkpoint connects the two, and makes writes atomic.
//
// Format: https://huggingface.co/docs/safetensors.
package safetensors
