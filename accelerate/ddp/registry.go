// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config makes a hook: a struct with the hook's settings, whose json tags are their names in ddp_comm_state_option.
type Config interface {
	// New makes a hook, with its own state if it has one.
	New() Hook
}

// configs makes the Config of each built-in hook, by the values of ddp_comm_hook.
var configs = map[string]func(settings map[string]any) (Config, error){}

// register makes a hook known under its name. The file of each calls it from init.
func register[C Config](name string, defaults func() C) {
	configs[name] = func(settings map[string]any) (Config, error) {
		cfg := defaults()
		text, err := json.Marshal(settings)
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		return cfg, d.Decode(&cfg)
	}
}

// fixed is the Config of a hook without settings and state.
type fixed struct{ hook Hook }

func (f fixed) New() Hook { return f.hook }

func init() {
	for _, h := range []Hook{AllReduce, FP16Compress, BF16Compress} {
		register(h.Name(), func() fixed { return fixed{h} })
	}
}

// HookNames lists the names that HookByName knows, sorted.
func HookNames() []string { return slices.Sorted(maps.Keys(configs)) }

// HookByName makes the built-in hook of a name, with its defaults except for the given settings. It is for package
// accelerate; programs set the arguments ddp_comm_hook and ddp_comm_state_option.
func HookByName(name string, settings map[string]any) (Hook, error) {
	make, ok := configs[name]
	if !ok {
		return nil, fmt.Errorf("ddp: unknown communication hook %q: want one of %s", name,
			strings.Join(HookNames(), ", "))
	}
	cfg, err := make(settings)
	if err != nil {
		return nil, fmt.Errorf("ddp: settings of the communication hook %s: %w", name, err)
	}
	return cfg.New(), nil
}
