// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// lastChannels is the number of channels from which images are laid out channels last: a window sees kw pixels of a row
// as one run of so many times more elements.
const lastChannels = 8

// unfolding is how windows see pixels that lie in scratch memory: so many planes of rows × cols pixels of depth
// elements.
type unfolding struct {
	planes, depth   int
	top, rows, cols int // of the pixels
	size            int // elements of a window
}

// unfold is the unfolding of rows [row, row+rows) of places for n channels.
func (g *convolution) unfold(row, rows, n int) unfolding {
	u := unfolding{planes: 1, depth: n, top: row*g.sh - g.ph, rows: (rows-1)*g.sh + (g.kh-1)*g.dh + 1,
		cols: (g.ow-1)*g.sw + (g.kw-1)*g.dw + 1, size: n * g.taps()}
	if !g.last() {
		u.planes, u.depth = n, 1
	}
	return u
}

// last reports whether images are laid out channels last.
func (g *convolution) last() bool { return g.c >= lastChannels }

// pixels is the number of elements that the pixels take.
func (u *unfolding) pixels() int { return u.planes * u.rows * u.cols * u.depth }

// area is the pixels, as loadLast and loadFirst want them.
func (g *convolution) area(u *unfolding) pixels {
	return pixels{g.h, g.w, u.top, -g.pw, u.rows, u.cols}
}

// load lays out the pixels of planes that a window sees.
func load[T float32 | float64](g *convolution, u *unfolding, dst, planes, room []T) {
	if u.planes == 1 && g.last() {
		loadLast(dst, u.depth, g.area(u), planes, u.depth, room)
		return
	}
	loadFirst(dst, g.area(u), planes, u.planes)
}

// runs calls f for each run of a window's elements that lie side by side: its first element, its first pixel's from the
// window's first one on, and its length.
func (g *convolution) runs(u *unfolding, f func(element, pixel, n int)) {
	across, n := g.kw, u.depth
	if g.dw == 1 {
		across, n = 1, g.kw*u.depth
	}
	for plane := range u.planes {
		for a := range g.kh {
			for b := range across {
				f(((plane*g.kh+a)*g.kw+b)*u.depth, ((plane*u.rows+a*g.dh)*u.cols+b*g.dw)*u.depth, n)
			}
		}
	}
}

// see copies what windows see, of all places of so many rows: one after the other in rows of cols, pitch elements
// apart.
func see[T float32 | float64](g *convolution, u *unfolding, cols []T, pitch, rows int, from []T) {
	for i := range rows {
		to, src := cols[i*g.ow*pitch:], from[i*g.sh*u.cols*u.depth:]
		if unsafe.Sizeof(*new(T)) == 4 && g.dw == 1 {
			gemm.Unfold(cast[float32](to), pitch, g.ow, cast[float32](src), g.sw*u.depth, u.planes,
				u.rows*u.cols*u.depth, g.kh, g.dh*u.cols*u.depth, g.kw*u.depth)
			continue
		}
		g.runs(u, func(element, pixel, n int) {
			for j := range g.ow {
				copy(to[j*pitch+element:][:n], src[j*g.sw*u.depth+pixel:])
			}
		})
	}
}

// spread adds what windows hold to the pixels that they see: the inverse of see.
func spread[T float32 | float64](g *convolution, u *unfolding, to []T, cols []T, pitch, rows int) {
	for i := range rows {
		from, dst := cols[i*g.ow*pitch:], to[i*g.sh*u.cols*u.depth:]
		for j := range g.ow {
			g.runs(u, func(element, pixel, n int) {
				addTo(dst[j*g.sw*u.depth+pixel:][:n], from[j*pitch+element:][:n])
			})
		}
	}
}

// addTo adds x to sums.
func addTo[T float](sums, x []T) {
	if unsafe.Sizeof(*new(T)) == 4 && len(x) >= shortLine {
		s := cast[float32](sums)
		vecmath.Add(s, s, cast[float32](x))
		return
	}
	for i, v := range x {
		sums[i] += v
	}
}
