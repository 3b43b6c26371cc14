// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// args is the parameter block of a launch: each parameter at its natural alignment, in the order of the kernel's. It
// lies on the caller's stack. What is packed is compared with the kernel's declaration when the kernel is first
// launched.
type args struct {
	b [maxArgs]byte
	n int

	numbers [maxNumbers]uint16 // where numbers are that may differ each time: see number
	count   int
}

// maxNumbers is how many of a kernel's numbers may differ from those that a graph has; others must be the same.
const maxNumbers = 12

// maxArgs is the largest parameter block that CUDA takes from all drivers.
const maxArgs = 4096

func (a *args) align(to int) { a.n = (a.n + to - 1) &^ (to - 1) }

func (a *args) u32(v uint32) {
	a.align(4)
	binary.LittleEndian.PutUint32(a.b[a.n:], v)
	a.n += 4
}

func (a *args) u64(v uint64) {
	a.align(8)
	binary.LittleEndian.PutUint64(a.b[a.n:], v)
	a.n += 8
}

// number packs 8 bytes that do not say where or how much memory the kernel reads and writes, and that may differ in
// every step: factors, seeds, positions in random streams. A graph of the kernel serves them all.
func (a *args) number(v uint64) {
	a.u64(v)
	if a.count < maxNumbers {
		a.numbers[a.count] = uint16(a.n - 8)
		a.count++
	}
}

// i32 packs an int that the kernel takes as a 32-bit number; callers have checked that it is one.
func (a *args) i32(v int) {
	if int(int32(v)) != v {
		panic(fmt.Sprintf("cuda: %d does not fit a 32-bit parameter", v))
	}
	a.u32(uint32(int32(v)))
}

func (a *args) i64(v int)      { a.u64(uint64(v)) }
func (a *args) f64(v float64)  { a.number(math.Float64bits(v)) }
func (a *args) ptr(p cuda.Ptr) { a.u64(uint64(p)) }
