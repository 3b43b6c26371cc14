// SPDX-License-Identifier: Apache-2.0

// Package safetensors opens files in HuggingFace's format of named arrays, or the files of a model that is split over
// several, and reads single arrays or parts of arrays. Use it to inspect a file, or to extract weights from one that
// fits no model here; models.LoadWeights fills the parameters of a model, and checkpoint.SaveTensors writes.
//
// The reader checks a file's header before it reads anything.
//
// Format: https://huggingface.co/docs/safetensors.
package safetensors

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

type (
	// Set is the arrays of one file, or of several with an index: Names lists them, Lookup finds one, Close ends it.
	Set = safetensors.Set
	// Array is an array of a Set: an Entry, whose elements Read reads. ReadSlice reads what a tensor.Range of each dim
	// selects, and Section a tensor.Placement.
	Array = safetensors.Array
	// Entry describes an array: its Name, DType, Raw (the format's name of the type), Shape, Numel and Bytes.
	Entry = safetensors.Entry
)

// Endings of the names of files and of the indices of several.
const (
	ending      = ".safetensors"
	indexEnding = ".safetensors.index.json"
)

// Open opens a file x.safetensors, the files that an index x.safetensors.index.json names, or, in a folder,
// model.safetensors or those of its index. The caller closes the Set.
func Open(path string) (*Set, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return safetensors.OpenSet(vfs.OS, path, "model")
	}
	dir, name := filepath.Split(path)
	base := strings.TrimSuffix(strings.TrimSuffix(name, indexEnding), ending)
	return safetensors.OpenSet(vfs.OS, filepath.Clean(dir), base)
}
