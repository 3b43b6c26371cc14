// SPDX-License-Identifier: Apache-2.0

package gpt2

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ContextLength is the number of tokens that the model can read, n_positions.
func (m *Model) ContextLength() int { return m.Cfg.NPositions }

// EndTokens are the tokens that end a text, eos_token_id.
func (m *Model) EndTokens() []int {
	if m.Cfg.EosTokenID == nil {
		return nil
	}
	return []int{*m.Cfg.EosTokenID}
}

// NewCache makes room for n_positions tokens of batch sequences. It lives until Free.
func (m *Model) NewCache(c *nn.Ctx, batch int) models.Cache {
	cfg := m.Cfg
	return nn.NewKVCache(c, nn.KVCacheConfig{Layers: cfg.NLayer, Batch: batch, Tokens: cfg.NPositions,
		Dim: cfg.NEmbd / cfg.NHead, DType: m.Transformer.WTE.Weight.DType()})
}

// Next feeds ids [B,T], which continue what cache holds, and returns the logits [B,V] of
// the token after the last one. c must not record gradients.
func (m *Model) Next(c *nn.Ctx, ids *tensor.Tensor, cache models.Cache) *tensor.Tensor {
	own, ok := cache.(*nn.KVCache)
	if !ok {
		panic(&tensor.Error{Op: "gpt2.Next", Msg: fmt.Sprintf("a cache of type %T: want one that NewCache made", cache),
			Where: c.Path()})
	}
	c, mask := own.Padded(c, ids.Size(1))
	return models.NextLogits(c, m, m.LMHead, ids, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		return m.Transformer.forward(c, ids, nn.KeyMask(c, mask), own)
	})
}

// Join implements models.Joiner.
func (m *Model) Join(caches []models.Cache) models.Cache {
	return models.JoinKVCaches(caches, func(cache models.Cache) *nn.KVCache { return cache.(*nn.KVCache) })
}

// CopyPrefix implements models.PrefixCopier.
func (m *Model) CopyPrefix(c *nn.Ctx, cache models.Cache, n int) models.Cache {
	return cache.(*nn.KVCache).Prefix(c, n)
}

// CacheBytes implements models.PrefixCopier.
func (m *Model) CacheBytes(cache models.Cache) int { return cache.(*nn.KVCache).Bytes() }
