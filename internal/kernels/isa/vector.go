// SPDX-License-Identifier: Apache-2.0

package isa

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// byWidth is AVX2 for 256 bits of integers, AVX for 128.
func (o *opcode) byWidth() kernels.Feature {
	if o.length == 256 {
		return kernels.FeatureAVX2
	}
	return kernels.FeatureAVX
}

// in reports whether the opcode is one of those, or within the pairs of spans.
func (o *opcode) in(codes ...byte) bool { return slices.Contains(codes, o.code) }

func (o *opcode) within(spans ...byte) bool {
	for i := 0; i < len(spans); i += 2 {
		if spans[i] <= o.code && o.code <= spans[i+1] {
			return true
		}
	}
	return false
}

// vex returns the feature of an instruction with the prefix VEX.
func (o *opcode) vex() kernels.Feature {
	switch o.table {
	case 1:
		return o.vex0F()
	case 2:
		return o.vex0F38()
	case 3:
		return o.vex0F3A()
	}
	panic(errUnknown)
}

func (o *opcode) vex0F() kernels.Feature {
	switch {
	case o.in(0x41, 0x42, 0x44, 0x45, 0x46, 0x47, 0x4a, 0x4b, 0x90, 0x91, 0x92, 0x93, 0x98, 0x99):
		return o.mask()
	case o.within(0x10, 0x17, 0x28, 0x2f, 0x50, 0x5f), o.in(0x77, 0x7c, 0x7d, 0xc2, 0xc6, 0xd0, 0xe6, 0xf0):
		return kernels.FeatureAVX // floating point
	case o.in(0x6e, 0x6f, 0x7e, 0x7f, 0xd6, 0xe7, 0xae): // moves
		return kernels.FeatureAVX
	case o.within(0x60, 0x6d, 0x70, 0x76, 0xc4, 0xc5, 0xd1, 0xfe):
		return o.byWidth()
	}
	panic(errUnknown)
}

// mask returns the feature of an instruction on masks: of 8 bits DQ, of 16 F, of 32 and 64 BW.
func (o *opcode) mask() kernels.Feature {
	move := o.in(0x92, 0x93) // from and to registers of the processor
	switch {
	case o.in(0x4b) && o.prefix == 0x66: // KUNPCKBW
		return kernels.FeatureAVX512F
	case o.in(0x4b), o.wide, move && o.prefix == 0xf2:
		return kernels.FeatureAVX512BW
	case o.prefix == 0x66, o.in(0x4a, 0x99): // KADDW and KTESTW, too
		return kernels.FeatureAVX512DQ
	}
	return kernels.FeatureAVX512F
}

func (o *opcode) vex0F38() kernels.Feature {
	switch {
	case o.within(0x96, 0x9f, 0xa6, 0xaf, 0xb6, 0xbf):
		return kernels.FeatureFMA
	case o.code == 0x13:
		return kernels.FeatureF16C
	case o.in(0x49, 0x4b) && o.length == 128 && !o.wide:
		return kernels.FeatureAMXTile
	case o.code == 0x5c && o.prefix == 0xf3:
		return kernels.FeatureAMXBF16
	case o.code == 0x5e && o.length == 128 && !o.wide:
		return amxInt8
	case o.within(0x50, 0x53):
		return avxVNNI
	case o.in(0xf2, 0xf3):
		return bmi1
	case o.code == 0xf7 && o.prefix == 0: // BEXTR
		return bmi1
	case o.within(0xf5, 0xf7):
		return kernels.FeatureBMI2
	case o.in(0x0c, 0x0d, 0x0e, 0x0f, 0x17, 0x1a), o.within(0x2c, 0x2f):
		return kernels.FeatureAVX
	case o.in(0x18, 0x19): // VBROADCASTSS and VBROADCASTSD
		if o.register() {
			return kernels.FeatureAVX2
		}
		return kernels.FeatureAVX
	case o.in(0x16, 0x36, 0x45, 0x46, 0x47, 0x58, 0x59, 0x5a, 0x78, 0x79, 0x8c, 0x8e), o.within(0x90, 0x93):
		return kernels.FeatureAVX2
	case o.within(0x00, 0x0b, 0x1c, 0x1e, 0x20, 0x25, 0x28, 0x2b, 0x30, 0x35, 0x37, 0x41):
		return o.byWidth()
	}
	panic(errUnknown)
}

