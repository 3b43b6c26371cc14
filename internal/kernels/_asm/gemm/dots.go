// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dotsPrefetch is how many bytes ahead in each column a dots kernel prefetches into the first-level cache.
const dotsPrefetch = 256

// cacheLine is the size of a line of the caches in bytes.
const cacheLine = 64

// dotsSize is the size of a dots kernel: it computes least to most rows of blocks that are so many vectors wide, and adds
// four or eight products to a row before it goes on to the next.
type dotsSize struct{ vectors, least, most, part int }

// eitherHalf stands for a B of a half type that a kernel is told.
const eitherHalf = "Half"

// dotsSizes are those of the dots kernels for a B of float32, "", bfloat16, "BF16", float16, "F16", or one of these two,
// eitherHalf: what the registers hold beside a square.
func dotsSizes(f family, of string) []dotsSize {
	switch {
	case f.lanes == 16 && of == "":
		return []dotsSize{{2, 1, 1, 8}, {1, 1, 12, 8}}
	case f.lanes == 16 && of == "BF16":
		return []dotsSize{{2, 1, 4, 8}, {1, 1, 11, 8}}
	case f.lanes == 16:
		return []dotsSize{{1, 1, 8, 8}}
	case of == "":
		return []dotsSize{{2, 1, 2, 8}, {1, 3, 5, 8}}
	case of == "BF16":
		return []dotsSize{{2, 1, 2, 4}}
	case of == "F16":
		return []dotsSize{{2, 1, 2, 8}}
	default:
		return []dotsSize{{1, 3, 5, 8}}
	}
}

// dots emits the kernels for a B whose columns are contiguous: squares of it are transposed in registers, so that each
// lane sums one column in the order of k, as all kernels do. Elements of a half type are widened: float16 as they are
// loaded, bfloat16 in pairs after the transposition. A kernel for both widens both as they are loaded.
func dots(c *build.Context, f family, of string) {
	for _, size := range dotsSizes(f, of) {
		dotsOf(c, f, of, size)
	}
}

// endDots emits the writing of a block's sums, the way to the next block, which is added to C, and the end of a dots
// kernel.
func endDots(c *build.Context, f family, rows upTo, sums [][]reg.VecVirtual) {
	rows.store(c, f, sums)
	for _, names := range [][2]string{{"c", "d"}, {"cstride", "dstride"}} {
		x := c.GP64()
		c.Load(c.Param(names[0]), x)
		c.MOVQ(x, parameter(c, names[1]))
	}
	nextBlock(c)
	c.VZEROUPPER()
	c.RET()
}

