// SPDX-License-Identifier: Apache-2.0

package cpu

// pixels is rows × cols pixels, from (top, left) on, of planes of h × w pixels.
type pixels struct{ h, w, top, left, rows, cols int }

// inside is the range of columns that the planes have.
func (p *pixels) inside() (first, last int) {
	first = min(max(-p.left, 0), p.cols)
	return first, max(first, min(p.w-p.left, p.cols))
}

// narrowPixels is the width below which lines of pixels are laid out together.
const narrowPixels = 16

// roomLast is the number of elements that loadLast needs room for, with so many rows of planes of h × w pixels.
func roomLast(h, w, rows, pitch int) int {
	if w >= narrowPixels {
		return 0
	}
	return min(h, rows) * w * pitch
}

// loadLast lays pixels of so many planes out channels last, pitch elements apart, and zeros for what is outside;
// roomLast says how much room it needs.
func loadLast[T float32 | float64](dst []T, pitch int, p pixels, planes []T, channels int, room []T) {
	first, last := p.inside()
	above, below := max(p.top, 0), min(p.top+p.rows, p.h)
	if above >= below || first == last {
		clear(dst[:p.rows*p.cols*pitch])
		return
	}
	whole, narrow := p.left == 0 && p.cols == p.w, p.w < narrowPixels
	switch {
	case whole: // lines follow each other on both sides
		transposePlanes(dst[(above-p.top)*p.w*pitch:], pitch, channels, (below-above)*p.w, planes[above*p.w:], p.h*p.w)
	case narrow:
		transposePlanes(room, pitch, channels, (below-above)*p.w, planes[above*p.w:], p.h*p.w)
	}
	for i := range p.rows {
		line, y := dst[i*p.cols*pitch:][:p.cols*pitch], p.top+i
		if y < above || y >= below {
			clear(line)
			continue
		}
		clear(line[:first*pitch])
		clear(line[last*pitch:])
		switch {
		case whole:
		case narrow:
			copy(line[first*pitch:last*pitch], room[((y-above)*p.w+p.left+first)*pitch:])
		default:
			transposePlanes(line[first*pitch:], pitch, channels, last-first, planes[y*p.w+p.left+first:], p.h*p.w)
		}
		if channels < pitch {
			for j := first; j < last; j++ {
				clear(line[j*pitch+channels : (j+1)*pitch])
			}
		}
	}
}

// transposePlanes lays n pixels of planes out channels last. Through planes of a page or more it goes as many side by
// side as the processor reads ahead for.
func transposePlanes[T float32 | float64](dst []T, pitch, channels, n int, planes []T, size int) {
	const page = 1024
	together := channels
	if size >= page {
		together = 16
	}
	for c := 0; c < channels; c += together {
		transposeTo(dst[c:], pitch, min(together, channels-c), n, planes[c*size:], size)
	}
}

// storeLast is the inverse of loadLast for pixels that are inside except for columns on the right and rows below.
func storeLast[T float32 | float64](planes []T, p pixels, src []T, pitch, channels int) {
	rows, cols := min(p.rows, p.h-p.top), min(p.cols, p.w-p.left)
	if cols == p.cols && cols == p.w {
		transposeTo(planes[p.top*p.w:], p.h*p.w, rows*cols, channels, src, pitch)
		return
	}
	for i := range rows {
		transposeTo(planes[(p.top+i)*p.w+p.left:], p.h*p.w, cols, channels, src[i*p.cols*pitch:], pitch)
	}
}

// loadFirst copies pixels of so many planes, one plane after the other, and zeros for what is outside.
func loadFirst[T float32 | float64](dst []T, p pixels, planes []T, channels int) {
	first, last := p.inside()
	for c := range channels {
		for i := range p.rows {
			line, y := dst[(c*p.rows+i)*p.cols:][:p.cols], p.top+i
			if y < 0 || y >= p.h || first == last {
				clear(line)
				continue
			}
			clear(line[:first])
			copy(line[first:last], planes[(c*p.h+y)*p.w+p.left+first:])
			clear(line[last:])
		}
	}
}
