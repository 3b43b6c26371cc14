// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// cutPlaces cuts the work into pieces whose windows fit into scratch.
func cutPlaces[T float32 | float64](g *convolution) {
	g.cut(g.oh, g.ow, max(convPlaces, convScratch/(int(unsafe.Sizeof(*new(T)))*max(1, g.c*g.taps()))))
}

// pitchOf is the distance of windows of so many elements: a multiple of what products round up to, and not of the size
// of a page.
func pitchOf(n int) int {
	n = roundUp(max(n, 1), gemm.RowStep)
	if n%256 == 0 {
		n += apart
	}
	return n
}

// weights is the task's memory for kernels in the order of windows, and for their panels.
func weights[T float32 | float64](t *task) (w, panels []T) {
	all := unsafe.Slice((*T)(t.parts.ptr), t.parts.n/int(unsafe.Sizeof(*new(T))))
	if t.conv.ordered() {
		return slice[T](&t.c.In[1]), all
	}
	n := t.conv.o * t.conv.c * t.conv.taps()
	return all[:n], all[n:]
}

// ordered reports whether the kernels lie in the order of windows.
func (g *convolution) ordered() bool { return !g.last() || g.taps() == 1 }

// orderKernels puts the kernels, [o,c,taps], into the order of windows, [o,taps,c], for blocks of input channels of the
// given width, beside room for panels.
func orderKernels[T float32 | float64](t *task, width, panels int) {
	g := &t.conv
	size := int(unsafe.Sizeof(*new(T)))
	if g.ordered() {
		t.parts = t.d.scratch(size * panels)
		return
	}
	t.parts = t.d.scratch(size * (g.o*g.c*g.taps() + panels))
	t.n[0] = width
	t.do(g.o, max(1, elementGrain/(g.c*g.taps())), orderRows[T])
}

func orderRows[T float32 | float64](t *task, ws *workspace, lo, hi int) {
	g, from := &t.conv, slice[T](&t.c.In[1])
	to, _ := weights[T](t)
	width, taps := t.n[0], g.taps()
	reserveAll[T](ws, []int{max(taps, tapsRoom) * width})
	room := carve[T](ws, max(taps, tapsRoom)*width)
	for o := lo; o < hi; o++ {
		for c := 0; c < g.c; c += width {
			at, n := (o*g.c+c)*taps, min(width, g.c-c)
			transposeTaps(room, n, n, taps, from[at:])
			copy(to[at:][:n*taps], room)
		}
	}
}

// unfoldedConv2D computes a convolution by products of windows and kernels.
func unfoldedConv2D[T float32 | float64](t *task) {
	g := &t.conv
	cutPlaces[T](g)
	pieces, panel := g.portions(g.n, g.oh), gemm.PanelWidth[T]()
	g.divide(g.o, pieces, panel)
	orderKernels[T](t, g.c, g.c*g.taps()*roundUp(g.o, panel))
	t.do(ceilDiv(g.o, panel), 1, packOutputs[T])
	t.do(pieces*g.blocks, 1, unfoldedPieces[T])
}

// packOutputs packs panels lo to hi of the kernels' output channels.
func packOutputs[T float32 | float64](t *task, _ *workspace, lo, hi int) {
	g, panel := &t.conv, gemm.PanelWidth[T]()
	w, to := weights[T](t)
	depth := g.c * g.taps()
	for u := lo; u < hi; u++ {
		gemm.PackPanels(to[u*panel*depth:], depth, min(panel, g.o-u*panel), gemm.Strided(w[u*panel*depth:], 1, depth))
	}
}

