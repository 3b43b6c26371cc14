// SPDX-License-Identifier: Apache-2.0

package dtype

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// Zeros of either sign and NaNs are not below zero, the smallest subnormal number and −∞ are.
func TestCensus(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		bits  any
	}{
		{Float32, []uint32{0, 1 << 31, 1, 1<<31 | 1, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
			0x7fc00000, 0xffc00000, 0xff800001, 0x7f800001}},
		{Float64, []uint64{0, 1 << 63, 1, 1<<63 | 1, 0x7ff<<52 - 1, 0xfff<<52 - 1, 0x7ff << 52, 0xfff << 52,
			0x7ff<<52 | 1<<51, 0xfff<<52 | 1<<51, 0xfff<<52 | 1, 0x7ff<<52 | 1}},
		{BFloat16, []uint16{0, 0x8000, 1, 0x8001, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc0, 0xff81, 0x7f81}},
		{Float16, []uint16{0, 0x8000, 1, 0x8001, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe00, 0xfc01, 0x7c01}},
	} {
		var data bytes.Buffer
		require.NoError(t, binary.Write(&data, binary.LittleEndian, c.bits))
		nonfinite, negative := Census(c.dtype, data.Bytes())
		require.Equal(t, 6, nonfinite, c.dtype)
		require.Equal(t, 3, negative, c.dtype)
	}
	nonfinite, negative := Census(Int32, []byte{0xff, 0xff, 0xff, 0xff})
	require.Zero(t, nonfinite+negative)
}