func (o *opcode) vex0F3A() kernels.Feature {
	switch {
	case o.code == 0x1d:
		return kernels.FeatureF16C
	case o.code == 0xf0: // RORX
		return kernels.FeatureBMI2
	case o.within(0x30, 0x33): // shifts of masks
		switch {
		case o.in(0x31, 0x33):
			return kernels.FeatureAVX512BW
		case o.wide:
			return kernels.FeatureAVX512F
		}
		return kernels.FeatureAVX512DQ
	case o.in(0x00, 0x01, 0x02, 0x38, 0x39, 0x46):
		return kernels.FeatureAVX2
	case o.in(0x04, 0x05, 0x06, 0x0c, 0x0d, 0x40, 0x41, 0x4a, 0x4b), o.within(0x08, 0x0b, 0x14, 0x19, 0x20, 0x22):
		return kernels.FeatureAVX
	case o.in(0x0e, 0x0f, 0x42, 0x4c):
		return o.byWidth()
	}
	panic(errUnknown)
}

// evex returns the feature of an instruction with the prefix EVEX beside AVX512F and AVX512VL.
func (o *opcode) evex() kernels.Feature {
	switch o.table {
	case 1:
		return o.evex0F()
	case 2:
		return o.evex0F38()
	case 3:
		return o.evex0F3A()
	}
	panic(errUnknown)
}

// scalar reports whether an EVEX instruction works on one element, so that its vector length means nothing.
func (o *opcode) scalar() bool {
	switch o.table {
	case 1:
		single := o.prefix == 0xf2 || o.prefix == 0xf3
		return o.in(0x6e, 0x7e, 0xd6) || !single && o.in(0x12, 0x13, 0x16, 0x17, 0x2e, 0x2f) ||
			single && (o.within(0x10, 0x11, 0x2a, 0x2d, 0x51, 0x5a, 0x5c, 0x5f) || o.in(0x78, 0x79, 0x7b, 0xc2))
	case 2:
		return o.within(0x96, 0xbf) && o.code&15 > 8 && o.code&1 == 1 || o.in(0x2d, 0x43, 0x4d, 0x4f)
	}
	return o.within(0x0a, 0x0b, 0x14, 0x17, 0x20, 0x22) || o.in(0x27, 0x51, 0x55, 0x57, 0x67)
}

// wideIs returns one feature if the bit W is set, else another.
func (o *opcode) wideIs(set, clear kernels.Feature) kernels.Feature {
	if o.wide {
		return set
	}
	return clear
}

func (o *opcode) evex0F() kernels.Feature {
	const f, bw, dq = kernels.FeatureAVX512F, kernels.FeatureAVX512BW, kernels.FeatureAVX512DQ
	switch {
	case o.within(0x54, 0x57): // AND, ANDN, OR and XOR of floating point
		return dq
	case o.within(0x10, 0x17, 0x28, 0x2f, 0x51, 0x53, 0x58, 0x5a, 0x5c, 0x5f), o.in(0xc2, 0xc6):
		return f
	case o.code == 0x5b:
		if o.prefix == 0 {
			return o.wideIs(dq, f)
		}
		return f
	case o.in(0x78, 0x79):
		if o.prefix == 0x66 {
			return dq
		}
		return f
	case o.in(0x7a, 0xe6) && o.prefix != 0x66:
		return o.wideIs(dq, f)
	case o.in(0x7a, 0x7b) && o.prefix == 0x66:
		return dq
	case o.in(0x6f, 0x7f):
		if o.prefix == 0xf2 {
			return bw
		}
		return f
	case o.code == 0x70 && o.prefix != 0x66, o.code == 0x71, o.code == 0x73 && o.group()&1 == 1:
		return bw
	case o.in(0x62, 0x66, 0x6a, 0x6c, 0x6d, 0x6e, 0x70, 0x72, 0x73, 0x76, 0x7b, 0x7e, 0xd2, 0xd3, 0xd4, 0xd6, 0xdb,
		0xdf, 0xe2, 0xe6, 0xe7, 0xeb, 0xef, 0xf2, 0xf3, 0xf4, 0xfa, 0xfb, 0xfe):
		return f
	case o.within(0x60, 0x6b, 0x74, 0x75, 0xc4, 0xc5, 0xd1, 0xfd):
		return bw
	}
	panic(errUnknown)
}

