// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

// AMX has eight tiles of 16 rows of 64 bytes. TDPBF16PS adds to a tile of 16×16 floats the products of one of 16 rows
// by 32 bfloat16 and one of 16 pairs of rows by 16.
//
// A float is the sum of three bfloat16, pieces of 8 bits each. Of the nine products of the pieces of two floats six are
// added; the others are as small as what rounding loses. A bfloat16 is its only piece. A step is 32 products: of a
// panel of 32 lanes it has two tiles for each piece, of 1 KiB each.

const (
	tileBytes  = 1 << 10
	pieceBytes = 2 * tileBytes
)

// tilePasses are, by the number of pieces, the products of pieces of A and of B, 0 being the largest piece, in the
// order in which they are added: from one to the next only one side changes.
var tilePasses = map[int][][2]int{1: {{0, 0}}, 3: {{2, 0}, {0, 0}, {0, 2}, {0, 1}, {1, 1}, {1, 0}}}

// tiles emits the kernels that use AMX and those that split floats for it.
func tiles(c *build.Context) {
	for _, pieces := range []int{1, 3} {
		microTiles(c, pieces)
		splitRows(c, pieces)
		splitLanes(c, pieces)
	}
}

// microTiles emits the kernel of 32×32 elements. While the unit multiplies for a block, what it summed for the one
// before is added to C.
func microTiles(c *build.Context, pieces int) {
	name, stepBytes, passes := fmt.Sprintf("tiles%dAMX", pieces), pieces*pieceBytes, tilePasses[pieces]
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes rows×cols elements of C = A·B, or C = D + A·B if d is not nil, 1 ≤ rows ≤ 32, cols "+
			"≥ 1, over steps of 32 products, steps ≥ 1, of panels with %d pieces for each element; those of B lie "+
			"one after the other.", name, pieces),
		"Row i of C is at c[i·cstride], of D at d[i·dstride]. shape is the configuration of the tiles; sums has room "+
			"for 32×32 elements.")
	c.Pragma("noescape")
	c.SignatureExpr("func(shape *uint64, rows, steps int, a, b, c *float32, cstride int, d *float32, dstride, cols " +
		"int, sums *float32)")
	const (
		rowsAtOnce = 4
		rowBytes   = 128
	)
	shape := c.GP64()
	c.Load(c.Param("shape"), shape)
	tileInstruction(c, "LDTILECFG", operand.Mem{Base: shape})
	y, cc, cstride, d, dstride, end, row := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	rowsBytes := parameter(c, "rows")
	c.SHLQ(operand.Imm(7), rowsBytes)
	c.Load(c.Param("b"), y)
	c.Load(c.Param("c"), cc)
	c.Load(c.Param("cstride"), cstride)
	c.Load(c.Param("d"), d)
	c.Load(c.Param("dstride"), dstride)
	c.Load(c.Param("sums"), end)
	c.ADDQ(rowsBytes, end)
	c.SHLQ(operand.Imm(2), cstride)
	c.SHLQ(operand.Imm(2), dstride)
	c.MOVQ(operand.U32(64), row) // bytes of a tile's
	// Of the block before: the sums that are left, as the distance from their end, where they go, and which columns
	// there are.
	pending, to, added := c.GP64(), c.GP64(), c.GP64()
	c.XORQ(pending, pending)
	c.XORQ(to, to)
	c.XORQ(added, added)
	masks := []reg.OpmaskVirtual{c.K(), c.K()}
	for _, k := range masks {
		c.KXNORW(k, k, k)
	}
	cols := parameter(c, "cols")
	addRows := func(name string, rows int) {
		sums := make([]reg.VecVirtual, 2*rows)
		for i := range sums {
			sums[i] = c.ZMM()
			c.VMOVUPS(operand.Mem{Base: end, Index: pending, Scale: 1, Disp: 64 * i}, sums[i])
		}
		c.TESTQ(d, d)
		c.JE(operand.LabelRef(name + "_store"))
		for i := range sums {
			c.VADDPS(operand.Mem{Base: added, Disp: i % 2 * 64}, sums[i], masks[i%2], sums[i])
			if i%2 > 0 {
				c.ADDQ(dstride, added)
			}
		}
		c.Label(name + "_store")
		for i := range sums {
			c.VMOVUPS(sums[i], masks[i%2], operand.Mem{Base: to, Disp: i % 2 * 64})
			if i%2 > 0 {
				c.ADDQ(cstride, to)
			}
		}
		c.ADDQ(operand.U32(uint64(rows*rowBytes)), pending)
	}

	c.Label("block")
	left, x, near := c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("steps"), left)
	c.Load(c.Param("a"), x)
	c.MOVQ(cc, near)
	for i := range 4 {
		tileInstruction(c, "TILEZERO", operand.Imm(uint64(i)))
	}
	c.Label("step")
	held := [2]int{-1, -1}
	prefetched, prefetchedRows := 0, 0
	for n, pass := range passes {
		for side, base := range []reg.Register{x, y} {
			if held[side] == pass[side] {
				continue
			}
			held[side] = pass[side]
			for i := range 2 {
				tileInstruction(c, "TILELOADD",
					operand.Mem{Base: base, Index: row, Scale: 1, Disp: pass[side]*pieceBytes + i*tileBytes},
					operand.Imm(uint64(4+2*side+i)))
			}
		}
		for i := range 4 {
			tileInstruction(c, "TDPBF16PS", operand.Imm(uint64(6+i%2)), operand.Imm(uint64(4+i/2)),
				operand.Imm(uint64(i)))
			for ; prefetched < stepBytes/64*(4*n+i+1)/(4*len(passes)); prefetched++ { // the next step of B
				c.PREFETCHT0(operand.Mem{Base: y, Disp: stepBytes + 64*prefetched})
			}
		}
		for ; prefetchedRows < rowsAtOnce*(n+1)/len(passes); prefetchedRows++ { // rows of C, too
			c.PREFETCHT0(operand.Mem{Base: near})
			c.PREFETCHT0(operand.Mem{Base: near, Disp: 64})
			c.ADDQ(cstride, near)
		}
		if n%3 == (len(passes)-1)%3 { // once, or twice
			name := fmt.Sprintf("beside%d", n)
			c.CMPQ(pending, operand.I32(-rowsAtOnce*rowBytes))
			c.JG(operand.LabelRef(name + "_nothing"))
			addRows(name, rowsAtOnce)
			c.Label(name + "_nothing")
		}
	}
	c.ADDQ(operand.U32(uint64(stepBytes)), x)
	c.ADDQ(operand.U32(uint64(stepBytes)), y)
	c.DECQ(left)
	c.JNE(operand.LabelRef("step"))

	c.Label("rest")
	c.CMPQ(pending, operand.I32(-rowsAtOnce*rowBytes))
	c.JG(operand.LabelRef("few"))
	addRows("alone", rowsAtOnce)
	c.JMP(operand.LabelRef("rest"))
	c.Label("few")
	c.TESTQ(pending, pending)
	c.JE(operand.LabelRef("all_added"))
	addRows("single", 1)
	c.JMP(operand.LabelRef("few"))
	c.Label("all_added")
	c.CMPQ(cols, operand.Imm(0))
	c.JLE(operand.LabelRef("done"))
	c.MOVQ(operand.U32(rowBytes), left)
	c.Load(c.Param("sums"), near)
	for i := range 4 {
		c.LEAQ(operand.Mem{Base: near, Disp: i / 2 * 16 * rowBytes}, x)
		tileInstruction(c, "TILESTORED", operand.Imm(uint64(i)),
			operand.Mem{Base: x, Index: left, Scale: 1, Disp: i % 2 * 64})
	}
	c.SUBQ(rowsBytes, pending)
	c.MOVQ(cc, to)
	c.MOVQ(d, added)
	c.ADDQ(operand.U32(rowBytes), cc)
	c.TESTQ(d, d)
	c.JE(operand.LabelRef("no_addend"))
	c.ADDQ(operand.U32(rowBytes), d)
	c.Label("no_addend")
	c.MOVQ(cols, left)
	c.SUBQ(operand.Imm(32), cols)
	c.JG(operand.LabelRef("block"))
	c.JE(operand.LabelRef("rest"))
	mask := c.GP64()
	c.MOVQ(operand.U32(0xffffffff), mask)
	c.BZHIQ(left, mask, mask)
	c.KMOVW(mask.As32(), masks[0])
	c.SHRQ(operand.Imm(16), mask)
	c.KMOVW(mask.As32(), masks[1])
	c.JMP(operand.LabelRef("rest"))
	c.Label("done")
	tileInstruction(c, "TILERELEASE")
	c.VZEROUPPER()
	c.RET()
}

