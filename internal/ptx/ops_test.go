// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// snippet is a kernel that loads three words of 64 bits for each thread, does the body and stores two: registers %a, %b
// and %c hold the words, %a3 and others their lower 32 bits, %h0 the lower 16; %d and %e, %d3 and %e3 are results.
func snippet(body string) string {
	return `.version 9.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
	.reg .pred %p, %q;
	.reg .b16 %ah, %bh, %ch, %dh;
	.reg .b32 %a3, %b3, %c3, %d3, %e3, %t;
	.reg .b64 %a, %b, %c, %d, %e, %at, %to, %w;
	mov.u32 %t, %tid.x;
	ld.param.u64 %at, [in];
	ld.param.u64 %to, [out];
	mul.wide.u32 %w, %t, 24;
	add.s64 %at, %at, %w;
	mul.wide.u32 %w, %t, 16;
	add.s64 %to, %to, %w;
	ld.global.u64 %a, [%at];
	ld.global.u64 %b, [%at+8];
	ld.global.u64 %c, [%at+16];
	cvt.u32.u64 %a3, %a;
	cvt.u32.u64 %b3, %b;
	cvt.u32.u64 %c3, %c;
	cvt.u16.u64 %ah, %a;
	cvt.u16.u64 %bh, %b;
	cvt.u16.u64 %ch, %c;
	mov.u64 %d, 0;
	mov.u64 %e, 0;
	mov.u32 %d3, 0;
	mov.u32 %e3, 0;
` + body + `
	st.global.u64 [%to], %d;
	st.global.u64 [%to+8], %e;
	ret;
}
`
}

// evaluate runs a snippet for some threads.
func evaluate(t testing.TB, body string, in ...[3]uint64) [][2]uint64 {
	t.Helper()
	m, err := Parse(snippet(body))
	require.NoError(t, err)
	k, err := m.Kernel("k")
	require.NoError(t, err)
	d := newDevice(t)
	out := d.alloc(16 * len(in))
	launch(t, k, d, Launch{Block: [3]uint32{uint32(len(in))}}, d.put(in), out)
	got := make([][2]uint64, len(in))
	d.get(out, got)
	return got
}

// instruction writes "op d, a, b, c" with registers of the classes: H, R or D for 16, 32 and 64 bits, P for a
// predicate.
func instruction(op, classes string) string {
	names := map[byte][4]string{'H': {"%dh", "%ah", "%bh", "%ch"}, 'R': {"%d3", "%a3", "%b3", "%c3"},
		'D': {"%d", "%a", "%b", "%c"}, 'P': {"%p"}}
	var args []string
	for i := range len(classes) {
		args = append(args, names[classes[i]][i])
	}
	text := "\t" + op + " " + strings.Join(args, ", ") + ";\n"
	switch classes[0] {
	case 'H':
		text += "\tcvt.u64.u16 %d, %dh;\n"
	case 'R':
		text += "\tcvt.u64.u32 %d, %d3;\n"
	case 'P':
		text += "\tselp.b64 %d, 1, 0, %p;\n"
	}
	return text
}

type opCase struct {
	want    uint64
	a, b, c uint64
}

func u32(v int32) uint64   { return uint64(uint32(v)) }
func fl(v float32) uint64  { return uint64(math.Float32bits(v)) }
func dbl(v float64) uint64 { return math.Float64bits(v) }

const (
	inf32  = 0x7f800000
	inf64  = 0x7ff << 52
	least  = 1 // smallest subnormal
	snan32 = 0x7f800001
)

