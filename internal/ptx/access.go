// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"encoding/binary"
	"math/bits"
)

// space is a state space of PTX.
type space uint8

const (
	spaceGeneric space = iota
	spaceGlobal
	spaceShared
	spaceLocal // and parameters of device functions
	spaceConst
	spaceParam // of the kernel
)

var spaceNames = map[string]space{"global": spaceGlobal, "shared": spaceShared, "shared::cta": spaceShared,
	"local": spaceLocal, "const": spaceConst, "param": spaceParam, "param::entry": spaceParam}

// nothing is the allocation that holds no address.
var nothing = &allocation{base: 1 << 63}

var le = binary.LittleEndian

// aligned faults if addr is no multiple of n, a power of two.
func (w *warp) aligned(lane int, addr, n uint64) {
	if addr&(n-1) != 0 {
		w.fault(lane, Misaligned, "address %#x is no multiple of %d", addr, n)
	}
}

// global finds n bytes of global memory for a lane.
func (w *warp) global(lane int, addr, n uint64, kind accessKind) (data, shadow []byte) {
	a := w.near
	off := addr - a.base
	if off >= a.size || n > a.size-off || addr&(n-1) != 0 {
		a = w.findGlobal(lane, addr, n, kind)
		off = addr - a.base
	}
	if kind != readAccess && a.readonly {
		w.fault(lane, ReadOnly, "a write to %v", a)
	}
	if t := w.block.run.races; t != nil {
		t.note(w, lane, a, off, n, kind)
	}
	return a.data[off : off+n : off+n], a.shadow[off : off+n : off+n]
}

func (w *warp) findGlobal(lane int, addr, n uint64, kind accessKind) *allocation {
	what := [...]string{"read", "write", "atomic"}[kind]
	a := w.block.mem.find(addr)
	switch {
	case a == nil:
		w.fault(lane, OutOfBounds, "%s of %d bytes at %#x: nothing is allocated there", what, n, addr)
	case a.freed.Load():
		w.fault(lane, UseAfterFree, "%s of %d bytes at %#x: %v was freed", what, n, addr, a)
	}
	off := addr - a.base
	if off > a.size || n > a.size-off {
		w.fault(lane, OutOfBounds, "%s of %d bytes: byte %d of %v", what, n, off, a)
	}
	w.aligned(lane, addr, n)
	w.near = a
	return a
}

// sharedAt finds n bytes of the block's shared memory.
func (w *warp) sharedAt(lane int, addr, n uint64, kind accessKind) (data, shadow []byte) {
	b := w.block
	if addr >= uint64(len(b.shared)) || n > uint64(len(b.shared))-addr {
		w.fault(lane, OutOfBounds, "byte %d of %d bytes of shared memory", int64(addr), len(b.shared))
	}
	w.aligned(lane, addr, n)
	if b.defined[addr] == gapByte || b.defined[addr+n-1] == gapByte {
		w.fault(lane, OutOfBounds, "beyond a variable of shared memory: %s", b.kernel.sharedPlace(addr))
	}
	b.accesses.note(w, lane, addr, n, kind)
	return b.shared[addr : addr+n : addr+n], b.defined[addr : addr+n : addr+n]
}

// localAt finds n bytes of a lane's local memory.
func (w *warp) localAt(lane int, addr, n uint64) (data, shadow []byte) {
	size := uint64(w.block.kernel.localBytes)
	if addr >= size || n > size-addr {
		w.fault(lane, OutOfBounds, "byte %d of %d bytes of local memory", int64(addr), size)
	}
	w.aligned(lane, addr, n)
	at := uint64(lane)*size + addr
	if w.block.kernel.localGap[addr] || w.block.kernel.localGap[addr+n-1] {
		w.fault(lane, OutOfBounds, "beyond a variable of local memory (byte %d of %d)", addr, size)
	}
	return w.local[at : at+n : at+n], w.shadow[at : at+n : at+n]
}

// allDefined is the shadow of parameters.
var allDefined = [16]byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}

func (w *warp) paramAt(lane int, addr, n uint64, kind accessKind) (data, shadow []byte) {
	p := w.block.params
	if addr >= uint64(len(p)) || n > uint64(len(p))-addr {
		w.fault(lane, OutOfBounds, "byte %d of %d bytes of parameters", int64(addr), len(p))
	}
	w.aligned(lane, addr, n)
	if kind != readAccess {
		w.fault(lane, ReadOnly, "a write to the kernel's parameters")
	}
	return p[addr : addr+n : addr+n], allDefined[:n]
}

