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
	tree, list := nn.Walk(m), rules(m)
	named := byName(tree)
	for _, p := range tree.State() {
		if dev := p.Device(); !synced[dev] {
			dev.Sync()
			synced[dev] = true
		}
		a := arrayFor(list, p.Name)
		params, err := a.tensors(named)
		if err != nil {
			return err
		}
		if params[0].Name != p.Name {
			continue // it is written with the first
		}
		ts = append(ts, safetensors.Tensor{Name: a.name, DType: p.DType(), Shape: a.shape(params), Write: func(w io.Writer) error {
			var data []byte
			if err := tensor.Try(func() { data = a.bytes(tensor.NewCtx(p.Device()).NoGrad(), params) }); err != nil {
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
	saved, bad := savedArrays(set, m, tree)
	named, state := byName(tree), tree.State()
	for _, p := range state {
		a, ok := saved[p.Name]
		if !ok {
			bad = append(bad, fmt.Sprintf("%s is missing", p.Name))
			continue
		}
		params, err := a.tensors(named)
		if err != nil {
			return err
		}
		_, e, _ := set.Lookup(a.name)
		want := a.shape(params)
		fits := slices.Equal(e.Shape, want) && (e.DType == p.DType() || e.DType.IsFloat() && p.DType().IsFloat())
		if !fits && a.params[0] == p.Name {
			bad = append(bad, fmt.Sprintf("%s is %s%v, want %v%v", a.name, e.Raw, e.Shape, p.DType(), want))
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
		a := saved[p.Name]
		if a.params[0] != p.Name {
			continue // it is read with the first
		}
		params, _ := a.tensors(named)
		r, e, _ := set.Lookup(a.name)
		data, err := r.ReadTensor(e.Name)
		if err != nil {
			return err
		}
		c := tensor.NewCtx(p.Device()).NoGrad()
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			a.fill(c, tensor.FromBytes(c, data, e.DType, e.Shape...), params)
			return nil
		})
		c.Sync() // before other contexts use it
	}
	return nil
}

// savedArrays finds the saved array of each parameter and buffer, and lists saved arrays that are not expected.
func savedArrays(set *safetensors.Set, m Model, tree *nn.Tree) (saved map[string]array, bad []string) {
	saved = map[string]array{}
	named, list := byName(tree), rules(m)
	for _, name := range set.Names() {
		a := arrayOf(list, name)
		for _, to := range a.params {
			_, tied := tree.Aliases()[to]
			_, known := named[to]
			switch {
			case tied:
			case !known:
				bad = append(bad, fmt.Sprintf("%s is not expected", name))
			case saved[to].name != "":
				bad = append(bad, fmt.Sprintf("%s and %s are both %s", saved[to].name, name, to))
			default:
				saved[to] = a
			}
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