// TestOps holds the edges of each instruction; the values were worked out by hand from the PTX ISA.
func TestOps(t *testing.T) {
	minus := func(v uint64) uint64 { return -v }
	for _, o := range []struct {
		op, classes string
		cases       []opCase
	}{
		{"add.s32", "RRR", []opCase{{0x80000000, 0x7fffffff, 1, 0}, {0, 0xffffffff, 1, 0}}},
		{"add.sat.s32", "RRR", []opCase{{0x7fffffff, 0x7fffffff, 1, 0}, {0x80000000, 0x80000000, u32(-1), 0},
			{3, 1, 2, 0}}},
		{"add.s16", "HHH", []opCase{{0, 0xffff, 1, 0}}},
		{"add.s64", "DDD", []opCase{{0, minus(1), 1, 0}}},
		{"sub.u32", "RRR", []opCase{{0xffffffff, 0, 1, 0}}},
		{"mul.lo.s32", "RRR", []opCase{{u32(-6), u32(-2), 3, 0}, {0, 0x10000, 0x10000, 0}}},
		{"mul.hi.u32", "RRR", []opCase{{0xfffffffe, 0xffffffff, 0xffffffff, 0}}},
		{"mul.hi.s32", "RRR", []opCase{{0, u32(-1), u32(-1), 0}, {u32(-1), u32(-1), 1, 0}}},
		{"mul.hi.u64", "DDD", []opCase{{minus(2), minus(1), minus(1), 0}}},
		{"mul.hi.s64", "DDD", []opCase{{0, minus(1), minus(1), 0}, {minus(1), minus(1), 2, 0}}},
		{"mul.wide.s32", "DRR", []opCase{{minus(6), u32(-2), 3, 0}}},
		{"mul.wide.u32", "DRR", []opCase{{0xfffffffe00000001, 0xffffffff, 0xffffffff, 0}}},
		{"mul.wide.u16", "RHH", []opCase{{0xfffe0001, 0xffff, 0xffff, 0}}},
		{"mul.wide.s16", "RHH", []opCase{{1, 0xffff, 0xffff, 0}}},
		{"mul.lo.s16", "HHH", []opCase{{1, 0xffff, 0xffff, 0}}},
		{"mad.lo.s32", "RRRR", []opCase{{u32(-5), u32(-2), 3, 1}}},
		{"mad.wide.u32", "DRRD", []opCase{{0xffffffff00000000, 0xffffffff, 0xffffffff, 0xffffffff}}},
		{"div.s32", "RRR", []opCase{{u32(-3), u32(-7), 2, 0}, {0xffffffff, 5, 0, 0},
			{0x80000000, 0x80000000, u32(-1), 0}}},
		{"div.u64", "DDD", []opCase{{0x7fffffffffffffff, minus(1), 2, 0}, {minus(1), 5, 0, 0}}},
		{"rem.s32", "RRR", []opCase{{u32(-1), u32(-7), 2, 0}, {5, 5, 0, 0}, {0, 0x80000000, u32(-1), 0}}},
		{"rem.u32", "RRR", []opCase{{1, 7, 2, 0}}},
		{"neg.s32", "RR", []opCase{{0x80000000, 0x80000000, 0, 0}, {u32(-5), 5, 0, 0}}},
		{"abs.s32", "RR", []opCase{{0x80000000, 0x80000000, 0, 0}, {5, u32(-5), 0, 0}}},
		{"abs.s64", "DD", []opCase{{5, minus(5), 0, 0}}},
		{"min.s32", "RRR", []opCase{{u32(-1), u32(-1), 1, 0}}},
		{"min.u32", "RRR", []opCase{{1, u32(-1), 1, 0}}},
		{"max.s64", "DDD", []opCase{{1, minus(1), 1, 0}}},
		{"max.u64", "DDD", []opCase{{minus(1), minus(1), 1, 0}}},
		{"max.s16", "HHH", []opCase{{1, 0xffff, 1, 0}}},
		{"and.b32", "RRR", []opCase{{0x0f, 0xff, 0x0f, 0}}},
		{"or.b64", "DDD", []opCase{{0xff0000000f, 0xff00000000, 0x0f, 0}}},
		{"xor.b16", "HHH", []opCase{{0xf0, 0xff, 0x0f, 0}}},
		{"not.b16", "HH", []opCase{{0xff00, 0x00ff, 0, 0}}},
		{"not.b64", "DD", []opCase{{minus(1), 0, 0, 0}}},
		{"cnot.b32", "RR", []opCase{{1, 0, 0, 0}, {0, 7, 0, 0}}},
		{"shl.b32", "RRR", []opCase{{0x80000000, 1, 31, 0}, {0, 1, 32, 0}, {0, 1, 0xffffffff, 0}}},
		{"shl.b16", "HHR", []opCase{{0x8000, 1, 15, 0}, {0, 1, 16, 0}}},
		{"shl.b64", "DDR", []opCase{{1 << 63, 1, 63, 0}, {0, 1, 64, 0}}},
		{"shr.u32", "RRR", []opCase{{1, 0x80000000, 31, 0}, {0, 0x80000000, 32, 0}}},
		{"shr.s32", "RRR", []opCase{{0xffffffff, 0x80000000, 31, 0}, {0xffffffff, 0x80000000, 99, 0}, {0, 5, 99, 0}}},
		{"shr.s16", "HHR", []opCase{{0xffff, 0x8000, 15, 0}, {0xffff, 0x8000, 40, 0}}},
		{"shr.s64", "DDR", []opCase{{minus(1), 1 << 63, 200, 0}}},
		{"shf.l.wrap.b32", "RRRR", []opCase{{0xbbbbaaaa, 0xaaaa1111, 0x2222bbbb, 16},
			{0x2222bbbb, 0xaaaa1111, 0x2222bbbb, 32}}},
		{"shf.l.clamp.b32", "RRRR", []opCase{{0xaaaa1111, 0xaaaa1111, 0x2222bbbb, 99}}},
		{"shf.r.wrap.b32", "RRRR", []opCase{{0xbbbbaaaa, 0xaaaa1111, 0x2222bbbb, 16},
			{0xaaaa1111, 0xaaaa1111, 0x2222bbbb, 32}}},
		{"shf.r.clamp.b32", "RRRR", []opCase{{0x2222bbbb, 0xaaaa1111, 0x2222bbbb, 99}}},
		{"bfe.u32", "RRRR", []opCase{{0xab, 0x00abcd00, 16, 8}, {0, 0xffffffff, 32, 8}, {0, 0xffffffff, 5, 0},
			{0xf, 0xffffffff, 28, 32}}},
		{"bfe.s32", "RRRR", []opCase{{0xffffffab, 0x00abcd00, 16, 8}, {0xffffffff, 0x80000000, 31, 1},
			{0xffffffff, 0x80000000, 40, 8}, {0, 0x80000000, 0, 0}}},
		{"bfe.u64", "DDRR", []opCase{{0xab, 0xab << 40, 40, 8}, {minus(1), minus(1), 0, 64}}},
		{"brev.b32", "RR", []opCase{{0x80000000, 1, 0, 0}}}, {"brev.b64", "DD", []opCase{{1 << 63, 1, 0, 0}}},
		{"popc.b32", "RR", []opCase{{32, 0xffffffff, 0, 0}}}, {"popc.b64", "RD", []opCase{{64, minus(1), 0, 0}}},
		{"clz.b32", "RR", []opCase{{32, 0, 0, 0}, {0, 0x80000000, 0, 0}}}, {"clz.b64", "RD", []opCase{{64, 0, 0, 0},
			{63, 1, 0, 0}}},
		{"bfind.u32", "RR", []opCase{{0xffffffff, 0, 0, 0}, {4, 0x10, 0, 0}}},
		{"bfind.s32", "RR", []opCase{{0xffffffff, 0xffffffff, 0, 0}, {3, u32(-16), 0, 0}}},
		{"bfind.shiftamt.u32", "RR", []opCase{{27, 0x10, 0, 0}, {0xffffffff, 0, 0, 0}}},
		{"bfind.u64", "RD", []opCase{{40, 1 << 40, 0, 0}}},
		{"prmt.b32", "RRRR", []opCase{{0x33221177, 0x33221100, 0x77665544, 0x3217}, {0xff00, 0x80, 0, 0x3189}}},
		{"dp4a.s32.s32", "RRRR", []opCase{{u32(-4 + 10), 0xffffffff, 0x01010101, 10}}},
		{"dp4a.u32.u32", "RRRR", []opCase{{4*255 + 10, 0xffffffff, 0x01010101, 10}}},
		{"sad.s32", "RRRR", []opCase{{13, u32(-2), 1, 10}}}, {"sad.u32", "RRRR", []opCase{{11, 2, 1, 10}}},
		{"slct.b32.s32", "RRRR", []opCase{{1, 1, 2, 0}, {2, 1, 2, 0x80000000}}},
		{"slct.b32.f32", "RRRR", []opCase{{1, 1, 2, 0x80000000}, {2, 1, 2, nan32}}},

		{"add.f32", "RRR", []opCase{{nan32, inf32, inf32 | sign32, 0}, {0, fl(1), fl(-1), 0},
			{2 * least, least, least, 0}, {nan32, snan32, fl(1), 0},
			{fl(1 << 24), fl(1 << 24), fl(1), 0}, {fl(1<<24 + 2), fl(1 << 24), fl(1.5), 0},
			{inf32, fl(math.MaxFloat32), fl(math.MaxFloat32), 0}}},
		{"add.ftz.f32", "RRR", []opCase{{0, least, least, 0}, {sign32, sign32 | least, sign32 | least, 0}}},
		{"add.sat.f32", "RRR", []opCase{{fl(1), fl(1), fl(1), 0}, {0, fl(1), fl(-2), 0}, {0, nan32, fl(1), 0},
			{fl(0.5), fl(0.25), fl(0.25), 0}}},
		{"add.rz.f32", "RRR", []opCase{{fl(1 << 24), fl(1 << 24), fl(1.5), 0},
			{fl(-1 << 24), fl(-1 << 24), fl(-1.5), 0}, {fl(math.MaxFloat32), fl(math.MaxFloat32), fl(math.MaxFloat32),
				0}}},
		{"add.rm.f32", "RRR", []opCase{{fl(1 << 24), fl(1 << 24), fl(1.5), 0},
			{fl(-1<<24 - 2), fl(-1 << 24), fl(-1), 0}, {sign32, fl(1), fl(-1), 0}, {0, 0, 0, 0}}},
		{"add.rp.f32", "RRR", []opCase{{fl(1<<24 + 2), fl(1 << 24), fl(1), 0}, {0x3f800001, fl(1), least, 0},
			{0, fl(1), fl(-1), 0}}},
		{"sub.f32", "RRR", []opCase{{nan32, inf32, inf32, 0}, {fl(-1), fl(1), fl(2), 0}}},
		{"mul.f32", "RRR", []opCase{{nan32, 0, inf32, 0}, {sign32, 0, fl(-1), 0}, {least, least, fl(1), 0},
			{0, least, fl(0.5), 0}, {least, least, fl(0.75), 0}}},
		{"mul.ftz.f32", "RRR", []opCase{{0, fl(1e-30), fl(1e-10), 0}}},
		{"mul.rz.f32", "RRR", []opCase{{0x3f800001, 0x3f800001, 0x3f800000, 0},
			{0x3f800002, 0x3f800001, 0x3f800001, 0}}},
		{"mul.rp.f32", "RRR", []opCase{{0x3f800003, 0x3f800001, 0x3f800001, 0}, {least, least, fl(0.5), 0}}},
		{"fma.rn.f32", "RRRR", []opCase{
			{0xb3800000, 0, 0, 0xb3800000}, {fl(7), fl(2), fl(3), fl(1)}, {nan32, 0, inf32, fl(1)},
			{sign32, 0, fl(-1), sign32}, {0, 0, fl(-1), 0},
			// (1+2^-12)^2 = 1 + 2^-11 + 2^-24: a tie that a tiny third operand breaks.
			{0x3f801000, 0x3f800800, 0x3f800800, 0}, {0x3f801001, 0x3f800800, 0x3f800800, least},
			{0x3f801000, 0x3f800800, 0x3f800800, sign32 | least}}},
		{"fma.rz.f32", "RRRR", []opCase{{0x3f801000, 0x3f800800, 0x3f800800, least}}},
		{"fma.rp.f32", "RRRR", []opCase{{0x3f801001, 0x3f800800, 0x3f800800, 0}}},
		{"div.rn.f32", "RRR", []opCase{{0x3eaaaaab, fl(1), fl(3), 0}, {inf32, fl(1), 0, 0}, {nan32, 0, 0, 0},
			{0, fl(1), inf32, 0}}},
		{"div.rz.f32", "RRR", []opCase{{0x3eaaaaaa, fl(1), fl(3), 0}}},
		{"div.rp.f32", "RRR", []opCase{{0x3eaaaaab, fl(1), fl(3), 0}}},
		{"div.full.f32", "RRR", []opCase{{fl(0.5), fl(1), fl(2), 0}}},
		{"rcp.rn.f32", "RR", []opCase{{0x3eaaaaab, fl(3), 0, 0}, {inf32 | sign32, sign32, 0, 0}}},
		{"sqrt.rn.f32", "RR", []opCase{{0x3fb504f3, fl(2), 0, 0}, {nan32, fl(-1), 0, 0}, {sign32, sign32, 0, 0}}},
		{"sqrt.rp.f32", "RR", []opCase{{0x3fb504f4, fl(2), 0, 0}, {fl(2), fl(4), 0, 0}}},
		{"min.f32", "RRR", []opCase{{sign32, 0, sign32, 0}, {fl(1), fl(1), nan32, 0}, {nan32, nan32, snan32, 0}}},
		{"max.f32", "RRR", []opCase{{0, 0, sign32, 0}, {fl(1), nan32, fl(1), 0}, {inf32, inf32, fl(1), 0}}},
		{"max.NaN.f32", "RRR", []opCase{{nan32, nan32, fl(1), 0}, {fl(2), fl(1), fl(2), 0}}},
		{"min.ftz.f32", "RRR", []opCase{{0, least, fl(1), 0}}},
		{"neg.f32", "RR", []opCase{{fl(-1), fl(1), 0, 0}}}, {"abs.f32", "RR", []opCase{{0, sign32, 0, 0}}},
		{"abs.ftz.f32", "RR", []opCase{{0, sign32 | least, 0, 0}}},
		{"copysign.f32", "RRR", []opCase{{fl(-2), fl(-1), fl(2), 0}}},
		{"ex2.approx.f32", "RR", []opCase{{fl(8), fl(3), 0, 0}, {0, sign32 | inf32, 0, 0}, {inf32, fl(128), 0, 0},
			{fl(1), 0, 0, 0}, {least, fl(-149), 0, 0}}},
		{"ex2.approx.ftz.f32", "RR", []opCase{{0, fl(-149), 0, 0}}},
		{"lg2.approx.f32", "RR", []opCase{{fl(3), fl(8), 0, 0}, {sign32 | inf32, 0, 0, 0}, {nan32, fl(-1), 0, 0},
			{fl(-149), least, 0, 0}}},
		{"lg2.approx.ftz.f32", "RR", []opCase{{sign32 | inf32, least, 0, 0}}},
		{"rsqrt.approx.f32", "RR", []opCase{{fl(0.5), fl(4), 0, 0}, {inf32, 0, 0, 0}, {0, inf32, 0, 0}}},
		{"rcp.approx.ftz.f32", "RR", []opCase{{inf32, least, 0, 0}, {fl(0.25), fl(4), 0, 0}}},
		{"tanh.approx.f32", "RR", []opCase{{fl(1), fl(20), 0, 0}, {sign32, sign32, 0, 0}}},
		{"sin.approx.f32", "RR", []opCase{{0, 0, 0, 0}, {nan32, inf32, 0, 0}}},
		{"cos.approx.f32", "RR", []opCase{{fl(1), 0, 0, 0}}},
		{"add.f64", "DDD", []opCase{{dbl(3), dbl(1), dbl(2), 0}}},
		{"add.rp.f64", "DDD", []opCase{{dbl(1) + 1, dbl(1), 1, 0}}},
		{"add.rm.f64", "DDD", []opCase{{sign64, dbl(1), dbl(-1), 0}}},
		{"mul.rz.f64", "DDD", []opCase{{0, 1, dbl(0.75), 0}}}, {"mul.rp.f64", "DDD", []opCase{{1, 1, dbl(0.25), 0}}},
		{"fma.rn.f64", "DDDD", []opCase{{dbl(7), dbl(2), dbl(3), dbl(1)}}},
		{"fma.rz.f64", "DDDD", []opCase{{dbl(1) - 1, dbl(1), dbl(1), sign64 | 1}}},
		{"div.rm.f64", "DDD", []opCase{{0x3fd5555555555555, dbl(1), dbl(3), 0}}},
		{"div.rp.f64", "DDD", []opCase{{0x3fd5555555555556, dbl(1), dbl(3), 0}}},
		{"sqrt.rn.f64", "DD", []opCase{{dbl(2), dbl(4), 0, 0}}}, {"sqrt.rz.f64", "DD", []opCase{{0x3ff6a09e667f3bcc,
			dbl(2), 0, 0}}},
		{"rcp.approx.ftz.f64", "DD", []opCase{{dbl(0.25), dbl(4), 0, 0}, {0x3fd5555500000000, dbl(3), 0, 0}}},
		{"min.f64", "DDD", []opCase{{dbl(1), dbl(1), 0x7ff8 << 48, 0}, {sign64, 0, sign64, 0}}},
		{"neg.f64", "DD", []opCase{{dbl(-1), dbl(1), 0, 0}}}, {"copysign.f64", "DDD", []opCase{{dbl(-2), dbl(-1),
			dbl(2), 0}}},

		{"add.f16", "HHH", []opCase{{0x4200, 0x3c00, 0x4000, 0}, {0x7c00, 0x7bff, 0x7bff, 0},
			{0x7fff, 0x7c00, 0xfc00, 0}, {2, 1, 1, 0}}},
		{"mul.f16", "HHH", []opCase{{0x4200, 0x3e00, 0x4000, 0}, {0, 1, 0x3800, 0}}},
		{"sub.f16x2", "RRR", []opCase{{0x3c00bc00, 0x42003c00, 0x40004000, 0}}},
		{"fma.rn.f16", "HHHH", []opCase{{0x4700, 0x4000, 0x4200, 0x3c00}}},
		{"fma.rn.f16x2", "RRRR", []opCase{{0x47004700, 0x40004000, 0x42004200, 0x3c003c00}}},
		{"fma.rn.relu.f16", "HHHH", []opCase{{0, 0xc000, 0x4200, 0x3c00}}},
		{"fma.rn.bf16", "HHHH", []opCase{{0x40e0, 0x4000, 0x4040, 0x3f80}, {0x3f80, 0x3f80, 0x3f80, 0x3b80},
			{0x3f81, 0x3f80, 0x3f80, 0x3b81}}},
		{"fma.rn.bf16x2", "RRRR", []opCase{{0x40e03f80, 0x40003f80, 0x40403f80, 0x3f803b80}}},
		{"max.f16", "HHH", []opCase{{0x3c00, 0x3c00, 0x7fff, 0}, {0, 0x8000, 0, 0}}},
		{"min.NaN.bf16", "HHH", []opCase{{0x7fff, 0x3f80, 0x7fc0, 0}}},
		{"neg.f16x2", "RR", []opCase{{0xbc003c00, 0x3c00bc00, 0, 0}}},
		{"abs.bf16", "HH", []opCase{{0x3f80, 0xbf80, 0, 0}}},

		{"cvt.u64.u32", "DR", []opCase{{0xffffffff, minus(1), 0, 0}}},
		{"cvt.s64.s32", "DR", []opCase{{minus(1), 0xffffffff, 0, 0}}},
		{"cvt.s64.s32", "DD", []opCase{{minus(1), 7<<32 | 0xffffffff, 0, 0}}},
		{"cvt.u64.u32", "DD", []opCase{{5, 7<<32 | 5, 0, 0}}},
		{"cvt.rn.f32.s32", "RD", []opCase{{fl(-1), 7<<32 | 0xffffffff, 0, 0}}},
		{"cvt.s32.s8", "RR", []opCase{{u32(-1), 0xff, 0, 0}, {0x7f, 0x37f, 0, 0}}},
		{"cvt.u32.u8", "RR", []opCase{{0x7f, 0x37f, 0, 0}}},
		{"cvt.s8.s32", "RR", []opCase{{u32(-128), 0x80, 0, 0}}}, {"cvt.sat.s8.s32", "RR", []opCase{{127, 300, 0, 0},
			{u32(-128), u32(-300), 0, 0}}},
		{"cvt.sat.u8.s32", "RR", []opCase{{0, u32(-1), 0, 0}, {255, 300, 0, 0}}},
		{"cvt.u16.u32", "HR", []opCase{{0x2345, 0x12345, 0, 0}}},
		{"cvt.sat.u32.s64", "RD", []opCase{{0, minus(1), 0, 0}, {0xffffffff, 1 << 40, 0, 0}}},
		{"cvt.rn.f32.s32", "RR", []opCase{{fl(-1), u32(-1), 0, 0}, {fl(1 << 24), 1<<24 + 1, 0, 0}}},
		{"cvt.rp.f32.s32", "RR", []opCase{{fl(1<<24 + 2), 1<<24 + 1, 0, 0}}},
		{"cvt.rn.f32.u64", "RD", []opCase{{fl(1 << 63 * 2), minus(1), 0, 0}}},
		{"cvt.rz.f32.u64", "RD", []opCase{{0x5f7fffff, minus(1), 0, 0}}},
		{"cvt.rn.f64.s64", "DD", []opCase{{dbl(-1), minus(1), 0, 0}, {dbl(1 << 53), 1<<53 + 1, 0, 0}}},
		{"cvt.rn.f64.u64", "DD", []opCase{{dbl(1 << 63), 1<<63 + 1, 0, 0}}},
		{"cvt.rn.f16.s32", "HR", []opCase{{0x7c00, 100000, 0, 0}, {0x6800, 2049, 0, 0}}},
		{"cvt.rzi.s32.f32", "RR", []opCase{{u32(-1), fl(-1.9), 0, 0}, {0x7fffffff, fl(3e9), 0, 0},
			{0x80000000, fl(-3e9), 0, 0}, {0, nan32, 0, 0}}},
		{"cvt.rni.s32.f32", "RR", []opCase{{2, fl(2.5), 0, 0}, {4, fl(3.5), 0, 0}}},
		{"cvt.rmi.s32.f32", "RR", []opCase{{u32(-2), fl(-1.5), 0, 0}}},
		{"cvt.rpi.s32.f32", "RR", []opCase{{u32(-1), fl(-1.5), 0, 0}}},
		{"cvt.rzi.u32.f32", "RR", []opCase{{0, fl(-5), 0, 0}, {0xffffffff, fl(5e9), 0, 0}}},
		{"cvt.rzi.u64.f32", "DR", []opCase{{1 << 63, fl(1 << 63), 0, 0}, {1 << 63, nan32, 0, 0},
			{minus(1), inf32, 0, 0}}},
		{"cvt.rzi.s64.f64", "DD", []opCase{{1 << 63, 0x7ff8 << 48, 0, 0}, {1<<63 - 1, inf64, 0, 0}}},
		{"cvt.rzi.s32.f64", "RD", []opCase{{0x80000000, 0x7ff8 << 48, 0, 0}, {5, dbl(5.9), 0, 0}}},
		{"cvt.rzi.u8.f32", "RR", []opCase{{255, fl(300), 0, 0}}},
		{"cvt.rni.f32.f32", "RR", []opCase{{fl(2), fl(2.5), 0, 0}, {sign32, fl(-0.25), 0, 0}}},
		{"cvt.sat.f32.f32", "RR", []opCase{{fl(1), fl(5), 0, 0}, {0, nan32, 0, 0}}},
		{"cvt.f64.f32", "DR", []opCase{{dbl(0.5), fl(0.5), 0, 0}, {dbl(math.SmallestNonzeroFloat32), least, 0, 0}}},
		{"cvt.ftz.f64.f32", "DR", []opCase{{0, least, 0, 0}}},
		{"cvt.rn.f32.f64", "RD", []opCase{{fl(1), dbl(1 + 1.0/(1<<24)), 0, 0}, {least, dbl(1e-45), 0, 0},
			{inf32, dbl(1e39), 0, 0}}},
		{"cvt.rz.f32.f64", "RD", []opCase{{0x7f7fffff, dbl(1e39), 0, 0}}},
		{"cvt.rp.f32.f64", "RD", []opCase{{0x3f800001, dbl(1 + 1.0/(1<<24)), 0, 0}, {least, dbl(1e-300), 0, 0}}},
		{"cvt.rm.ftz.f32.f64", "RD", []opCase{{0, dbl(1e-40), 0, 0}}},
		{"cvt.rn.f16.f32", "HR", []opCase{{0x3c00, fl(1), 0, 0}, {0x7c00, fl(65520), 0, 0}, {0x7bff, fl(65519), 0, 0},
			{1, fl(4e-8), 0, 0}, {0, fl(2.9e-8), 0, 0}, {0x7fff, snan32, 0, 0}, {0x3c00, 0x3f801000, 0, 0},
			{0x3c02, 0x3f803000, 0, 0}}},
		{"cvt.rz.f16.f32", "HR", []opCase{{0x7bff, fl(1e6), 0, 0}, {0, fl(4e-8), 0, 0}}},
		{"cvt.f32.f16", "RH", []opCase{{fl(65504), 0x7bff, 0, 0}, {0x33800000, 1, 0, 0}, {inf32, 0x7c00, 0, 0}}},
		{"cvt.rn.bf16.f32", "HR", []opCase{{0x3f80, 0x3f808000, 0, 0}, {0x3f82, 0x3f818000, 0, 0},
			{0x7fff, snan32, 0, 0}, {0x7f80, 0x7f7fffff, 0, 0}, {0, 0x00008000, 0, 0}}},
		{"cvt.rz.bf16.f32", "HR", []opCase{{0x7f7f, 0x7f7fffff, 0, 0}}},
		{"cvt.rn.relu.bf16.f32", "HR", []opCase{{0, fl(-1), 0, 0}}},
		{"cvt.rn.f16x2.f32", "RRR", []opCase{{0x3c004000, fl(1), fl(2), 0}}},
		{"cvt.rn.bf16x2.f32", "RRR", []opCase{{0x3f804000, fl(1), fl(2), 0}}},
		{"cvt.rna.tf32.f32", "RR", []opCase{{0x3f802000, 0x3f801000, 0, 0}, {0x3f800000, 0x3f800fff, 0, 0}}},

		{"setp.eq.s32", "PRR", []opCase{{1, 5, 5, 0}, {0, 5, 6, 0}}},
		{"setp.lt.s32", "PRR", []opCase{{1, u32(-1), 1, 0}}}, {"setp.lt.u32", "PRR", []opCase{{0, u32(-1), 1, 0}}},
		{"setp.hi.u32", "PRR", []opCase{{1, u32(-1), 1, 0}}}, {"setp.ls.u64", "PDD", []opCase{{0, minus(1), 1, 0}}},
		{"setp.ge.s16", "PHH", []opCase{{0, 0xffff, 1, 0}}},
		{"setp.ge.u16", "PHH", []opCase{{1, 0xffff, 1, 0}}}, {"setp.ne.b64", "PDD", []opCase{{1, 1, 2, 0}}},
		{"setp.eq.f32", "PRR", []opCase{{1, 0, sign32, 0}, {0, nan32, nan32, 0}}},
		{"setp.ne.f32", "PRR", []opCase{{0, nan32, fl(1), 0}, {1, fl(2), fl(1), 0}}},
		{"setp.neu.f32", "PRR", []opCase{{1, nan32, fl(1), 0}}}, {"setp.ltu.f32", "PRR", []opCase{{1, nan32, fl(1),
			0}, {0, fl(1), fl(1), 0}}},
		{"setp.gt.f32", "PRR", []opCase{{1, inf32, fl(1), 0}, {0, nan32, fl(1), 0}}},
		{"setp.num.f32", "PRR", []opCase{{0, nan32, 0, 0}}}, {"setp.nan.f64", "PDD", []opCase{{1, 0x7ff8 << 48, 0,
			0}}},
		{"setp.eq.ftz.f32", "PRR", []opCase{{1, least, 0, 0}}}, {"setp.lt.f16", "PHH", []opCase{{1, 0xbc00, 0x3c00,
			0}}}, {"setp.geu.bf16", "PHH", []opCase{{1, 0x7fff, 0, 0}}},
		{"set.lt.u32.s32", "RRR", []opCase{{0xffffffff, 1, 2, 0}, {0, 2, 1, 0}}},
		{"set.gt.f32.f32", "RRR", []opCase{{fl(1), fl(2), fl(1), 0}}},
		{"set.eq.f16.f16", "HHH", []opCase{{0x3c00, 0, 0x8000, 0}, {0, 0x7fff, 0x7fff, 0}}},
		{"set.gtu.bf16x2.bf16x2", "RRR", []opCase{{0x3f800000, 0x7fff3f80, 0x3f80, 0}}},
		{"set.lt.u32.f16", "RHH", []opCase{{0xffffffff, 0xbc00, 0, 0}}},
		{"testp.subnormal.f32", "PR", []opCase{{1, least, 0, 0}, {0, 0, 0, 0}}},
		{"testp.notanumber.f64", "PD", []opCase{{1, inf64 + 1, 0, 0}}},
		{"testp.finite.f32", "PR", []opCase{{0, inf32, 0, 0}}},
	} {
		var in [][3]uint64
		for _, c := range o.cases {
			in = append(in, [3]uint64{c.a, c.b, c.c})
		}
		got := evaluate(t, instruction(o.op, o.classes), in...)
		for i, c := range o.cases {
			require.Equal(t, fmt.Sprintf("%#x", c.want), fmt.Sprintf("%#x", got[i][0]), "%s %#x %#x %#x", o.op, c.a,
				c.b, c.c)
		}
	}
}

