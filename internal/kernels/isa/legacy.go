// SPDX-License-Identifier: Apache-2.0

package isa

import "github.com/lockstep-ml/lockstep/internal/kernels"

// hasModRM reports whether a legacy instruction has the byte ModRM.
func (o *opcode) hasModRM() bool {
	b := o.code
	switch o.table {
	case 0:
		return b < 0x40 && b&7 < 4 || b == 0x63 || b == 0x69 || b == 0x6b || b >= 0x80 && b <= 0x8f ||
			b == 0xc0 || b == 0xc1 || b == 0xc6 || b == 0xc7 || b >= 0xd0 && b <= 0xd3 || b == 0xf6 || b == 0xf7 ||
			b == 0xfe || b == 0xff
	case 1: // without: UD2, CPUID, Jcc, BSWAP
		return b != 0x0b && b != 0xa2 && b>>4 != 8 && (b < 0xc8 || b > 0xcf)
	}
	return true
}

// legacy returns the feature and the size of the immediate of an instruction without VEX or EVEX.
func (o *opcode) legacy() (kernels.Feature, int) {
	switch o.table {
	case 0:
		return baseline, o.oneByte()
	case 1:
		return o.twoBytes()
	}
	panic(errUnknown)
}

// oneByte returns the size of the immediate. All of these are part of every processor.
func (o *opcode) oneByte() int {
	b := o.code
	switch {
	case b < 0x40 && b&7 < 4: // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP
		return 0
	case b < 0x40 && b&7 == 4: // the same with AL
		return 1
	case b < 0x40 && b&7 == 5: // and with EAX
		return operandSized
	}
	switch b {
	case 0x63, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b, 0x8d, 0x8f, 0xd0, 0xd1, 0xd2, 0xd3, 0xfe, 0xff,
		0x90, 0x98, 0x99, 0xc3, 0xc9, 0xcc,
		0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f:
		return 0
	case 0x68, 0x69, 0x81, 0xa9, 0xc7:
		return operandSized
	case 0x6a, 0x6b, 0x80, 0x83, 0xa8, 0xc0, 0xc1, 0xc6, 0xeb,
		0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x7b, 0x7c, 0x7d, 0x7e, 0x7f:
		return 1
	case 0xe8, 0xe9: // CALL and JMP
		return 4
	case 0xf6, 0xf7:
		if o.group() > 1 { // NOT, NEG, MUL, DIV
			return 0
		}
		if b == 0xf6 {
			return 1
		}
		return operandSized
	case 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe, 0xbf: // MOV
		if o.wide {
			return 8
		}
		return operandSized
	}
	panic(errUnknown)
}

// twoBytes is legacy for the map 0F.
func (o *opcode) twoBytes() (kernels.Feature, int) {
	b := o.code
	switch {
	case b == 0x01 && o.modrm == 0xd0: // XGETBV
		return osxsave, 0
	case b == 0x18 || b == 0x1f: // PREFETCH and NOP
		return baseline, 0
	case b == 0x0b || b == 0xa2 || b == 0xa3 || b == 0xab || b == 0xaf: // UD2, CPUID, BT, BTS, IMUL
		return baseline, 0
	case b>>4 == 4 || b>>4 == 9: // CMOV and SET
		return baseline, 0
	case b>>4 == 8: // Jcc
		return baseline, 4
	case b == 0xa4 || b == 0xac || b == 0xba: // SHLD, SHRD and BT by an immediate
		return baseline, 1
	case b == 0xae && o.modrm == 0xf8 && o.prefix == 0: // SFENCE
		return baseline, 0
	case b == 0xae && !o.register() && (o.group() == 2 || o.group() == 3): // LDMXCSR and STMXCSR
		return baseline, 0
	case b == 0xb6 || b == 0xb7 || b == 0xbe || b == 0xbf: // MOVZX and MOVSX
		return baseline, 0
	case b == 0xb8 && o.prefix == 0xf3:
		return popcnt, 0
	case b == 0xbc && o.prefix == 0xf3:
		return bmi1, 0
	case b == 0xbd && o.prefix == 0xf3:
		return lzcnt, 0
	case b == 0xbc || b == 0xbd: // BSF and BSR
		return baseline, 0
	case (b == 0x12 || b == 0x16) && o.prefix >= 0xf2, b == 0x7c, b == 0x7d, b == 0xd0, b == 0xf0:
		return sse3, 0
	case b >= 0x10 && b <= 0x17 || b >= 0x28 && b <= 0x2f || b >= 0x51 && b <= 0x5f: // SSE and SSE2
		return baseline, 0
	case b == 0x50 || b >= 0x60 && b <= 0x6f && o.prefix != 0 || b == 0x7e || b == 0x7f && o.prefix != 0:
		return baseline, 0
	case (b >= 0x70 && b <= 0x73 || b == 0xc4 || b == 0xc5) && o.prefix != 0 || b == 0xc2 || b == 0xc6:
		return baseline, 1
	case (b >= 0x74 && b <= 0x76 || b >= 0xd1 && b <= 0xfe) && o.prefix != 0:
		return baseline, 0
	}
	panic(errUnknown)
}
