// SPDX-License-Identifier: Apache-2.0

package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// maxConfig is the largest adapter_config.json, in bytes.
const maxConfig = 4 << 20

// ReadConfig reads the adapter_config.json of a saved adapter's folder, of at most 4 MiB.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, models.AdapterConfigFile)
	text, err := vfs.ReadFile(vfs.OS, path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("lora: %s is not a saved adapter: %w", dir, err)
	}
	var cfg Config
	if err == nil {
		cfg, err = ParseConfig(text)
	}
	if err != nil {
		return cfg, fmt.Errorf("lora: %s: %w", path, err)
	}
	return cfg, nil
}

// Load adds the adapter in a folder, which Lockstep or PEFT saved, to a model under a name ("" means default), and
// makes it the active one. Every array must be there, in its shape, and nothing else; numbers that are not finite are
// an error. Memory is taken once all shapes have been compared.
func Load(m models.Configured, dir, name string) (*Adapter, error) {
	cfg, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	cfg.Name = name
	begun := cfg.Init
	cfg.Init = InitDefault
	a, err := plan(m, cfg)
	if err != nil {
		return nil, fmt.Errorf("lora: %s: %w", dir, err)
	}
	a.Config.Init = begun
	if err = a.alone(); err == nil {
		err = a.read(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lora: %s: %w", dir, err)
	}
	return a, a.Activate()
}

// LoadOnto is Load for a model that was loaded from base, a folder or a GGUF file: one with other weights than those
// that a saved adapter of Lockstep's was trained on is an error.
func LoadOnto(m models.Configured, base, dir, name string) (*Adapter, error) {
	digest, err := checkBase(base, dir)
	if err != nil {
		return nil, fmt.Errorf("lora: %s: %w", dir, err)
	}
	a, err := Load(m, dir, name)
	if err == nil {
		a.Config.BaseModel, a.Config.Revision, a.digested = base, "", digest
	}
	return a, err
}

// checkBase compares the weights of a model with those that an adapter was trained on, and returns their digest, "" if
// the adapter has none.
func checkBase(base, dir string) (string, error) {
	path := filepath.Join(dir, models.AdapterBaseFile)
	text, err := vfs.ReadFile(vfs.OS, path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // PEFT's
	}
	var was models.AdaptedBase
	if err == nil {
		err = jsonfile.Unmarshal(text, &was)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if was.SHA256 == "" {
		return "", nil
	}
	digest, err := models.WeightsDigest(base)
	if err != nil {
		return "", err
	}
	return digest, was.Check(models.AdaptedBase{Path: base, SHA256: digest})
}

// read makes the matrices of those in a folder.
func (a *Adapter) read(dir string) (err error) {
	set, err := safetensors.OpenSet(vfs.OS, dir, models.AdapterBase)
	if err != nil {
		if _, pickled := os.Stat(filepath.Join(dir, "adapter_model.bin")); pickled == nil {
			return fmt.Errorf("%w. There is adapter_model.bin, a pickle, which is a program and is never read: in "+
				"Python, PeftModel.from_pretrained(MODEL, FOLDER).save_pretrained(FOLDER) writes %s", err,
				models.AdapterFile)
		}
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := models.CompareArrays(set, a.shapes()); err != nil {
		return err
	}
	if err := tensor.Try(a.insert); err != nil {
		return err
	}
	if err := a.fill(set); err != nil {
		a.takeOut()
		return err
	}
	return nil
}

// shapes are those of the arrays.
func (a *Adapter) shapes() map[string][]int {
	shapes := map[string][]int{}
	for _, l := range a.layers {
		shapes[prefix+l.path+".lora_A.weight"] = []int{l.rank, l.in()}
		shapes[prefix+l.path+".lora_B.weight"] = []int{l.out(), l.rank}
	}
	named := map[string]tensor.Named{}
	for _, p := range nn.NamedParameters(a.model) {
		named[p.Name] = p
	}
	for _, array := range a.arrays[2*len(a.layers):] {
		shapes[array.Name] = array.ShapeOf(named)
	}
	return shapes
}

// fill reads the values. Those of whole parameters go to kept, since the adapter is not active.
func (a *Adapter) fill(set *safetensors.Set) error {
	saved, err := models.FitAdapter(set, a.model, a.arrays)
	if err != nil {
		return err
	}
	var parts []tensor.Placed
	for _, p := range nn.NamedParameters(a.model) {
		if saved.Has(p.Name) {
			parts = append(parts, p.Placed())
		}
	}
	if len(parts) == 0 {
		return nil
	}
	c := tensor.NewCtx(parts[0].Tensor.Device()).NoGrad()
	if err := saved.ReadAll(c, parts); err != nil {
		a.swap() // kept has the model's values
		return err
	}
	a.swap()
	return nil
}

// Save writes the adapter into a folder, as PEFT's save_pretrained: adapter_model.safetensors and adapter_config.json,
// and beside them models.AdapterBaseFile, by which LoadOnto knows the model again.
func (a *Adapter) Save(dir string) error {
	if len(a.whole) > 0 && !a.active {
		return fmt.Errorf("lora: adapter %s has parameters of the model, and is not active: want Activate first",
			a.Config.Name)
	}
	if err := vfs.MkdirAll(vfs.OS, dir); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	files, err := models.AdapterFiles(a.model, a, nil)
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	base, err := a.Base()
	if err != nil { // BaseModel need not be a folder: then any model fits
		base.SHA256 = ""
	}
	files = append(files, models.WeightFile{Name: models.AdapterBaseFile, Write: func(w io.Writer) error {
		return json.NewEncoder(w).Encode(base)
	}})
	for _, f := range files {
		var text bytes.Buffer
		err := f.Write(&text)
		if err == nil {
			err = vfs.WriteFile(vfs.OS, filepath.Join(dir, f.Name), text.Bytes())
		}
		if err != nil {
			return fmt.Errorf("lora: %w", err)
		}
	}
	return nil
}

// Arrays implements models.Adapter.
func (a *Adapter) Arrays() []models.SavedArray { return a.arrays }

// ConfigJSON implements models.Adapter.
func (a *Adapter) ConfigJSON() ([]byte, error) {
	text, err := a.Config.MarshalJSON()
	return append(text, '\n'), err
}

// CheckSaved implements models.Adapter.
func (a *Adapter) CheckSaved(config []byte) error {
	saved, err := ParseConfig(config)
	if err != nil {
		return err
	}
	mine := a.Config
	for _, k := range []struct {
		key       string
		was, want any
	}{
		{"r", saved.R, mine.R}, {"lora_alpha", saved.Alpha, mine.Alpha}, {"use_rslora", saved.RSLoRA, mine.RSLoRA},
		{"lora_dropout", saved.Dropout, mine.Dropout},
		{"rank_pattern", orEmpty(saved.RankPattern), orEmpty(mine.RankPattern)},
		{"alpha_pattern", orEmpty(saved.AlphaPattern), orEmpty(mine.AlphaPattern)},
	} {
		if !reflect.DeepEqual(k.was, k.want) {
			return fmt.Errorf("the saved adapter has %s %v, this one %v: want the same", k.key, k.was, k.want)
		}
	}
	return nil
}

// Base implements models.Adapter. The digest is of the files that BaseModel names, and is computed once.
func (a *Adapter) Base() (base models.AdaptedBase, err error) {
	base.Path, base.Precision = a.Config.BaseModel, a.precision
	if base.Path == "" {
		return base, nil
	}
	if a.digested == "" {
		if a.digested, err = models.WeightsDigest(base.Path); err != nil {
			return base, fmt.Errorf("lora: the model below the adapter: %w", err)
		}
	}
	base.SHA256 = a.digested
	return base, nil
}