// TestSnippets holds what needs more than one instruction.
func TestSnippets(t *testing.T) {
	for _, s := range []struct {
		name, body string
		in         [3]uint64
		d, e       uint64
	}{
		{"bfi", `bfi.b32 %d3, %a3, %b3, 8, 8; cvt.u64.u32 %d, %d3; bfi.b64 %e, %a, %b, 60, 8;`, [3]uint64{0xab, 0xffffffff, 0}, 0xffffabff, 0xb0000000ffffffff},
		{"lop3", `lop3.b32 %d3, %a3, %b3, %c3, 0x96; cvt.u64.u32 %d, %d3; lop3.b32 %e3, %a3, %b3, %c3, 0xE8; cvt.u64.u32 %e, %e3;`, [3]uint64{0xf0, 0xcc, 0xaa}, 0x96, 0xe8},
		{"carry of 32 bits", `add.cc.u32 %d3, %a3, %b3; addc.u32 %e3, 0, 0; cvt.u64.u32 %d, %d3; cvt.u64.u32 %e, %e3;`, [3]uint64{0xffffffff, 2, 0}, 1, 1},
		{"borrow", `sub.cc.u32 %d3, %a3, %b3; subc.u32 %e3, 5, 0; cvt.u64.u32 %d, %d3; cvt.u64.u32 %e, %e3;`, [3]uint64{1, 2, 0}, 0xffffffff, 4},
		{"no borrow", `sub.cc.u32 %d3, %a3, %b3; subc.u32 %e3, 5, 0; cvt.u64.u32 %d, %d3; cvt.u64.u32 %e, %e3;`, [3]uint64{2, 2, 0}, 0, 5},
		{"carry of 64 bits", "add.cc.u64 %d, %a, %b; addc.u64 %e, %a, 0;", [3]uint64{math.MaxUint64, 1, 0}, 0, 0},
		{"carry of products",
			"mad.lo.cc.u32 %d3, %a3, %b3, %c3; madc.hi.u32 %e3, %a3, %b3, 0; cvt.u64.u32 %d, %d3; cvt.u64.u32 %e, %e3;",
			[3]uint64{0xffffffff, 0xffffffff, 0xffffffff}, 0, 0xffffffff},
		{"pack", `mov.b64 %d, {%a3, %b3}; mov.b32 %d3, {%ah, %bh}; cvt.u64.u32 %e, %d3;`, [3]uint64{0x11112222, 0x33334444, 0}, 0x3333444411112222, 0x44442222},
		{"unpack", `mov.b64 {%d3, %e3}, %a; cvt.u64.u32 %d, %e3; mov.b32 {_, %dh}, %b3; cvt.u64.u16 %e, %dh;`, [3]uint64{0x1111222233334444, 0x55556666, 0}, 0x11112222, 0x5555},
		{"pack four", "mov.b64 %d, {%ah, %bh, %ch, %ah};", [3]uint64{1, 2, 3}, 0x0001000300020001, 0},
		{"selp", `setp.lt.s32 %p, %a3, 0; selp.b64 %d, %b, %c, %p; selp.f32 %d3, 0f3F800000, 0f40000000, %p; cvt.u64.u32 %e, %d3;`, [3]uint64{0xffffffff, 7, 8}, 7, fl(1)},
		{"setp with two results", `setp.eq.s32 %p, %a3, 1; setp.lt.and.s32 %p|%q, %a3, %b3, %p; selp.u64 %d, 1, 0, %p; selp.u64 %e, 1, 0, %q;`, [3]uint64{1, 0, 0}, 0, 1},
		{"logic", `setp.eq.s32 %p, %a3, 1; setp.eq.s32 %q, %b3, 1; and.pred %p, %p, !%q; selp.u64 %d, 1, 0, %p; mov.pred %q, 1; xor.pred %q, %q, %p; selp.u64 %e, 1, 0, %q;`, [3]uint64{1, 2, 0}, 1, 0},
		{"guard", "setp.eq.s32 %p, %a3, 1; @%p mov.u64 %d, 5; @!%p mov.u64 %e, 6;", [3]uint64{1, 0, 0}, 5, 0},
		{"special registers", `mov.u32 %d3, %laneid; mov.u32 %e3, %ntid.x; add.u32 %d3, %d3, %warpid; cvt.u64.u32 %d, %d3; cvt.u64.u32 %e, %e3;`, [3]uint64{}, 0, 1},
		{"float literals", `mov.f64 %d, 0d3FF0000000000000; mov.f32 %e3, 1.5; cvt.u64.u32 %e, %e3;`, [3]uint64{}, dbl(1), fl(1.5)},
		{"negative literals", `mov.u32 %d3, -1; cvt.u64.u32 %d, %d3; mov.u64 %e, -1;`, [3]uint64{}, 0xffffffff, math.MaxUint64},
		{"local memory", `.local .align 8 .b8 depot[16]; mov.u64 %w, depot; cvta.local.u64 %w, %w; st.u64 [%w+8], %a; ld.local.u64 %d, [depot+8]; cvta.to.local.u64 %w, %w; ld.local.u32 %e3, [%w+12]; cvt.u64.u32 %e, %e3;`, [3]uint64{7 << 32, 0, 0}, 7 << 32, 7},
		{"shared memory", `.shared .align 8 .b8 tile[16]; mov.u32 %t, tile; st.shared.v2.u32 [%t+8], {%a3, %b3}; ld.shared.u64 %d, [tile+8]; mov.u64 %w, tile; cvta.shared.u64 %w, %w; ld.u16 %dh, [%w+12]; cvt.u64.u16 %e, %dh;`, [3]uint64{1, 0x20003, 0}, 0x2000300000001, 3},
		{"narrow loads", `.local .align 8 .b8 depot[8]; st.local.u64 [depot], %a; ld.local.s8 %d3, [depot]; cvt.u64.u32 %d, %d3; ld.local.s16 %e, [depot+2];`, [3]uint64{0x800000ff, 0, 0}, 0xffffffff, 0xffffffffffff8000},
		{"generic space", `isspacep.global %p, %at; selp.u64 %d, 1, 0, %p; .shared .b32 tile; mov.u64 %w, tile; cvta.shared.u64 %w, %w; isspacep.shared %p, %w; isspacep.global %q, %w; selp.u64 %e, 1, 0, %p; @%q mov.u64 %e, 9;`, [3]uint64{}, 1, 1},
		{"atomics", `.shared .align 8 .b8 tile[8]; st.shared.u64 [tile], %a; atom.shared.add.u32 %d3, [tile], 5; atom.shared.cas.b32 %e3, [tile], 8, 100; ld.shared.u64 %d, [tile]; cvt.u64.u32 %e, %e3;`, [3]uint64{3, 0, 0}, 100, 8},
		{"more atomics", `.shared .align 8 .b8 tile[8]; st.shared.u64 [tile], %a; red.shared.min.s32 [tile], -4; red.shared.max.u32 [tile+4], 9; atom.shared.exch.b64 %d, [tile], 1; ld.shared.u64 %e, [tile];`, [3]uint64{3 | 2<<32, 0, 0}, 9<<32 | 0xfffffffc, 1},
		{"atomic float", `.shared .b32 tile; st.shared.u32 [tile], %a3; red.shared.add.f32 [tile], 0f3F800000; atom.shared.inc.u32 %e3, [tile], 5; ld.shared.u32 %d3, [tile]; cvt.u64.u32 %e, %e3; cvt.u64.u32 %d, %d3;`, [3]uint64{fl(2), 0, 0}, 0, fl(3)},
		{"brx", `mov.u32 %t, %a3; ts: .branchtargets A, B, C; brx.idx %t, ts; A: mov.u64 %d, 1; bra.uni E; B: mov.u64 %d, 2; bra E; C: mov.u64 %d, 3; E: mov.u64 %e, 4;`, [3]uint64{2, 0, 0}, 3, 4},
		{"barrier with result", `setp.eq.s32 %p, %a3, 1; bar.red.popc.u32 %d3, 0, %p; bar.red.and.pred %q, 0, !%p; cvt.u64.u32 %d, %d3; selp.u64 %e, 1, 0, %q;`, [3]uint64{1, 0, 0}, 1, 0},
		{"activemask", "activemask.b32 %d3; cvt.u64.u32 %d, %d3;", [3]uint64{}, 1, 0},
		{"cp.async", `.shared .align 16 .b8 tile[32]; cp.async.ca.shared.global [tile], [%at], 8; cp.async.ca.shared.global [tile+8], [%at], 8, 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.u64 %d, [tile]; ld.shared.u64 %e, [tile+8];`, [3]uint64{7<<32 | 9, 0, 0}, 7<<32 | 9, 9},
		{"no-ops", `membar.gl; fence.acq_rel.gpu; prefetch.global.L2 [%at]; nanosleep.u32 5; mov.u64 %d, 1;`, [3]uint64{}, 1, 0},
	} {
		got := evaluate(t, s.body, s.in)
		require.Equal(t, [2]uint64{s.d, s.e}, got[0], s.name)
	}
}