// unfoldedPieces computes pieces lo to hi: portions of places, and blocks of output channels of each.
func unfoldedPieces[T float32 | float64](t *task, ws *workspace, lo, hi int) {
	g, x, y := &t.conv, slice[T](&t.c.In[0]), slice[T](&t.c.Out[0])
	_, panels := weights[T](t)
	u := g.unfold(0, g.rows, g.c)
	places, out := g.images*g.rows*g.ow, roundUp(g.width, gemm.PanelWidth[T]())
	rows := roundUp(places, gemm.RowStep)
	sizes := []int{u.pixels() + gemm.UnfoldSlack, roomLast(g.h, g.w, u.rows, pitchOf(u.depth)),
		rows*pitchOf(u.size) + gemm.UnfoldSlack, rows * out, out}
	reserveAll[T](ws, sizes)
	region, room, cols, sums, bias := carve[T](ws, sizes[0]), carve[T](ws, sizes[1]), carve[T](ws, sizes[2]),
		carve[T](ws, sizes[3]), carve[T](ws, sizes[4])
	for i := lo; i < hi; i++ {
		p := g.portion(i/g.blocks, 0, g.n, g.oh)
		first, n := g.block(i%g.blocks, g.o)
		if i == lo || i%g.blocks == 0 {
			seePortion(g, p, 0, g.c, x, cols, region, room)
		}
		var added gemm.Rows[T]
		if b := param[T](t.c, 2); b != nil {
			added.Data = bias
			copy(bias, b[first:first+n])
		}
		gemm.MultiplyPanels(p.images*p.rows*g.ow, n, u.size, gemm.InRows(cols, pitchOf(u.size)), panels[first*u.size:],
			gemm.InRows(sums, out), added)
		for k := range p.images {
			storeLast(y[((p.first+k)*g.o+first)*g.oh*g.ow:], pixels{g.oh, g.ow, p.row, 0, p.rows, g.ow},
				sums[k*p.rows*g.ow*out:], out, n)
		}
	}
}

// reserveAll makes room for slices of so many elements each.
func reserveAll[T float32 | float64](ws *workspace, sizes []int) {
	n := 0
	for _, size := range sizes {
		n += carved(size * int(unsafe.Sizeof(*new(T))))
	}
	ws.reserve(n)
}

// seePortion copies what the windows of a portion see of channels [first, first+n), with scratch memory for pixels.
func seePortion[T float32 | float64](g *convolution, p portion, first, n int, x, cols, region, room []T) {
	u := g.unfold(p.row, p.rows, n)
	pitch := pitchOf(u.size)
	for k := range p.images {
		planes, to := x[((p.first+k)*g.c+first)*g.h*g.w:], cols[k*p.rows*g.ow*pitch:]
		if g.last() && g.taps() == 1 && g.sh == 1 && g.sw == 1 { // windows are pixels
			loadLast(to, pitch, g.area(&u), planes, n, room)
			continue
		}
		load(g, &u, region, planes, room)
		see(g, &u, to, pitch, p.rows, region)
	}
}

// unfoldedGrad computes the gradient of the images: each window's is a product with the kernels, and is added to the
// pixels that it sees.
func unfoldedGrad[T float32 | float64](t *task) {
	g := &t.conv
	cutPlaces[T](g)
	pieces, panel := ceilDiv(g.n, g.images), gemm.PanelWidth[T]()
	g.divide(g.c, pieces, apart)
	size := g.o * g.blocks * roundUp(g.width*g.taps(), panel)
	orderKernels[T](t, g.width, size)
	t.do(g.blocks*ceilDiv(g.width*g.taps(), panel), 1, packInputs[T])
	t.do(pieces*g.blocks, 1, unfoldedGrads[T])
}

// packInputs packs panels lo to hi of the blocks of the kernels' input channels.
func packInputs[T float32 | float64](t *task, _ *workspace, lo, hi int) {
	g, panel := &t.conv, gemm.PanelWidth[T]()
	w, to := weights[T](t)
	each := ceilDiv(g.width*g.taps(), panel)
	for u := lo; u < hi; u++ {
		first, n := g.block(u/each, g.c)
		at := u % each * panel
		if at < n*g.taps() {
			gemm.PackPanels(to[u*panel*g.o:], g.o, min(panel, n*g.taps()-at),
				gemm.Strided(w[first*g.taps()+at:], g.c*g.taps(), 1))
		}
	}
}

