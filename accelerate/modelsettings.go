// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/nn"
)

// modelSetting is what a model was made with, beside its parameters: a key of its configuration, the probability of a
// Dropout or the scale of an adapter. With another one the same weights train to others.
type modelSetting struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// settingsOf are those of the modules in a tree: configurations first, for they have the names that a user chose.
func settingsOf(tree *nn.Tree) []modelSetting {
	var configs, others []modelSetting
	tree.Modules(func(path string, m nn.Module) {
		if c, ok := m.(interface{ Config() any }); ok { // models.Configured
			configs = append(configs, keysOf(path, c.Config())...)
		}
		if d, ok := m.(*nn.Dropout); ok {
			others = append(others, keysOf(path, map[string]float64{"p": d.P})...)
		}
		if a, ok := m.(interface{ Adapters() *nn.LoRA }); ok {
			for name, scale := range a.Adapters().Scale {
				others = append(others, keysOf(path, map[string]float64{"scale of adapter " + name: scale})...)
			}
		}
	})
	// maps have no order
	slices.SortFunc(others, func(a, b modelSetting) int { return cmp.Compare(a.Key, b.Key) })
	return append(configs, others...)
}

// keysOf are the keys of a JSON object, those within it with dots. There are none in what has no JSON: an error, too,
// when the model is saved.
func keysOf(path string, v any) (list []modelSetting) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) != nil || object == nil {
		return []modelSetting{{path, text}}
	}
	for key, value := range object {
		if path != "" {
			key = path + "." + key
		}
		list = append(list, keysOf(key, value)...)
	}
	slices.SortFunc(list, func(a, b modelSetting) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// sameModelSettings names the first setting that differs between the models of rank 0 and of another rank.
func sameModelSettings(zero, other []modelSetting, rank int) error {
	values := map[string]json.RawMessage{}
	for _, s := range other {
		values[s.Key] = s.Value
	}
	for _, want := range zero {
		switch got, ok := values[want.Key]; {
		case !ok:
			return fmt.Errorf("accelerate: rank %d's model has no %s: want %s, as rank 0's has", rank, want.Key,
				want.Value)
		case !bytes.Equal(got, want.Value):
			return fmt.Errorf("accelerate: rank %d's model has %s %s: want %s, as rank 0's has", rank, want.Key, got,
				want.Value)
		}
		delete(values, want.Key)
	}
	for _, more := range other {
		if _, ok := values[more.Key]; ok {
			return fmt.Errorf("accelerate: rank %d's model has %s %s: want none, as rank 0's", rank, more.Key,
				more.Value)
		}
	}
	return nil
}