// TestWarpOps checks what lanes do together, against the same in Go.
func TestWarpOps(t *testing.T) {
	k := kernelOf(t, "math.ptx", "warp")
	d := newDevice(t)
	r := rand.New(rand.NewPCG(3, 4))
	x := make([]int32, 32)
	for i := range x {
		x[i] = int32(r.IntN(500)) - 100
	}
	x[5] = 7
	y := d.alloc(4 * 320)
	launch(t, k, d, Launch{Block: [3]uint32{32}}, d.put(x), y)
	got := make([][10]int32, 32)
	d.get(y, got)
	ballot, sum, least := int32(0), int32(0), x[0]
	for i, v := range x {
		ballot |= v & 1 << i
		sum += v
		least = min(least, v)
	}
	for i, v := range x {
		want := [10]int32{x[i*3&31], v, v, x[i^9], ballot, 3, sum, least}
		if i >= 3 {
			want[1] = x[i-3]
		}
		if i%16+5 < 16 {
			want[2] = x[i+5]
		}
		pop, lead, first, reversed := int32(0), int32(32), int32(0), int32(0)
		for b := range 32 {
			if uint32(v)>>b&1 == 1 {
				pop++
				lead = int32(31 - b)
				reversed |= int32(uint32(1) << (31 - b))
				if first == 0 {
					first = int32(b + 1)
				}
			}
		}
		want[8] = pop + lead + first + reversed
		if i < 16 {
			want[9] = x[i^1]
		} else {
			for j := 16; j < 32; j++ {
				if x[j]&3 == v&3 {
					want[9] |= int32(uint32(1) << j)
				}
			}
		}
		require.Equal(t, want, got[i], "lane %d", i)
	}
}

