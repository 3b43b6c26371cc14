// SPDX-License-Identifier: Apache-2.0

package transformer

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// cache is the memory of a generation. With LongRoPE it has the tokens too: beyond the original length the keys of all
// tokens have other angles, and are computed again, as in transformers.
type cache struct {
	*nn.KVCache
	tokens *tensor.Tensor // [B,Len] ids, of LongRoPE up to the original length; nil: none
}

// maxExtension bounds the factor of dynamic RoPE where it counts tokens.
const maxExtension = 1024

// Reset forgets all tokens.
func (k *cache) Reset() {
	k.KVCache.Reset()
	k.forget()
}

// Free gives back the memory.
func (k *cache) Free() {
	k.KVCache.Free()
	k.forget()
}

func (k *cache) forget() {
	if k.tokens != nil {
		k.tokens.Free()
		k.tokens = nil
	}
}

// NewCache makes room for max_position_embeddings tokens of batch sequences, and for so many times more as dynamic RoPE
// extends them; it takes memory as they come. It lives until Free.
func (m *Model) NewCache(c *nn.Ctx, batch int) models.Cache {
	cfg := &m.Cfg
	room := cfg.MaxPositions
	if cfg.RoPE.Type == ropeDynamic {
		room = int(float64(room) * min(cfg.RoPE.Factor, maxExtension))
	}
	return &cache{KVCache: nn.NewKVCache(c, nn.KVCacheConfig{Layers: cfg.NumHiddenLayers, Batch: batch,
		Tokens: room, Dim: cfg.HeadDim, DType: m.Decoder.Embed.Weight.DType(), Windows: m.Decoder.spec().windows})}
}

// Join implements models.Joiner. Angles of RoPE that depend on the length are those of the longest of a batch: then
// there is none.
func (m *Model) Join(caches []models.Cache) models.Cache {
	if m.Cfg.RoPE.byLength() {
		return nil
	}
	return &cache{KVCache: models.JoinKVCaches(caches, func(held models.Cache) *nn.KVCache {
		return held.(*cache).KVCache
	})}
}

// CopyPrefix implements models.PrefixCopier. Angles of RoPE that depend on the length are those of the whole text: then
// there is none.
func (m *Model) CopyPrefix(c *nn.Ctx, held models.Cache, n int) models.Cache {
	if m.Cfg.RoPE.byLength() {
		return nil
	}
	k := held.(*cache).Prefix(c, n)
	if k == nil {
		return nil
	}
	return &cache{KVCache: k}
}

// CacheBytes implements models.PrefixCopier.
func (m *Model) CacheBytes(held models.Cache) int { return held.(*cache).Bytes() }

// Next feeds ids [B,T], which continue what cache holds, and returns the logits [B,V] of the token after the last one.
// c must not record gradients.
func (m *Model) Next(c *nn.Ctx, ids *tensor.Tensor, held models.Cache) *tensor.Tensor {
	own, ok := held.(*cache)
	if !ok {
		panic(&tensor.Error{Op: "transformer.Next", Where: c.Path(),
			Msg: fmt.Sprintf("a cache of type %T: want one that NewCache made", held)})
	}
	ids = m.feed(c, ids, own)
	c, mask := own.Padded(c, ids.Size(1))
	return models.NextLogits(c, m, m.LMHead, ids, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		return m.Decoder.forward(c, ids, ids, nn.KeyMask(c, mask), own.KVCache)
	})
}

// feed is ids, or all tokens where LongRoPE computes their keys again.
func (m *Model) feed(c *nn.Ctx, ids *tensor.Tensor, k *cache) *tensor.Tensor {
	r := &m.Cfg.RoPE
	if r.Type != ropeLongRoPE || k.Len() > r.OriginalPositions {
		return ids
	}
	all := ids
	if k.tokens != nil {
		all = tensor.Concat(c.Ctx, 1, k.tokens, ids)
	}
	k.forget()
	if all.Size(1) > r.OriginalPositions {
		k.Rewind()
		return all
	}
	k.tokens = c.Keep(tensor.Clone(c.Ctx, all))
	return ids
}