// splitter splits vectors of floats into pieces: each is what is left, rounded to the nearest bfloat16, and what is
// left is then exact. A bfloat16 is its only piece.
type splitter struct {
	c          *build.Context
	count      int            // of pieces
	half, mask reg.VecVirtual // half a unit of a bfloat16, and the bits that make one
	largest    reg.VecVirtual // of the last pieces, without their signs
	control    operand.Mem    // of vectors, as it was

	steps, src, stride, dst, pitch reg.GPVirtual // the parameters, distances in bytes
}

// newSplitter emits what the kernels that split begin with.
func newSplitter(c *build.Context, pieces int) splitter {
	s := splitter{c: c, count: pieces, steps: c.GP64(), src: c.GP64(), stride: c.GP64(), dst: c.GP64(), pitch: c.GP64()}
	c.Load(c.Param("steps"), s.steps)
	c.Load(c.Param("src"), s.src)
	c.Load(c.Param("stride"), s.stride)
	c.Load(c.Param("dst"), s.dst)
	c.Load(c.Param("pitch"), s.pitch)
	c.IMUL3Q(operand.Imm(uint64(s.element())), s.stride, s.stride)
	c.SHLQ(operand.Imm(2), s.pitch)
	s.largest = c.ZMM()
	c.VPXORD(s.largest, s.largest, s.largest)
	if pieces == 1 {
		return s
	}
	s.half, s.mask, s.control = c.ZMM(), c.ZMM(), c.AllocLocal(8)
	// Denormal numbers are zero, as they are for the unit that multiplies: differences that are denormal take a hundred
	// times as long.
	const denormalsAreZero = 1<<6 | 1<<15
	word := c.GP32()
	c.VSTMXCSR(s.control)
	c.MOVL(s.control, word)
	c.ORL(operand.U32(denormalsAreZero), word)
	c.MOVL(word, s.control.Offset(4))
	c.VLDMXCSR(s.control.Offset(4))
	c.MOVL(operand.U32(0x8000), word)
	c.VPBROADCASTD(word, s.half)
	c.MOVL(operand.U32(0xffff0000), word)
	c.VPBROADCASTD(word, s.mask)
	return s
}

