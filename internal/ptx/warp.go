// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math"
	"math/bits"
)

const (
	warpSize = 32
	fullMask = 0xffffffff

	// sharedWindow and others are where the spaces of a block lie in generic addresses.
	sharedWindow = 1 << 62
	localWindow  = 1<<62 | 1<<60
	paramWindow  = 1<<62 | 1<<61

	// quantum is how many stretches of code a warp runs before the others of its block get a turn, for code that waits
	// for another warp without a barrier.
	quantum = 1 << 16

	noStretch = math.MaxInt32
)

// exec does one instruction for the lanes of w.mask.
type exec func(w *warp)

// compare gives a bit for each lane.
type compare func(w *warp) uint32

// laneOp is an instruction that works on each lane alone. classes are those of the destination and the sources.
type laneOp struct {
	classes string
	build   func(d, a, b, c, e int) exec
}

type compareOp struct {
	classes string
	build   func(a, b int) compare
}

// stretch is a piece of code that is entered only at its first instruction.
type stretch struct {
	first int // instruction
	code  []exec
	end   ending
	guard int // predicate register of a conditional ending; -1 if there is none
	not   bool
	to    int32   // stretch that a branch leads to
	table []int32 // of brx
	index int     // register of brx
	sync  syncFunc
	meets *meetOp
}

// ending says what follows a stretch.
type ending uint8

const (
	fall    ending = iota // the next stretch
	branch                // to, if guard
	brx                   // table[index]
	exit                  // the lanes end, if guard
	meet                  // a barrier of the block
	warpOp                // an instruction that lanes do together: sync
	endless               // never: a mistake in the decoder
)

// group is a set of lanes that is elsewhere.
type group struct {
	at      int32 // stretch
	mask    uint32
	waiting bool // for other lanes of a warp-wide instruction
}

// warp is the state of 32 threads.
type warp struct {
	mask uint32 // lanes that execute now
	pc   int    // index of the instruction, for faults
	r32  [][warpSize]uint32
	r64  [][warpSize]uint64
	p    []uint32 // predicates: a bit for each lane
	d32  []uint32 // which lanes are defined
	d64  []uint32
	dp   []uint32
	near *allocation // the last one that was accessed

	alive   uint32 // lanes that have not exited
	members uint32 // lanes that exist
	at      int32  // stretch
	least   int32  // the first stretch where a group that is not waiting stands
	groups  []group
	cc, dcc uint32 // the carry flag

	block    *block
	id       int
	local    []byte // of each lane one after the other
	shadow   []byte
	clocks   []uint32 // of the warps of the block, as far as this one has met them
	copies   []asyncCopy
	commits  [warpSize]int32
	executed int64 // threads' instructions not yet reported to the block
	waits    int   // barrier number; -1 if the warp can run
	waitPC   int   // of the barrier
	pending  *meetOp
}

// fault ends the launch.
func (w *warp) fault(lane int, kind Kind, format string, args ...any) {
	panic(w.newFault(lane, kind, format, args...))
}

func (w *warp) newFault(lane int, kind Kind, format string, args ...any) *Fault {
	k := w.block.kernel
	f := &Fault{Kernel: k.name, Kind: kind, Msg: fmt.Sprintf(format, args...), Block: w.block.index}
	if w.pc < len(k.code) {
		f.Line, f.Text = k.code[w.pc].line, k.code[w.pc].text
	}
	t := uint32(w.id*warpSize + lane)
	d := w.block.launch.Block
	f.Thread = [3]uint32{t % d[0], t / d[0] % d[1], t / d[0] / d[1]}
	return f
}

// undefined reports which of the registers (with their classes) is not defined.
func (w *warp) undefined(classes string, regs ...int) {
	for i, r := range regs {
		defined := w.d32
		switch classes[i] {
		case 'D':
			defined = w.d64
		case 'P':
			defined = w.dp
		}
		if missing := w.mask &^ defined[r]; missing != 0 {
			w.fault(bits.TrailingZeros32(missing), UndefinedRegister, "%s is read before it is written",
				w.block.kernel.registerName(classes[i], r))
		}
	}
}

// need32 checks that a register is defined in all lanes that execute.
func (w *warp) need32(r int) {
	if w.d32[r]&w.mask != w.mask {
		w.undefined("R", r)
	}
}

func (w *warp) need64(r int) {
	if w.d64[r]&w.mask != w.mask {
		w.undefined("D", r)
	}
}

func (w *warp) needP(r int) {
	if w.dp[r]&w.mask != w.mask {
		w.undefined("P", r)
	}
}

// predicate is the value of a predicate in the lanes that execute.
func (w *warp) predicate(r int, not bool) uint32 {
	w.needP(r)
	if not {
		return w.mask &^ w.p[r]
	}
	return w.mask & w.p[r]
}

func (w *warp) setP(r int, v uint32) {
	w.p[r] = w.p[r]&^w.mask | v&w.mask
	w.dp[r] |= w.mask
}

