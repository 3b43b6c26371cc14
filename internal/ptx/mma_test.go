// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMMA multiplies matrices of small integers, whose products are exact in every format, with each shape. Where an
// element lies is written as the PTX ISA's section on matrix fragments has it.
func TestMMA(t *testing.T) {
	for _, c := range []struct {
		k        int
		ab, cd   string
		pack     int
		encode   func(float32) uint32
		perC     int
		encodeCD func(float32) uint32
	}{
		{16, "bf16", "f32", 2, func(v float32) uint32 { return uint32(bf16(v)) },
			1, func(v float32) uint32 { return uint32(fl(v)) }},
		{8, "bf16", "f32", 2, func(v float32) uint32 { return uint32(bf16(v)) },
			1, func(v float32) uint32 { return uint32(fl(v)) }},
		{16, "f16", "f32", 2, func(v float32) uint32 { return uint32(f16(v)) },
			1, func(v float32) uint32 { return uint32(fl(v)) }},
		{16, "f16", "f16", 2, func(v float32) uint32 { return uint32(f16(v)) },
			2, func(v float32) uint32 { return uint32(f16(v)) }},
		{8, "f16", "f16", 2, func(v float32) uint32 { return uint32(f16(v)) },
			2, func(v float32) uint32 { return uint32(f16(v)) }},
		{8, "tf32", "f32", 1, func(v float32) uint32 { return uint32(fl(v)) },
			1, func(v float32) uint32 { return uint32(fl(v)) }},
		{4, "tf32", "f32", 1, func(v float32) uint32 { return uint32(fl(v)) },
			1, func(v float32) uint32 { return uint32(fl(v)) }},
	} {
		na, nb, nc := 16*c.k/c.pack/32, 8*c.k/c.pack/32, 4/c.perC
		name := fmt.Sprintf("mma.sync.aligned.m16n8k%d.row.col.%s.%s.%s.%s", c.k, c.cd, c.ab, c.ab, c.cd)
		r := rand.New(rand.NewPCG(1, uint64(c.k)))
		var a [16][16]float32
		var b [16][8]float32
		var acc, want [16][8]float32
		for i := range 16 {
			for k := range c.k {
				a[i][k] = float32(r.IntN(15) - 7)
			}
			for j := range 8 {
				acc[i][j] = float32(r.IntN(100))
				b[i][j] = float32(r.IntN(15) - 7)
			}
		}
		for i := range 16 {
			for j := range 8 {
				want[i][j] = acc[i][j]
				for k := range c.k {
					want[i][j] += a[i][k] * b[k][j]
				}
			}
		}
		place := func(lane, i int) (row, col int) { // of element i of a lane's accumulator
			return lane/4 + i/2*8, lane%4*2 + i%2
		}
		var in []uint32
		for lane := range 32 {
			g, tid := lane/4, lane%4
			words := make([]uint32, na+nb+nc)
			for e := range na * c.pack {
				row, col := g, tid*c.pack+e%c.pack
				if e/c.pack%2 == 1 {
					row += 8
				}
				if e/c.pack >= 2 {
					col += 4 * c.pack
				}
				words[e/c.pack] |= c.encode(a[row][col]) << (16 * (e % c.pack))
			}
			for e := range nb * c.pack {
				words[na+e/c.pack] |= c.encode(b[tid*c.pack+e%c.pack+e/c.pack*4*c.pack][g]) << (16 * (e % c.pack))
			}
			for e := range 4 {
				row, col := place(lane, e)
				words[na+nb+e/c.perC] |= c.encodeCD(acc[row][col]) << (16 * (e % c.perC))
			}
			in = append(in, words...)
		}
		var src strings.Builder
		fmt.Fprintf(&src,
			".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n"+
				".reg .b32 %%r<20>, %%t;\n.reg .b64 %%in, %%out, %%w;\nld.param.u64 %%in, [in];\n"+
				"ld.param.u64 %%out, [out];\n"+
				"mov.u32 %%t, %%tid.x;\nmul.wide.u32 %%w, %%t, %d;\nadd.s64 %%in, %%in, %%w;\n"+
				"mul.wide.u32 %%w, %%t, %d;\n"+
				"add.s64 %%out, %%out, %%w;\n", 4*(na+nb+nc), 4*nc)
		list := func(from, n int) string {
			var names []string
			for i := range n {
				names = append(names, fmt.Sprintf("%%r%d", from+i))
			}
			return "{" + strings.Join(names, ", ") + "}"
		}
		for i := range na + nb + nc {
			fmt.Fprintf(&src, "ld.global.u32 %%r%d, [%%in+%d];\n", i, 4*i)
		}
		fmt.Fprintf(&src, "%s %s, %s, %s, %s;\n", name, list(na+nb, nc), list(0, na), list(na, nb), list(na+nb, nc))
		for i := range nc {
			fmt.Fprintf(&src, "st.global.u32 [%%out+%d], %%r%d;\n", 4*i, na+nb+i)
		}
		src.WriteString("ret;\n}\n")
		m, err := Parse(src.String())
		require.NoError(t, err, name)
		k, err := m.Kernel("k")
		require.NoError(t, err, name)
		d := newDevice(t)
		out := d.alloc(4 * 32 * nc)
		launch(t, k, d, Launch{Block: [3]uint32{32}}, d.put(in), out)
		got := make([]uint32, 32*nc)
		d.get(out, got)
		for lane := range 32 {
			for e := range 4 {
				row, col := place(lane, e)
				bits := got[lane*nc+e/c.perC] >> (16 * (e % c.perC))
				if c.perC == 2 {
					bits &= 0xffff
				}
				require.Equal(t, c.encodeCD(want[row][col]), bits, "%s: row %d, column %d", name, row, col)
			}
		}
	}
}
