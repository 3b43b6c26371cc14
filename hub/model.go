// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The files of a model's weights.
const (
	weightsFile   = "model.safetensors"
	adapterConfig = "adapter_config.json"
	adapterFile   = "adapter_model.safetensors"
	indexSuffix   = ".safetensors.index.json"
	ggufSuffix    = ".gguf"
)

// besideWeights are the files of a model beside its weights.
var besideWeights = []string{
	"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	"added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
	"sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*",
	"preprocessor_config.json", "processor_config.json", adapterConfig,
	"model" + indexSuffix,
}

// maxIndex bounds the index of a model's shards, in bytes.
const maxIndex = 64 << 20

// Model returns the folder of a model, or its GGUF file. A file or folder of the given name is the model. Otherwise it
// is downloaded from the repository org/name, at a branch, tag or commit ("" is DefaultRevision): its configuration,
// its tokenizer, its chat template and its weights, or a LoRA adapter. org/name/FILE.gguf names one of several GGUF
// files. A name that cannot be a repository's is returned unchanged.
func (c *Client) Model(ctx context.Context, nameOrPath, revision string) (string, error) {
	if _, err := os.Stat(nameOrPath); err == nil {
		return nameOrPath, nil
	}
	name, file := splitGGUF(nameOrPath)
	if !IsName(name) {
		return nameOrPath, nil
	}
	s, err := c.open(ctx, Repo{Kind: Models, Name: name, Revision: revision})
	if err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return "", fmt.Errorf("there is no folder %s here, and: %w", nameOrPath, err)
	}
	defer s.close() // nothing is written by it
	if file != "" {
		f, ok := s.file(file)
		if !ok {
			return "", s.lacks(file)
		}
		return filepath.Join(s.dir(), filepath.FromSlash(file)), s.need(ctx, []File{f})
	}
	beside := matching(s.files, besideWeights)
	if _, ok := s.file(weightsFile); ok { // an index beside it is not read
		beside = slices.DeleteFunc(beside, func(f File) bool { return strings.HasSuffix(f.Path, indexSuffix) })
	}
	if err := s.need(ctx, beside); err != nil {
		return "", err
	}
	weights, err := s.weights()
	if err != nil {
		return "", err
	}
	return s.dir(), s.need(ctx, weights)
}

// splitGGUF takes the name of a repository and of a GGUF file in it apart.
func splitGGUF(name string) (repo, file string) {
	parts := strings.SplitN(name, "/", 3)
	if len(parts) == 3 && strings.HasSuffix(name, ggufSuffix) {
		return parts[0] + "/" + parts[1], parts[2]
	}
	return name, ""
}

// weights are the files of the model's weights.
func (s *session) weights() ([]File, error) {
	if f, ok := s.file(weightsFile); ok {
		return []File{f}, nil
	}
	if _, ok := s.file("model" + indexSuffix); ok {
		return s.shards("model" + indexSuffix)
	}
	if _, ok := s.file(adapterConfig); ok {
		f, ok := s.file(adapterFile)
		if !ok {
			return nil, s.noWeights()
		}
		return []File{f}, nil
	}
	switch gguf := matching(s.files, []string{"*" + ggufSuffix}); len(gguf) {
	case 0:
		return nil, s.noWeights()
	case 1:
		if path.Dir(gguf[0].Path) == "." {
			return gguf, nil
		}
		return nil, s.several(gguf)
	default:
		return nil, s.several(gguf)
	}
}

// shards are the files that an index names.
func (s *session) shards(index string) ([]File, error) {
	text, err := s.read(s.path("snapshots", s.commit, index), maxIndex)
	if err != nil {
		return nil, err
	}
	var head struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &head); err != nil || len(head.Map) == 0 {
		return nil, fmt.Errorf("hub: %s of %s has no weight_map: want the index of a model's files", index, s.repo)
	}
	named := map[string]bool{}
	for _, name := range head.Map {
		named[name] = true
	}
	var files []File
	for _, name := range slices.Sorted(maps.Keys(named)) {
		f, ok := s.file(name)
		if !ok {
			return nil, s.lacks(name)
		}
		files = append(files, f)
	}
	return files, nil
}

// several is the error of a choice that is the user's.
func (s *session) several(gguf []File) error {
	return fmt.Errorf("hub: %s has %s: want one of them by its name, such as %s/%s", s.repo, namesOf(gguf), s.repo.Name,
		gguf[0].Path)
}

// noWeights says what a repository has in place of weights that can be read.
func (s *session) noWeights() error {
	if !s.listed {
		return s.absent([]File{{Path: weightsFile}})
	}
	pickles := matching(s.files, []string{"*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"})
	if len(pickles) > 0 {
		return faultf(ErrFile, "%s has its weights in %s: pickles are programs and are never downloaded. Want "+
			"safetensors: "+
			"%s/spaces/safetensors/convert writes them into a pull request, which --model_revision refs/pr/NUMBER "+
			"names",
			s.repo, namesOf(pickles), DefaultEndpoint)
	}
	return faultf(ErrFile, "%s has no %s: want a repository with the weights of one model", s.repo, weightsFile)
}
