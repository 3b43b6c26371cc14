// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of the files that a saved model consists of, HuggingFace's.
const (
	ConfigFile  = "config.json"
	WeightsBase = "model"
	WeightsFile = WeightsBase + ".safetensors"
)

// WeightRenamer is implemented by models that read checkpoints whose names differ from
// their own.
type WeightRenamer interface {
	// RenameWeight returns the parameter's name for a saved name, "" for a saved array
	// that the model does not need.
	RenameWeight(saved string) string
}

// ConfigJSON is the text of a model's config.json: what the model says of itself and, for a model with Carried that was
// loaded, what else its config.json said. It is for package trainer, whose SaveModel writes it.
func ConfigJSON(m Configured) ([]byte, error) {
	text, err := json.MarshalIndent(m.Config(), "", "  ")
	if c, ok := m.(configCarrier); err == nil && ok && c.CarriedConfig() != "" {
		text, err = mergeConfig([]byte(c.CarriedConfig()), text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return nil, fmt.Errorf("models: config of %T: %w", m, err)
	}
	return text, nil
}

// WriteWeights writes all parameters, tied ones once, and buffers as a safetensors file that
// transformers loads. Each is read from the device when its turn comes. It is for package trainer, whose SaveModel
// calls it.
func WriteWeights(w io.Writer, m Model) error {
	var ts []safetensors.Tensor
	synced := map[*tensor.Device]bool{} // whoever wrote the weights
	for _, p := range nn.Walk(m).State() {
		if dev := p.Device(); !synced[dev] {
			dev.Sync()
			synced[dev] = true
		}
		ts = append(ts, safetensors.Tensor{Name: p.Name, DType: p.DType(), Shape: p.Shape(), Write: func(w io.Writer) error {
			var data []byte
			if err := tensor.Try(func() { data = tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor) }); err != nil {
				return err
			}
			_, err := io.Copy(w, bytes.NewReader(data))
			return err
		}})
	}
	return safetensors.Write(w, ts, safetensors.PyTorchMetadata())
}

// ReadWeights fills the parameters and buffers of m from a saved set, converting
// floating-point dtypes. Every one must be there, in its shape, and nothing else: the error lists all
// that is missing, unexpected or of another shape, and then nothing was changed. It is for package trainer; programs
// use LoadPretrained.
func ReadWeights(set *safetensors.Set, m Model) error {
	tree := nn.Walk(m)
	saved, bad := savedNames(set, m, tree)
	state := tree.State()
	for _, p := range state {
		name, ok := saved[p.Name]
		if !ok {
			bad = append(bad, fmt.Sprintf("%s is missing", p.Name))
			continue
		}
		if _, e, _ := set.Lookup(name); !slices.Equal(e.Shape, p.Shape()) || e.DType != p.DType() && !(e.DType.IsFloat() && p.DType().IsFloat()) {
			bad = append(bad, fmt.Sprintf("%s is %s%v, want %v%v", name, e.Raw, e.Shape, p.DType(), p.Shape()))
		}
	}
	if len(bad) > 0 {
		const most = 12
		if n := len(bad) - most; n > 0 {
			bad = append(bad[:most], fmt.Sprintf("and %d more", n))
		}
		return fmt.Errorf("models: the saved weights do not fit %T: %s", m, strings.Join(bad, "; "))
	}
	for _, p := range state {
		r, e, _ := set.Lookup(saved[p.Name])
		data, err := r.ReadTensor(e.Name)
		if err != nil {
			return err
		}
		c := tensor.NewCtx(p.Device()).NoGrad()
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			tensor.CopyInto(c, p.Tensor, tensor.FromBytes(c, data, e.DType, e.Shape...))
			return nil
		})
		c.Sync() // before other contexts use it
	}
	return nil
}

// savedNames maps the names of parameters and buffers to saved names, and lists saved arrays that
// none takes.
func savedNames(set *safetensors.Set, m Model, tree *nn.Tree) (saved map[string]string, bad []string) {
	saved = map[string]string{}
	known := map[string]bool{}
	for _, p := range tree.State() {
		known[p.Name] = true
	}
	for _, name := range set.Names() {
		to := name
		if r, ok := m.(WeightRenamer); ok {
			to = r.RenameWeight(name)
		}
		_, tied := tree.Aliases()[to]
		switch {
		case to == "" || tied:
		case known[to] && saved[to] != "":
			bad = append(bad, fmt.Sprintf("%s and %s are both %s", saved[to], name, to))
		case known[to]:
			saved[to] = name
		default:
			bad = append(bad, fmt.Sprintf("%s is not expected", name))
		}
	}
	return saved, bad
}

// LoadPretrained makes the model that a folder holds, ours or one that transformers
// saved: config.json, and model.safetensors or its shards with their index.
func LoadPretrained(dev *tensor.Device, dir string) (Configured, error) {
	config, err := vfs.ReadFile(vfs.OS, filepath.Join(dir, ConfigFile), 1<<20)
	if err != nil {
		return nil, fmt.Errorf("models: %s is not a saved model: %w", dir, err)
	}
	m, err := FromConfig(nn.NewInit(dev, 0), config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	set, err := safetensors.OpenSet(vfs.OS, dir, WeightsBase)
	if err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	defer set.Close()
	if err := ReadWeights(set, m); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if c, ok := m.(configCarrier); ok {
		c.CarryConfig(string(config))
	}
	return m, nil
}
