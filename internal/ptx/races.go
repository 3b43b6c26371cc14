// SPDX-License-Identifier: Apache-2.0

package ptx

import "math/bits"

// access says who accessed a piece of shared memory last. Clocks are those of warps: a warp's own counts its barriers,
// and at a barrier warps learn each other's.
type access struct {
	wrote   uint32 // the writer's clock; 0 if nobody wrote
	read    uint32 // the readers' clock
	readers uint32 // warps that read at that clock
	writer  uint8
	atomic  bool
}

// accesses finds warps that access the same shared memory without a barrier between. It remembers words of four bytes
// and, where somebody accesses parts of a word, bytes.
type accesses struct {
	words []access
	split []bool
	bytes []access
	dirty bool
}

func newAccesses(size int) *accesses {
	n := (size + 3) / 4
	return &accesses{words: make([]access, n), split: make([]bool, n)}
}

func (t *accesses) reset() {
	if t.dirty {
		clear(t.words)
		clear(t.split)
		t.dirty = false
	}
}

// kindOf an access.
type accessKind uint8

const (
	readAccess accessKind = iota
	writeAccess
	atomicAccess
)

// note remembers an access of n bytes and faults if it races with an earlier one.
func (t *accesses) note(w *warp, lane int, offset, n uint64, kind accessKind) {
	t.dirty = true
	for at := offset; at < offset+n; {
		word := at / 4
		if at&3 == 0 && offset+n-at >= 4 && !t.split[word] {
			if a := &t.words[word]; kind == readAccess && (a.wrote == 0 || int(a.writer) == w.id) {
				a.remember(w) // the usual case
			} else {
				a.note(w, lane, at, kind)
			}
			at += 4
			continue
		}
		if !t.split[word] {
			t.divide(word)
		}
		t.bytes[at].note(w, lane, at, kind)
		at++
	}
}

func (t *accesses) divide(word uint64) {
	if t.bytes == nil {
		t.bytes = make([]access, 4*len(t.words))
	}
	for i := range uint64(4) {
		t.bytes[4*word+i] = t.words[word]
	}
	t.split[word] = true
}

func (a *access) note(w *warp, lane int, at uint64, kind accessKind) {
	me := w.clocks[w.id]
	if a.wrote != 0 && int(a.writer) != w.id && a.wrote > w.clocks[a.writer] && (kind != atomicAccess || !a.atomic) {
		w.fault(lane, SharedRace, "byte %d of shared memory: warp %d wrote it, and no barrier lies between", at,
			a.writer)
	}
	if kind == readAccess {
		a.remember(w)
		return
	}
	for others := a.readers &^ (1 << w.id); others != 0; others &= others - 1 {
		if r := bits.TrailingZeros32(others); a.read > w.clocks[r] {
			w.fault(lane, SharedRace, "byte %d of shared memory: warp %d read it, and no barrier lies between", at, r)
		}
	}
	a.wrote, a.writer, a.atomic, a.readers = me, uint8(w.id), kind == atomicAccess, 0
}

// remember notes a reader. One that is behind others, which only barriers of a part of the block make possible, is not
// noted: its race may be missed, but none is invented.
func (a *access) remember(w *warp) {
	me := w.clocks[w.id]
	if a.read < me {
		a.read, a.readers = me, 0
	}
	if a.read == me {
		a.readers |= 1 << w.id
	}
}

// globalAccesses finds blocks of a launch that access the same bytes of global memory. It belongs to one goroutine.
type globalAccesses struct {
	of   map[*allocation][]globalAccess
	last *allocation
	list []globalAccess
}

// globalAccess is of one byte; blocks are counted from 1.
type globalAccess struct {
	writer, reader uint32
	atomic         bool
}

// manyReaders stands for more than one block.
const manyReaders = 1<<32 - 1

func (t *globalAccesses) note(w *warp, lane int, a *allocation, offset, n uint64, kind accessKind) {
	if t.last != a {
		list := t.of[a]
		if list == nil {
			list = make([]globalAccess, a.size)
			t.of[a] = list
		}
		t.last, t.list = a, list
	}
	me := w.block.linear + 1
	for i := range n {
		g := &t.list[offset+i]
		if g.writer != 0 && g.writer != me && (kind != atomicAccess || !g.atomic) {
			w.fault(lane, GlobalRace, "byte %d of %v: block %d wrote it in the same launch", offset+i, a, g.writer-1)
		}
		if kind == readAccess {
			if g.reader == 0 {
				g.reader = me
			} else if g.reader != me {
				g.reader = manyReaders
			}
			continue
		}
		if g.reader != 0 && g.reader != me {
			other := "another block"
			w.fault(lane, GlobalRace, "byte %d of %v: %s read it in the same launch", offset+i, a, other)
		}
		g.writer, g.atomic = me, kind == atomicAccess
	}
}
