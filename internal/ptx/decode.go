// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// decode turns a statement into something that runs.
func (l *linker) decode(f *flat) (decoded, error) {
	d := decoded{guard: -1, index: -1}
	switch {
	case f.trap != "":
		msg := f.trap
		d.do = func(w *warp) { w.fault(bits.TrailingZeros32(w.mask), Trap, "%s", msg) }
		return d, nil
	case f.prints:
		at := f.result
		d.do = func(w *warp) {
			for l := w.mask; l != 0 && at >= 0; l &= l - 1 {
				data, shadow := w.localAt(bits.TrailingZeros32(l)&31, uint64(at), 4)
				le.PutUint32(data, 0)
				le.PutUint32(shadow, defined4)
			}
		}
		return d, nil
	case f.jump:
		d.end, d.to = branch, f.to
		if f.toEnd != nil {
			d.to = f.toEnd.start[len(f.toEnd.start)-1]
		}
		return d, l.guardOf(&d, f.guard, f.not)
	}
	st := f.st
	if least := leastOperands[st.op]; len(st.args) < least || least > 0 && st.op != "bra" && len(st.mods) == 0 {
		return d, fmt.Errorf("%d operands: want %d or more, and a type", len(st.args), least)
	}
	switch st.op {
	case "bra", "brx":
		return d, l.decodeBranch(&d, st)
	case "ret", "exit":
		d.end = exit
		if st.guard != nil {
			return d, l.guardOf(&d, st.guard, st.guard.not)
		}
		return d, nil
	case "bar", "barrier":
		return d, l.decodeBarrier(&d, st)
	case "shfl", "vote", "match", "redux", "mma", "ldmatrix":
		d.end = warpOp
		return d, l.decodeTogether(&d, st)
	}
	do, err := l.decodeLanes(st)
	if err != nil {
		return d, err
	}
	if st.guard != nil {
		p, err := l.register(st.guard, 'P')
		if err != nil {
			return d, err
		}
		do = guarded(do, p, st.guard.not)
	}
	d.do = do
	return d, nil
}

// leastOperands is how many operands an instruction has at least, where its decoder does not count them.
var leastOperands = map[string]int{"bra": 1, "brx": 2, "shfl": 5, "vote": 3, "match": 3, "redux": 3, "mma": 4,
	"ldmatrix": 2, "bar": 1, "barrier": 1, "mov": 2, "ld": 2, "ldu": 2, "st": 2, "atom": 3, "red": 2, "cvta": 2,
	"isspacep": 2, "setp": 3, "set": 3, "selp": 4, "cvt": 2, "testp": 2, "activemask": 1, "and": 3, "or": 3, "xor": 3,
	"not": 2}

func (l *linker) guardOf(d *decoded, guard *operand, not bool) error {
	if guard == nil {
		return nil
	}
	p, err := l.register(guard, 'P')
	d.guard, d.not = p, not
	return err
}

// guarded does an instruction for the lanes whose predicate is true.
func guarded(do exec, p int, not bool) exec {
	return func(w *warp) {
		all := w.mask
		w.mask = w.predicate(p, not)
		if w.mask != 0 {
			do(w)
		}
		w.mask = all
	}
}

func (l *linker) decodeBranch(d *decoded, st *statement) error {
	if st.op == "bra" {
		if len(st.args) != 1 {
			return fmt.Errorf("want one label")
		}
		to, err := l.label(&st.args[0])
		if err != nil {
			return err
		}
		d.end, d.to = branch, to
		if st.guard != nil {
			return l.guardOf(d, st.guard, st.guard.not)
		}
		return nil
	}
	if !st.has("idx") || len(st.args) != 2 || st.guard != nil {
		return errUnsupported
	}
	r, err := l.source(&st.args[0], 'R')
	if err != nil {
		return err
	}
	for s := st.scope; s != nil; s = s.parent {
		for i := range s.tables[st.args[1].name] {
			to, err := l.label(&s.tables[st.args[1].name][i])
			if err != nil {
				return err
			}
			d.table = append(d.table, to)
		}
	}
	if d.table == nil {
		return fmt.Errorf("no branch targets %s", st.args[1].name)
	}
	d.end, d.index = brx, r
	return nil
}

