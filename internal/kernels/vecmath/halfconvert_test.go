// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// asF16 is the same memory as float16.
func asF16(x []dtype.BF16) []dtype.F16 {
	return unsafe.Slice((*dtype.F16)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// TestEveryFloat16 widens all there are, and rounds them, their neighbours in float32 and the middles between them as
// package dtype does.
func TestEveryFloat16(t *testing.T) {
	all := make([]dtype.F16, 1<<16)
	for i := range all {
		all[i] = dtype.F16(i)
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		wide, rounded, want := make([]float32, len(all)), make([]dtype.F16, len(all)), make([]dtype.F16, len(all))
		WidenF16(wide, all)
		for i, h := range all {
			require.Equal(t, math.Float32bits(h.Float32()), math.Float32bits(wide[i]), "%#04x", i)
		}
		for _, shift := range []uint32{0, 1, 1<<32 - 1, 1 << 12, 1<<12 + 1, 1<<12 - 1} {
			moved := make([]float32, len(wide))
			for i, v := range wide {
				moved[i] = math.Float32frombits(math.Float32bits(v) + shift)
				want[i] = dtype.ToF16(moved[i])
			}
			RoundF16(rounded, moved)
			require.Equal(t, want, rounded, "%#x after", shift)
		}
	})
}