// unfoldedGrads computes pieces lo to hi: images, and blocks of input channels of each.
func unfoldedGrads[T float32 | float64](t *task, ws *workspace, lo, hi int) {
	g, dy, dx, panel := &t.conv, slice[T](&t.c.In[0]), slice[T](&t.c.Out[0]), gemm.PanelWidth[T]()
	_, panels := weights[T](t)
	each, pitch := roundUp(g.width*g.taps(), panel), pitchOf(g.o)
	places := roundUp(g.images*g.rows*g.ow, gemm.RowStep)
	whole := g.seen(g.width)
	sizes := []int{g.images * whole.pixels(), roomLast(g.oh, g.ow, g.rows, pitch), places * pitch, places * each}
	reserveAll[T](ws, sizes)
	region, room, from, cols := carve[T](ws, sizes[0]), carve[T](ws, sizes[1]), carve[T](ws, sizes[2]),
		carve[T](ws, sizes[3])
	for i := lo; i < hi; i++ {
		first, n := g.block(i%g.blocks, g.c)
		image := i / g.blocks * g.images
		images := min(g.images, g.n-image)
		whole = g.seen(n)
		clear(region[:images*whole.pixels()])
		for row := 0; row < g.oh; row += g.rows {
			rows := min(g.rows, g.oh-row)
			for k := range images {
				loadLast(from[k*rows*g.ow*pitch:], pitch, pixels{g.oh, g.ow, row, 0, rows, g.ow},
					dy[(image+k)*g.o*g.oh*g.ow:], g.o, room)
			}
			gemm.MultiplyPanels(images*rows*g.ow, whole.size, g.o, gemm.InRows(from, pitch),
				panels[i%g.blocks*each*g.o:], gemm.InRows(cols, each), gemm.Rows[T]{})
			for k := range images {
				spread(g, &whole, region[k*whole.pixels()+row*g.sh*whole.cols*whole.depth:], cols[k*rows*g.ow*each:],
					each, rows)
			}
		}
		for k := range images {
			storeSeen(g, &whole, dx[((image+k)*g.c+first)*g.h*g.w:], region[k*whole.pixels():], n)
		}
	}
}

// seen is the unfolding of all places for n channels, with all pixels of the images whether they are seen or not.
func (g *convolution) seen(n int) unfolding {
	u := g.unfold(0, g.oh, n)
	u.rows, u.cols = max(u.rows, g.h+g.ph), max(u.cols, g.w+g.pw)
	return u
}

// storeSeen writes the pixels that are not padding to their planes.
func storeSeen[T float32 | float64](g *convolution, u *unfolding, planes, from []T, channels int) {
	for y := range g.h {
		at := (y+g.ph)*u.cols + g.pw
		if g.last() {
			transposeTo(planes[y*g.w:], g.h*g.w, g.w, channels, from[at*u.depth:], u.depth)
			continue
		}
		for c := range channels {
			copy(planes[(c*g.h+y)*g.w:][:g.w], from[c*u.rows*u.cols+at:])
		}
	}
}

// unfoldedParamGrad computes the gradient of the kernels for each group of images and block of input channels; then it
// adds up the groups.
func unfoldedParamGrad[T float32 | float64](t *task) {
	g, size := &t.conv, int(unsafe.Sizeof(*new(T)))
	cutPlaces[T](g)
	out := roundUp(g.o, gemm.PanelWidth[T]())
	g.group(size * g.c * g.taps() * out)
	g.divide(g.c, g.groups, apart)
	t.parts = t.d.scratch(size * g.groups * roundUp(g.c*g.taps(), gemm.RowStep) * out)
	t.do(g.groups*g.blocks, 1, unfoldedGroups[T])
	t.do(g.c*g.taps(), max(1, elementGrain/max(1, out)), addGroups[T])
	t.do(ceilDiv(g.c, sumChannels), 1, storeKernels[T])
}

