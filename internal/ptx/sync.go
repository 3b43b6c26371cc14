// SPDX-License-Identifier: Apache-2.0

package ptx

import "math/bits"

// syncFunc is an instruction that lanes of a warp do together.
type syncFunc struct {
	do      exec
	members int  // register with the mask of lanes; -1 if it must be the whole warp
	full    bool // the mask is known to be the whole warp
}

// absorb joins lanes that wait at the same instruction to those that have just come.
func (w *warp) absorb() {
	for i := range w.groups {
		if w.groups[i].at == w.at {
			w.mask |= w.groups[i].mask
			last := len(w.groups) - 1
			w.groups[i] = w.groups[last]
			w.groups = w.groups[:last]
			return
		}
	}
}

// together does a warp-wide instruction for the lanes whose partners are here; the others wait.
func (w *warp) together(s *stretch) {
	if w.mask == fullMask && (s.sync.full || w.allMembers(s.sync.members)) {
		s.sync.do(w)
		w.at++
		return
	}
	w.absorb()
	ready := w.ready(s)
	all := w.mask
	for left := ready; left != 0; {
		w.mask = left
		if s.sync.members >= 0 {
			w.mask = left & w.r32[s.sync.members][bits.TrailingZeros32(left)&31]
		}
		left &^= w.mask
		s.sync.do(w)
	}
	if rest := all &^ ready; rest != 0 {
		w.push(rest, w.at, true)
	}
	if ready == 0 {
		w.leave()
		return
	}
	w.mask = ready
	w.at++
}

// allMembers reports whether a register of member masks names the whole warp in each lane.
func (w *warp) allMembers(r int) bool {
	if r < 0 || w.d32[r] != fullMask {
		return false
	}
	all := uint32(fullMask)
	for _, v := range &w.r32[r] {
		all &= v
	}
	return all == fullMask
}

// ready are the lanes whose partners have all come or exited.
func (w *warp) ready(s *stretch) uint32 {
	if s.sync.members < 0 {
		if w.alive != fullMask {
			w.fault(bits.TrailingZeros32(w.mask), BadSync, "all 32 lanes are needed, %#x are alive", w.alive)
		}
		if w.mask == fullMask {
			return fullMask
		}
		return 0
	}
	w.need32(s.sync.members)
	ready := uint32(0)
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		want := w.r32[s.sync.members][lane]
		if want>>lane&1 == 0 {
			w.fault(lane, BadSync, "the member mask %#x lacks lane %d, which executes it", want, lane)
		}
		same := uint32(0)
		for k := w.mask & want; k != 0; k &= k - 1 {
			if i := bits.TrailingZeros32(k) & 31; w.r32[s.sync.members][i] == want {
				same |= 1 << i
			}
		}
		if want&w.alive&^same == 0 {
			ready |= 1 << lane
		}
	}
	return ready
}

// barrier is one of the sixteen barriers of a block.
type barrier struct {
	threads int // that have come
	expects int
	clocks  []uint32
	waiting []*warp
	votes   uint32
	zeros   uint32
}

// meetOp is a decoded bar.
type meetOp struct {
	id, count int // registers; -1 if absent
	arrive    bool
	vote      int // predicate of bar.red; -1 if absent
	not       bool
	result    func(w *warp, votes, zeros uint32)
}

func (w *warp) uniform(r int) uint32 {
	w.need32(r)
	return w.r32[r][bits.TrailingZeros32(w.mask)&31]
}