// register finds the register of an operand that must be one of the class.
func (l *linker) register(o *operand, class byte) (int, error) {
	switch {
	case o.kind == operandSink:
		return l.newRegister(class), nil
	case o.kind != operandReg:
		return 0, fmt.Errorf("%s where a register was expected", describe(o))
	case classOf(o.reg.typ) != class:
		return 0, fmt.Errorf("register %s has type %v, which does not fit", o.name, o.reg.typ)
	}
	return l.at.fr.regs[o.reg.index], nil
}

func describe(o *operand) string {
	if o.name != "" {
		return o.name
	}
	return [...]string{"a register", "a special register", "an integer", "a float32", "a float64", "a symbol",
		"an address",
		"a vector", "_"}[o.kind]
}

// source finds the register that holds an operand's value: its own, or one that holds the constant.
func (l *linker) source(o *operand, class byte) (int, error) {
	switch o.kind {
	case operandImm, operandF32, operandF64:
		v := o.value
		if o.kind == operandF64 && class == 'R' {
			v = uint64(math.Float32bits(float32(f64(v))))
		}
		if o.kind == operandF32 && class == 'D' {
			v = b64(float64(f32(uint32(v))))
		}
		if class == 'P' {
			return l.constantP(v != 0), nil
		}
		return l.constant(class, v), nil
	case operandSpecial:
		s, ok := specialNames[o.name]
		if !ok || class != 'R' {
			return 0, fmt.Errorf("register %s can only be moved to a register of its size", o.name)
		}
		if l.k.specialRegs[s] < 0 {
			l.k.specialRegs[s] = l.newRegister('R')
			l.k.names['R'][l.k.specialRegs[s]] = o.name
		}
		return l.k.specialRegs[s], nil
	case operandSymbol:
		return l.symbolAddress(o, class)
	}
	return l.register(o, class)
}

func (l *linker) constant(class byte, v uint64) int {
	if class == 'D' {
		r, ok := l.const64[v]
		if !ok {
			r = l.newRegister('D')
			l.const64[v] = r
		}
		return r
	}
	r, ok := l.const32[uint32(v)]
	if !ok {
		r = l.newRegister('R')
		l.const32[uint32(v)] = r
	}
	return r
}

func (l *linker) constantP(v bool) int {
	i := 0
	if v {
		i = 1
	}
	if l.constP[i] < 0 {
		l.constP[i] = l.newRegister('P')
	}
	return l.constP[i]
}

// symbolAddress is a register that holds a variable's address in its own space.
func (l *linker) symbolAddress(o *operand, class byte) (int, error) {
	at, s, err := l.place(o)
	if err != nil {
		return 0, err
	}
	if s == spaceGlobal {
		if class != 'D' {
			return 0, fmt.Errorf("the address of %s needs a register of 64 bits", o.name)
		}
		return l.globalSymbol(o.name, o.offset), nil
	}
	return l.constant(class, uint64(at)), nil
}

func (l *linker) globalSymbol(name string, offset int64) int {
	key := fmt.Sprintf("%s+%d", name, offset)
	r, ok := l.symbols[key]
	if !ok {
		r = l.newRegister('D')
		l.symbols[key] = r
		l.k.symbols = append(l.k.symbols, symbolUse{r, name, offset})
	}
	return r
}

// place is where a variable lies within its space; for .global and .const, that is known only at the launch.
func (l *linker) place(o *operand) (int64, space, error) {
	s := l.at.st.scope.find(o.name)
	if s == nil {
		return 0, 0, fmt.Errorf("%s is not declared", o.name)
	}
	switch s.kind {
	case symbolShared:
		return int64(l.shared[s]) + o.offset, spaceShared, nil
	case symbolGlobal, symbolConst:
		return 0, spaceGlobal, nil
	case symbolLocal, symbolParam:
		if at, ok := l.at.fr.vars[s]; ok {
			return int64(at) + o.offset, spaceLocal, nil
		}
		if s.kind == symbolParam && l.at.fr.parent == nil {
			return int64(l.k.params[s.index].Offset) + o.offset, spaceParam, nil
		}
	}
	return 0, 0, fmt.Errorf("%s has no address here", o.name)
}

// widthOf is the size of an operand's register in bytes; 0 if it is none.
func widthOf(o *operand) int {
	if o.kind == operandReg {
		return o.reg.typ.size()
	}
	return 0
}

