//go:build !noasm

package gemm

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// kernelBF16 is direct.compute for a B of bfloat16 and a fixed number of rows.
type kernelBF16 func(k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride, blocks int)

// The kernels by number of rows.
var (
	streamsBF16AVX2   = [...]kernelBF16{nil, streamBF16AVX2x1, streamBF16AVX2x2, streamBF16AVX2x3, streamBF16AVX2x4}
	streamsBF16AVX512 = [...]kernelBF16{nil, streamBF16AVX512x1, streamBF16AVX512x2, streamBF16AVX512x3, streamBF16AVX512x4,
		streamBF16AVX512x5, streamBF16AVX512x6, streamBF16AVX512x7, streamBF16AVX512x8}

	dottersBF16AVX2   = [...]kernelBF16{nil, dotsBF16AVX2x1, dotsBF16AVX2x2, dotsBF16AVX2x3}
	dottersBF16AVX512 = [...]kernelBF16{nil, dotsBF16AVX512x1, dotsBF16AVX512x2, dotsBF16AVX512x3, dotsBF16AVX512x4, dotsBF16AVX512x5,
		dotsBF16AVX512x6, dotsBF16AVX512x7, dotsBF16AVX512x8, dotsBF16AVX512x9, dotsBF16AVX512x10, dotsBF16AVX512x11}
)

var (
	avx2BF16 = format[float32]{
		pack:   packBF16AVX2,
		stream: direct[float32, uint16]{[]int{0, 64, 32, 32, 16}, 1, streamBF16AVX2},
		dots:   direct[float32, uint16]{[]int{0, 16, 16, 8}, 16, dotsBF16AVX2},
	}
	avx512BF16 = format[float32]{
		pack:   packBF16AVX512,
		stream: direct[float32, uint16]{[]int{0, 256, 192, 128, 96, 64, 64, 32, 32}, 1, streamBF16AVX512},
		dots:   direct[float32, uint16]{[]int{0, 32, 32, 32, 32, 32, 16, 16, 16, 16, 16, 16}, 32, dotsBF16AVX512},
	}
)

// formatBF16 returns the active variant's way of reading bfloat16.
func formatBF16() *format[float32] {
	switch kernels.Active() {
	case kernels.AVX512:
		return &avx512BF16
	case kernels.AVX2:
		return &avx2BF16
	default:
		return &genericBF16
	}
}

func streamBF16AVX2(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	streamsBF16AVX2[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func streamBF16AVX512(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	streamsBF16AVX512[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func dotsBF16AVX2(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	dottersBF16AVX2[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func dotsBF16AVX512(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	dottersBF16AVX512[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

// packBF16AVX2 is packBF16Generic with vector instructions for whole panels of contiguous rows, and for lanes that are contiguous along k.
func packBF16AVX2(dst []float32, width, lanes, k int, src []uint16, laneStride, kStride int) {
	if laneStride == 1 && width == lanes && k > 0 {
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		switch lanes {
		case 16:
			copyRowsBF16AVX2(k, &src[0], kStride, &dst[0])
			return
		case 6:
			copyTallBF16x6(k, &src[0], kStride, &dst[0])
			return
		}
	}
	packPairs(transposeBF16AVX2, dst, width, lanes, k, src, laneStride, kStride)
}

// packBF16AVX512 is packBF16AVX2 with wider panels.
func packBF16AVX512(dst []float32, width, lanes, k int, src []uint16, laneStride, kStride int) {
	if laneStride == 1 && width == lanes && k > 0 {
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		switch lanes {
		case 32:
			copyRowsBF16AVX512(k, &src[0], kStride, &dst[0])
			return
		case 12:
			copyTallBF16x12(k, &src[0], kStride, &dst[0])
			return
		}
	}
	packPairs(transposeBF16AVX512, dst, width, lanes, k, src, laneStride, kStride)
}

// packPairs is the part for lanes that are contiguous along k; it leaves the rest to packBF16Generic.
func packPairs(transpose func(dst []float32, width, lanes, k int, src []uint16, stride int), dst []float32, width, lanes, k int, src []uint16, laneStride, kStride int) {
	if kStride != 1 || laneStride == 1 || lanes < 4 || k < 8 {
		packBF16Generic(dst, width, lanes, k, src, laneStride, kStride)
		return
	}
	transpose(dst, width, lanes, k, src, laneStride)
	if lanes < width {
		for p := range k {
			clear(dst[p*width+lanes : (p+1)*width])
		}
	}
}

// transposeBF16AVX512 sets dst[p·width + i] = src[i·stride + p] in blocks of 16 lanes by 32 products, lanes ≥ 4; what is left is transposeBF16AVX2's.
func transposeBF16AVX512(dst []float32, width, lanes, k int, src []uint16, stride int) {
	whole, deep := lanes&^15, k&^31
	if whole > 0 && deep > 0 {
		_, _ = dst[(deep-1)*width+whole-1], src[(whole-1)*stride+deep-1]
	}
	for p := 0; p < deep; p += 32 { // all of a row of dst before the next ones, which may lie in the same places of the cache
		for lane := 0; lane < whole; lane += 16 {
			transposeBF16x16(&src[lane*stride+p], stride, &dst[p*width+lane], width)
		}
	}
	if deep < k && whole > 0 {
		transposeBF16AVX2(dst[deep*width:], width, whole, k-deep, src[deep:], stride)
	}
	if whole < lanes {
		transposeBF16AVX2(dst[whole:], width, lanes-whole, k, src[whole*stride:], stride)
	}
}

// transposeBF16AVX2 is the same for eight lanes at a time, or four.
func transposeBF16AVX2(dst []float32, width, lanes, k int, src []uint16, stride int) {
	blocks := k / 8
	if lanes < 4 {
		blocks = 0
	}
	if blocks > 0 {
		_, _ = dst[(k-1)*width+lanes-1], src[(lanes-1)*stride+k-1]
		lane := 0
		for ; lane+8 <= lanes; lane += 8 {
			transposeBF16x8(blocks, &src[lane*stride], stride, &dst[lane], width)
		}
		for lane < lanes {
			lane = min(lane, lanes-4) // the last group may overlap the one before: it writes the same values
			transposeBF16x4(blocks, &src[lane*stride], stride, &dst[lane], width)
			lane += 4
		}
	}
	for p := 8 * blocks; p < k; p++ {
		for i := range lanes {
			dst[p*width+i] = math.Float32frombits(uint32(src[i*stride+p]) << 16)
		}
	}
}