// element is the size of what is split, in bytes, and vector that of what becomes a vector of pairs' halves.
func (s splitter) element() int { return []int{1: 2, 3: 4}[s.count] }
func (s splitter) vector() int  { return 16 * s.element() }

// signature is a splitter's, with its elements for S.
func (s splitter) signature(of string) string {
	return strings.ReplaceAll(of, "S", []string{1: "uint16", 3: "float32"}[s.count])
}

// pairs emits the pairs of the elements of two vectors in memory by piece, and notes whether the last pieces are
// finite.
func (s splitter) pairs(x, y operand.Mem) []reg.VecVirtual {
	c := s.c
	low, high := c.ZMM(), c.ZMM()
	var all []reg.VecVirtual
	if s.count == 1 {
		c.VPMOVZXWD(x, low)
		c.VPMOVZXWD(y, high)
		c.VPSLLD(operand.Imm(16), high, high)
		c.VPORD(high, low, low)
		all = []reg.VecVirtual{low}
	} else {
		c.VMOVUPS(x, low)
		c.VMOVUPS(y, high)
		all = s.pairPieces(low, high)
	}
	double := c.ZMM()
	c.VPADDW(all[len(all)-1], all[len(all)-1], double)
	c.VPMAXUW(double, s.largest, s.largest)
	return all
}

