// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math/bits"
)

// address decodes [base+offset] into the fields of a memoryOp.
func (l *linker) address(o *operand, s space) (memoryOp, error) {
	op := memoryOp{space: s}
	if o.kind != operandAddress {
		return op, fmt.Errorf("%s where an address was expected", describe(o))
	}
	base := &o.elems[0]
	switch base.kind {
	case operandReg:
		op.class = classOf(base.reg.typ)
		op.wide = op.class == 'D'
		r, err := l.register(base, op.class)
		op.base, op.offset = r, uint64(o.offset)
		return op, err
	case operandImm:
		op.wide = true
		op.base = l.constant('D', base.value)
		return op, nil
	case operandSymbol:
		at, actual, err := l.place(base)
		if err != nil {
			return op, err
		}
		if s != actual && !(s == spaceConst && actual == spaceGlobal) && !(s == spaceParam && actual == spaceLocal) {
			if s != spaceGeneric || actual != spaceGlobal {
				return op, fmt.Errorf("%s lies in another space", base.name)
			}
		}
		op.space, op.wide = actual, true
		if actual == spaceGlobal {
			op.base = l.globalSymbol(base.name, base.offset)
			return op, nil
		}
		op.base = l.constant('D', uint64(at))
		return op, nil
	}
	return op, fmt.Errorf("%s where an address was expected", describe(base))
}

// spaceOf is the space that an opcode names, the type and the number of elements.
func spaceOf(st *statement) (s space, t typ, n int) {
	n = 1
	for _, m := range st.mods {
		if v, ok := spaceNames[m]; ok && s == spaceGeneric {
			s = v
		}
		switch m {
		case "v2":
			n = 2
		case "v4":
			n = 4
		case "v8":
			n = 8
		}
	}
	if len(st.mods) > 0 {
		t = typNames[st.mods[len(st.mods)-1]]
	}
	return s, t, n
}

// elements are the registers of an operand that is one register or a vector of n.
func (l *linker) elements(o *operand, n int, t typ, source bool) (regs []int, class byte, width int, err error) {
	list := []operand{*o}
	if o.kind == operandVector {
		list = o.elems
	}
	if len(list) != n {
		return nil, 0, 0, fmt.Errorf("%d registers: want %d", len(list), n)
	}
	class, width = classOf(t), t.size()
	for i := range list {
		if list[i].kind == operandReg {
			class, width = classOf(list[i].reg.typ), list[i].reg.typ.size()
		}
	}
	if class == 'P' || width < t.size() {
		return nil, 0, 0, fmt.Errorf("registers of %d bytes for elements of %d", width, t.size())
	}
	for i := range list {
		var r int
		if source {
			r, err = l.source(&list[i], class)
		} else {
			r, err = l.register(&list[i], class)
		}
		if err != nil {
			return nil, 0, 0, err
		}
		regs = append(regs, r)
	}
	return regs, class, width, nil
}

// decodeMemory does ld and st.
func (l *linker) decodeMemory(st *statement) (exec, error) {
	s, t, n := spaceOf(st)
	if t.size() == 0 || t.size() > 8 || len(st.args) != 2 || n*t.size() > 16 {
		return nil, errUnsupported
	}
	at, value := &st.args[1], &st.args[0]
	if st.op == "st" {
		at, value = value, at
	}
	op, err := l.address(at, s)
	if err != nil {
		return nil, err
	}
	var width int
	op.regs, op.class, width, err = l.elements(value, n, t, st.op == "st")
	if err != nil {
		return nil, err
	}
	op.size = t.size()
	word := op.size == 4 && n == 1 && op.class == 'R'
	if st.op == "st" {
		if word && op.space == spaceGlobal {
			return op.storeGlobal32, nil
		}
		return op.store, nil
	}
	if t.signed() && width > op.size {
		op.extend = extension(t, width)
	}
	switch base := &at.elems[0]; {
	case op.space == spaceParam && base.kind == operandSymbol:
		place, _, err := l.place(base)
		op.place = int(place)
		return op.loadParam, err
	case word && op.extend == nil && (op.space == spaceGlobal || op.space == spaceConst):
		return op.loadGlobal32, nil
	case word && op.extend == nil && op.space == spaceShared:
		return op.loadShared32, nil
	}
	return op.load, nil
}

