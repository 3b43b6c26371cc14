// SPDX-License-Identifier: Apache-2.0

package tensor

// Recorded is the number of ops that were recorded so far, a mark for BackwardSpan.
func Recorded() uint64 { return nodeSeq.Load() }

// span is a part of the graph whose gradients are under way.
type span struct {
	since uint64
	after func(c *Ctx)
}

// BackwardSpan passes out through unchanged. During Backward, before is called when the gradient of one of them is
// known, before the ops that made them run backward; after is called when all ops that were recorded since the mark
// have run backward and the gradients of leaves among their inputs are complete, unless older ops add to them too or
// [DelayWeightGrads] leaves them to Pop. Neither is called if no gradient gets there.
func BackwardSpan(c *Ctx, name string, since uint64, out []*Tensor, before, after func(c *Ctx)) []*Tensor {
	if !c.records(out) {
		return out
	}
	through := make([]*Tensor, len(out))
	for i, t := range out {
		through[i] = t.alias()
	}
	c.record(name, through, out, nil, func(b *Back) {
		b.node.run.spans = append(b.node.run.spans, span{since, after})
		before(b.Ctx)
		for i := range out {
			b.Set(i, b.Arrived(i))
		}
	})
	return through
}

// endSpans ends those whose ops are all younger than the next one to run. Spans lie within each other or apart, so the
// last that began is the first to end.
func (r *run) endSpans(next uint64) {
	for len(r.spans) > 0 {
		last := r.spans[len(r.spans)-1]
		if next > last.since {
			return
		}
		r.spans = r.spans[:len(r.spans)-1]
		last.after(r.c)
	}
}
