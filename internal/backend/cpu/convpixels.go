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

// loadLast lays pixels of so many planes out channels last, pitch elements apart, and zeros for what is outside; roomLast says how much room it needs.
func loadLast[T float32 | float64](dst []T, pitch int, p pixels, planes []T, channels int, room []T) {
	first, last := p.inside()
	above, below := max(p.top, 0), min(p.top+p.rows, p.h)
	together := p.w < narrowPixels && above < below && first < last
	if together {
		transposeTo(room, pitch, channels, (below-above)*p.w, planes[above*p.w:], p.h*p.w)
	}
	for i := range p.rows {
		line, y := dst[i*p.cols*pitch:][:p.cols*pitch], p.top+i
		if y < above || y >= below || first == last {
			clear(line)
			continue
		}
		clear(line[:first*pitch])
		clear(line[last*pitch:])
		if together {
			copy(line[first*pitch:last*pitch], room[((y-above)*p.w+p.left+first)*pitch:])
		} else {
			transposeTo(line[first*pitch:], pitch, channels, last-first, planes[y*p.w+p.left+first:], p.h*p.w)
		}
		if channels < pitch {
			for j := first; j < last; j++ {
				clear(line[j*pitch+channels : (j+1)*pitch])
			}
		}
	}
}

// storeLast is the inverse of loadLast for pixels that are inside but for columns on the right and rows below.
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
