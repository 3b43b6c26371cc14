// SPDX-License-Identifier: Apache-2.0

package generation

import (
	"cmp"
	"slices"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
)

// leastPrefix is how many tokens texts must have in common for a copy of their keys and values.
const leastPrefix = 16

// kept is what an engine keeps of a text that has ended: the next turn of a conversation begins with it.
type kept struct {
	ids    []int // that the cache holds
	cache  models.Cache
	bytes  int
	served *served
}

// prefixes are kept texts, of which those that were used least recently go first. They belong to the engine's
// goroutine.
type prefixes struct {
	most  int // bytes
	bytes int
	texts []*kept
}

// source is a cache that holds the first n tokens of a text.
type source struct {
	cache models.Cache
	n     int
	text  *kept // nil: of a text that is under way
}

// sources are the caches that hold a part of a row's prompt, the longest part first.
func (p *prefixes) sources(r *row, rows []*row) (found []source) {
	all := r.text.all[:len(r.text.all)-1] // the last one gives the logits
	add := func(ids []int, s source) {
		if s.n = common(all, ids); s.n >= leastPrefix {
			found = append(found, s)
		}
	}
	for _, k := range p.texts {
		if k.served == r.served {
			add(k.ids, source{cache: k.cache, text: k})
		}
	}
	for _, other := range rows {
		if other.served == r.served && other.copies() {
			add(other.text.all[:other.fed], source{cache: other.cache})
		}
	}
	slices.SortStableFunc(found, func(a, b source) int { return cmp.Compare(b.n, a.n) })
	return found
}

// common is how many tokens two texts begin with in common.
func common(a, b []int) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// copies reports whether the cache of a row has all that the model has seen, and may be copied.
func (r *row) copies() bool {
	_, ok := r.served.m.(models.PrefixCopier)
	return ok && r.joins && r.cache != nil && r.fed == r.cache.Len()
}

// copyTo gives a row a cache with what others hold of its prompt, if there are any.
func (p *prefixes) copyTo(r *row, rows []*row) {
	copier, ok := r.served.m.(models.PrefixCopier)
	if !ok || p.most <= 0 {
		return
	}
	for _, s := range p.sources(r, rows) {
		if k := copier.CopyPrefix(r.served.c, s.cache, s.n); k != nil {
			r.cache, r.fed = k, s.n
			if s.text != nil {
				p.texts = append(slices.DeleteFunc(p.texts, func(k *kept) bool { return k == s.text }), s.text)
			}
			return
		}
	}
}

// keep takes the cache of a row that has ended.
func (p *prefixes) keep(r *row) {
	if r.cache == nil {
		return
	}
	ids, bytes, wanted := r.text.all[:r.fed], 0, r.err == nil && r.fed >= leastPrefix && r.copies()
	if wanted {
		bytes = r.served.m.(models.PrefixCopier).CacheBytes(r.cache)
		wanted = bytes <= p.most && !slices.ContainsFunc(p.texts, func(k *kept) bool { // which has all of it
			return k.served == r.served && common(ids, k.ids) == len(ids)
		})
	}
	if !wanted {
		r.cache.Free()
		return
	}
	p.drop(func(k *kept) bool { return k.served == r.served && common(ids, k.ids) == len(k.ids) })
	for p.bytes+bytes > p.most {
		oldest := p.texts[0]
		p.drop(func(k *kept) bool { return k == oldest })
	}
	p.texts, p.bytes = append(p.texts, &kept{ids, r.cache, bytes, r.served}), p.bytes+bytes
}

// drop gives up the texts that are not wanted.
func (p *prefixes) drop(unwanted func(*kept) bool) {
	p.texts = slices.DeleteFunc(p.texts, func(k *kept) bool {
		if !unwanted(k) {
			return false
		}
		p.bytes -= k.bytes
		k.cache.Free()
		return true
	})
}

// open gives a row a cache.
func (e *Engine) open(r *row, rows []*row) {
	r.err = tensor.Recover(func() {
		m := r.served.m
		joiner, ok := m.(models.Joiner)
		empty := m.NewCache(r.served.c, 1)
		r.joins = ok && joiner.Join([]models.Cache{empty}) != nil
		room := empty.Cap()
		if r.joins && len(r.text.all) <= room {
			e.prefixes.copyTo(r, rows)
		}
		if r.cache != nil {
			empty.Free()
			return
		}
		if r.cache = empty; len(r.text.all) > room {
			r.fed = len(r.text.all) - max(1, room/2)
		}
	})
}
