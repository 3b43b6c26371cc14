// SPDX-License-Identifier: Apache-2.0

package gpt2

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Cache holds the keys and values of the tokens seen so far, for generation.
type Cache struct {
	layers []layerCache
	length int
	limit  int
}

// layerCache is one layer's part: keys and values [B,H,limit,D], of which the first
// cache.length rows are filled.
type layerCache struct {
	cache *Cache
	k, v  *tensor.Tensor
}

// NewCache makes room for n_positions tokens of batch sequences. It lives until Free.
func (m *Model) NewCache(c *nn.Ctx, batch int) models.Cache {
	cfg := m.Cfg
	cache := &Cache{limit: cfg.NPositions, layers: make([]layerCache, cfg.NLayer)}
	dt := m.Transformer.WTE.Weight.DType()
	for i := range cache.layers {
		shape := []int{batch, cfg.NHead, cfg.NPositions, cfg.NEmbd / cfg.NHead}
		cache.layers[i] = layerCache{cache, c.Keep(tensor.Zeros(c.Ctx, dt, shape...)), c.Keep(tensor.Zeros(c.Ctx, dt, shape...))}
	}
	return cache
}

// Len is the number of tokens held.
func (k *Cache) Len() int { return k.length }

// Cap is the number of tokens that there is room for.
func (k *Cache) Cap() int { return k.limit }

// Reset forgets all tokens and keeps the memory.
func (k *Cache) Reset() { k.length = 0 }

// Free gives back the memory.
func (k *Cache) Free() {
	for _, l := range k.layers {
		l.k.Free()
		l.v.Free()
	}
}

func (k *Cache) layer(i int) *layerCache {
	if k == nil {
		return nil
	}
	return &k.layers[i]
}

// extend stores new keys and values [B,H,T,D] and returns all so far.
func (l *layerCache) extend(c *nn.Ctx, k, v *tensor.Tensor) (keys, values *tensor.Tensor) {
	at, end := l.cache.length, l.cache.length+k.Size(2)
	store := func(all, part *tensor.Tensor) *tensor.Tensor {
		tensor.CopyInto(c.Ctx, tensor.Slice(c.Ctx, all, 2, at, end), part)
		return tensor.Slice(c.Ctx, all, 2, 0, end)
	}
	return store(l.k, k), store(l.v, v)
}

// Next feeds ids [B,T], which continue what cache holds, and returns the logits [B,V] of
// the token after the last one. c must not record gradients.
func (m *Model) Next(c *nn.Ctx, ids *tensor.Tensor, cache models.Cache) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		own, ok := cache.(*Cache)
		if !ok {
			panic(&tensor.Error{Op: "gpt2.Next", Msg: fmt.Sprintf("a cache of type %T: want one that NewCache made", cache), Where: c.Path()})
		}
		h := m.Transformer.forward(c, ids, nil, own)
		return m.logits(c, tensor.Select(c.Ctx, h, 1, -1))
	}, ids)
}