func dotsOf(c *build.Context, f family, of string, size dotsSize) {
	name := fmt.Sprintf("dots%s%sx%d", of, f.name, size.most)
	signature, elements, deep := strings.ReplaceAll(directHalf, "uint16", "float32"), "", f.lanes
	if of != "" {
		signature, elements = directHalf, ", for a B of "+halfNames[of]
	}
	if of == eitherHalf {
		elements = fmt.Sprintf(", for a B of bfloat16 if of is %d, of float16 if it is %d", lanesBF16, lanesF16)
	}
	if of == "BF16" {
		deep *= 2
	}
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes rows×%d elements of C = A·B, or C = D + A·B if d is not nil; %d ≤ rows ≤ %d%s.", name,
			size.vectors*f.lanes, size.least, size.most, elements),
		fmt.Sprintf("It adds blocks ≥ 1 sums of k ≥ %d products each, a multiple of %d, one after the other.", deep,
			deep),
		"A is packed: a[rows·p + i]. Column j of B is at b[j·bstride], row i of C at c[i·cstride], of D at "+
			"d[i·dstride].",
		"It prefetches as many bytes from ahead on as it reads of B.")
	c.Pragma("noescape")
	signature = strings.Replace(signature, "func(k", "func(rows, k", 1)
	end := "blocks int, ahead uintptr)"
	if of == eitherHalf {
		end = "blocks int, ahead uintptr, of int)"
	}
	c.SignatureExpr(strings.Replace(signature, "blocks int)", end, 1))
	rows := upTo{c.GP64(), size.least, size.most, true}
	c.Load(c.Param("rows"), rows.n)
	stride := c.GP64()
	c.Load(c.Param("bstride"), stride)
	if of == "" {
		c.SHLQ(operand.Imm(2), stride)
	} else {
		c.SHLQ(operand.Imm(1), stride)
	}
	multiples := newMultiples(c, stride)
	rows3, ahead := c.GP64(), c.GP64()
	c.LEAQ(operand.Mem{Base: rows.n, Index: rows.n, Scale: 2}, rows3)
	c.Load(c.Param("ahead"), ahead)
	var mask reg.VecVirtual
	if of == "BF16" {
		mask = f.oddMask(c)
	}

	k, a, first := c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("a"), a)
	c.Load(c.Param("b"), first)
	columns := multiples.columns(c, f, first, size.vectors)
	columns.half, columns.either, columns.ahead = of == "F16" || of == eitherHalf, of == eitherHalf, ahead
	c.Label("block")
	c.Load(c.Param("k"), k)
	sums := zeros(c, f, size.most, size.vectors)
	c.Label("loop")
	for v := range size.vectors {
		if v > 0 {
			back := c.GP64()
			c.MOVQ(rows.n, back)
			c.SHLQ(operand.U8(bits.TrailingZeros(uint(4*deep))), back)
			c.SUBQ(back, a)
		}
		square := transposed(c, f, columns.load(c, v))
		for len(square) > 0 {
			var part []reg.VecVirtual
			for ; len(part) < size.part; square = square[1:] {
				if of == "BF16" {
					even, odd := f.widen(c, square[0], mask)
					part = append(part, even, odd)
				} else {
					part = append(part, square[0])
				}
			}
			second := a
			if len(part) > 4 {
				second = c.GP64()
				fourProducts(c, rows, a, second)
			}
			rows.each(c, fmt.Sprintf("part%d_%d", v, len(square)), func(i int) {
				for n, x := range part {
					at := operand.Mem{Base: a, Disp: 4 * i}
					if n >= 4 {
						at.Base = second
					}
					switch n % 4 {
					case 1, 2:
						at.Index, at.Scale = rows.n, uint8(4*(n%4))
					case 3:
						at.Index, at.Scale = rows3, 4
					}
					f.multiplyAdd(c, at, x, sums[i][v])
				}
			})
			fourProducts(c, rows, second, a)
		}
	}
	columns.advance(c)
	c.SUBQ(operand.Imm(uint64(deep)), k)
	c.JNE(operand.LabelRef("loop"))
	endDots(c, f, rows, sums)
}

// fourProducts emits to = from + 4·rows elements of A.
func fourProducts(c *build.Context, rows upTo, from, to reg.GPVirtual) {
	c.LEAQ(operand.Mem{Base: from, Index: rows.n, Scale: 8}, to)
	c.LEAQ(operand.Mem{Base: to, Index: rows.n, Scale: 8}, to)
}

// multiplyAdd emits sum += x·a, with one element a of A.
func (f family) multiplyAdd(c *build.Context, a operand.Mem, x, sum reg.VecVirtual) {
	if f.lanes == 16 {
		c.VFMADD231PS_BCST(a, x, sum)
		return
	}
	y := f.register(c)
	c.VBROADCASTSS(a, y)
	c.VFMADD231PS(y, x, sum)
}

// multiples are 1, 3, 5 and 7 times the distance of two columns, in bytes.
type multiples [8]reg.GPVirtual

func newMultiples(c *build.Context, stride reg.GPVirtual) *multiples {
	m := &multiples{1: stride}
	for _, n := range []int{3, 5, 7} {
		m[n] = c.GP64()
		c.IMUL3Q(operand.Imm(uint64(n)), stride, m[n])
	}
	return m
}

// columns walk down the columns of a panel of B, eight from each base on.
type columns struct {
	*multiples
	f    family
	base []reg.GPVirtual
	half bool // the elements are float16
	// either tells that they may be bfloat16 instead, which the parameter of says.
	either bool
	// ahead is where the next lines are that are prefetched, as many as are read: what is read together lies in pages
	// far apart, where processors see too few lines ahead by themselves. Without it none are.
	ahead reg.GPVirtual
}

// columns emits the start at the columns from b on.
func (m *multiples) columns(c *build.Context, f family, b reg.GPVirtual, vectors int) *columns {
	w := &columns{multiples: m, f: f}
	for i := range vectors * f.lanes / 8 {
		next := c.GP64()
		if i == 0 {
			c.MOVQ(b, next)
		} else {
			c.LEAQ(operand.Mem{Base: w.base[i-1], Index: m[1], Scale: 8}, next)
		}
		w.base = append(w.base, next)
	}
	return w
}

