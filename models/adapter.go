// SPDX-License-Identifier: Apache-2.0

package models

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/modelfiles"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of the files of a saved adapter: PEFT's, and the file that describes its base model, an AdaptedBase.
const (
	AdapterBaseFile   = "adapter_base.json"
	AdapterConfigFile = "adapter_config.json"
	AdapterBase       = "adapter_model"
	AdapterFile       = AdapterBase + ".safetensors"
)

// Adapter is the part of a model that is trained and saved while the other parameters are frozen. Package models/lora
// makes adapters, and trainer.WithAdapter takes them. An adapter names the parts of a model, so it applies to every
// copy of it.
type Adapter interface {
	// Arrays are those of its file, and the parameters that they hold.
	Arrays() []SavedArray
	// ConfigJSON is the text of its adapter_config.json.
	ConfigJSON() ([]byte, error)
	// CheckSaved refuses the adapter_config.json of a saved adapter that computes something else with the same arrays.
	CheckSaved(config []byte) error
	// Base is the model below it.
	Base() (AdaptedBase, error)
}

// AdaptedBase is the model that an adapter was made for.
type AdaptedBase struct {
	Path   string `json:"path"`   // its folder; "" of a model that was not loaded
	SHA256 string `json:"sha256"` // see WeightsDigest; "" if it is not known
	// Precision is the precision of the base weights when the adapter was trained: a dtype, or q8_0 (see Quantize).
	Precision string `json:"precision,omitempty"`
}

// Check returns an error if the adapter was trained on another model. Unknown facts match.
func (b AdaptedBase) Check(now AdaptedBase) error {
	if b.SHA256 == "" || now.SHA256 == "" || b.SHA256 == now.SHA256 {
		return nil
	}
	return fmt.Errorf("the adapter was trained on the model of %s (SHA-256 %.12s…), and %s is another one (%.12s…): "+
		"want the same weights", b.Path, b.SHA256, now.Path, now.SHA256)
}

// CheckPrecision returns an error if the adapter was trained on weights of another precision. Unknown facts match.
func (b AdaptedBase) CheckPrecision(now AdaptedBase) error {
	if b.Precision == "" || now.Precision == "" || b.Precision == now.Precision {
		return nil
	}
	return fmt.Errorf("the model below the adapter was %s, and is %s now: want the same (dtype)", b.Precision,
		now.Precision)
}

// Layout is how a model is saved: see WeightsLayout.
func Layout(m nn.Module) (WeightsLayout, error) { return layoutOf(m) }

// AdapterFiles are the files of a saved adapter of m, as PEFT has them: the arrays, and the configuration last. read is
// as in WeightFiles.
func AdapterFiles(m nn.Module, a Adapter, read func(p tensor.Named) ([]byte, error)) ([]WeightFile, error) {
	config, err := a.ConfigJSON()
	if err != nil {
		return nil, err
	}
	find, list := pieces(m, read), []safetensors.Tensor(nil)
	for _, s := range a.Arrays() {
		t, err := s.tensor(find)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return []WeightFile{
		{Name: AdapterFile, Write: func(w io.Writer) error {
			return safetensors.Write(w, list, safetensors.PyTorchMetadata())
		}},
		{Name: AdapterConfigFile, Write: func(w io.Writer) error {
			_, err := w.Write(config)
			return err
		}},
	}, nil
}

// FitAdapter compares a saved set with the arrays of an adapter of m, and reads no elements: every array must be there,
// in its shape, and nothing else. The caller keeps the set open.
func FitAdapter(set *safetensors.Set, m nn.Module, arrays []SavedArray) (*SavedWeights, error) {
	w := &SavedWeights{set: set, arrays: map[string]SavedArray{}, named: byName(nn.Walk(m)), options: optionsOf(nil)}
	shapes := map[string][]int{}
	for _, a := range arrays {
		params, err := a.tensors(w.named)
		if err != nil {
			return nil, err
		}
		shapes[a.Name] = a.shape(shapesOf(params)...)
		for _, p := range a.Params {
			w.arrays[p] = a
		}
	}
	return w, CompareArrays(set, shapes)
}

// CompareArrays returns an error that lists the arrays that a saved set lacks, those that it has in excess, and those
// of another shape or without a floating-point dtype.
func CompareArrays(set *safetensors.Set, shapes map[string][]int) error {
	var bad []string
	for _, name := range set.Names() {
		e, _ := set.Lookup(name)
		switch want, ok := shapes[name]; {
		case !ok:
			bad = append(bad, fmt.Sprintf("%s is not expected", name))
		case !e.DType.IsFloat() || !slices.Equal(e.Shape, want):
			bad = append(bad, fmt.Sprintf("%s is %s%v: want floats of shape %v", name, e.TypeName(), e.Shape, want))
		}
	}
	for name := range shapes {
		if _, ok := set.Lookup(name); !ok {
			bad = append(bad, fmt.Sprintf("%s is missing", name))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return fmt.Errorf("models: the saved adapter does not fit its configuration and the model: %s", some(bad))
}

// WeightsDigest is the SHA-256 of the weights of a saved model: of model.safetensors in its folder or of its GGUF file,
// or of the hashes of several files in the order of their names.
func WeightsDigest(dir string) (string, error) {
	if file, err := modelfiles.GGUF(dir); err != nil {
		return "", fmt.Errorf("models: %w", err)
	} else if file != "" {
		return fileDigest(file)
	}
	one, err := fileDigest(filepath.Join(dir, WeightsFile))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return one, err
	}
	entries, err := vfs.OS.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("models: %w", err)
	}
	h, found := sha256.New(), false
	for _, e := range entries { // in the order of their names
		if !shardName.MatchString(e.Name()) {
			continue
		}
		sum, err := fileDigest(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, e.Name(), sum)
		found = true
	}
	if !found {
		return "", fmt.Errorf("models: %s has no %s", dir, WeightsFile)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// fileDigest is the SHA-256 of a file.
func fileDigest(path string) (sum string, err error) {
	f, err := vfs.OS.Open(path)
	if err != nil {
		return "", fmt.Errorf("models: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("models: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ShapeOf is the shape of the array of a model's parameters.
func (a SavedArray) ShapeOf(named map[string]tensor.Named) []int {
	list, err := a.tensors(named)
	if err != nil {
		return nil
	}
	return a.shape(shapesOf(list)...)
}

// Has reports whether there are values for a parameter or buffer.
func (w *SavedWeights) Has(name string) bool { return w.arrays[name].Name != "" }
