// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"os"
	"slices"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/hostmemory"
)

// arena gives out blocks of whole pages, cut from address space that it reserves, and puts free neighbours together
// again: so what tensors of one size gave back serves those of another, activations' memory their gradients. A block is
// one of the same size that was freed a moment ago, or is taken from the smallest free extent that holds it; new memory
// is only touched if there is none. It is not safe for concurrent use.
type arena struct {
	page     int
	segments []*segment
	idle     [numClasses]*extent // free extents with memory behind them, by the largest size class that they hold
	hollow   *extent             // free extents without
	recent   []*extent           // freed last, in that order; not put together with neighbours yet
	spare    *extent             // heads for later use

	recentBytes int
	idleBytes   int64 // in idle and recent extents
	taken       int64 // in those and used ones: what the system has given
	most        int64 // the most that was used at once
}

// Idle memory in pieces that are too small goes back when new memory is taken, down to slackBytes beyond the most that
// was used at once, or one part in slackShare of it if that is more.
//
// The system needs time to put pages back, which shows where steps are short: while less than smallBytes are used,
// smallSlack stays, or one part in smallShare of what is used if that is less. With it a step of ResNet-18 gives back
// nothing that the next one takes again; with slackBytes it is 22 MB, for 4 % of its time.
const (
	slackBytes = 4 << 20
	slackShare = 256
	smallBytes = 512 << 20
	smallSlack = 16 << 20
	smallShare = 8
)

// recentBytes of what was freed last may still be in a processor's caches.
const recentBytes = 8 << 20

// segment is a range of address space.
type segment struct {
	mem       []byte
	committed int     // bytes from the start on that may be touched
	used      int     // bytes that are given out
	first     *extent // the lowest
}

// extent is a part of a segment.
type extent struct {
	seg          *segment
	at, size     int // in bytes; at counts from the segment's start
	state        state
	below, above *extent // neighbours in the segment
	prev, next   *extent // in the list of its state; next among spare ones
}

// state is what an extent is for.
type state uint8

const (
	used   state = iota // given out
	recent              // freed a moment ago
	idle                // free, with memory behind it
	hollow              // free, without
)

func (e *extent) bytes() []byte           { return e.seg.mem[e.at : e.at+e.size : e.at+e.size] }
func (e *extent) pointer() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(e.bytes())) }

// alloc gives out n bytes, rounded up to pages: from idle memory, or from the system, to which what lies idle in too
// small pieces then goes back.
func (a *arena) alloc(n int) (*extent, error) {
	if a.page == 0 {
		a.page = os.Getpagesize()
	}
	n = roundUp(n, a.page)
	if e := a.reuse(n); e != nil {
		return e, nil
	}
	e := a.fitting(n)
	if e == nil && len(a.recent) > 0 {
		a.forget(0)
		e = a.fitting(n)
	}
	if e != nil {
		return a.claim(e, n), nil
	}
	var err error
	if e, err = a.grow(n); err != nil {
		a.trim(0)
		if e, err = a.grow(n); err != nil {
			return nil, err
		}
	}
	e = a.claim(e, n)
	if over := a.taken - a.most - a.slack(); over > 0 {
		a.trim(a.idleBytes - over)
	}
	return e, nil
}

// slack is how much idle memory may stay beside the most that was used at once.
func (a *arena) slack() int64 {
	least := max(a.most/slackShare, slackBytes)
	if a.most < smallBytes {
		return max(least, min(a.most/smallShare, smallSlack))
	}
	return least
}

// binOf is the largest size class that n bytes hold.
func binOf(n int) int {
	class, size := classOf(n)
	if size > n {
		class--
	}
	return class
}

