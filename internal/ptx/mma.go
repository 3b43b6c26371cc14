// SPDX-License-Identifier: Apache-2.0

package ptx

import "fmt"

// mmaOp is a decoded mma.sync.m16n8k(4,8,16) with a float accumulator.
type mmaOp struct {
	k          int
	pack       int  // elements in a register: 2 for 16 bits, 1 for tf32
	from       typ  // of a and b
	halfResult bool // c and d are pairs of float16
	d, a, b, c []int
}

func (l *linker) decodeMMA(d *decoded, st *statement) error {
	o := &mmaOp{pack: 2}
	var shape string
	var types []typ
	for _, m := range st.mods {
		switch m {
		case "m16n8k16", "m16n8k8", "m16n8k4":
			shape = m
		default:
			if t := typNames[m]; t != typNone {
				types = append(types, t)
			}
		}
	}
	if shape == "" || len(types) != 4 || len(st.args) != 4 || types[1] != types[2] || types[0] != types[3] ||
		!st.has("row") || !st.has("col") {
		return errUnsupported
	}
	o.from = types[1]
	o.k = map[string]int{"m16n8k16": 16, "m16n8k8": 8, "m16n8k4": 4}[shape]
	switch types[1] {
	case typF16, typBF16:
	case typTF32:
		o.pack = 1
	default:
		return errUnsupported
	}
	if o.pack == 2 && o.k == 4 || o.pack == 1 && o.k == 16 {
		return errUnsupported
	}
	switch types[0] {
	case typF32:
	case typF16:
		o.halfResult = true
	default:
		return errUnsupported
	}
	results := 4
	if o.halfResult {
		results = 2
	}
	counts := [4]int{results, 16 * o.k / o.pack / warpSize, 8 * o.k / o.pack / warpSize, results}
	for i, list := range []*[]int{&o.d, &o.a, &o.b, &o.c} {
		regs, class, _, err := l.elements(&st.args[i], counts[i], typB32, i > 0)
		if err != nil {
			return err
		}
		if class != 'R' {
			return fmt.Errorf("want registers of 32 bits")
		}
		*list = regs
	}
	d.sync.do = o.do
	return nil
}

var tableF16 = func() (t [1 << 16]float32) {
	for i := range t {
		t[i] = float32(formatF16.decode(uint32(i)))
	}
	return t
}()

func decodeF16(b uint32) float64 { return float64(tableF16[b&0xffff]) }

// do multiplies: rows of a and columns of b, both along k, are spread over the lanes as the PTX ISA's figures of
// matrix fragments say. Products are exact in float64; their sum with c is rounded once to float32.
func (o *mmaOp) do(w *warp) {
	for _, list := range [][]int{o.a, o.b, o.c} {
		for _, r := range list {
			w.need32(r)
		}
	}
	var a [16][16]float64
	var b [8][16]float64
	for lane := range warpSize {
		g, t := lane>>2, lane&3
		for i, r := range o.a { // registers: row g, row g+8, then the next half of k
			row, col := g+i%2*8, i/2*4*o.pack+t*o.pack
			o.unpack(a[row][col:], w.r32[r][lane])
		}
		for i, r := range o.b {
			o.unpack(b[g][i*4*o.pack+t*o.pack:], w.r32[r][lane])
		}
	}
	for lane := range warpSize {
		g, t := lane>>2, lane&3
		for i := range 2 {
			row := &a[g+8*i]
			var sum [2]float32
			for j := range 2 {
				col := &b[2*t+j]
				s0, s1 := 0.0, 0.0
				for k := 0; k < o.k; k += 4 { // elements beyond k are zero
					s0 += row[k&15]*col[k&15] + row[k&15|1]*col[k&15|1]
					s1 += row[k&15|2]*col[k&15|2] + row[k&15|3]*col[k&15|3]
				}
				c := 0.0
				if o.halfResult {
					c = decodeF16(w.r32[o.c[i]][lane] >> (16 * j))
				} else {
					c = float64(f32(w.r32[o.c[2*i+j]][lane]))
				}
				if o.halfResult {
					sum[j] = float32(formatF16.decode(formatF16.encode(s0+s1+c, nearest2)))
				} else {
					sum[j] = float32(s0 + s1 + c)
				}
			}
			if o.halfResult {
				w.r32[o.d[i]][lane] = formatF16.encode(float64(sum[0]), nearest2) |
					formatF16.encode(float64(sum[1]), nearest2)<<16
			} else {
				w.r32[o.d[2*i]][lane], w.r32[o.d[2*i+1]][lane] = b32(sum[0]), b32(sum[1])
			}
		}
	}
	for _, r := range o.d {
		w.d32[r] = fullMask
	}
}

// unpack writes the elements of a register.
func (o *mmaOp) unpack(to []float64, v uint32) {
	switch o.from {
	case typBF16:
		_ = to[1]
		to[0], to[1] = float64(f32(v<<16)), float64(f32(v&^0xffff))
	case typF16:
		_ = to[1]
		to[0], to[1] = decodeF16(v), decodeF16(v>>16)
	default: // tf32: the hardware ignores the lower bits
		to[0] = float64(f32(v &^ 0x1fff))
	}
}

// loadMatrixOp is a decoded ldmatrix.
type loadMatrixOp struct {
	memoryOp
	transposed bool
}

func (l *linker) decodeLoadMatrix(d *decoded, st *statement) error {
	n := 0
	for _, m := range st.mods {
		switch m {
		case "x1":
			n = 1
		case "x2":
			n = 2
		case "x4":
			n = 4
		}
	}
	if n == 0 || !st.has("m8n8") || !st.has("b16") || len(st.args) != 2 {
		return errUnsupported
	}
	s := spaceGeneric
	if st.has("shared") || st.has("shared::cta") {
		s = spaceShared
	}
	at, err := l.address(&st.args[1], s)
	if err != nil {
		return err
	}
	o := &loadMatrixOp{memoryOp: at, transposed: st.has("trans")}
	regs, class, _, err := l.elements(&st.args[0], n, typB32, false)
	if err != nil {
		return err
	}
	if class != 'R' {
		return fmt.Errorf("want registers of 32 bits")
	}
	o.regs = regs
	d.sync.do = o.do
	return nil
}

// do loads matrices of 8 rows of 8 elements of 16 bits: lanes 8i to 8i+7 have the addresses of the rows of matrix i.
func (o *loadMatrixOp) do(w *warp) {
	var at [warpSize]uint64
	w.addresses(o.base, o.wide, o.offset, &at)
	for i, r := range o.regs {
		var rows [8][]byte
		for row := range 8 {
			lane := 8*i + row
			data, shadow := w.bytesAt(o.space, lane, at[lane], 16, readAccess)
			if le.Uint64(shadow) != defined8 || le.Uint64(shadow[8:]) != defined8 {
				w.mustBeDefined(lane, shadow, at[lane])
			}
			rows[row] = data
		}
		out := &w.r32[r]
		for lane := range warpSize {
			g, t := lane>>2, lane&3
			if o.transposed {
				out[lane] = uint32(le.Uint16(rows[2*t][2*g:])) | uint32(le.Uint16(rows[2*t+1][2*g:]))<<16
			} else {
				out[lane] = le.Uint32(rows[g][4*t:])
			}
		}
		w.d32[r] = fullMask
	}
}
