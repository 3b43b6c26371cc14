// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Config makes an optimizer: a struct with the optimizer's settings, whose json tags are their names in HuggingFace's
// arguments.
type Config interface {
	// New makes the optimizer over groups, with its state on c's device.
	New(c *tensor.Ctx, groups []*Group) *Optimizer
}

// configs makes the Config of each optimizer from its settings, by its name in checkpoints.
var configs = map[string]func(settings catalog.Values) (Config, error){}

// register connects a Config, of which it is given the zero value, with the optimizer's row, whose name is that in
// checkpoints. It returns the Config with the row's defaults. The file of each optimizer calls it. A Config whose
// fields are not those of the row is a mistake in the program, and panics.
func register[C Config](name string, _ C) C {
	read := func(settings catalog.Values) (cfg C, err error) { return cfg, decode(settings, &cfg) }
	i := slices.IndexFunc(catalog.Optimizers, func(o catalog.Optimizer) bool { return o.Name == name })
	if i < 0 {
		panic(fmt.Sprintf("optim: optimizer %s has no row in internal/catalog", name))
	}
	row := all(catalog.Optimizers[i])
	cfg, err := read(row.Fill(nil))
	fields := catalog.Values{}
	if err == nil {
		var text []byte
		if text, err = json.Marshal(cfg); err == nil {
			err = json.Unmarshal(text, &fields)
		}
	}
	if keys := slices.Sorted(slices.Values(row.Keys())); err != nil || !slices.Equal(keys, sortedKeys(fields)) {
		panic(fmt.Sprintf("optim: %T has the settings %q, and its row in internal/catalog %q (%v)", cfg,
			sortedKeys(fields), keys, err))
	}
	configs[name] = func(settings catalog.Values) (Config, error) { return read(settings) }
	return cfg
}

// all are an optimizer's settings: those from the training arguments, then its own.
func all(o catalog.Optimizer) catalog.Settings { return slices.Concat(o.Arguments, o.Settings) }

// decode writes settings into the fields of those names; each must have one.
func decode(settings catalog.Values, cfg any) error {
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(cfg)
}

// Names lists the names that ByName knows, sorted.
func Names() []string { return slices.Sorted(slices.Values(catalog.OptimizerNames())) }

// ByName is the Config of an optimizer by its name in HuggingFace's arguments (optim), such as "adamw_torch". It has
// the optimizer's defaults except for the settings that are given: of shared (adam_beta1 and others) those that the
// optimizer has, of own (optim_args) all.
func ByName(name string, shared, own map[string]any) (Config, error) {
	row, known := catalog.OptimizerNamed(name)
	if !known {
		return nil, fmt.Errorf("optim: optimizer is %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	given := catalog.Values{}
	for key, v := range shared {
		if _, has := row.Arguments.Lookup(key); has {
			given[key] = v
		}
	}
	maps.Copy(given, own)
	row.Settings = all(row)
	if wants := row.Wants(name, given); len(wants) > 0 {
		return nil, fmt.Errorf("optim: settings of %s are %v: want %s", name, given, strings.Join(wants, ", and "))
	}
	create, known := configs[row.Name]
	if !known {
		return nil, fmt.Errorf("optim: optimizer %s has a row in internal/catalog and no file here", row.Name)
	}
	cfg, err := create(row.Settings.Fill(given))
	if err != nil {
		return nil, fmt.Errorf("optim: settings of %s: %w", name, err)
	}
	return cfg, nil
}
