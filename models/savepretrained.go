// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
)

// maxShard is the number of bytes at which transformers 5 begins another file of weights.
const maxShard = 50_000_000_000

// SavePretrained writes a model as a folder that LoadPretrained and transformers read: config.json, model.safetensors
// or its shards, and the files beside them, such as those of a Pretrained. Folders that are missing are made. Each file
// is replaced atomically, the weights before config.json.
//
// To save during training call trainer.Trainer.SaveModel, which gathers the parts of all ranks.
func SavePretrained(dir string, m Configured, files ...Sidecar) error {
	if err := savePretrained(dir, m, files); err != nil {
		return fmt.Errorf("models: %s: %w", dir, err)
	}
	return nil
}

func savePretrained(dir string, m Configured, files []Sidecar) error {
	var list []WeightFile
	var err error
	if tried := tensor.Try(func() { list, err = WeightFiles(m, maxShard, nil) }); tried != nil {
		err = tried
	}
	if err != nil {
		return err
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	config, err := ConfigJSON(m)
	if err != nil {
		return err
	}
	for _, f := range append(files[:len(files):len(files)], Sidecar{ConfigFile, config}) {
		list = append(list, WeightFile{Name: f.Name, Write: func(w io.Writer) error {
			_, err := w.Write(f.Data)
			return err
		}})
	}
	if err := vfs.MkdirAll(vfs.OS, dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var existing []string
	for _, e := range entries {
		existing = append(existing, e.Name())
	}
	before, after := StaleWeights(existing, names)
	if err := removeFiles(dir, before); err != nil {
		return err
	}
	for _, f := range list {
		if err := replaceFile(filepath.Join(dir, f.Name), f); err != nil {
			return err
		}
	}
	return removeFiles(dir, after)
}

func removeFiles(dir string, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, os.Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// Save writes the model and the files beside it as SavePretrained does. It makes a folder of a GGUF file.
func (p *Pretrained[M]) Save(dir string) error { return SavePretrained(dir, p.Model, p.Files...) }