// lanes makes an instruction from a function of one lane's values; slower than the generated loops.
func lanes(dst byte, d int, classes string, regs []int, f func(x, y, z, u uint64) uint64) exec {
	return func(w *warp) {
		for i, r := range regs {
			defined := w.d32
			if classes[i] == 'D' {
				defined = w.d64
			}
			if defined[r]&w.mask != w.mask {
				w.undefined(classes, regs...)
			}
		}
		var v [4]uint64
		for l := w.mask; l != 0; l &= l - 1 {
			lane := bits.TrailingZeros32(l) & 31
			for i, r := range regs {
				if classes[i] == 'D' {
					v[i] = w.r64[r][lane]
				} else {
					v[i] = uint64(w.r32[r][lane])
				}
			}
			r := f(v[0], v[1], v[2], v[3])
			if dst == 'D' {
				w.r64[d][lane] = r
			} else {
				w.r32[d][lane] = uint32(r)
			}
		}
		if dst == 'D' {
			w.d64[d] |= w.mask
		} else {
			w.d32[d] |= w.mask
		}
	}
}

// operandsOf finds the registers of "op d, a, b…"; classes are those of d and the sources.
func (l *linker) operandsOf(st *statement, classes string) (d int, srcs []int, err error) {
	if len(st.args) != len(classes) {
		return 0, nil, fmt.Errorf("%d operands: want %d", len(st.args), len(classes))
	}
	if d, err = l.register(&st.args[0], classes[0]); err != nil {
		return 0, nil, err
	}
	for i := 1; i < len(classes); i++ {
		r, err := l.source(&st.args[i], classes[i])
		if err != nil {
			return 0, nil, err
		}
		srcs = append(srcs, r)
	}
	return d, srcs, nil
}

func (l *linker) byTable(st *statement, op laneOp) (exec, error) {
	d, s, err := l.operandsOf(st, op.classes)
	if err != nil {
		return nil, err
	}
	var r [4]int
	copy(r[:], s)
	return op.build(d, r[0], r[1], r[2], r[3]), nil
}

func (l *linker) byFunction(st *statement, classes string, f func(x, y, z, u uint64) uint64) (exec, error) {
	d, s, err := l.operandsOf(st, classes)
	if err != nil {
		return nil, err
	}
	return lanes(classes[0], d, classes[1:], s, f), nil
}

// decodeLanes decodes what lanes do alone.
func (l *linker) decodeLanes(st *statement) (exec, error) {
	switch st.op {
	case "mov":
		return l.decodeMov(st)
	case "ld", "ldu", "st":
		return l.decodeMemory(st)
	case "atom", "red":
		return l.decodeAtomic(st)
	case "cvta", "isspacep":
		return l.decodeAddress(st)
	case "setp", "set":
		return l.decodeCompare(st)
	case "selp":
		return l.decodeSelect(st)
	case "cvt":
		return l.decodeConvert(st)
	case "cp":
		return l.decodeAsync(st)
	case "testp":
		return l.decodeTest(st)
	case "activemask":
		d, err := l.register(&st.args[0], 'R')
		return func(w *warp) {
			set32(w, d, w.mask)
			w.d32[d] |= w.mask
		}, err
	case "trap", "brkpt":
		return func(w *warp) { w.fault(bits.TrailingZeros32(w.mask), Trap, "the kernel gave up") }, nil
	case "membar", "fence", "prefetch", "prefetchu", "nanosleep", "discard", "applypriority", "pmevent":
		return func(*warp) {}, nil
	}
	if len(st.mods) == 0 {
		return nil, errUnsupported
	}
	t := typNames[st.mods[len(st.mods)-1]]
	switch {
	case t == typPred:
		return l.decodeLogic(st)
	case st.op == "add" || st.op == "sub" || st.op == "mul" || st.op == "mad" || st.op == "addc" || st.op == "subc" ||
		st.op == "madc":
		if st.has("cc") || strings.HasSuffix(st.op, "c") {
			return l.decodeCarry(st, t)
		}
	}
	if t.float() {
		return l.decodeFloat(st, t)
	}
	return l.decodeInteger(st, t)
}

