// SPDX-License-Identifier: Apache-2.0

package dtype

import (
	"encoding/binary"
	"math/bits"
)

// Census counts among little-endian elements of d those that are NaN or infinite and those below zero, infinite ones
// included. Integers and booleans are not looked at.
func Census(d DType, data []byte) (nonfinite, negative int) {
	var special, below uint64
	switch d {
	case Float32:
		for ; len(data) >= 4; data = data[4:] {
			b := binary.LittleEndian.Uint32(data)
			special += above(uint64(b&^(1<<31)), 0x7f7fffff)
			below += above(0x7f800000, uint64(b-0x80000001))
		}
	case Float64:
		for ; len(data) >= 8; data = data[8:] {
			b := binary.LittleEndian.Uint64(data)
			special += above(b&^(1<<63), 0x7ff<<52-1)
			below += above(0x7ff<<52, b-(1<<63+1))
		}
	case BFloat16:
		for ; len(data) >= 2; data = data[2:] {
			b := binary.LittleEndian.Uint16(data)
			special += above(uint64(b&^(1<<15)), 0x7f7f)
			below += above(0x7f80, uint64(b-0x8001))
		}
	case Float16:
		for ; len(data) >= 2; data = data[2:] {
			b := binary.LittleEndian.Uint16(data)
			special += above(uint64(b&^(1<<15)), 0x7bff)
			below += above(0x7c00, uint64(b-0x8001))
		}
	}
	return int(special), int(below)
}

// above is 1 if x is more than y, else 0. There is no branch, which processors would predict wrongly for every other
// weight.
func above(x, y uint64) uint64 {
	_, borrow := bits.Sub64(y, x, 0)
	return borrow
}