// run executes until all lanes have exited or the warp must wait.
func (w *warp) run() {
	k := w.block.kernel
	for turns := 0; w.mask != 0; turns++ {
		s := &k.stretches[w.at]
		w.executed += int64(bits.OnesCount32(w.mask) * len(s.code))
		if turns&63 == 63 {
			w.report()
			if turns >= quantum {
				return
			}
		}
		for i, do := range s.code {
			w.pc = s.first + i
			do(w)
		}
		if s.end == fall {
			w.at++
		} else if w.pc = s.first + len(s.code); !w.finish(s) {
			w.report()
			return
		}
		if w.at >= w.least {
			w.choose()
		}
	}
	w.report()
}

// report adds the instructions to the block's count.
func (w *warp) report() {
	n := w.executed
	w.executed = 0
	w.block.count(w, n)
}

// finish does the last instruction of a stretch; false if the warp must wait.
func (w *warp) finish(s *stretch) bool {
	w.executed += int64(bits.OnesCount32(w.mask))
	switch s.end {
	case branch:
		taken := w.mask
		if s.guard >= 0 {
			taken = w.predicate(s.guard, s.not)
		}
		w.split(taken, s.to)
	case brx:
		w.branchTable(s)
	case exit:
		gone := w.mask
		if s.guard >= 0 {
			gone = w.predicate(s.guard, s.not)
		}
		w.alive &^= gone
		w.mask &^= gone
		w.at++
		if w.mask == 0 {
			w.leave()
		}
	case meet:
		return w.meet(s)
	case warpOp:
		w.together(s)
	default:
		w.fault(0, Trap, "internal error: ending %d", s.end)
	}
	return true
}

// split sends the lanes of taken to another stretch, the others to the next.
func (w *warp) split(taken uint32, to int32) {
	other := w.mask &^ taken
	switch {
	case other == 0:
		w.at = to
	case taken == 0:
		w.at++
	case to <= w.at:
		w.push(other, w.at+1, false)
		w.mask, w.at = taken, to
	default:
		w.push(taken, to, false)
		w.mask = other
		w.at++
	}
}

func (w *warp) branchTable(s *stretch) {
	w.need32(s.index)
	m := w.mask
	for m != 0 {
		lane := bits.TrailingZeros32(m)
		v := w.r32[s.index][lane]
		if int(v) >= len(s.table) {
			w.fault(lane, OutOfBounds, "entry %d of a branch table of %d", v, len(s.table))
		}
		same := uint32(0)
		for l := m; l != 0; l &= l - 1 {
			if i := bits.TrailingZeros32(l); w.r32[s.index][i] == v {
				same |= 1 << i
			}
		}
		m &^= same
		w.push(same, s.table[v], false)
	}
	w.leave()
}

// push adds a group, or joins lanes to the one that stands at the same place.
func (w *warp) push(mask uint32, at int32, waiting bool) {
	if !waiting {
		w.least = min(w.least, at)
	}
	for i := range w.groups {
		g := &w.groups[i]
		if g.at == at {
			g.mask |= mask
			g.waiting = g.waiting && waiting
			return
		}
	}
	w.groups = append(w.groups, group{at, mask, waiting})
}

// choose puts the running lanes among the groups and takes the group that stands first, so that those who are behind
// catch up.
func (w *warp) choose() {
	w.push(w.mask, w.at, false)
	w.leave()
}

// leave takes the next group, after the running lanes have been put away or have exited.
func (w *warp) leave() {
	w.mask = 0
	best := -1
	for i := range w.groups {
		if g := &w.groups[i]; !g.waiting && (best < 0 || g.at < w.groups[best].at) {
			best = i
		}
	}
	if best < 0 && len(w.groups) > 0 {
		best = w.wake()
	}
	w.least = noStretch
	if best < 0 {
		return
	}
	w.mask, w.at = w.groups[best].mask, w.groups[best].at
	last := len(w.groups) - 1
	w.groups[best] = w.groups[last]
	w.groups = w.groups[:last]
	for i := range w.groups {
		if !w.groups[i].waiting {
			w.least = min(w.least, w.groups[i].at)
		}
	}
}

// wake chooses among groups that all wait for lanes: one that waits for lanes that have exited meanwhile can continue.
func (w *warp) wake() int {
	for i := range w.groups {
		g := &w.groups[i]
		s := &w.block.kernel.stretches[g.at]
		w.mask = g.mask
		w.pc = s.first + len(s.code)
		ready := s.end == meet && g.mask == w.alive || s.end == warpOp && w.ready(s) != 0
		w.mask = 0
		if ready {
			g.waiting = false
			return i
		}
	}
	g := w.groups[0]
	s := &w.block.kernel.stretches[g.at]
	w.pc = s.first + len(s.code)
	w.fault(bits.TrailingZeros32(g.mask), Deadlock,
		"lanes %#x of the warp wait here for others, which wait elsewhere (%d groups)", g.mask, len(w.groups))
	return -1
}