// decodeInteger finds the row of the table: as written, or with b in place of the type's sign.
func (l *linker) decodeInteger(st *statement, t typ) (exec, error) {
	mods := append([]string(nil), st.mods...)
	last := len(mods) - 1
	if st.has("sat") && (st.op == "add" || st.op == "sub") && t == typS32 {
		sign := int64(1)
		if st.op == "sub" {
			sign = -1
		}
		return l.byFunction(st, "RRR", func(x, y, _, _ uint64) uint64 {
			v := int64(int32(x)) + sign*int64(int32(y))
			return uint64(uint32(int32(max(min(v, math.MaxInt32), math.MinInt32))))
		})
	}
	names := []string{st.op + "." + strings.Join(mods, ".")}
	mods[last] = fmt.Sprintf("b%d", 8*t.size())
	names = append(names, st.op+"."+strings.Join(mods, "."))
	if st.op == "shf" || st.op == "slct" {
		names = append(names, strings.Replace(st.opcode(), ".u32", ".b32", 1))
	}
	if st.op == "slct" {
		names = append(names, fmt.Sprintf("slct.b%d.%s", 8*typNames[mods[0]].size(), st.mods[last]))
	}
	for _, n := range names {
		if op, ok := laneTable[n]; ok {
			return l.byTable(st, op)
		}
	}
	return nil, errUnsupported
}

// decodeLogic does and, or, xor, not of predicates.
func (l *linker) decodeLogic(st *statement) (exec, error) {
	classes := "PPP"
	if st.op == "not" {
		classes = "PP"
	}
	d, s, err := l.operandsOf(st, classes)
	if err != nil {
		return nil, err
	}
	type signs struct{ a, b bool }
	flip := signs{a: st.args[1].not}
	if len(st.args) > 2 {
		flip.b = st.args[2].not
	}
	two := func(f func(x, y uint32) uint32) exec {
		return func(w *warp) {
			w.setP(d, f(w.predicate(s[0], flip.a), w.predicate(s[1], flip.b)))
		}
	}
	switch st.op {
	case "and":
		return two(func(x, y uint32) uint32 { return x & y }), nil
	case "or":
		return two(func(x, y uint32) uint32 { return x | y }), nil
	case "xor":
		return two(func(x, y uint32) uint32 { return x ^ y }), nil
	case "not":
		return func(w *warp) { w.setP(d, w.predicate(s[0], !flip.a)) }, nil
	}
	return nil, errUnsupported
}

// decodeCarry does the instructions that write or read the carry flag.
func (l *linker) decodeCarry(st *statement, t typ) (exec, error) {
	wide := t.wide()
	class := "R"
	if wide {
		class = "D"
	}
	if t.size() < 4 {
		return nil, errUnsupported
	}
	multiply := strings.HasPrefix(st.op, "mad")
	n := 3
	if multiply {
		n = 4
	}
	d, s, err := l.operandsOf(st, strings.Repeat(class, n))
	if err != nil {
		return nil, err
	}
	uses, sets, high, signed, subtract := strings.HasSuffix(st.op, "c"), st.has("cc"), st.has("hi"), t.signed(),
		strings.HasPrefix(st.op, "sub")
	add := func(x, y, c uint64) (uint64, uint64) {
		if wide {
			return bits.Add64(x, y, c)
		}
		v := x + y + c
		return v & fullMask, v >> 32
	}
	return func(w *warp) {
		if uses && w.dcc&w.mask != w.mask {
			w.fault(bits.TrailingZeros32(w.mask&^w.dcc), UndefinedRegister,
				"the carry flag is read before it is written")
		}
		get := func(r, lane int) uint64 {
			if wide {
				return w.r64[r][lane]
			}
			return uint64(w.r32[r][lane])
		}
		for _, r := range s {
			if wide {
				w.need64(r)
			} else {
				w.need32(r)
			}
		}
		for l := w.mask; l != 0; l &= l - 1 {
			lane := bits.TrailingZeros32(l) & 31
			carry := uint64(0)
			if uses {
				carry = uint64(w.cc >> lane & 1)
			}
			x, y := get(s[0], lane), get(s[1], lane)
			if multiply {
				x, y = product(x, y, wide, high, signed), get(s[2], lane)
			}
			if subtract { // x - y - borrow = x + ^y + (1 - borrow); the flag holds the borrow
				y, carry = ^y, carry^1
				if !wide {
					y &= fullMask
				}
			}
			v, out := add(x, y, carry)
			if subtract {
				out ^= 1
			}
			if wide {
				w.r64[d][lane] = v
			} else {
				w.r32[d][lane] = uint32(v)
			}
			if sets {
				w.cc = w.cc&^(1<<lane) | uint32(out)<<lane
			}
		}
		if sets {
			w.dcc |= w.mask
		}
		if wide {
			w.d64[d] |= w.mask
		} else {
			w.d32[d] |= w.mask
		}
	}, nil
}

