// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Config makes an optimizer: a struct with the optimizer's settings, whose json tags are their names in HuggingFace's
// arguments.
type Config interface {
	// New makes the optimizer over groups, with its state on c's device.
	New(c *tensor.Ctx, groups []*Group) *Optimizer
}

// configs makes the Config of each optimizer, by HuggingFace's names for it (optim).
var configs = map[string]func(shared, own map[string]any) (Config, error){}

// register makes an optimizer known under its names. The file of each calls it from init.
func register[C Config](defaults func() C, names ...string) {
	for _, name := range names {
		configs[name] = func(shared, own map[string]any) (Config, error) {
			cfg := defaults()
			if err := set(&cfg, shared, false); err != nil {
				return nil, err
			}
			return cfg, set(&cfg, own, true)
		}
	}
}

// set writes settings into the fields of those names. With all, each must have a field.
func set(cfg any, settings map[string]any, all bool) error {
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if all {
		d.DisallowUnknownFields()
	}
	return d.Decode(cfg)
}

// Names lists the names that ByName knows, sorted.
func Names() []string { return slices.Sorted(maps.Keys(configs)) }

// ByName is the Config of an optimizer by its name in HuggingFace's arguments (optim), such as "adamw_torch". It has
// the optimizer's defaults but for the settings that are given: of shared (adam_beta1 and the like) those that the
// optimizer has, of own (optim_args) all.
func ByName(name string, shared, own map[string]any) (Config, error) {
	make, ok := configs[name]
	if !ok {
		return nil, fmt.Errorf("optim: optimizer is %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	cfg, err := make(shared, own)
	if err != nil {
		return nil, fmt.Errorf("optim: settings of %s: %w", name, err)
	}
	return cfg, nil
}
