// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Factory makes a model of one architecture from its config.json.
type Factory func(in *nn.Init, config []byte) (Configured, error)

var registry = struct {
	sync.Mutex
	factories map[string]Factory
	configs   map[string]string // by name
}{factories: map[string]Factory{}, configs: map[string]string{}}

// Register makes an architecture known under its model_type. Packages call it from
// init. Registering a model_type twice panics.
func Register(modelType string, f Factory) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.factories[modelType]; dup {
		panic(fmt.Sprintf("models: model_type %q registered twice", modelType))
	}
	registry.factories[modelType] = f
}

// RegisterConfig makes the config.json of a published model known under the name that it has on the Hub. Packages call
// it from init. Registering a name twice panics.
func RegisterConfig(name, config string) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.configs[name]; dup {
		panic(fmt.Sprintf("models: configuration %q registered twice", name))
	}
	registry.configs[name] = config
}

// Configs lists the names of the published models whose configurations are built in.
func Configs() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.configs))
}

// Types lists the model_types that are built in.
func Types() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.factories))
}

// FromConfig makes a model with fresh weights from the text of a config.json. Before it takes memory, it finds out how
// much the model needs: one of more than nn.MaxTensors parameters and buffers, or of more bytes than the machine has,
// is an error.
func FromConfig(in *nn.Init, config []byte) (Configured, error) {
	if _, err := fromConfig(in.Dry(0), config); err != nil {
		return nil, err
	}
	return fromConfig(in, config)
}

// fromConfig makes the model, and turns the misuse that a configuration may be into an error.
func fromConfig(in *nn.Init, config []byte) (m Configured, err error) {
	f, err := factory(config)
	if err != nil {
		return nil, err
	}
	if p := tensor.Try(func() { m, err = f(in, config) }); p != nil {
		return nil, fmt.Errorf("models: config.json does not describe a valid model: %w", p)
	}
	return m, err
}

// Make makes a model by f, as nn.Make, if its configuration is valid. It is for packages of architectures; pkg is the
// name of theirs.
func Make[C interface{ Validate() error }, M any](in *nn.Init, pkg string, cfg C, f func(*nn.Init, C) M) (m M,
	err error) {
	if err := cfg.Validate(); err != nil {
		return m, err
	}
	if m, err = nn.Make(in, func(in *nn.Init) M { return f(in, cfg) }); err != nil {
		return m, fmt.Errorf("%s: %w", pkg, err)
	}
	return m, nil
}

// factory finds who makes the model of a config.json.
func factory(config []byte) (Factory, error) {
	var head struct {
		ModelType string `json:"model_type"`
	}
	if err := jsonfile.Unmarshal(config, &head); err != nil {
		return nil, fmt.Errorf("models: config.json: %w", err)
	}
	registry.Lock()
	f := registry.factories[head.ModelType]
	registry.Unlock()
	if f == nil {
		return nil,
			fmt.Errorf("models: config.json: model_type %.100q is not built in: want one of %s (import the model's "+
				"package to register it)",
				head.ModelType, strings.Join(Types(), ", "))
	}
	return f, nil
}

// Cache is a model's memory of the tokens seen so far during generation.
type Cache interface {
	Len() int // tokens held
	Cap() int // tokens there is room for
	// Pad sets the token at which each row of a batch begins; the tokens before it are padding. Call it before the
	// first tokens.
	Pad(first []int)
	Reset() // forgets tokens and padding
	Free()
}

// Generator is implemented by models that can continue a text token by token.
type Generator interface {
	Model
	// NewCache makes room for batch sequences; it lives until Free.
	NewCache(c *nn.Ctx, batch int) Cache
	// Next feeds ids [B,T] that continue the cache and returns logits [B,V] of the token
	// after the last one.
	Next(c *nn.Ctx, ids *tensor.Tensor, cache Cache) *tensor.Tensor
}

// Joiner is implemented by Generators that can continue texts together that began at different times.
type Joiner interface {
	Generator
	// Join makes one cache from those of several sequences, each made by NewCache for one sequence, for a call of Next
	// with a row for each: row i continues caches[i], with the bits that it has without the others. It needs no Free.
	// It is nil if logits depend on the other rows of the batch.
	Join(caches []Cache) Cache
}

// PrefixCopier is implemented by Generators whose caches can serve several texts that begin alike.
type PrefixCopier interface {
	Generator
	// CopyPrefix makes a cache of the first n tokens of one that NewCache made for one sequence: what follows has the
	// bits that it has in a cache that was fed these tokens. It is nil if the cache has not all of them any more, or if
	// they depend on what follows.
	CopyPrefix(c *nn.Ctx, cache Cache, n int) Cache
	// CacheBytes is how much memory a cache has.
	CacheBytes(cache Cache) int
}

// JoinKVCaches is the Join of a model whose caches are KVCaches, or hold one.
func JoinKVCaches(caches []Cache, of func(Cache) *nn.KVCache) *nn.KVCache {
	all := make([]*nn.KVCache, len(caches))
	for i, cache := range caches {
		all[i] = of(cache)
	}
	return nn.JoinKVCaches(all...)
}