func product(x, y uint64, wide, high, signed bool) uint64 {
	switch {
	case wide && high && signed:
		return mulHighSigned(x, y)
	case wide && high:
		return mulHigh(x, y)
	case wide:
		return x * y
	case high && signed:
		return uint64(int64(int32(x))*int64(int32(y))) >> 32
	case high:
		return x * y >> 32
	}
	return x * y & fullMask
}

// decodeMov copies registers, packs and unpacks vectors, and reads special registers. Unlike other instructions it
// copies undefined values.
func (l *linker) decodeMov(st *statement) (exec, error) {
	if len(st.args) != 2 {
		return nil, fmt.Errorf("%d operands: want 2", len(st.args))
	}
	dst, src := &st.args[0], &st.args[1]
	switch {
	case st.has("pred"):
		d, err := l.register(dst, 'P')
		if err != nil {
			return nil, err
		}
		s, err := l.source(src, 'P')
		not := src.not
		return func(w *warp) { w.setP(d, w.predicate(s, not)) }, err
	case dst.kind == operandVector:
		return l.decodeUnpack(dst, src)
	case src.kind == operandVector:
		return l.decodePack(dst, src)
	case src.kind == operandSpecial && clockNames[src.name]:
		return l.decodeClock(dst)
	}
	if dst.kind != operandReg {
		return nil, fmt.Errorf("%s where a register was expected", describe(dst))
	}
	class := classOf(dst.reg.typ)
	d, err := l.register(dst, class)
	if err != nil {
		return nil, err
	}
	s, err := l.source(src, class)
	if err != nil {
		return nil, err
	}
	if class == 'D' {
		return func(w *warp) {
			if w.mask == fullMask {
				w.r64[d], w.d64[d] = w.r64[s], w.d64[s]
				return
			}
			for l := w.mask; l != 0; l &= l - 1 {
				i := bits.TrailingZeros32(l) & 31
				w.r64[d][i] = w.r64[s][i]
			}
			w.d64[d] = w.d64[d]&^w.mask | w.d64[s]&w.mask
		}, nil
	}
	if class == 'P' {
		return nil, errUnsupported
	}
	return func(w *warp) {
		if w.mask == fullMask {
			w.r32[d], w.d32[d] = w.r32[s], w.d32[s]
			return
		}
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			w.r32[d][i] = w.r32[s][i]
		}
		w.d32[d] = w.d32[d]&^w.mask | w.d32[s]&w.mask
	}, nil
}

func (l *linker) decodeClock(dst *operand) (exec, error) {
	if dst.kind != operandReg {
		return nil, fmt.Errorf("%s where a register was expected", describe(dst))
	}
	class := classOf(dst.reg.typ)
	d, err := l.register(dst, class)
	return func(w *warp) {
		w.block.clock++
		v := w.block.clock * 32
		for l := w.mask; l != 0; l &= l - 1 {
			if i := bits.TrailingZeros32(l) & 31; class == 'D' {
				w.r64[d][i] = v
			} else {
				w.r32[d][i] = uint32(v)
			}
		}
		w.define(class, []int{d})
	}, err
}

// part is a register of a packed vector.
type part struct {
	reg   int
	class byte
	shift uint
	mask  uint64
}

// parts are the registers of a vector that together have the bits of whole.
func (l *linker) parts(v *operand, whole int, source bool) ([]part, error) {
	if len(v.elems) == 0 || whole%len(v.elems) != 0 {
		return nil, fmt.Errorf("%d parts of a register of %d bytes", len(v.elems), whole)
	}
	size := whole / len(v.elems)
	class := byte('R')
	if size == 8 {
		class = 'D'
	}
	var list []part
	for i := range v.elems {
		var r int
		var err error
		if w := widthOf(&v.elems[i]); w != 0 && w != size {
			return nil, fmt.Errorf("register %s has %d bytes where %d were expected", v.elems[i].name, w, size)
		}
		if source {
			r, err = l.source(&v.elems[i], class)
		} else {
			r, err = l.register(&v.elems[i], class)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, part{r, class, uint(8 * size * i), 1<<(8*size) - 1})
	}
	return list, nil
}