// at returns the address of column j of the panel.
func (w *columns) at(j int) operand.Mem {
	base := w.base[j/8]
	switch j %= 8; j {
	case 0:
		return operand.Mem{Base: base}
	case 2, 4:
		return operand.Mem{Base: base, Index: w.multiples[1], Scale: uint8(j)}
	case 6:
		return operand.Mem{Base: base, Index: w.multiples[3], Scale: 2}
	default:
		return operand.Mem{Base: base, Index: w.multiples[j], Scale: 1}
	}
}

// load emits the reading of a square of the panel: a vector from each of the columns of vector v.
func (w *columns) load(c *build.Context, v int) []reg.VecVirtual {
	square := make([]reg.VecVirtual, w.f.lanes)
	for i := range square {
		square[i] = w.f.register(c)
	}
	if w.either {
		c.CMPQ(parameter(c, "of"), operand.Imm(lanesF16))
		c.JE(operand.LabelRef("float16"))
		for i, x := range square {
			c.VPMOVZXWD(w.at(v*w.f.lanes+i), x)
			c.VPSLLD(operand.Imm(16), x, x)
		}
		c.JMP(operand.LabelRef("loaded"))
		c.Label("float16")
		for i, x := range square {
			c.VCVTPH2PS(w.at(v*w.f.lanes+i), x)
		}
		c.Label("loaded")
	}
	for i, x := range square {
		from := w.at(v*w.f.lanes + i)
		switch {
		case w.either:
		case w.half:
			c.VCVTPH2PS(from, x)
		default:
			c.VMOVUPS(from, x)
		}
		from.Disp = dotsPrefetch
		c.PREFETCHT0(from)
		if at := i * w.bytes(); w.ahead != nil && at%cacheLine == 0 {
			c.PREFETCHT1(operand.Mem{Base: w.ahead, Disp: v*w.f.lanes*w.bytes() + at})
		}
	}
	return square
}

// bytes is how much of a column load reads.
func (w *columns) bytes() int {
	if w.half {
		return w.f.bytes() / 2
	}
	return w.f.bytes()
}

func (w *columns) advance(c *build.Context) {
	for _, b := range w.base {
		c.ADDQ(operand.Imm(uint64(w.bytes())), b)
	}
	if w.ahead != nil {
		c.ADDQ(operand.U32(uint32(8*len(w.base)*w.bytes())), w.ahead)
	}
}

// transposed emits the transposition of a square of registers.
func transposed(c *build.Context, f family, x []reg.VecVirtual) []reg.VecVirtual {
	fresh := func() reg.VecVirtual { return f.register(c) }
	for i := 0; i < len(x); i += 4 { // 4×4 within each 128 bit
		low01, high01, low23, high23 := fresh(), fresh(), fresh(), fresh()
		c.VUNPCKLPS(x[i+1], x[i], low01)
		c.VUNPCKHPS(x[i+1], x[i], high01)
		c.VUNPCKLPS(x[i+3], x[i+2], low23)
		c.VUNPCKHPS(x[i+3], x[i+2], high23)
		for j := range 4 {
			x[i+j] = fresh()
		}
		c.VUNPCKLPD(low23, low01, x[i])
		c.VUNPCKHPD(low23, low01, x[i+1])
		c.VUNPCKLPD(high23, high01, x[i+2])
		c.VUNPCKHPD(high23, high01, x[i+3])
	}
	y := make([]reg.VecVirtual, len(x))
	for j := range 4 { // then the 128 bits themselves: y[4·l+j] is part l of all x[4·q+j]
		if f.lanes == 8 {
			y[j], y[4+j] = fresh(), fresh()
			c.VPERM2F128(operand.Imm(0x20), x[4+j], x[j], y[j])
			c.VPERM2F128(operand.Imm(0x31), x[4+j], x[j], y[4+j])
			continue
		}
		even01, odd01, even23, odd23 := fresh(), fresh(), fresh(), fresh()
		c.VSHUFF32X4(operand.Imm(0x88), x[4+j], x[j], even01)
		c.VSHUFF32X4(operand.Imm(0xdd), x[4+j], x[j], odd01)
		c.VSHUFF32X4(operand.Imm(0x88), x[12+j], x[8+j], even23)
		c.VSHUFF32X4(operand.Imm(0xdd), x[12+j], x[8+j], odd23)
		for l := range 4 {
			y[4*l+j] = fresh()
		}
		c.VSHUFF32X4(operand.Imm(0x88), even23, even01, y[j])
		c.VSHUFF32X4(operand.Imm(0x88), odd23, odd01, y[4+j])
		c.VSHUFF32X4(operand.Imm(0xdd), even23, even01, y[8+j])
		c.VSHUFF32X4(operand.Imm(0xdd), odd23, odd01, y[12+j])
	}
	return y
}