// TestRounding compares the rounding of all modes with exact arithmetic.
func TestRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	modes := map[rounding]big.RoundingMode{nearest2: big.ToNearestEven, toZero: big.ToZero, down: big.ToNegativeInf,
		up: big.ToPositiveInf}
	exact := func(v float64) *big.Float { return new(big.Float).SetPrec(4400).SetFloat64(v) }
	small := func() float32 { // few bits and near exponents, so that ties and cancellation happen
		return float32(r.IntN(1<<13)-1<<12) * float32(math.Ldexp(1, r.IntN(30)-15))
	}
	any32 := func() float32 {
		for {
			if v := math.Float32frombits(r.Uint32()); v-v == 0 {
				return v
			}
		}
	}
	for i := range 20000 {
		a, b, c := small(), small(), small()
		if i%2 == 1 {
			a, b, c = any32(), any32(), any32()
		}
		if i%10 == 3 {
			if c = float32(-float64(a) * float64(b)); c-c != 0 {
				continue
			}
		}
		p := new(big.Float).SetPrec(4400).Mul(exact(float64(a)), exact(float64(b)))
		sum := new(big.Float).SetPrec(4400).Add(p, exact(float64(c)))
		for mode, m := range modes {
			requireRounded32(t, sum, m, fmaMode32(math.Float32bits(a), math.Float32bits(b), math.Float32bits(c),
				mode), a, b, c)
			requireRounded32(t, p, m, mul32(math.Float32bits(a), math.Float32bits(b), mode), a, b)
			if b != 0 && i%8 == 0 {
				q := new(big.Float).SetPrec(4400).Quo(exact(float64(a)), exact(float64(b)))
				requireRounded32(t, q, m, div32(math.Float32bits(a), math.Float32bits(b), mode), a, b)
			}
		}
		requireRounded32(t, sum, big.ToNearestEven, fma32(math.Float32bits(a), math.Float32bits(b),
			math.Float32bits(c)), a, b, c)
	}
}

