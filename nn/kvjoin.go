// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// JoinKVCaches makes one cache of those of several sequences, each of one row and of any length, so that a model
// computes their next tokens together. Its row i continues caches[i], whose memory it uses: it needs no Free. No row is
// padded, and each attends only to its own tokens, so its bits do not depend on the others.
func JoinKVCaches(caches ...*KVCache) *KVCache {
	if len(caches) == 0 {
		panic(&tensor.Error{Op: "nn.JoinKVCaches", Msg: "no caches: want at least one"})
	}
	k := &KVCache{cfg: caches[0].cfg, rows: caches, layers: make([]KVLayer, caches[0].cfg.Layers)}
	k.cfg.Batch = len(caches)
	for i, row := range caches {
		if row.cfg.Batch != 1 || row.first != nil || row.rows != nil || row.cfg.Layers != k.cfg.Layers {
			panic(&tensor.Error{Op: "nn.JoinKVCaches", Msg: fmt.Sprintf("cache %d has %d rows and %d layers: want one "+
				"row without padding, and %d layers", i, row.cfg.Batch, row.cfg.Layers, k.cfg.Layers)})
		}
		k.length = max(k.length, row.length)
	}
	for i := range k.layers {
		k.layers[i].cache = k
		for _, row := range caches {
			k.layers[i].rows = append(k.layers[i].rows, row.Layer(i))
		}
	}
	return k
}

// ownPositions are those of n tokens more of each row [B,n].
func (k *KVCache) ownPositions(c *Ctx, n int) *tensor.Tensor {
	positions := make([]int32, 0, len(k.rows)*n)
	for _, row := range k.rows {
		for i := range n {
			positions = append(positions, int32(row.length+i))
		}
	}
	return tensor.FromSlice(c.Ctx, positions, len(k.rows), n)
}

// attendJoined is Attend for rows with their own caches; q and k are rotated.
func (cfg AttentionConfig) attendJoined(c *Ctx, q, k, v *tensor.Tensor, in AttentionInput) *tensor.Tensor {
	if !in.Cache.cache.asked {
		refuse(c, "nn.Attend", "joined caches: want a model that computes with the positions of KVCache.Padded")
	}
	if in.Mask != nil || len(in.Cache.rows) != q.Size(0) {
		refuse(c, "nn.Attend", "%d joined caches with a batch of %d, mask: %t: want a cache for each row, and no mask",
			len(in.Cache.rows), q.Size(0), in.Mask != nil)
	}
	out := make([]*tensor.Tensor, len(in.Cache.rows))
	for i, layer := range in.Cache.rows {
		row := func(x *tensor.Tensor) *tensor.Tensor { return tensor.Slice(c.Ctx, x, 0, i, i+1) }
		opt := tensor.AttentionOptions{Scale: cfg.Scale, SoftCap: cfg.SoftCap, Causal: cfg.Causal, Window: cfg.Window,
			QueryOffset: layer.Len(), KeyOffset: layer.Start(q.Size(2))}
		keys, values := layer.Extend(c, row(k), row(v))
		out[i] = c.attend(row(q), keys, values, opt)
	}
	return MergeHeads(c, tensor.Concat(c.Ctx, 0, out...))
}
