//go:build !noasm

package vecmath

import "github.com/lockstep-ml/lockstep/internal/kernels"

//go:generate sh -c "cd _asm && go run . -dir .."

// stretch is the number of elements per call of an assembly function, which cannot be preempted: some ten microseconds.
const stretch = 8192

func expActive(dst, src []float32, shift float32) {
	v := kernels.Active()
	if v == kernels.Generic {
		expGeneric(dst, src, shift)
		return
	}
	lanes := lanesOf(v)
	for len(src) >= lanes {
		n := min(len(src), stretch) / lanes * lanes
		expBlocks(v, n/lanes, &dst[0], &src[0], shift)
		dst, src = dst[n:], src[n:]
	}
	if len(src) > 0 { // the rest of a vector is computed on a copy
		var rest [16]float32
		copy(rest[:], src)
		expBlocks(v, 1, &rest[0], &rest[0], shift)
		copy(dst, rest[:])
	}
}

func tanhActive(dst, src []float32) {
	v := kernels.Active()
	if v == kernels.Generic {
		tanhGeneric(dst, src)
		return
	}
	lanes := lanesOf(v)
	for len(src) >= lanes {
		n := min(len(src), stretch) / lanes * lanes
		tanhBlocks(v, n/lanes, &dst[0], &src[0])
		dst, src = dst[n:], src[n:]
	}
	if len(src) > 0 {
		var rest [16]float32
		copy(rest[:], src)
		tanhBlocks(v, 1, &rest[0], &rest[0])
		copy(dst, rest[:])
	}
}

// lanesOf returns the number of elements in a block of an assembly variant.
func lanesOf(v kernels.Variant) int {
	if v == kernels.AVX512 {
		return 16
	}
	return 8
}

// expBlocks calls an assembly variant by name, so that the compiler sees that the pointers do not escape.
func expBlocks(v kernels.Variant, blocks int, dst, src *float32, shift float32) {
	if v == kernels.AVX512 {
		expAVX512(blocks, dst, src, shift)
		return
	}
	expAVX2(blocks, dst, src, shift)
}

// tanhBlocks is expBlocks for Tanh.
func tanhBlocks(v kernels.Variant, blocks int, dst, src *float32) {
	if v == kernels.AVX512 {
		tanhAVX512(blocks, dst, src)
		return
	}
	tanhAVX2(blocks, dst, src)
}