// unfoldedGroups computes the gradients of groups of images and blocks of input channels lo to hi.
func unfoldedGroups[T float32 | float64](t *task, ws *workspace, lo, hi int) {
	g, x, dy, parts := &t.conv, slice[T](&t.c.In[0]), slice[T](&t.c.In[1]), held[T](t)
	out := roundUp(g.o, gemm.PanelWidth[T]())
	u := g.unfold(0, g.rows, g.width)
	places := g.images * g.rows * g.ow
	sizes := []int{u.pixels() + gemm.UnfoldSlack,
		max(roomLast(g.h, g.w, u.rows, pitchOf(u.depth)), roomLast(g.oh, g.ow, g.rows, out)),
		places*pitchOf(u.size) + gemm.UnfoldSlack, places * out}
	reserveAll[T](ws, sizes)
	region, room, cols, from := carve[T](ws, sizes[0]), carve[T](ws, sizes[1]), carve[T](ws, sizes[2]),
		carve[T](ws, sizes[3])
	for i := lo; i < hi; i++ {
		first, n := g.block(i%g.blocks, g.c)
		begin, end := g.members(i / g.blocks)
		sums := parts[(i/g.blocks*roundUp(g.c*g.taps(), gemm.RowStep)+first*g.taps())*out:]
		for k := range g.portions(end-begin, g.oh) {
			p := g.portion(k, begin, end, g.oh)
			seePortion(g, p, first, n, x, cols, region, room)
			for image := range p.images {
				loadLast(from[image*p.rows*g.ow*out:], out, pixels{g.oh, g.ow, p.row, 0, p.rows, g.ow},
					dy[(p.first+image)*g.o*g.oh*g.ow:], g.o, room)
			}
			c := gemm.InRows(sums, out)
			var added gemm.Rows[T]
			if k > 0 {
				added = c
			}
			gemm.MultiplyTall(n*g.taps(), g.o, p.images*p.rows*g.ow, gemm.InRows(cols, pitchOf(n*g.taps())),
				gemm.InRows(from, out), c, added)
		}
	}
}

// addGroups adds rows lo to hi of the groups' gradients to those of the first.
func addGroups[T float32 | float64](t *task, _ *workspace, lo, hi int) {
	g, parts := &t.conv, held[T](t)
	out := roundUp(g.o, gemm.PanelWidth[T]())
	for k := 1; k < g.groups; k++ {
		addTo(parts[lo*out:hi*out], parts[(k*roundUp(g.c*g.taps(), gemm.RowStep)+lo)*out:][:(hi-lo)*out])
	}
}

// storeKernels writes the gradient for units lo to hi of input channels.
func storeKernels[T float32 | float64](t *task, ws *workspace, lo, hi int) {
	g, dw, sums := &t.conv, slice[T](&t.c.Out[0]), held[T](t)
	out, taps := roundUp(g.o, gemm.PanelWidth[T]()), g.taps()
	reserveAll[T](ws, []int{sumChannels * taps * out})
	room := carve[T](ws, sumChannels*taps*out)
	for u := lo; u < hi; u++ {
		first, n := u*sumChannels, min(sumChannels, g.c-u*sumChannels)
		from := sums[first*taps*out:]
		if !g.ordered() { // [block][taps][channels] to [channels][taps]
			begin, width := g.block(first/g.width, g.c)
			for c := range n {
				for tap := range taps {
					copy(room[(c*taps+tap)*out:][:out], sums[(begin*taps+tap*width+first-begin+c)*out:])
				}
			}
			from = room
		}
		transposeTo(dw[first*taps:], g.c*taps, n*taps, g.o, from, out)
	}
}