// meet comes to a barrier; false if the warp must wait there.
func (w *warp) meet(s *stretch) bool {
	w.absorb()
	if w.mask != w.alive {
		w.push(w.mask, w.at, true)
		w.leave()
		return true
	}
	o := s.meets
	b := w.block
	id := w.uniform(o.id)
	if id >= uint32(len(b.barriers)) {
		w.fault(bits.TrailingZeros32(w.mask), BadSync, "barrier %d: there are %d", id, len(b.barriers))
	}
	if w.alive != w.members {
		w.fault(bits.TrailingZeros32(w.mask), Deadlock, "threads %#x of the warp have exited before this barrier",
			w.members&^w.alive)
	}
	expects := len(b.warps) * warpSize
	if o.count >= 0 {
		expects = int(w.uniform(o.count))
		if expects%warpSize != 0 || expects == 0 {
			w.fault(bits.TrailingZeros32(w.mask), BadSync, "a barrier for %d threads: want a multiple of 32", expects)
		}
	}
	bar := &b.barriers[id]
	if bar.threads > 0 && bar.expects != expects {
		w.fault(bits.TrailingZeros32(w.mask), BadSync, "barrier %d for %d threads, others came for %d", id, expects,
			bar.expects)
	}
	bar.expects = expects
	bar.threads += warpSize
	if bar.clocks == nil {
		bar.clocks = make([]uint32, len(b.warps))
	}
	for i, c := range w.clocks {
		bar.clocks[i] = max(bar.clocks[i], c)
	}
	if o.vote >= 0 {
		yes := w.predicate(o.vote, o.not)
		bar.votes += uint32(bits.OnesCount32(yes))
		bar.zeros += uint32(bits.OnesCount32(w.mask &^ yes))
	}
	w.waitPC = w.pc
	w.at++
	if o.arrive {
		w.clocks[w.id]++
		return true
	}
	w.waits, w.pending = int(id), o
	bar.waiting = append(bar.waiting, w)
	return false
}

// release lets the warps of complete barriers continue; false if there are none.
func (b *block) release() bool {
	released := false
	for i := range b.barriers {
		bar := &b.barriers[i]
		if bar.threads == 0 || bar.threads < bar.expects {
			continue
		}
		released = true
		for _, w := range bar.waiting {
			copy(w.clocks, bar.clocks)
			w.clocks[w.id]++
			w.waits = -1
			if w.pending.result != nil {
				w.pending.result(w, bar.votes, bar.zeros)
			}
		}
		clear(bar.clocks)
		*bar = barrier{clocks: bar.clocks, waiting: bar.waiting[:0]}
	}
	return released
}

// deadlock faults: no warp can run.
func (b *block) deadlock() {
	for _, w := range b.warps {
		if w.mask == 0 || w.waits < 0 {
			continue
		}
		w.pc = w.waitPC
		bar := b.barriers[w.waits]
		exited, elsewhere := 0, 0
		for _, o := range b.warps {
			switch {
			case o.mask == 0:
				exited++
			case o.waits != w.waits:
				elsewhere++
			}
		}
		w.fault(bits.TrailingZeros32(w.mask), Deadlock,
			"barrier %d waits for %d threads, %d have come; of the other warps %d have exited, %d wait elsewhere",
			w.waits,
			bar.expects, bar.threads, exited, elsewhere)
	}
}

// shuffle is a decoded shfl.sync.
type shuffle struct {
	mode    string // up, down, bfly, idx
	dst     int
	ok      int // predicate; -1 if absent
	a, b, c int
}

func (o *shuffle) do(w *warp) {
	w.need32(o.b)
	w.need32(o.c)
	src := w.r32[o.a]
	from, out := w.d32[o.a], uint32(0)
	valid := uint32(0)
	var got [warpSize]uint32
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		b, c := int(w.r32[o.b][lane]&31), int(w.r32[o.c][lane])
		clamp, segment := c&31, c>>8&31
		limit := lane&segment | clamp&^segment
		low := lane & segment
		j, in := 0, false
		switch o.mode {
		case "up":
			j = lane - b
			in = j >= limit
		case "down":
			j = lane + b
			in = j <= limit
		case "bfly":
			j = lane ^ b
			in = j <= limit
		default:
			j = low | b&^segment
			in = j <= limit
		}
		if in {
			valid |= 1 << lane
		} else {
			j = lane
		}
		j &= 31
		got[lane] = src[j]
		if from>>j&1 == 1 && (w.mask>>j&1 == 1 || j == lane) {
			out |= 1 << lane
		}
	}
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		w.r32[o.dst][lane] = got[lane]
	}
	w.d32[o.dst] = w.d32[o.dst]&^w.mask | out
	if o.ok >= 0 {
		w.setP(o.ok, valid)
	}
}