// pieces emits the splitting of x, which is overwritten. The last piece has only the bits of a bfloat16 unless x is not
// finite or its last bits are too small for a float.
func (s splitter) pieces(x reg.VecVirtual) []reg.VecVirtual {
	all := make([]reg.VecVirtual, 3)
	for i := range 2 {
		p := s.c.ZMM()
		s.c.VPADDD(s.half, x, p)
		s.c.VPANDD(s.mask, p, p)
		s.c.VSUBPS(p, x, x)
		all[i] = p
	}
	all[2] = x
	return all
}

// pairPieces emits the pairs of the pieces of x and y: those of x in the lower halves.
func (s splitter) pairPieces(x, y reg.VecVirtual) []reg.VecVirtual {
	low, high := s.pieces(x), s.pieces(y)
	for i := range low {
		s.c.VPSRLD(operand.Imm(16), low[i], low[i])
		if i == 2 {
			s.c.VPTERNLOGD(operand.Imm(0xf8), s.mask, high[i], low[i]) // low | high & mask
		} else {
			s.c.VPORD(high[i], low[i], low[i])
		}
	}
	return low
}

// end emits the return of the lanes in which a last piece was not finite: infinity less itself is not a number, nor is
// what a number loses by becoming infinite.
func (s splitter) end() {
	word, k := s.c.GP32(), s.c.K()
	s.c.MOVL(operand.U32(0xff00ff00), word)
	infinity := s.c.ZMM()
	s.c.VPBROADCASTD(word, infinity)
	s.c.VPCMPUW(operand.Imm(5), infinity, s.largest, k)
	s.c.KMOVD(k, word)
	if s.count > 1 {
		s.c.VLDMXCSR(s.control)
	}
	s.c.VZEROUPPER()
	s.c.Store(word, s.c.ReturnIndex(0))
	s.c.RET()
}

// splitterNames are the names of the kernels that split, by the number of pieces.
var splitterNames = map[int][2]string{1: {"pairRowsAMX", "pairLanesAMX"}, 3: {"splitRowsAMX", "splitLanesAMX"}}

// splitRows emits the splitting of lanes whose products are contiguous.
func splitRows(c *build.Context, pieces int) {
	name := splitterNames[pieces][0]
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s splits 16 lanes of 32·steps products, steps ≥ 1, of which lane i begins at src[i·stride]: "+
			"product p < 16 of a step and the one 16 further make pair p. Pair p of piece n < %d of lane i goes", name,
			pieces),
		"to dst[n·512 + i·16 + p], in the next step pitch elements further.",
		"It returns 0 if all of src is finite, and rounds to such bfloat16.")
	c.Pragma("noescape")
	c.SignatureExpr(splitter{count: pieces}.signature(
		"func(steps int, src *S, stride int, dst *float32, pitch int) (bad uint32)"))
	s := newSplitter(c, pieces)
	steps, src, stride, dst, pitch := s.steps, s.src, s.stride, s.dst, s.pitch
	lanes, from, to, left, next := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.MOVQ(operand.U32(16), lanes)
	c.Label("lane")
	c.MOVQ(src, from)
	c.MOVQ(dst, to)
	c.MOVQ(steps, left)
	c.LEAQ(operand.Mem{Base: src, Index: stride, Scale: 2}, next)
	c.Label("step")
	for at := 0; at < 2*s.vector(); at += 64 { // the lane after the next
		c.PREFETCHT0(operand.Mem{Base: next, Disp: at})
	}
	for n, p := range s.pairs(operand.Mem{Base: from}, operand.Mem{Base: from, Disp: s.vector()}) {
		c.VMOVDQU32(p, operand.Mem{Base: to, Disp: n * pieceBytes})
	}
	c.ADDQ(operand.U32(2*s.vector()), from)
	c.ADDQ(operand.U32(2*s.vector()), next)
	c.ADDQ(pitch, to)
	c.DECQ(left)
	c.JNE(operand.LabelRef("step"))
	c.ADDQ(stride, src)
	c.ADDQ(operand.Imm(64), dst)
	c.DECQ(lanes)
	c.JNE(operand.LabelRef("lane"))
	s.end()
}

