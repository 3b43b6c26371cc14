// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// KVCache holds the keys and values of the tokens that a model has seen so far, for generation. A model passes Layer(i)
// to its i-th attention, and calls Advance when all layers have extended theirs. It takes memory for its tokens; for a
// layer with a window, for twice the window, or for as many as are added together.
type KVCache struct {
	cfg    KVCacheConfig
	layers []KVLayer
	length int
	first  []int32 // of each row: tokens before it are padding; nil: none are
	asked  bool    // what the next tokens need of the padding has been asked for

	rows []*KVCache // of JoinKVCaches; nil: it holds all rows itself
}

// KVLayer is one layer's part of a KVCache: keys and values [B,H,room,D], of which the rows from its start on are
// filled.
type KVLayer struct {
	cache  *KVCache
	k, v   *tensor.Tensor // nil: none yet
	window int            // 0: all tokens are kept
	start  int            // the position of the first token that is kept

	rows []*KVLayer // of joined caches
}

// KVCacheConfig is the size of a KVCache.
type KVCacheConfig struct {
	Layers, Batch int
	Tokens        int // there is room for
	Dim           int // of a head
	DType         tensor.DType
	// Windows are those of the layers (AttentionConfig.Window), 0 for one that sees all tokens; nil: all are 0.
	Windows []int
}

// firstTokens is how many tokens there is memory for at first.
const firstTokens = 128

