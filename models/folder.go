// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/hubname"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
)

// className is the name of a class of transformers.
var className = regexp.MustCompile(`^\w+$`)

// notSaved says why a path has no config.json, and what to do.
func notSaved(path string, err error) error {
	hint := ""
	info, missing := os.Stat(path)
	switch {
	case missing == nil && modelfiles.IsGGUF(path):
		return fmt.Errorf("models: %w", err)
	case errors.Is(missing, fs.ErrNotExist) && hubname.Is(path):
		return fmt.Errorf("models: %s is not a saved model: there is no such folder. Programs know a model of "+
			"HuggingFace's Hub as org/name, and hub.Client.Model downloads it and gives its folder", path)
	case errors.Is(missing, fs.ErrNotExist):
		hint = ": want the folder of a saved model"
	case missing == nil && !info.IsDir():
		hint = ": want the folder that the file is in"
	case missing == nil && errors.Is(err, fs.ErrNotExist):
		hint = insteadOfConfig(path)
	}
	return fmt.Errorf("models: %s is not a saved model: %w%s", path, err, hint)
}

// insteadOfConfig names what a folder without config.json has.
func insteadOfConfig(dir string) string {
	first := func(pattern string) string {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // a bad pattern is impossible
		if len(found) == 0 {
			return ""
		}
		slices.Sort(found)
		return found[len(found)-1]
	}
	if first("adapter_config.json") != "" {
		return "; it has a LoRA adapter: want its model here, and this folder as --adapter, or by lora.Load"
	}
	for _, pattern := range []string{"checkpoint-*/" + ConfigFile, "snapshots/*/" + ConfigFile, "*/" + ConfigFile} {
		if found := first(pattern); found != "" {
			return ": want a folder such as " + filepath.Dir(found)
		}
	}
	return ""
}

// noWeights says what a folder with a config.json has in place of the weights, and what to do.
func noWeights(dir string, config []byte, err error) error {
	has := func(names ...string) string {
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return name
			}
		}
		return ""
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("models: %w", err)
	}
	if name := has("pytorch_model.bin", "pytorch_model.bin.index.json"); name != "" {
		return fmt.Errorf("models: %w. There is %s, a pickle, which is a program and is never read: %s", err, name,
			convert(dir, config))
	}
	if name := has("tf_model.h5", "flax_model.msgpack"); name != "" {
		return fmt.Errorf("models: %w. There is %s, which is not read: "+
			"a version of transformers below 5 can convert it", err, name)
	}
	return fmt.Errorf("models: %w", err)
}

// convert is how to write safetensors in place of a pickle.
func convert(dir string, config []byte) string {
	class := cmp.Or(architecture(config), "AutoModel")
	return fmt.Sprintf("python3 -c \"from transformers import %[1]s as M; M.from_pretrained('%[2]s')"+
		".save_pretrained('%[2]s')\" writes %[3]s", class, dir, WeightsFile)
}

// Architecture is the class of transformers as which a model is saved, such as GPT2LMHeadModel, or else its model type.
func Architecture(m Configured) string {
	text, err := json.Marshal(m.Config())
	if err != nil {
		return m.ModelType()
	}
	return cmp.Or(architecture(text), m.ModelType())
}

// architecture is the class of transformers that a config.json names; "" if it names none.
func architecture(config []byte) string {
	var head struct {
		Architectures []string `json:"architectures"`
	}
	if json.Unmarshal(config, &head) != nil || len(head.Architectures) == 0 ||
		!className.MatchString(head.Architectures[0]) {
		return ""
	}
	return head.Architectures[0]
}