// decodeAtomic does atom and red.
func (l *linker) decodeAtomic(st *statement) (exec, error) {
	s, t, n := spaceOf(st)
	args := st.args
	op := atomicOp{dst: -1, second: -1}
	var dst *operand
	if st.op == "atom" && len(args) > 0 {
		dst, args = &args[0], args[1:]
	}
	kind := ""
	for _, m := range st.mods {
		switch m {
		case "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec":
			kind = m
		}
	}
	want := 2
	if kind == "cas" {
		want = 3
	}
	if n != 1 || t.size() < 2 || t.size() > 8 || kind == "" || len(args) != want {
		return nil, errUnsupported
	}
	var err error
	if op.memoryOp, err = l.address(&args[0], s); err != nil {
		return nil, err
	}
	op.size, op.class = t.size(), classOf(t)
	b, err := l.source(&args[1], op.class)
	if err != nil {
		return nil, err
	}
	op.regs = []int{b}
	if kind == "cas" {
		if op.second, err = l.source(&args[2], op.class); err != nil {
			return nil, err
		}
	}
	if dst != nil {
		if op.dst, err = l.register(dst, op.class); err != nil {
			return nil, err
		}
	}
	if op.apply = atomicFunction(kind, t); op.apply == nil {
		return nil, errUnsupported
	}
	return op.do, nil
}