// splitLanes emits the splitting of lanes that are contiguous.
func splitLanes(c *build.Context, pieces int) {
	name := splitterNames[pieces][1]
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s splits 32·panels lanes of 32·steps products, steps ≥ 1, panels ≥ 1, of which product p "+
			"begins at src[p·stride]: pair p of piece n < %d of lane i < 16 goes to dst[n·512 + p·16 + i], of the "+
			"next 16 lanes 256", name, pieces),
		fmt.Sprintf("elements further, in the next step %d elements further, in the next panel pitch elements. Pairs "+
			"and what it returns are those of %s.", 512*pieces, splitterNames[pieces][0]))
	c.Pragma("noescape")
	c.SignatureExpr(splitter{count: pieces}.signature(
		"func(steps, panels int, src *S, stride int, dst *float32, pitch int) (bad uint32)"))
	s := newSplitter(c, pieces)
	steps, src, stride, dst, pitch := s.steps, s.src, s.stride, s.dst, s.pitch
	pairs, low, high, to, left, far := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.MOVQ(stride, far)
	c.SHLQ(operand.Imm(4), far)
	c.Label("step")
	c.MOVQ(operand.U32(16), pairs)
	c.Label("pair")
	c.MOVQ(src, low)
	c.LEAQ(operand.Mem{Base: src, Index: far, Scale: 1}, high)
	c.MOVQ(dst, to)
	c.Load(c.Param("panels"), left)
	c.Label("panel")
	for at := 0; at < 2*s.vector(); at += 64 { // the rows after the next
		for _, base := range []reg.Register{low, high} {
			c.PREFETCHT0(operand.Mem{Base: base, Index: stride, Scale: 2, Disp: at})
		}
	}
	for half := range 2 {
		for n, p := range s.pairs(operand.Mem{Base: low, Disp: s.vector() * half},
			operand.Mem{Base: high, Disp: s.vector() * half}) {
			c.VMOVDQU32(p, operand.Mem{Base: to, Disp: n*pieceBytes + half*tileBytes})
		}
	}
	c.ADDQ(operand.U32(2*s.vector()), low)
	c.ADDQ(operand.U32(2*s.vector()), high)
	c.ADDQ(pitch, to)
	c.DECQ(left)
	c.JNE(operand.LabelRef("panel"))
	c.ADDQ(stride, src)
	c.ADDQ(operand.Imm(64), dst)
	c.DECQ(pairs)
	c.JNE(operand.LabelRef("pair"))
	c.ADDQ(far, src)
	c.ADDQ(operand.U32(uint64(pieces*pieceBytes-tileBytes)), dst)
	c.DECQ(steps)
	c.JNE(operand.LabelRef("step"))
	s.end()
}

// tileInstruction emits an instruction of AMX, which neither avo nor Go's assembler knows. Tiles are immediate
// operands; encodeTiles encodes it when registers are allocated.
func tileInstruction(c *build.Context, opcode string, operands ...operand.Op) {
	i := &ir.Instruction{Opcode: opcode, Operands: operands, ISA: []string{assemble.Tiles}}
	if opcode == "TDPBF16PS" {
		i.ISA = append(i.ISA, assemble.TilesBF16)
	}
	for _, o := range operands {
		if m, ok := o.(operand.Mem); ok {
			i.Inputs = append(i.Inputs, m)
		}
	}
	c.Instruction(i)
}