func (l *linker) decodeUnpack(dst, src *operand) (exec, error) {
	whole := widthOf(src)
	if whole == 0 {
		return nil, fmt.Errorf("%s where a register was expected", describe(src))
	}
	class := classOf(src.reg.typ)
	s, err := l.register(src, class)
	if err != nil {
		return nil, err
	}
	list, err := l.parts(dst, whole, false)
	return func(w *warp) {
		defined := w.mask
		if class == 'D' {
			defined &= w.d64[s]
		} else {
			defined &= w.d32[s]
		}
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			v := uint64(0)
			if class == 'D' {
				v = w.r64[s][i]
			} else {
				v = uint64(w.r32[s][i])
			}
			for _, p := range list {
				w.r32[p.reg][i] = uint32(v >> p.shift & p.mask)
			}
		}
		for _, p := range list {
			w.d32[p.reg] = w.d32[p.reg]&^w.mask | defined
		}
	}, err
}

func (l *linker) decodePack(dst, src *operand) (exec, error) {
	whole := widthOf(dst)
	if whole == 0 {
		return nil, fmt.Errorf("%s where a register was expected", describe(dst))
	}
	class := classOf(dst.reg.typ)
	d, err := l.register(dst, class)
	if err != nil {
		return nil, err
	}
	list, err := l.parts(src, whole, true)
	return func(w *warp) {
		defined := w.mask
		for _, p := range list {
			defined &= w.d32[p.reg]
		}
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			v := uint64(0)
			for _, p := range list {
				v |= uint64(w.r32[p.reg][i]) & p.mask << p.shift
			}
			if class == 'D' {
				w.r64[d][i] = v
			} else {
				w.r32[d][i] = uint32(v)
			}
		}
		if class == 'D' {
			w.d64[d] = w.d64[d]&^w.mask | defined
		} else {
			w.d32[d] = w.d32[d]&^w.mask | defined
		}
	}, err
}

// decodeSelect: selp d, a, b, p. Only the chosen value must be defined.
func (l *linker) decodeSelect(st *statement) (exec, error) {
	t := typNames[st.mods[len(st.mods)-1]]
	class := string(classOf(t))
	d, s, err := l.operandsOf(st, class+class+class+"P")
	if err != nil {
		return nil, err
	}
	a, b, p, not := s[0], s[1], s[2], st.args[3].not
	if t.wide() {
		return func(w *warp) {
			first := w.predicate(p, not)
			for l := w.mask; l != 0; l &= l - 1 {
				i := bits.TrailingZeros32(l) & 31
				if first>>i&1 == 1 {
					w.r64[d][i] = w.r64[a][i]
				} else {
					w.r64[d][i] = w.r64[b][i]
				}
			}
			defined := first&w.d64[a] | ^first&w.d64[b]
			w.d64[d] = w.d64[d]&^w.mask | defined&w.mask
		}, nil
	}
	return func(w *warp) {
		first := w.predicate(p, not)
		x, y, o := &w.r32[a], &w.r32[b], &w.r32[d]
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			if first>>i&1 == 1 {
				o[i] = x[i]
			} else {
				o[i] = y[i]
			}
		}
		defined := first&w.d32[a] | ^first&w.d32[b]
		w.d32[d] = w.d32[d]&^w.mask | defined&w.mask
	}, nil
}

// decodeAddress does cvta and isspacep.
func (l *linker) decodeAddress(st *statement) (exec, error) {
	var s space
	var name string
	for _, m := range st.mods {
		if v, ok := spaceNames[m]; ok {
			s, name = v, m
		}
	}
	window := map[space]uint64{spaceShared: sharedWindow, spaceLocal: localWindow, spaceParam: paramWindow}[s]
	if name == "" {
		return nil, errUnsupported
	}
	if st.op == "isspacep" {
		d, src, err := l.operandsOf(st, "PD")
		return func(w *warp) {
			w.need64(src[0])
			r := uint32(0)
			for i, v := range &w.r64[src[0]] {
				if v >= sharedWindow && v>>60<<60 == window || v < sharedWindow && window == 0 {
					r |= 1 << i
				}
			}
			w.setP(d, r)
		}, err
	}
	if st.mods[len(st.mods)-1] != "u64" {
		return nil, errUnsupported
	}
	if o := &st.args[1]; o.kind == operandSymbol {
		if _, actual, err := l.place(o); err == nil && actual == spaceLocal && s == spaceParam {
			window = localWindow
		}
	}
	if st.has("to") {
		return l.byFunction(st, "DD", func(x, _, _, _ uint64) uint64 { return x - window })
	}
	return l.byFunction(st, "DD", func(x, _, _, _ uint64) uint64 { return x + window })
}