// atomicFunction returns the new value from the old one and the operands.
func atomicFunction(kind string, t typ) func(old, b, c uint64) uint64 {
	size := t.size()
	switch kind {
	case "exch":
		return func(_, b, _ uint64) uint64 { return b }
	case "cas":
		return func(old, b, c uint64) uint64 {
			if old == zeroExtend(b, size) {
				return c
			}
			return old
		}
	case "and":
		return func(old, b, _ uint64) uint64 { return old & b }
	case "or":
		return func(old, b, _ uint64) uint64 { return old | b }
	case "xor":
		return func(old, b, _ uint64) uint64 { return old ^ b }
	case "inc":
		return func(old, b, _ uint64) uint64 {
			if old >= b {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, b, _ uint64) uint64 {
			if old == 0 || old > b {
				return b
			}
			return old - 1
		}
	case "add":
		return atomicAdd(t)
	}
	if t.float() {
		return nil
	}
	return func(old, b, _ uint64) uint64 {
		less := zeroExtend(old, size) < zeroExtend(b, size)
		if t.signed() {
			less = signExtend(old, size) < signExtend(b, size)
		}
		if less == (kind == "min") {
			return old
		}
		return b
	}
}

func atomicAdd(t typ) func(old, b, c uint64) uint64 {
	switch t {
	case typF32:
		return func(old, b, _ uint64) uint64 { return uint64(b32(f32(uint32(old)) + f32(uint32(b)))) }
	case typF64:
		return func(old, b, _ uint64) uint64 { return b64(f64(old) + f64(b)) }
	case typF16, typBF16, typF16x2, typBF16x2:
		f := formatF16
		if t == typBF16 || t == typBF16x2 {
			f = formatBF16
		}
		add := func(x, y uint32) uint32 {
			return f.encode(addOdd(f.decode(x&0xffff), f.decode(y&0xffff)), nearest2)
		}
		if t.size() == 2 {
			return func(old, b, _ uint64) uint64 { return uint64(add(uint32(old), uint32(b))) }
		}
		return func(old, b, _ uint64) uint64 {
			x, y := uint32(old), uint32(b)
			return uint64(add(x, y) | add(x>>16, y>>16)<<16)
		}
	}
	return func(old, b, _ uint64) uint64 { return old + b }
}

// asyncCopy is a cp.async whose bytes have not arrived.
type asyncCopy struct {
	mask  uint32
	size  int
	group [warpSize]int32
	dst   [warpSize]uint64
	data  [warpSize][16]byte
}

// decodeAsync does cp.async and its groups.
func (l *linker) decodeAsync(st *statement) (exec, error) {
	if len(st.mods) == 0 || st.mods[0] != "async" {
		return nil, errUnsupported
	}
	switch {
	case st.has("commit_group"):
		return func(w *warp) {
			for l := w.mask; l != 0; l &= l - 1 {
				w.commits[bits.TrailingZeros32(l)&31]++
			}
		}, nil
	case st.has("wait_all"):
		return func(w *warp) { w.land(-1) }, nil
	case st.has("wait_group"):
		if len(st.args) != 1 || st.args[0].kind != operandImm {
			return nil, fmt.Errorf("want the number of groups that may be under way")
		}
		n := int32(st.args[0].value)
		return func(w *warp) { w.land(n) }, nil
	case !st.has("ca") && !st.has("cg") || len(st.args) < 3 || st.args[2].kind != operandImm:
		return nil, errUnsupported
	}
	size := int(st.args[2].value)
	if size != 4 && size != 8 && size != 16 {
		return nil, fmt.Errorf("copies of %d bytes: want 4, 8 or 16", size)
	}
	dst, err := l.address(&st.args[0], spaceShared)
	if err != nil {
		return nil, err
	}
	src, err := l.address(&st.args[1], spaceGlobal)
	if err != nil {
		return nil, err
	}
	bytes := l.constant('R', uint64(size))
	if len(st.args) > 3 {
		if bytes, err = l.source(&st.args[3], 'R'); err != nil {
			return nil, err
		}
	}
	return func(w *warp) { w.copyAsync(&dst, &src, size, bytes) }, nil
}

// copyAsync reads the source now; the destination cannot be read until the copy has landed.
func (w *warp) copyAsync(dst, src *memoryOp, size, bytes int) {
	var to, from [warpSize]uint64
	w.addresses(dst.base, dst.wide, dst.offset, &to)
	w.addresses(src.base, src.wide, src.offset, &from)
	w.need32(bytes)
	w.copies = append(w.copies, asyncCopy{mask: w.mask, size: size, group: w.commits, dst: to})
	c := &w.copies[len(w.copies)-1]
	for l := w.mask; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l) & 31
		n := int(w.r32[bytes][lane])
		if n > size {
			w.fault(lane, OutOfBounds, "a copy of %d bytes that reads %d", size, n)
		}
		w.aligned(lane, from[lane], uint64(size))
		if n > 0 {
			data, shadow := w.globalPart(lane, from[lane], n)
			w.mustBeDefined(lane, shadow, from[lane])
			copy(c.data[lane][:], data)
		}
		_, shadow := w.sharedAt(lane, to[lane], uint64(size), writeAccess)
		fill(shadow, inFlightByte)
	}
}

// globalPart is global for a number of bytes that is no power of two.
func (w *warp) globalPart(lane int, addr uint64, n int) (data, shadow []byte) {
	if n&(n-1) == 0 {
		return w.global(lane, addr, uint64(n), readAccess)
	}
	a := w.findGlobal(lane, addr, 1, readAccess)
	off := addr - a.base
	if uint64(n) > a.size-off {
		w.fault(lane, OutOfBounds, "read of %d bytes: byte %d of %v", n, off, a)
	}
	if t := w.block.run.races; t != nil {
		t.note(w, lane, a, off, uint64(n), readAccess)
	}
	return a.data[off : off+uint64(n)], a.shadow[off : off+uint64(n)]
}

// land completes the lanes' copies except those of the last n groups; all of them, committed or not, if n is negative.
func (w *warp) land(n int32) {
	kept := w.copies[:0]
	for i := range w.copies {
		c := &w.copies[i]
		for l := c.mask & w.mask; l != 0; l &= l - 1 {
			lane := bits.TrailingZeros32(l) & 31
			if n >= 0 && c.group[lane] >= w.commits[lane]-n {
				continue
			}
			data, shadow := w.sharedAt(lane, c.dst[lane], uint64(c.size), writeAccess)
			copy(data, c.data[lane][:c.size])
			fill(shadow, definedByte)
			c.mask &^= 1 << lane
		}
		if c.mask != 0 {
			kept = append(kept, *c)
		}
	}
	w.copies = kept
}