// tileCodes are the prefix (0 none, 1: 66, 2: F3, 3: F2) and the operation of the instructions.
var tileCodes = map[string][2]byte{
	"LDTILECFG": {0, 0x49}, "TILERELEASE": {0, 0x49}, "TILEZERO": {3, 0x49}, "TILELOADD": {3, 0x4b},
	"TILESTORED": {2, 0x4b}, "TDPBF16PS": {2, 0x5c},
}

// encodeTiles encodes the instructions of AMX: VEX of 128 bits with the opcode map 0F38 for all.
func encodeTiles(file *ir.File) error {
	for _, f := range file.Functions() {
		for _, i := range f.Instructions() {
			code, ok := tileCodes[i.Opcode]
			if !ok {
				continue
			}
			bytes, err := encodeTile(code, i.Operands)
			if err != nil {
				return fmt.Errorf("%s in %s: %w", i.Opcode, f.Name, err)
			}
			var operands []string
			for _, o := range i.Operands {
				operands = append(operands, o.Asm())
			}
			i.Opcode, i.Operands = fmt.Sprintf("%s // %s %s", directives(bytes), i.Opcode,
				strings.Join(operands, ", ")), nil
		}
	}
	return nil
}

func encodeTile(code [2]byte, operands []operand.Op) ([]byte, error) {
	var numbers []byte // of tiles
	var memory *operand.Mem
	for _, o := range operands {
		switch o := o.(type) {
		case operand.Mem:
			memory = &o
		case operand.U8:
			numbers = append(numbers, byte(o))
		default:
			return nil, fmt.Errorf("operand %s", o.Asm())
		}
	}
	const escape, inverted = 0xc4, 0xe2
	prefix := code[0]
	switch {
	case len(numbers) == 3: // y, x, sum
		return []byte{escape, inverted, (^numbers[0]&15)<<3 | prefix, code[1], 0xc0 | numbers[2]<<3 | numbers[1]}, nil
	case memory == nil:
		register := byte(0)
		if len(numbers) == 1 {
			register = numbers[0]
		}
		return []byte{escape, inverted, 0x78 | prefix, code[1], 0xc0 | register<<3}, nil
	}
	number := func(r reg.Register) (byte, error) {
		p, ok := r.(reg.Physical)
		if !ok {
			return 0, fmt.Errorf("register %s is not allocated", r.Asm())
		}
		return byte(p.PhysicalIndex()), nil
	}
	base, err := number(memory.Base)
	if err != nil {
		return nil, err
	}
	index := byte(4) // none
	if memory.Index != nil {
		if index, err = number(memory.Index); err != nil {
			return nil, err
		}
	}
	tile := byte(0)
	if len(numbers) == 1 {
		tile = numbers[0]
	}
	d := uint32(memory.Disp)
	extended := byte(inverted) &^ (index >> 3 << 6) &^ (base >> 3 << 5)
	return []byte{escape, extended, 0x78 | prefix, code[1], 0x84 | tile<<3, index&7<<3 | base&7, byte(d), byte(d >> 8),
		byte(d >> 16), byte(d >> 24)}, nil
}

// directives is assembly for these bytes.
func directives(b []byte) string {
	var all []string
	for len(b) > 0 {
		switch {
		case len(b) >= 4:
			all, b = append(all, fmt.Sprintf("LONG $0x%02x%02x%02x%02x", b[3], b[2], b[1], b[0])), b[4:]
		case len(b) >= 2:
			all, b = append(all, fmt.Sprintf("WORD $0x%02x%02x", b[1], b[0])), b[2:]
		default:
			all, b = append(all, fmt.Sprintf("BYTE $0x%02x", b[0])), b[1:]
		}
	}
	return strings.Join(all, "; ")
}
