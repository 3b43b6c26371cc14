// SPDX-License-Identifier: Apache-2.0

// Package modelfiles reads the files and the weights of a saved model: a folder as transformers writes it, or a GGUF
// file, whose contents it presents under the names and in the forms of transformers (config.json, the tokenizer's
// files, the chat template, arrays of dequantized weights). So readers of folders read GGUF too: pass the path of the
// file, or of a folder that has one and no safetensors.
//
// Anything unknown in a GGUF file is an error, never ignored: an architecture, a key of its metadata, a tensor, a type
// of elements, or a way to split text.
package modelfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// ext is how the names of GGUF files end.
const ext = ".gguf"

// The files of a model that a GGUF file stands for.
const (
	ConfigFile          = "config.json"
	GenerationFile      = "generation_config.json"
	TokenizerFile       = "tokenizer.json"
	TokenizerConfigFile = "tokenizer_config.json"
	SpecialTokensFile   = "special_tokens_map.json"
	TemplateFile        = "chat_template.jinja"
)

// writers make the contents of these files.
var writers = map[string]func(f *gguf.File) ([]byte, error){
	ConfigFile:          config,
	GenerationFile:      generationConfig,
	TokenizerFile:       tokenizer,
	TokenizerConfigFile: tokenizerConfig,
	SpecialTokensFile:   specialTokens,
	TemplateFile:        template,
}

// ReadFile reads a file of a saved model, of at most so many bytes: path is the model's folder, or GGUF file, and the
// name in it. The error matches fs.ErrNotExist if the model has no such file.
func ReadFile(path string, limit int64) ([]byte, error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	source, err := GGUF(dir)
	switch {
	case err != nil:
		return nil, err
	case source == "":
		return vfs.ReadFile(vfs.OS, path, limit)
	}
	missing := &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	write := writers[name]
	if write == nil {
		return nil, missing
	}
	f, err := gguf.Open(vfs.OS, source)
	if err != nil {
		return nil, err
	}
	text, err := write(f)
	switch err = errors.Join(err, f.Close()); {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", source, err)
	case text == nil:
		return nil, missing
	case int64(len(text)) > limit:
		err = fmt.Errorf("it has %d bytes: want at most %d", len(text), limit)
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return text, nil
}

// OpenSet opens the weights of a saved model under transformers' names: base.safetensors in its folder or what its
// index names, as safetensors.OpenSet, or those of a GGUF file. The caller closes the Set.
func OpenSet(dir, base string) (*safetensors.Set, error) {
	source, err := GGUF(dir)
	switch {
	case err != nil:
		return nil, err
	case source == "":
		return safetensors.OpenSet(vfs.OS, dir, base)
	}
	f, err := gguf.Open(vfs.OS, source)
	if err != nil {
		return nil, err
	}
	set, err := weights(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", source, err), f.Close())
	}
	return set, nil
}

// IsGGUF reports whether a path has the name of a GGUF file.
func IsGGUF(path string) bool { return strings.EqualFold(filepath.Ext(path), ext) }

// GGUF is the GGUF file that a path stands for, "" if it stands for none: the file itself, or the only one in a folder
// without safetensors.
func GGUF(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", nil // whoever reads it says why
	}
	if !info.IsDir() {
		if IsGGUF(path) {
			return path, nil
		}
		return "", nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	var found []string
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasSuffix(name, ".safetensors"), strings.HasSuffix(name, ".safetensors.index.json"):
			return "", nil
		case IsGGUF(name) && !e.IsDir():
			found = append(found, filepath.Join(path, name))
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	const most = 5
	list := strings.Join(found[:min(len(found), most)], ", ")
	if n := len(found) - most; n > 0 {
		list += fmt.Sprintf(" and %d more", n)
	}
	return "", fmt.Errorf("%s has %d GGUF files: want one of them: %s", path, len(found), list)
}