// requireRounded32 checks a result that is not zero.
func requireRounded32(t *testing.T, exact *big.Float, mode big.RoundingMode, got uint32, args ...float32) {
	t.Helper()
	if exact.Sign() == 0 {
		require.Zero(t, got&^sign32)
		return
	}
	// A float32 with this exponent has this many bits: fewer for subnormals.
	precision := 24
	if e := exact.MantExp(nil); e < -125 {
		precision = 24 - (-125 - e)
	}
	if precision < 1 {
		return // the steps around the smallest number are checked by hand
	}
	want := new(big.Float).SetPrec(uint(precision)).SetMode(mode).Set(exact)
	f, _ := want.Float32()
	if max := exactMax32; new(big.Float).Abs(want).Cmp(max) > 0 {
		toInf := mode == big.ToNearestEven || (mode == big.ToPositiveInf) == (want.Sign() > 0) && mode != big.ToZero
		if !toInf {
			f = float32(math.Copysign(math.MaxFloat32, float64(want.Sign())))
		}
	}
	require.Equal(t, math.Float32bits(f), got, "%v: %v, mode %v", args, exact, mode)
}

var exactMax32 = new(big.Float).SetFloat64(math.MaxFloat32)

// TestFormats widens and rounds every value of the 16-bit formats, and what lies between neighbours.
func TestFormats(t *testing.T) {
	for _, f := range []format{formatF16, formatBF16} {
		inf := uint32(1<<f.exponent-1) << f.mantissa
		for b := range inf {
			v, next := f.decode(b), f.decode(b+1)
			require.Equal(t, b, f.encode(v, nearest2))
			require.Equal(t, b|0x8000, f.encode(-v, toZero))
			if b+1 == inf {
				continue
			}
			middle := (v + next) / 2
			require.Equal(t, (b+1)&^1, f.encode(middle, nearest2))
			require.Equal(t, b, f.encode(math.Nextafter(middle, 0), nearest2))
			require.Equal(t, b+1, f.encode(math.Nextafter(middle, 2*middle), nearest2))
			require.Equal(t, []uint32{b, b, b + 1}, []uint32{f.encode(middle, toZero), f.encode(middle, down),
				f.encode(middle, up)})
			require.Equal(t, []uint32{b | 0x8000, (b + 1) | 0x8000, b | 0x8000},
				[]uint32{f.encode(-middle, toZero), f.encode(-middle, down), f.encode(-middle, up)})
		}
	}
}
