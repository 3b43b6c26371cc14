// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Memory implements strategy.Parameters. It counts the buffers of this rank with the empty places at the borders of
// cells.
func (s *Sharder) Memory() (m strategy.Memory) {
	m.Sums, m.Allocated, m.Shared = s.sets(), s.group.Allocated(), s.shared
	for _, p := range slices.Concat(s.job.Held, s.job.Tree.Buffers()) {
		if !s.Cut(p.Name) {
			m.Uncut += int64(p.Bytes())
		}
	}
	var params, grads []int64 // of whole units, or buckets
	ranks := int64(s.group.Size())
	for _, u := range s.units {
		var held, come, open int64
		for _, f := range u.flats {
			n := int64(f.pack.Numel())
			whole := n * int64(f.dtype.Size())
			switch {
			case f.comes:
				held += whole / ranks
				come += n * int64(f.form(s.options.Lower).DType().Size())
			case s.shared:
				held += whole / ranks
				if f.low.is() {
					held += n * int64(f.low.DType().Size()) / ranks
				}
			default:
				held += whole
			}
			if f.number != nil {
				open += n * int64(f.params[0].GradDType().Size())
			}
		}
		params, grads = append(params, come), append(grads, open)
		m.Parameters += held
		if s.gradients {
			m.Gradients += int64(m.Sums) * open / ranks
		} else {
			m.Gradients += int64(m.Sums) * open
		}
	}
	if s.parameters {
		m.Gathered += s.most(params, s.keep || s.staged, 2) // that of a pass and that of the next
	}
	if s.gradients {
		m.Gathered += s.most(grads, false, s.opened())
		if !s.summed() {
			m.Gathered += s.most(grads, false, ring) // what the other ranks send
		}
	}
	m.Together = m.Parameters + m.Gradients + m.Gathered
	switch last := m.Gradients / int64(m.Sums); {
	case s.staged: // other micro-batches have made theirs
	case s.keep:
		m.Together -= last
	case s.parameters:
		m.Together -= min(last, s.most(grads, false, ring+2)/ranks)
	}
	return m
}

// opened is how many units have buffers of gradients at a time: those that passes fill, and those on their way.
func (s *Sharder) opened() int {
	switch {
	case s.staged:
	case s.keep: // as much as comes then, goes of parameters
		return 1
	case s.parameters:
		return 1 + ring
	}
	return 2 * ring
}

// sets is how many sums of a gradient exist at the same time.
func (s *Sharder) sets() int {
	groups := accumulation.Groups(s.microBatches, s.ranks)
	switch {
	case !s.gradients:
		groups = max(1, groups/s.samples())
	case s.summed() && s.samples() > 1:
		groups = s.microBatches / s.samples()
	}
	return bits.Len(uint(groups))
}

// most is the largest sum of n units that follow each other, beside the root, which stays for a pass; or of all.
func (s *Sharder) most(units []int64, all bool, n int) int64 {
	var root, best int64
	var sizes []int64
	for i, u := range s.units {
		if u.root {
			root += units[i]
		} else {
			sizes = append(sizes, units[i])
		}
	}
	if all {
		n = len(sizes)
	}
	for i := range sizes {
		sum := int64(0)
		for _, size := range sizes[i:min(i+n, len(sizes))] {
			sum += size
		}
		best = max(best, sum)
	}
	return root + best
}

// Describe implements strategy.Parameters: units, a rank's part of the parameters between steps, in megabytes of 10⁶
// bytes, and how ranks get those of others.
func (s *Sharder) Describe() string {
	words := fmt.Sprintf("%.1f MB of parameters per rank", float64(s.Memory().Parameters)/1e6)
	if s.parameters {
		return quantity.Of(len(s.units), "unit") + ", " + words + ", gathered"
	}
	if s.shared {
		words += ", shared by the ranks of the host"
	}
	return words
}