// fitting is the smallest idle extent of at least n bytes, of equal ones the lowest in its segment; nil if there is
// none.
func (a *arena) fitting(n int) *extent {
	for k := binOf(n); k < numClasses; k++ {
		var best *extent
		for e := a.idle[k]; e != nil; e = e.next {
			if e.size >= n && (best == nil || e.size < best.size || e.size == best.size && e.at < best.at) {
				best = e
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// grow finds free extents that are neighbours and hold n bytes together, with as little new memory as possible and in
// the smallest place, and returns the lowest. All of it may be touched.
func (a *arena) grow(n int) (*extent, error) {
	var best *extent
	var least, place int
	for h := a.hollow; h != nil; h = h.next {
		first, have, fresh := h, h.size, n
		if b := h.below; b != nil && b.state == idle {
			first, have, fresh = b, have+b.size, n-b.size
		}
		fresh = min(fresh, h.size)
		if up := h.above; up != nil && up.state == idle {
			have += up.size
		}
		if have >= n && (best == nil || fresh < least || fresh == least && have < place) {
			best, least, place = first, fresh, have
		}
	}
	if best == nil {
		var err error
		if best, err = a.reserve(n); err != nil {
			return nil, err
		}
	}
	return best, best.seg.commit(best.at + n)
}

// reserve makes a segment that holds n bytes.
func (a *arena) reserve(n int) (*extent, error) {
	mem, err := generously(reserveMemory, roundUp(n, hostmemory.HugePage))
	if err != nil {
		return nil, err
	}
	s := &segment{mem: mem}
	a.segments = append(a.segments, s)
	s.first = a.head(extent{seg: s, size: len(mem), state: hollow})
	a.list(s.first)
	return s.first, nil
}

// generously reserves more than n bytes, so that there will be few segments, but less where address space is limited.
func generously(reserve func(n int) ([]byte, error), n int) (mem []byte, err error) {
	for _, much := range []int{segmentBytes, segmentBytes >> 8, 0} {
		if mem, err = reserve(max(n, much)); err == nil {
			return mem, nil
		}
	}
	return nil, err
}

// commit makes the bytes below end usable.
func (s *segment) commit(end int) error {
	if end <= s.committed {
		return nil
	}
	end = min(roundUp(end, hostmemory.HugePage), len(s.mem))
	if err := commitMemory(s.mem[s.committed:end]); err != nil {
		return err
	}
	s.committed = end
	return nil
}

// claim gives out the n bytes from the start of e on, which is free, as its neighbours above are as far as needed.
func (a *arena) claim(e *extent, n int) *extent {
	a.cut(e, n)
	for e.size < n {
		up := e.above
		a.cut(up, n-e.size)
		e.absorb(up)
		a.discardHead(up)
	}
	a.give(e)
	return e
}

// give marks e, which is on no list, as used.
func (a *arena) give(e *extent) {
	e.state = used
	e.seg.used += e.size
	a.most = max(a.most, a.taken-a.idleBytes)
}

// cut takes the free extent e off its list, to be given out, and leaves what it has beyond n bytes on it.
func (a *arena) cut(e *extent, n int) {
	a.unlist(e)
	if e.size > n {
		rest := a.head(extent{seg: e.seg, at: e.at + n, size: e.size - n, state: e.state, below: e, above: e.above})
		if rest.above != nil {
			rest.above.below = rest
		}
		e.size, e.above = n, rest
		a.list(rest)
	}
	if e.state == hollow {
		a.taken += int64(e.size)
	}
}

// absorb puts the neighbour above into e.
func (e *extent) absorb(up *extent) {
	e.size += up.size
	if e.above = up.above; e.above != nil {
		e.above.below = e
	}
}

// free takes an extent back.
func (a *arena) free(e *extent) {
	e.seg.used -= e.size
	e.state = recent
	a.recent = append(a.recent, e)
	a.recentBytes += e.size
	a.idleBytes += int64(e.size)
	a.forget(recentBytes)
}

// reuse gives out the extent of n bytes that was freed last, if it is a recent one: a cache may hold it, and each
// worker's part of it.
func (a *arena) reuse(n int) *extent {
	for i := len(a.recent) - 1; i >= 0; i-- {
		if e := a.recent[i]; e.size == n {
			a.recent = slices.Delete(a.recent, i, i+1)
			a.recentBytes -= n
			a.idleBytes -= int64(n)
			a.give(e)
			return e
		}
	}
	return nil
}

// forget makes recent extents idle ones, the oldest first, until at most keep bytes of them are left.
func (a *arena) forget(keep int) {
	n := 0
	for a.recentBytes > keep {
		e := a.recent[n]
		n++
		a.recentBytes -= e.size
		a.idleBytes -= int64(e.size)
		a.settle(e, idle)
	}
	a.recent = slices.Delete(a.recent, 0, n)
}

// settle makes e, which is on no list, free in one way or the other, and puts it together with neighbours that are free
// in the same way.
func (a *arena) settle(e *extent, to state) {
	e.state = to
	if up := e.above; up != nil && up.state == to {
		a.unlist(up)
		e.absorb(up)
		a.discardHead(up)
	}
	if b := e.below; b != nil && b.state == to {
		a.unlist(b)
		b.absorb(e)
		a.discardHead(e)
		e = b
	}
	a.list(e)
}

// trim gives memory back to the system until at most keep bytes are idle: segments that nobody uses, then the largest
// extents.
func (a *arena) trim(keep int64) {
	if a.idleBytes > keep {
		a.forget(0)
	}
	for i := len(a.segments) - 1; i >= 0 && a.idleBytes > keep; i-- {
		if a.segments[i].used == 0 {
			a.drop(i)
		}
	}
	for k := numClasses - 1; k >= 0; k-- {
		for a.idle[k] != nil && a.idleBytes > keep {
			e := a.idle[k]
			if !discardMemory(e.bytes()) {
				return
			}
			a.unlist(e)
			a.taken -= int64(e.size)
			a.settle(e, hollow)
		}
	}
}

// drop gives a segment back, all of which is free.
func (a *arena) drop(i int) {
	s := a.segments[i]
	for e := s.first; e != nil; {
		up := e.above
		a.unlist(e)
		if e.state == idle {
			a.taken -= int64(e.size)
		}
		a.discardHead(e)
		e = up
	}
	unmapMemory(s.mem)
	a.segments = append(a.segments[:i], a.segments[i+1:]...)
}

// close gives everything back.
func (a *arena) close() {
	for _, s := range a.segments {
		unmapMemory(s.mem)
	}
	*a = arena{page: a.page}
}

// lists is where extents of e's state and size are listed.
func (a *arena) lists(e *extent) **extent {
	if e.state == hollow {
		return &a.hollow
	}
	return &a.idle[binOf(e.size)]
}

func (a *arena) list(e *extent) {
	l := a.lists(e)
	if e.prev, e.next = nil, *l; e.next != nil {
		e.next.prev = e
	}
	*l = e
	if e.state == idle {
		a.idleBytes += int64(e.size)
	}
}

func (a *arena) unlist(e *extent) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		*a.lists(e) = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	if e.state == idle {
		a.idleBytes -= int64(e.size)
	}
}

// head makes an extent; a steady training loop makes no garbage.
func (a *arena) head(v extent) *extent {
	e := a.spare
	if e == nil {
		e = new(extent)
	} else {
		a.spare = e.next
	}
	*e = v
	return e
}

// discardHead keeps an extent that is no more for head.
func (a *arena) discardHead(e *extent) {
	*e = extent{next: a.spare}
	a.spare = e
}
