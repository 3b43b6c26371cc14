// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/lockstep-ml/lockstep/tensor"

// KVCache holds the keys and values of the tokens that a model has seen so far, for generation. A model passes Layer(i)
// to its i-th attention, and calls Advance when all layers have extended theirs.
type KVCache struct {
	layers []KVLayer
	length int
	limit  int
}

// KVLayer is one layer's part of a KVCache: keys and values [B,H,limit,D], of which the first Len rows are filled.
type KVLayer struct {
	cache *KVCache
	k, v  *tensor.Tensor
}

// KVCacheConfig is the size of a KVCache.
type KVCacheConfig struct {
	Layers, Batch int
	Heads         int // of keys and values
	Tokens        int // there is room for
	Dim           int // of a head
	DType         tensor.DType
}

// NewKVCache makes room for keys and values. It lives until Free.
func NewKVCache(c *Ctx, cfg KVCacheConfig) *KVCache {
	k := &KVCache{limit: cfg.Tokens, layers: make([]KVLayer, cfg.Layers)}
	room := func() *tensor.Tensor {
		return c.Keep(tensor.Zeros(c.Ctx, cfg.DType, cfg.Batch, cfg.Heads, cfg.Tokens, cfg.Dim))
	}
	for i := range k.layers {
		k.layers[i] = KVLayer{k, room(), room()}
	}
	return k
}

// Len is the number of tokens held; 0 for nil.
func (k *KVCache) Len() int {
	if k == nil {
		return 0
	}
	return k.length
}

// Cap is the number of tokens that there is room for.
func (k *KVCache) Cap() int { return k.limit }

// Reset forgets all tokens and keeps the memory.
func (k *KVCache) Reset() { k.length = 0 }

// Free gives back the memory.
func (k *KVCache) Free() {
	for _, l := range k.layers {
		l.k.Free()
		l.v.Free()
	}
}

// Layer is the part of attention i; nil for nil.
func (k *KVCache) Layer(i int) *KVLayer {
	if k == nil {
		return nil
	}
	return &k.layers[i]
}

// Advance counts n tokens, whose keys and values all layers have stored. It does nothing for nil.
func (k *KVCache) Advance(n int) {
	if k != nil {
		k.length += n
	}
}

// Len is the number of tokens held; 0 for nil.
func (l *KVLayer) Len() int {
	if l == nil {
		return 0
	}
	return l.cache.length
}

// Extend stores new keys and values [B,H,T,D] and returns all so far; those that it is given for nil.
func (l *KVLayer) Extend(c *Ctx, k, v *tensor.Tensor) (keys, values *tensor.Tensor) {
	if l == nil {
		return k, v
	}
	at, end := l.cache.length, l.cache.length+k.Size(2)
	store := func(all, part *tensor.Tensor) *tensor.Tensor {
		tensor.CopyInto(c.Ctx, tensor.Slice(c.Ctx, all, 2, at, end), part)
		return tensor.Slice(c.Ctx, all, 2, 0, end)
	}
	return store(l.k, k), store(l.v, v)
}