// NewKVCache makes room for keys and values. It lives until Free.
func NewKVCache(c *Ctx, cfg KVCacheConfig) *KVCache {
	if cfg.Windows != nil && len(cfg.Windows) != cfg.Layers {
		refuse(c, "nn.NewKVCache", "%d windows for %d layers: want one for each", len(cfg.Windows), cfg.Layers)
	}
	k := &KVCache{cfg: cfg, layers: make([]KVLayer, cfg.Layers)}
	for i := range k.layers {
		k.layers[i].cache = k
		if cfg.Windows != nil {
			k.layers[i].window = cfg.Windows[i]
		}
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
func (k *KVCache) Cap() int { return k.cfg.Tokens }

// Pad sets the token at which each row begins: no token sees those before it, and positions count from there. Call it
// before the first tokens. It applies until Reset.
func (k *KVCache) Pad(first []int) {
	if k.length > 0 || len(first) != k.cfg.Batch {
		panic(&tensor.Error{Op: "nn.KVCache.Pad", Msg: fmt.Sprintf("%d rows of a cache of %d that holds %d tokens: "+
			"want all rows, and no tokens yet", len(first), k.cfg.Batch, k.length)})
	}
	if k.first = nil; slices.Max(first) == 0 {
		return
	}
	for _, n := range first {
		k.first = append(k.first, int32(n))
	}
}

// Padded returns what n tokens more need if rows are padded: a context with their positions, and the mask [B,T] of all
// tokens, the new ones included; c and nil if they are not. Rows of joined caches have their own positions.
func (k *KVCache) Padded(c *Ctx, n int) (*Ctx, *tensor.Tensor) {
	if k.rows != nil {
		k.asked = true
		return c.WithPositions(k.ownPositions(c, n)), nil
	}
	if k.first == nil {
		return c, nil
	}
	k.asked = true
	first := tensor.FromSlice(c.Ctx, k.first, len(k.first), 1)
	all := tensor.Unsqueeze(c.Ctx, tensor.Arange(c.Ctx, tensor.Int32, 0, 1, k.length+n), 0)
	positions := tensor.Sub(c.Ctx, tensor.Slice(c.Ctx, all, 1, k.length, k.length+n), first)
	none := tensor.Scalar(c.Ctx, tensor.Int32, 0)
	return c.WithPositions(tensor.Maximum(c.Ctx, positions, none)), tensor.Ge(c.Ctx, all, first)
}

// Reset forgets all tokens, and the padding, and keeps the memory.
func (k *KVCache) Reset() {
	k.Rewind()
	k.first = nil
}

// Rewind forgets all tokens, so that they can be added again.
func (k *KVCache) Rewind() {
	k.length = 0
	for i := range k.layers {
		k.layers[i].start = 0
	}
}

// Prefix returns a new cache with the first n tokens, for another text with the same beginning; nil if a window has
// lost some of them. k holds one row, without padding, and at least n tokens.
func (k *KVCache) Prefix(c *Ctx, n int) *KVCache {
	if k.cfg.Batch != 1 || k.first != nil || k.rows != nil || n > k.length {
		refuse(c, "nn.KVCache.Prefix", "%d of %d tokens of %d rows: want tokens that are held, of one row without "+
			"padding", n, k.length, k.cfg.Batch)
	}
	for _, l := range k.layers {
		if l.start > 0 && l.start > n-l.window+1 {
			return nil
		}
	}
	out := NewKVCache(c, k.cfg)
	out.length = n
	c.Scope(func(c *Ctx) []*tensor.Tensor {
		for i, l := range k.layers {
			if to := &out.layers[i]; l.k != nil {
				to.start, to.k, to.v = l.start, l.copied(c, l.k, n-l.start), l.copied(c, l.v, n-l.start)
			}
		}
		return nil
	})
	return out
}

// copied is new memory with the first n rows of all.
func (l *KVLayer) copied(c *Ctx, all *tensor.Tensor, n int) *tensor.Tensor {
	to := c.Keep(l.cache.room(c, all.Size(1), n))
	tensor.CopyInto(c.Ctx, tensor.Slice(c.Ctx, to, 2, 0, n), tensor.Slice(c.Ctx, all, 2, 0, n))
	return to
}

// Bytes is how much memory it has, with room for more tokens.
func (k *KVCache) Bytes() int {
	bytes := 0
	for _, l := range k.layers {
		if l.k != nil {
			bytes += 2 * l.k.Numel() * l.k.DType().Size()
		}
	}
	return bytes
}

// Free frees the memory.
func (k *KVCache) Free() {
	for i := range k.layers {
		k.layers[i].free()
	}
}

func (l *KVLayer) free() {
	if l.k != nil {
		l.k.Free()
		l.v.Free()
		l.k, l.v = nil, nil
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
	if k == nil {
		return
	}
	k.length += n
	k.asked = false
	for _, row := range k.rows {
		row.Advance(n)
	}
}

// Len is the number of tokens held; 0 for nil.
func (l *KVLayer) Len() int {
	if l == nil {
		return 0
	}
	return l.cache.length
}

// joined reports whether the layer is one of joined caches.
func (l *KVLayer) joined() bool { return l != nil && l.rows != nil }

// Start is the position of the first of the keys that Extend returns for n new tokens; 0 for nil. Those before it are
// in no window of the new tokens.
func (l *KVLayer) Start(n int) int {
	if l == nil {
		return 0
	}
	if l.full(n) {
		return l.kept()
	}
	return l.start
}

// full reports whether n new tokens need room, and earlier ones are in no window any more.
func (l *KVLayer) full(n int) bool {
	held := l.cache.length - l.start
	return l.window > 0 && held+n > max(2*l.window, firstTokens) && l.kept() > l.start
}

// kept is the position of the first token in the window of the next one.
func (l *KVLayer) kept() int { return max(l.start, l.cache.length-l.window+1) }

// Extend stores new keys and values [B,H,T,D] and returns those from Start on; those that it is given for nil.
func (l *KVLayer) Extend(c *Ctx, k, v *tensor.Tensor) (keys, values *tensor.Tensor) {
	if l == nil {
		return k, v
	}
	if n, most := l.cache.length+k.Size(2), l.cache.Cap(); n > most {
		refuse(c, "nn.KVLayer", "%d tokens: the cache has room for %d", n, most)
	}
	if l.cache.first != nil && !l.cache.asked {
		refuse(c, "nn.KVLayer", "rows of the batch are padded: want a model that computes with the positions and the "+
			"mask of KVCache.Padded")
	}
	from := l.Start(k.Size(2)) - l.start // rows that go
	end := l.cache.length - l.start - from + k.Size(2)
	l.k, l.v = l.moved(c, l.k, from, k), l.moved(c, l.v, from, v)
	l.start += from
	store := func(all, part *tensor.Tensor) *tensor.Tensor {
		tensor.CopyInto(c.Ctx, tensor.Slice(c.Ctx, all, 2, end-part.Size(2), end), part)
		return tensor.Slice(c.Ctx, all, 2, 0, end)
	}
	return store(l.k, k), store(l.v, v)
}

// moved is the memory all with the rows that it holds, without the first ones, at the beginning, and room for more. Of
// heads it has as many as more: ranks may divide them.
func (l *KVLayer) moved(c *Ctx, all *tensor.Tensor, from int, more *tensor.Tensor) *tensor.Tensor {
	held := l.cache.length - l.start
	end := held - from + more.Size(2)
	fits := all != nil && all.Size(2) >= end
	if fits && from == 0 {
		return all
	}
	next := all
	if !fits {
		next = c.Keep(l.cache.room(c, more.Size(1), end))
	}
	if held > from {
		c.Scope(func(c *Ctx) []*tensor.Tensor {
			rows := tensor.Slice(c.Ctx, all, 2, from, held)
			if fits {
				rows = tensor.Clone(c.Ctx, rows) // they overlap with their new place
			}
			tensor.CopyInto(c.Ctx, tensor.Slice(c.Ctx, next, 2, 0, held-from), rows)
			return nil
		})
	}
	if all != nil && !fits {
		all.Free()
	}
	return next
}

// room is memory [B,heads,room,D] for n tokens, and for more that come.
func (k *KVCache) room(c *Ctx, heads, n int) *tensor.Tensor {
	room := firstTokens
	for room < n {
		room *= 2
	}
	return tensor.Zeros(c.Ctx, k.cfg.DType, k.cfg.Batch, heads, max(n, min(room, k.cfg.Tokens)), k.cfg.Dim)
}