// bytesAt finds n bytes of a space for a lane.
func (w *warp) bytesAt(s space, lane int, addr, n uint64, kind accessKind) (data, shadow []byte) {
	switch s {
	case spaceGlobal, spaceConst:
		return w.global(lane, addr, n, kind)
	case spaceShared:
		return w.sharedAt(lane, addr, n, kind)
	case spaceLocal:
		return w.localAt(lane, addr, n)
	case spaceParam:
		return w.paramAt(lane, addr, n, kind)
	}
	if addr < sharedWindow {
		return w.global(lane, addr, n, kind)
	}
	switch off := addr & (1<<60 - 1); {
	case addr >= paramWindow:
		return w.paramAt(lane, off, n, kind)
	case addr >= localWindow:
		return w.localAt(lane, off, n)
	default:
		return w.sharedAt(lane, off, n, kind)
	}
}

// mustBeDefined faults if a byte may not be read.
func (w *warp) mustBeDefined(lane int, shadow []byte, addr uint64) {
	for i, s := range shadow {
		switch s {
		case undefinedByte:
			w.fault(lane, UndefinedMemory, "byte %d of %d at %#x has not been written", i, len(shadow), addr)
		case inFlightByte:
			w.fault(lane, UndefinedMemory, "byte %d of %d at %#x: a cp.async to it has not been waited for", i,
				len(shadow),
				addr)
		}
	}
}

// addresses are the values of an address register, narrow or wide, plus an offset.
func (w *warp) addresses(base int, wide bool, offset uint64, out *[warpSize]uint64) {
	if wide {
		w.need64(base)
		for i, v := range &w.r64[base] {
			out[i] = v + offset
		}
		return
	}
	w.need32(base)
	for i, v := range &w.r32[base] {
		out[i] = uint64(v + uint32(offset))
	}
}

// memoryOp is a decoded ld or st.
type memoryOp struct {
	space  space
	base   int
	wide   bool // of base
	offset uint64
	size   int // bytes of an element
	regs   []int
	class  byte // of regs
	extend func(uint64) uint64
	place  int // in the parameters, if it is known
}

func (o *memoryOp) load(w *warp) {
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	n := uint64(o.size * len(o.regs))
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		data, shadow := w.bytesAt(o.space, lane, at[lane], n, readAccess)
		for i, r := range o.regs {
			v := w.element(o, lane, data[i*o.size:], shadow[i*o.size:], at[lane])
			if o.extend != nil {
				v = o.extend(v)
			}
			if o.class == 'D' {
				w.r64[r][lane] = v
			} else {
				w.r32[r][lane] = uint32(v)
			}
		}
	}
	w.define(o.class, o.regs)
}

func (w *warp) define(class byte, regs []int) {
	for _, r := range regs {
		if class == 'D' {
			w.d64[r] |= w.mask
		} else {
			w.d32[r] |= w.mask
		}
	}
}

// element reads one element.
func (w *warp) element(o *memoryOp, lane int, data, shadow []byte, addr uint64) uint64 {
	switch o.size {
	case 4:
		if le.Uint32(shadow) != defined4 {
			w.mustBeDefined(lane, shadow[:4], addr)
		}
		return uint64(le.Uint32(data))
	case 8:
		if le.Uint64(shadow) != defined8 {
			w.mustBeDefined(lane, shadow[:8], addr)
		}
		return le.Uint64(data)
	case 2:
		w.mustBeDefined(lane, shadow[:2], addr)
		return uint64(le.Uint16(data))
	}
	w.mustBeDefined(lane, shadow[:1], addr)
	return uint64(data[0])
}

// loadGlobal32 is load for one word of global memory.
func (o *memoryOp) loadGlobal32(w *warp) {
	if w.block.run.races != nil {
		o.load(w)
		return
	}
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	out := &w.r32[o.regs[0]]
	a := w.near
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		addr := at[lane]
		off := addr - a.base
		if off+4 > a.size || addr&3 != 0 || off >= a.size {
			a = w.findGlobal(lane, addr, 4, readAccess)
			off = addr - a.base
		}
		if le.Uint32(a.shadow[off:]) != defined4 {
			w.mustBeDefined(lane, a.shadow[off:off+4], addr)
		}
		out[lane] = le.Uint32(a.data[off:])
	}
	w.d32[o.regs[0]] |= w.mask
}

// loadParam is load at one place for all lanes.
func (o *memoryOp) loadParam(w *warp) {
	at := o.place
	p := w.block.params
	n := o.size * len(o.regs)
	if at < 0 || at+n > len(p) || at%n != 0 {
		o.load(w) // finds the fault
		return
	}
	for i, r := range o.regs {
		var v uint64
		switch b := p[at+i*o.size:]; o.size {
		case 8:
			v = le.Uint64(b)
		case 4:
			v = uint64(le.Uint32(b))
		case 2:
			v = uint64(le.Uint16(b))
		default:
			v = uint64(b[0])
		}
		if o.extend != nil {
			v = o.extend(v)
		}
		switch {
		case o.class == 'D' && w.mask == fullMask:
			set64(w, r, v)
		case w.mask == fullMask:
			set32(w, r, uint32(v))
		default:
			for l := w.mask; l != 0; l &= l - 1 {
				if lane := bits.TrailingZeros32(l) & 31; o.class == 'D' {
					w.r64[r][lane] = v
				} else {
					w.r32[r][lane] = uint32(v)
				}
			}
		}
	}
	w.define(o.class, o.regs)
}

