// SPDX-License-Identifier: Apache-2.0

package isa

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNeeds has instructions as GNU as encodes them. Each must be read to its end: one that takes too few or too many
// bytes makes an unknown instruction of what follows.
func TestNeeds(t *testing.T) {
	for _, c := range []struct{ instruction, code, needs string }{
		{"mov 8(%rsp),%rax", "48 8b 44 24 08", ""},
		{"movabs $1,%rax", "48 b8 01 00 00 00 00 00 00 00", ""},
		{"add $0x100,%rax", "48 05 00 01 00 00", ""},
		{"add $0x80,%bx", "66 81 c3 80 00", ""},
		{"test $1,%eax", "a9 01 00 00 00", ""},
		{"testl $1,(%rdi)", "f7 07 01 00 00 00", ""},
		{"imul $24,%rsi,%rdi", "48 6b fe 18", ""},
		{"lea 0(%rip),%rax", "48 8d 05 00 00 00 00", ""},
		{"jne near", "0f 85 00 01 00 00", ""},
		{"prefetcht0 (%rdi,%rsi,1)", "0f 18 0c 37", ""},
		{"sfence", "0f ae f8", ""},
		{"cpuid", "0f a2", ""},
		{"popcnt %rax,%rbx", "f3 48 0f b8 d8", "POPCNT"},
		{"movups (%rdi),%xmm0", "0f 10 07", ""},
		{"vzeroupper", "c5 f8 77", "AVX"},
		{"vmovups (%rdi),%ymm0", "c5 fc 10 07", "AVX"},
		{"vpaddd %xmm0,%xmm1,%xmm2", "c5 f1 fe d0", "AVX"},
		{"vpaddd %ymm0,%ymm1,%ymm2", "c5 f5 fe d0", "AVX2"},
		{"vpslld $23,%ymm1,%ymm0", "c5 fd 72 f1 17", "AVX2"},
		{"vbroadcastss (%rdi),%ymm0", "c4 e2 7d 18 07", "AVX"},
		{"vbroadcastss %xmm1,%ymm0", "c4 e2 7d 18 c1", "AVX2"},
		{"vroundps $9,%ymm1,%ymm0", "c4 e3 7d 08 c1 09", "AVX"},
		{"vfmadd231ps %ymm0,%ymm1,%ymm2", "c4 e2 75 b8 d0", "FMA"},
		{"vcvtph2ps (%rdi),%ymm0", "c4 e2 7d 13 07", "F16C"},
		{"vcvtps2ph $0,%ymm0,(%rdi)", "c4 e3 7d 1d 07 00", "F16C"},
		{"bzhi %rax,%rbx,%rcx", "c4 e2 f8 f5 cb", "BMI2"},
		{"andn %rax,%rbx,%rcx", "c4 e2 e0 f2 c8", "BMI1"},
		{"vpdpbusd %ymm0,%ymm1,%ymm2 (VEX)", "c4 e2 75 50 d0", "AVX_VNNI"},
		{"vmovups (%rdi),%ymm16", "62 e1 7c 28 10 07", "AVX512F AVX512VL"},
		{"vaddps 64(%rdi),%zmm0,%zmm1", "62 f1 7c 48 58 4f 01", "AVX512F"},
		{"vaddss %xmm16,%xmm1,%xmm2", "62 b1 76 08 58 d0", "AVX512F"},
		{"vaddps {rn-sae},%zmm0,%zmm1,%zmm2", "62 f1 74 18 58 d0", "AVX512F"},
		{"vandps %zmm0,%zmm1,%zmm2", "62 f1 74 48 54 d0", "AVX512DQ AVX512F"},
		{"vpaddw %zmm0,%zmm1,%zmm2", "62 f1 75 48 fd d0", "AVX512BW AVX512F"},
		{"vpternlogd $1,%ymm0,%ymm1,%ymm2", "62 f3 75 28 25 d0 01", "AVX512F AVX512VL"},
		{"vextractf32x8 $1,%zmm0,%ymm1", "62 f3 7d 48 1b c1 01", "AVX512DQ AVX512F"},
		{"vextractf64x4 $1,%zmm0,%ymm1", "62 f3 fd 48 1b c1 01", "AVX512F"},
		{"vpmovd2m %zmm0,%k1", "62 f2 7e 48 39 c8", "AVX512DQ AVX512F"},
		{"vpermi2b %zmm0,%zmm1,%zmm2", "62 f2 75 48 75 d0", "AVX512F AVX512_VBMI"},
		{"vdpbf16ps %zmm0,%zmm1,%zmm2", "62 f2 76 48 52 d0", "AVX512F AVX512_BF16"},
		{"vpdpwssd %zmm0,%zmm1,%zmm2", "62 f2 75 48 52 d0", "AVX512F AVX512_VNNI"},
		{"kmovw %eax,%k1", "c5 f8 92 c8", "AVX512F"},
		{"kmovd %eax,%k1", "c5 fb 92 c8", "AVX512BW"},
		{"kmovb %eax,%k1", "c5 f9 92 c8", "AVX512DQ"},
		{"kortestw %k1,%k2", "c5 f8 98 d1", "AVX512F"},
		{"ldtilecfg (%rdi)", "c4 e2 78 49 07", "AMX_TILE"},
		{"tdpbf16ps %tmm2,%tmm1,%tmm0", "c4 e2 6a 5c c1", "AMX_BF16"},
		{"tdpbssd %tmm2,%tmm1,%tmm0", "c4 e2 6b 5e c1", "AMX_INT8"},
	} {
		code, err := hex.DecodeString(strings.ReplaceAll(c.code, " ", ""))
		require.NoError(t, err)
		i, err := decode(append(code, 0x90, 0x90))
		require.NoError(t, err, c.instruction)
		require.Equal(t, len(code), i.length, c.instruction)
		found, err := Needs(code)
		require.NoError(t, err, c.instruction)
		var names []string
		for _, f := range found {
			names = append(names, string(f))
		}
		require.Equal(t, c.needs, strings.Join(names, " "), c.instruction)
	}
}
