// SPDX-License-Identifier: Apache-2.0

package dtype

import "encoding/binary"

// Census counts among little-endian elements of d those that are NaN or infinite and those below zero, infinite ones
// included. Integers and booleans are not looked at.
func Census(d DType, data []byte) (nonfinite, negative int) {
	switch d {
	case Float32:
		for ; len(data) >= 4; data = data[4:] {
			b := binary.LittleEndian.Uint32(data)
			tally(b&0x7f800000 == 0x7f800000, b > 0x80000000 && b <= 0xff800000, &nonfinite, &negative)
		}
	case Float64:
		for ; len(data) >= 8; data = data[8:] {
			b := binary.LittleEndian.Uint64(data)
			tally(b&(0x7ff<<52) == 0x7ff<<52, b > 1<<63 && b <= 0xfff<<52, &nonfinite, &negative)
		}
	case BFloat16:
		for ; len(data) >= 2; data = data[2:] {
			b := binary.LittleEndian.Uint16(data)
			tally(b&0x7f80 == 0x7f80, b > 0x8000 && b <= 0xff80, &nonfinite, &negative)
		}
	case Float16:
		for ; len(data) >= 2; data = data[2:] {
			b := binary.LittleEndian.Uint16(data)
			tally(b&0x7c00 == 0x7c00, b > 0x8000 && b <= 0xfc00, &nonfinite, &negative)
		}
	}
	return nonfinite, negative
}

func tally(special, below bool, nonfinite, negative *int) {
	if special {
		*nonfinite++
	}
	if below {
		*negative++
	}
}