// loadShared32 is load for one word of shared memory.
func (o *memoryOp) loadShared32(w *warp) {
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	b := w.block
	out := &w.r32[o.regs[0]]
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		addr := at[lane]
		if addr&3 != 0 || addr+4 > uint64(len(b.shared)) || addr >= uint64(len(b.shared)) ||
			le.Uint32(b.defined[addr:]) != defined4 {
			_, shadow := w.sharedAt(lane, addr, 4, readAccess)
			w.mustBeDefined(lane, shadow, addr)
		}
		if word := addr / 4; b.accesses.split[word] {
			b.accesses.note(w, lane, addr, 4, readAccess)
		} else if a := &b.accesses.words[word]; a.wrote != 0 && int(a.writer) == w.id || a.wrote == 0 {
			a.remember(w)
		} else {
			a.note(w, lane, addr, readAccess)
		}
		out[lane] = le.Uint32(b.shared[addr:])
	}
	b.accesses.dirty = true
	w.d32[o.regs[0]] |= w.mask
}

// storeGlobal32 is store for one word of global memory.
func (o *memoryOp) storeGlobal32(w *warp) {
	if w.block.run.races != nil {
		o.store(w)
		return
	}
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	w.need32(o.regs[0])
	in := &w.r32[o.regs[0]]
	a := w.near
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		addr := at[lane]
		off := addr - a.base
		if off+4 > a.size || addr&3 != 0 || off >= a.size || a.readonly {
			w.global(lane, addr, 4, writeAccess)
			a = w.near
			off = addr - a.base
		}
		le.PutUint32(a.data[off:], in[lane])
		le.PutUint32(a.shadow[off:], defined4)
	}
}

func (o *memoryOp) store(w *warp) {
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	for _, r := range o.regs {
		if o.class == 'D' {
			w.need64(r)
		} else {
			w.need32(r)
		}
	}
	n := uint64(o.size * len(o.regs))
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		data, shadow := w.bytesAt(o.space, lane, at[lane], n, writeAccess)
		for i, r := range o.regs {
			v := uint64(0)
			if o.class == 'D' {
				v = w.r64[r][lane]
			} else {
				v = uint64(w.r32[r][lane])
			}
			d, s := data[i*o.size:], shadow[i*o.size:]
			switch o.size {
			case 4:
				le.PutUint32(d, uint32(v))
				le.PutUint32(s, defined4)
			case 8:
				le.PutUint64(d, v)
				le.PutUint64(s, defined8)
			case 2:
				le.PutUint16(d, uint16(v))
				le.PutUint16(s, defined4&0xffff)
			default:
				d[0], s[0] = byte(v), definedByte
			}
		}
	}
}

// atomicOp is a decoded atom or red.
type atomicOp struct {
	memoryOp
	dst    int // -1 for red
	apply  func(old, b, c uint64) uint64
	second int // register of the third operand; -1 if absent
}

func (o *atomicOp) do(w *warp) {
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	wide := o.size == 8
	get := func(r, lane int) uint64 {
		if r < 0 {
			return 0
		}
		if wide {
			return w.r64[r][lane]
		}
		return uint64(w.r32[r][lane])
	}
	for _, r := range []int{o.regs[0], o.second} {
		if r >= 0 && wide {
			w.need64(r)
		} else if r >= 0 {
			w.need32(r)
		}
	}
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		data, shadow := w.bytesAt(o.space, lane, at[lane], uint64(o.size), atomicAccess)
		lock := &w.block.mem.stripes[at[lane]>>3%64]
		lock.Lock()
		if bad := firstUndefined(shadow); bad {
			lock.Unlock()
			w.mustBeDefined(lane, shadow, at[lane])
		}
		var old uint64
		switch o.size {
		case 4:
			old = uint64(le.Uint32(data))
			le.PutUint32(data, uint32(o.apply(old, get(o.regs[0], lane), get(o.second, lane))))
		case 8:
			old = le.Uint64(data)
			le.PutUint64(data, o.apply(old, get(o.regs[0], lane), get(o.second, lane)))
		default:
			old = uint64(le.Uint16(data))
			le.PutUint16(data, uint16(o.apply(old, get(o.regs[0], lane), get(o.second, lane))))
		}
		lock.Unlock()
		if o.dst >= 0 && wide {
			w.r64[o.dst][lane] = old
		} else if o.dst >= 0 {
			w.r32[o.dst][lane] = uint32(old)
		}
	}
	if o.dst >= 0 {
		w.define(o.class, []int{o.dst})
	}
}

func firstUndefined(shadow []byte) bool {
	for _, s := range shadow {
		if s != definedByte {
			return true
		}
	}
	return false
}