func (o *opcode) evex0F38() kernels.Feature {
	const f, bw, dq = kernels.FeatureAVX512F, kernels.FeatureAVX512BW, kernels.FeatureAVX512DQ
	if o.prefix != 0x66 {
		switch {
		case o.prefix == 0xf3 && o.in(0x52, 0x72), o.prefix == 0xf2 && o.code == 0x72:
			return kernels.FeatureAVX512BF16
		case o.prefix == 0xf3 && o.in(0x38, 0x39): // VPMOVM2D and VPMOVD2M
			return dq
		case o.prefix == 0xf3 && o.in(0x10, 0x20, 0x26, 0x28, 0x29, 0x30):
			return bw
		case o.prefix == 0xf3 && (o.code == 0x27 || o.within(0x11, 0x15, 0x21, 0x25, 0x31, 0x35)):
			return f
		}
		panic(errUnknown)
	}
	switch {
	case o.in(0x75, 0x7d, 0x8d): // permutations of words and bytes
		return o.wideIs(bw, avx512VBMI)
	case o.in(0x1a, 0x5a): // broadcasts of parts
		return o.wideIs(dq, f)
	case o.in(0x1b, 0x5b):
		return o.wideIs(f, dq)
	case o.code == 0x40: // VPMULLQ and VPMULLD
		return o.wideIs(dq, f)
	case o.within(0x50, 0x53):
		return avx512VNNI
	case o.in(0x00, 0x04, 0x0b, 0x1c, 0x1d, 0x20, 0x26, 0x2b, 0x30, 0x38, 0x3a, 0x3c, 0x3e, 0x66, 0x78, 0x79, 0x7a,
		0x7b), o.within(0x10, 0x12):
		return bw
	case o.within(0x0c, 0x0d, 0x13, 0x16, 0x18, 0x19, 0x1e, 0x1f, 0x21, 0x25, 0x27, 0x2a, 0x2c, 0x2d, 0x31, 0x37,
		0x42, 0x43, 0x45, 0x47, 0x4c, 0x4f, 0x58, 0x59, 0x64, 0x65, 0x76, 0x77, 0x88, 0x8b, 0x90, 0x93, 0x96, 0xa3,
		0xa6, 0xaf, 0xb6, 0xbf), o.in(0x39, 0x3b, 0x3d, 0x3f, 0x7c, 0x7e, 0x7f):
		return f
	}
	panic(errUnknown)
}

func (o *opcode) evex0F3A() kernels.Feature {
	const f, bw, dq = kernels.FeatureAVX512F, kernels.FeatureAVX512BW, kernels.FeatureAVX512DQ
	switch {
	case o.in(0x18, 0x19, 0x38, 0x39): // parts of 128 bits
		return o.wideIs(dq, f)
	case o.in(0x1a, 0x1b, 0x3a, 0x3b): // and of 256
		return o.wideIs(f, dq)
	case o.in(0x16, 0x22, 0x50, 0x51, 0x56, 0x57, 0x66, 0x67):
		return dq
	case o.in(0x0f, 0x14, 0x15, 0x20, 0x3e, 0x3f, 0x42):
		return bw
	case o.in(0x00, 0x01, 0x03, 0x04, 0x05, 0x17, 0x1d, 0x1e, 0x1f, 0x21, 0x23, 0x25, 0x26, 0x27, 0x43, 0x54, 0x55),
		o.within(0x08, 0x0b):
		return f
	}
	panic(errUnknown)
}
