// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// block is the number of elements that a kernel does per turn of its loop under either vector width. Sums have as many
// accumulators, so that both widths add in the same order.
const block = 16

// param is a parameter of a kernel after n, the number of elements.
type param struct {
	name string
	typ  string // float32, float64, uint8, uint16, uint32 or [4]uint32
	kind kind
}

type kind int

const (
	stream kind = iota // pointer to n elements
	fixed              // pointer to what is not walked: the accumulators of a sum
	scalar
)

// streams are pointers to n float32 each.
func streams(names ...string) []param { return typed(stream, "float32", names...) }

// scalars are float32 numbers.
func scalars(names ...string) []param { return typed(scalar, "float32", names...) }

// sums are pointers to 16 float64 accumulators each.
func sums(names ...string) []param { return typed(fixed, "float64", names...) }

func typed(k kind, typ string, names ...string) []param {
	var list []param
	for _, name := range names {
		list = append(list, param{name, typ, k})
	}
	return list
}

func params(lists ...[]param) []param {
	var all []param
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func (p param) bytes() int {
	return map[string]int{"float32": 4, "float64": 8, "uint8": 1, "uint16": 2, "uint32": 4}[p.typ]
}

// declaration is the parameter as Go writes it.
func (p param) declaration() string {
	if p.kind == scalar {
		return p.name + " " + p.typ
	}
	return p.name + " *" + p.typ
}

// kernel is what the dispatcher must know of a kernel; both widths have the same.
type kernel struct {
	name    string
	formula string
	params  []param
	// nonTemporal is set if a last parameter of that name says whether dst is written by non-temporal stores.
	nonTemporal bool
}

// declarations lists n and the parameters as Go writes them.
func (k kernel) declarations() string {
	list := []string{"n int"}
	for _, p := range k.params {
		list = append(list, p.declaration())
	}
	if k.nonTemporal {
		list = append(list, "nonTemporal bool")
	}
	return strings.Join(list, ", ")
}

// generator emits the kernels for one vector width: 8 lanes are AVX2, 16 are AVX-512.
type generator struct {
	*build.Context
	*constants
	lanes   int
	emitted []kernel
	ways    ways
	flight  int // vectors whose instructions a turn of the loop takes in turns; 0: none
}

func (g *generator) wide() bool { return g.lanes == 16 }

func (g *generator) suffix() string {
	if g.wide() {
		return "AVX512"
	}
	return "AVX2"
}

// loop is the kernel that is being emitted.
type loop struct {
	*generator
	function    string
	nonTemporal bool          // the turn's dst may be written by non-temporal stores
	way         reg.GPVirtual // whether it is
	known       map[string]param
	pointers    map[string]reg.GPVirtual
	index       reg.GPVirtual
	requests    []reg.GPVirtual // the index and how far ahead a kernel prefetches, in elements
	part        int             // the vector of the turn: 0 and 1 of the first block where a vector holds half of it
	rare        *rare
	blocks      int // of a turn; 0: as many as the flight has
	gathered    []*gathered
	short       bool // the step is short: see looped
}

// rare is another way to do a block, and the test that chooses it for the first block of a turn: it leaves the zero flag
// clear if any of the turn's vectors need it.
type rare struct {
	test func(vectors int)
	step func()
}

// kernel emits a loop over n elements, n a positive multiple of 16. body loads what stays in registers and returns what
// is emitted per part of a block, and at the end (may be nil).
func (g *generator) kernel(name, formula string, ps []param, body func(l *loop) (step, end func())) {
	g.emit(kernel{name, formula, ps, false}, body)
}

// nonTemporalKernel is kernel with a parameter that makes it write dst by non-temporal stores.
func (g *generator) nonTemporalKernel(name, formula string, ps []param, body func(l *loop) (step, end func())) {
	g.emit(kernel{name, formula, ps, true}, body)
}

func (g *generator) emit(k kernel, body func(l *loop) (step, end func())) {
	g.emitted = append(g.emitted, k)
	name := k.name + g.suffix()
	g.Function(name)
	doc := fmt.Sprintf("%s: %s for i < n, n a positive multiple of %d.", name, k.formula, block)
	if k.nonTemporal {
		doc += " With nonTemporal, dst is aligned to 64 bytes, and written by non-temporal stores but for its end."
	}
	g.Doc(doc)
	g.Pragma("noescape")
	g.SignatureExpr("func(" + k.declarations() + ")")
	l := &loop{generator: g, function: name, nonTemporal: k.nonTemporal, known: map[string]param{},
		pointers: map[string]reg.GPVirtual{}}
	n := g.GP64()
	g.Load(g.Param("n"), n)
	for _, p := range k.params {
		l.known[p.name] = p
		if p.kind != scalar {
			l.pointers[p.name] = g.GP64()
			g.Load(g.Param(p.name), l.pointers[p.name])
		}
	}
	if k.nonTemporal {
		l.way = g.GP32()
		g.Load(g.Param("nonTemporal"), l.way)
	}
	step, end := body(l)
	l.walk(n, step)
	if end != nil {
		end()
	}
	g.VZEROUPPER()
	g.RET()
	if l.rare != nil {
		l.Label("rare")
		l.part, l.nonTemporal = 0, false
		l.rare.step()
		l.advance(1)
		l.JMP(operand.LabelRef("check"))
	}
}

// walk emits the loop: turns over several blocks, then over single ones.
func (l *loop) walk(n reg.GPVirtual, step func()) {
	l.index = l.GP64()
	l.XORQ(l.index, l.index)
	if l.nonTemporal && l.flight == 0 && len(l.gathered) == 0 { // too short a turn for a test
		l.TESTL(l.way, l.way)
		l.JE(operand.LabelRef("loop"))
		l.turn("nonTemporal", 1, step)
		l.CMPQ(l.index, n)
		l.JL(operand.LabelRef("nonTemporal"))
		l.JMP(operand.LabelRef("end"))
		l.nonTemporal = false
	}
	if l.nonTemporal {
		l.ways[l.function] = l.way
	}
	if l.looped() {
		l.walkGathered(n, step)
		return
	}
	blocks := l.blocks
	if blocks == 0 {
		blocks = l.flight * l.lanes / block
	}
	if blocks > 1 {
		last := l.GP64() // index of the last turn with whole blocks
		l.MOVQ(n, last)
		l.SUBQ(operand.U32(blocks*block), last)
		l.JL(operand.LabelRef("rest"))
		l.turn("flight", blocks, step)
		if l.rare != nil {
			l.Label("check")
		}
		l.CMPQ(l.index, last)
		l.JLE(operand.LabelRef("flight"))
		l.Label("rest")
		l.CMPQ(l.index, n)
		l.JGE(operand.LabelRef("end"))
		l.nonTemporal = false
	}
	l.turn("loop", 1, step)
	l.CMPQ(l.index, n)
	l.JL(operand.LabelRef("loop"))
	l.Label("end")
}

// looped says whether a loop in the loop does the blocks of a turn that gathers, whose step then exists once. It costs
// a few hundredths with 256 bits, where a block is two vectors, but a tenth with 512 or where a step is short.
func (l *loop) looped() bool { return len(l.gathered) > 0 && !l.wide() && !l.short }

// walkGathered emits the loop whose turns end with what is gathered of several blocks, or of one where fewer are left.
func (l *loop) walkGathered(n reg.GPVirtual, step func()) {
	until := l.GP64()
	l.Label("gather")
	l.LEAQ(operand.Mem{Base: l.index, Disp: several * block}, until)
	l.CMPQ(until, n)
	l.JLE(operand.LabelRef("several"))
	l.LEAQ(operand.Mem{Base: l.index, Disp: block}, until)
	l.Label("several")
	for _, g := range l.gathered {
		for _, v := range g.turn {
			l.VXORPS(v, v, v)
		}
	}
	l.turn("loop", 1, step)
	l.CMPQ(l.index, until)
	l.JL(operand.LabelRef("loop"))
	for _, g := range l.gathered {
		g.widen()
	}
	l.CMPQ(l.index, n)
	l.JL(operand.LabelRef("gather"))
}

// turn emits a turn of the loop over so many blocks. What it emits for each vector is taken in turns afterwards (see
// interleave), since the chains of dependent instructions are longer than what a processor looks ahead.
func (l *loop) turn(label string, blocks int, step func()) {
	l.Label(label)
	vectors := blocks * block / l.lanes
	if l.rare != nil {
		l.rare.test(vectors)
		l.JNE(operand.LabelRef("rare"))
	}
	for l.part = range vectors {
		if l.flight > 0 {
			l.Comment(partMark)
		}
		step()
		if l.flight > 0 && (l.part+1 == vectors || (l.part+1)%l.flight == 0) {
			l.Comment(endMark)
		}
	}
	if !l.looped() {
		for _, g := range l.gathered {
			g.widen()
		}
	}
	l.advance(blocks)
}

// advance emits the step to the blocks after so many.
func (l *loop) advance(blocks int) {
	for _, index := range append([]reg.GPVirtual{l.index}, l.requests...) {
		l.ADDQ(operand.U32(blocks*block), index)
	}
}

// register returns a fresh vector register.
func (g *generator) register() reg.VecVirtual {
	if g.wide() {
		return g.ZMM()
	}
	return g.YMM()
}

// at is the place of the part's elements in a stream, from an element of the part on.
func (l *loop) at(name string, element int) operand.Mem {
	p := l.known[name]
	return operand.Mem{Base: l.pointers[name], Index: l.index, Scale: uint8(p.bytes()),
		Disp: p.bytes() * (l.lanes*l.part + element)}
}

// prefetchL1 prefetches what streams hold so many bytes further on: some rows of 1024 elements. The processor itself
// prefetches within a page of 4096 bytes at most, and memory would be idle while others go over the row again. The
// distances are those that measured best, where the first-level cache has room for it (see prefetchL1Mask). The pass of
// a row that computes most prefetches: the others would only wait. What it returns is emitted for each part. Of vectors
// that take turns each prefetches, since all must have as many instructions.
func (l *loop) prefetchL1(bytes int, names ...string) (prefetch func()) {
	return l.prefetching(l.PREFETCHT0, bytes, "prefetchL1Mask", names)
}

// prefetchL2 prefetches to the second-level cache, which has room for it in any processor: for a pass of exponentials,
// which computes for longer than memory takes.
func (l *loop) prefetchL2(bytes int, names ...string) (prefetch func()) {
	return l.prefetching(l.PREFETCHT1, bytes, "", names)
}

// prefetchL2Instead prefetches to the second-level cache where prefetchL1 does nothing. Passes over a row that each
// prefetch one stream measured better than one that prefetches all, as did distances that are no multiple of a row.
func (l *loop) prefetchL2Instead(bytes int, names ...string) (prefetch func()) {
	return l.prefetching(l.PREFETCHT1, bytes, "prefetchL2InsteadMask", names)
}

// prefetchFar prefetches to the second-level cache where that is large, as in processors whose third-level cache is far
// away: what they prefetch by themselves does not keep memory busy.
func (l *loop) prefetchFar(bytes int, names ...string) (prefetch func()) {
	return l.prefetching(l.PREFETCHT1, bytes, "prefetchFarMask", names)
}

// prefetchRow prefetches rows that follow to the first-level cache, or to the second-level one where that is large.
func (l *loop) prefetchRow(bytes int, names ...string) (prefetch func()) {
	first, far := l.prefetching(l.PREFETCHT0, bytes, "prefetchRowMask", names), l.prefetchFar(bytes, names...)
	return func() {
		first()
		far()
	}
}

// prefetching is what they have in common; the mask may make the distance 0, which prefetches what is read anyway.
func (l *loop) prefetching(instruction func(operand.Op), bytes int, mask string, names []string) (prefetch func()) {
	further := l.GP64()
	l.MOVQ(operand.U32(bytes/4), further)
	if mask != "" {
		l.ANDQ(operand.NewDataAddr(operand.Symbol{Name: "·" + mask}, 0), further)
	}
	l.requests = append(l.requests, further)
	return func() {
		for _, name := range names {
			if m := l.at(name, 0); m.Disp%64 == 0 || l.flight > 0 {
				m.Index = further
				instruction(m)
			}
		}
	}
}

// load returns a register with the part's elements of a float32 stream.
func (l *loop) load(name string) reg.VecVirtual {
	v := l.register()
	l.VMOVUPS(l.at(name, 0), v)
	return v
}

// store writes the part's elements of a float32 stream. A non-temporal store is one of either kind: see choose.
func (l *loop) store(v reg.VecVirtual, name string) {
	if l.nonTemporal && name == "dst" {
		l.VMOVNTPS(v, l.at(name, 0))
		return
	}
	l.VMOVUPS(v, l.at(name, 0))
}

// scalar returns a register with a parameter in each lane.
func (l *loop) scalar(name string) reg.VecVirtual {
	v := l.register()
	argument, err := l.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	if l.known[name].typ == "float64" {
		l.VBROADCASTSD(argument.Addr, v)
	} else { // of 32 bits, whatever they mean
		l.VBROADCASTSS(argument.Addr, v)
	}
	return v
}

// number returns the memory operand with x in each lane.
func (g *generator) number(x float32) operand.Mem { return g.bits(bitsOf(x)) }

// constant returns a register with x in each lane.
func (g *generator) constant(x float32) reg.VecVirtual {
	v := g.register()
	g.VMOVUPS(g.number(x), v)
	return v
}

// and emits a bitwise and with a pattern.
func (g *generator) and(pattern uint32, x reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	if g.wide() {
		g.VPANDD(g.bits(pattern), x, y)
	} else {
		g.VPAND(g.bits(pattern), x, y)
	}
	return y
}

// bySign emits the choice of negative where the sign bit of x is set, else of positive.
func (g *generator) bySign(x, negative, positive reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	if g.wide() {
		mask := g.K()
		g.VPMOVD2M(x, mask)
		g.VBLENDMPS(negative, positive, mask, y)
	} else {
		g.VBLENDVPS(x, negative, positive, y)
	}
	return y
}

// doubles are the halves of a vector as float64.
type doubles [2]reg.VecVirtual

// widened converts a vector to float64, exactly.
func (g *generator) widened(v reg.VecVirtual) doubles {
	d := doubles{g.register(), g.register()}
	if g.wide() {
		upper := g.YMM()
		g.VEXTRACTF64X4(operand.Imm(1), v, upper)
		g.VCVTPS2PD(v.AsY(), d[0])
		g.VCVTPS2PD(upper, d[1])
		return d
	}
	upper := g.XMM()
	g.VEXTRACTF128(operand.Imm(1), v, upper)
	g.VCVTPS2PD(v.AsX(), d[0])
	g.VCVTPS2PD(upper, d[1])
	return d
}

// wide loads the part's elements of a float32 stream as float64.
func (l *loop) loadWide(name string) doubles {
	d := doubles{l.register(), l.register()}
	for h := range d {
		l.VCVTPS2PD(l.at(name, h*l.lanes/2), d[h])
	}
	return d
}

// narrowed rounds float64 halves to one vector of float32.
func (g *generator) narrowed(d doubles) reg.VecVirtual {
	v := g.register()
	if g.wide() {
		lower, upper := g.YMM(), g.YMM()
		g.VCVTPD2PS(d[0], lower)
		g.VCVTPD2PS(d[1], upper)
		g.VINSERTF64X4(operand.Imm(1), upper, lower.AsZ(), v)
		return v
	}
	lower, upper := g.XMM(), g.XMM()
	g.VCVTPD2PSY(d[0], lower)
	g.VCVTPD2PSY(d[1], upper)
	g.VINSERTF128(operand.Imm(1), upper, lower.AsY(), v)
	return v
}

// accumulators are 16 float64 sums; element i of a stream goes to number i mod 16.
type accumulators struct {
	*loop
	name  string
	parts []doubles
}

// accumulate loads the sums at a fixed parameter.
func (l *loop) accumulate(name string) *accumulators {
	a := &accumulators{loop: l, name: name}
	for range block / l.lanes {
		a.parts = append(a.parts, doubles{l.register(), l.register()})
	}
	a.each(func(v reg.VecVirtual, m operand.Mem) { l.VMOVUPD(m, v) })
	return a
}

func (a *accumulators) each(f func(v reg.VecVirtual, m operand.Mem)) {
	for p, halves := range a.parts {
		for h, v := range halves {
			f(v, operand.Mem{Base: a.pointers[a.name], Disp: 8 * (p*a.lanes + h*a.lanes/2)})
		}
	}
}

// current are the accumulators of the part.
func (a *accumulators) current() doubles { return a.parts[a.part%len(a.parts)] }

// add adds the part's numbers.
func (a *accumulators) add(d doubles) {
	for h := range d {
		a.VADDPD(d[h], a.current()[h], a.current()[h])
	}
}

// addProduct adds the part's products. A product of two converted float32 is exact, so fusing rounds as adding does.
func (a *accumulators) addProduct(x, y doubles) {
	for h := range x {
		a.VFMADD231PD(x[h], y[h], a.current()[h])
	}
}

// store writes the sums back.
func (a *accumulators) store() {
	a.each(func(v reg.VecVirtual, m operand.Mem) { a.VMOVUPD(v, m) })
}

// several is the number of blocks of a turn in kernels with more accumulators than a block has elements, or gathered
// ones.
const several = 4

// gathered are accumulators that get the sum of a turn's several blocks, added in order in float32: converting takes
// longer than adding.
type gathered struct {
	*accumulators
	turn []reg.VecVirtual
}

// gather loads the sums at a fixed parameter.
func (l *loop) gather(name string) *gathered {
	g := &gathered{accumulators: l.accumulate(name)}
	for range g.parts {
		g.turn = append(g.turn, l.register())
	}
	l.blocks, l.gathered = several, append(l.gathered, g)
	return g
}

// add adds the part's numbers to those of the turn.
func (g *gathered) add(v reg.VecVirtual) {
	sum := g.turn[g.part%len(g.turn)]
	if !g.looped() && g.part < len(g.turn) {
		g.VMOVUPS(v, sum)
		return
	}
	g.VADDPS(v, sum, sum)
}

// widen adds the turn's sums.
func (g *gathered) widen() {
	for g.part = range g.turn {
		g.accumulators.add(g.widened(g.turn[g.part]))
	}
}
