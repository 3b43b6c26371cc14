// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/tensor/safetensors"
)

// LoadWeights fills the parameters and buffers of m, a model or a part of one, with weights that SaveWeights,
// trainer.Trainer.SaveModel, a checkpoint or transformers wrote. path is a safetensors file, the index of several, or a
// folder that has model.safetensors or its index. Floating-point dtypes are converted to those of m.
//
// Every parameter and buffer must be in the file, in its shape, and nothing else. Otherwise the error lists all that is
// missing, unexpected or of another shape, and m is unchanged. NaN and infinities are an error that names the weights,
// see AllowNonFinite; no other option is taken, since m is there already.
func LoadWeights(m nn.Module, path string, opts ...LoadOption) error {
	if o := optionsOf(opts); o.deferred || o.mapped || o.dtype != tensor.Float32 {
		return errors.New("models: LoadWeights with an option of LoadPretrained: want none but AllowNonFinite, the " +
			"parameters exist already")
	}
	set, err := safetensors.Open(path)
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	tried := tensor.Try(func() { err = ReadWeights(set, m, opts...) })
	if err = errors.Join(err, tried); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(err, set.Close())
}

// SaveWeights writes the parameters of m, tied ones once, and its buffers as a safetensors file that LoadWeights and
// transformers read: path itself if it ends in .safetensors, otherwise model.safetensors in the folder path. Folders
// that are missing are made. The file appears whole or not at all, and replaces one that was there.
func SaveWeights(m nn.Module, path string) error {
	if !strings.HasSuffix(path, ".safetensors") {
		path = filepath.Join(path, WeightsFile)
	}
	var files []WeightFile
	var err error
	if tried := tensor.Try(func() { files, err = WeightFiles(m, 0, nil) }); tried != nil {
		err = tried
	}
	if err == nil {
		err = vfs.MkdirAll(vfs.OS, filepath.Dir(path))
	}
	if err == nil {
		err = replaceFile(path, files[0])
	}
	if err != nil {
		return fmt.Errorf("models: %s: %w", path, err)
	}
	return nil
}

// replaceFile writes a file beside path, and gives it that name when it is complete and durable.
func replaceFile(path string, f WeightFile) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".tmp-*-"+filepath.Base(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err = f.Write(file); err == nil {
		err = file.Chmod(0o644)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err = os.Rename(file.Name(), path); err != nil {
		return err
	}
	return vfs.OS.SyncDir(filepath.Dir(path))
}
