// SPDX-License-Identifier: Apache-2.0

package ptx

// typ is a PTX type.
type typ uint8

const (
	typNone typ = iota
	typPred
	typB8
	typU8
	typS8
	typB16
	typU16
	typS16
	typF16
	typBF16
	typB32
	typU32
	typS32
	typF32
	typF16x2
	typBF16x2
	typTF32
	typB64
	typU64
	typS64
	typF64
	typB128
)

var typNames = map[string]typ{"pred": typPred, "b8": typB8, "u8": typU8, "s8": typS8, "b16": typB16, "u16": typU16,
	"s16": typS16, "f16": typF16, "bf16": typBF16, "b32": typB32, "u32": typU32, "s32": typS32, "f32": typF32,
	"f16x2": typF16x2, "bf16x2": typBF16x2, "tf32": typTF32, "b64": typB64, "u64": typU64, "s64": typS64, "f64": typF64,
	"b128": typB128}

// size is the number of bytes.
func (t typ) size() int {
	switch {
	case t >= typB8 && t <= typS8:
		return 1
	case t >= typB16 && t <= typBF16:
		return 2
	case t >= typB32 && t <= typTF32:
		return 4
	case t >= typB64 && t <= typF64:
		return 8
	case t == typB128:
		return 16
	}
	return 0
}

func (t typ) signed() bool { return t == typS8 || t == typS16 || t == typS32 || t == typS64 }

func (t typ) float() bool {
	return t == typF16 || t == typBF16 || t == typF32 || t == typF64 || t == typF16x2 || t == typBF16x2 || t == typTF32
}

// half reports whether values are 16-bit floats or pairs of them.
func (t typ) half() bool { return t == typF16 || t == typBF16 || t == typF16x2 || t == typBF16x2 }

// wide reports whether registers of the type have 64 bits.
func (t typ) wide() bool { return t.size() == 8 }

func (t typ) String() string {
	for name, u := range typNames {
		if t == u {
			return name
		}
	}
	return "no type"
}
