// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/internal/kernels/winograd"
)

const (
	// winogradChannels is the number of channels from which the transforms cost less than they save.
	winogradChannels = 16
	// winogradScratch is the bytes of the transformed tiles of a piece, in the second-level cache.
	winogradScratch = 512 << 10
	// apart keeps vectors that are used together, a power of two apart otherwise, from pushing each other out of a
	// cache.
	apart = 16
)

// winograd reports whether package winograd has a transform for the kernels.
func (g *convolution) winograd() bool {
	return g.kh == 3 && g.kw == 3 && g.sh == 1 && g.sw == 1 && g.dh == 1 && g.dw == 1 && g.ph <= 2 && g.pw <= 2 &&
		min(g.c, g.o) >= winogradChannels && g.n*g.oh*g.ow > 0
}

// tileRows and tileCols are the tiles of 2×2 results of an image.
func (g *convolution) tileRows() int { return ceilDiv(g.oh, 2) }
func (g *convolution) tileCols() int { return ceilDiv(g.ow, 2) }

// tiles is the number of tiles of a piece at most.
func (g *convolution) tiles() int { return g.images * g.rows * g.tileCols() }

// tiled is tiles in scratch memory: at each point of winograd.Points a matrix of tiles × channels.
type tiled struct {
	data   []float32
	stride int // of points
	pitch  int // of tiles
}

// newTiled carves room for so many tiles.
func newTiled(ws *workspace, tiles, pitch int) tiled {
	stride := tiledStride(tiles, pitch)
	return tiled{carve[float32](ws, winograd.Points*stride), stride, pitch}
}

func tiledStride(tiles, pitch int) int { return roundUp(tiles, gemm.RowStep)*pitch + apart }

// at is one tile from the first point on, and the square of its points.
func (t *tiled) at(tile int) ([]float32, winograd.Square) {
	return t.data[tile*t.pitch:], winograd.Square{Row: 4 * t.stride, Col: t.stride}
}

// tileRegion is the number of elements of the pixels that a portion of an image needs.
func (g *convolution) tileRegion(rows, pitch int) int {
	return (2*rows + 2) * (2*g.tileCols() + 2) * pitch
}

// transformInput lays out channels [first, first+n) of the tiles of a portion of the images.
func (g *convolution) transformInput(to *tiled, x []float32, p portion, first, n int, region, room []float32) {
	cols := 2*g.tileCols() + 2
	from := winograd.Square{Row: cols * to.pitch, Col: to.pitch}
	tile := 0
	for k := range p.images {
		loadLast(region, to.pitch, pixels{g.h, g.w, 2*p.row - g.ph, -g.pw, 2*p.rows + 2, cols},
			x[((p.first+k)*g.c+first)*g.h*g.w:], n, room)
		for i := range p.rows {
			for j := range g.tileCols() {
				dst, square := to.at(tile)
				winograd.Input.Apply(to.pitch, dst, square, region[(2*i*cols+2*j)*to.pitch:], from)
				tile++
			}
		}
	}
}

// transformOutputGrad lays out all channels of the tiles of a portion of the gradient of the results.
func (g *convolution) transformOutputGrad(to *tiled, dy []float32, p portion, region, room []float32) {
	cols := 2 * g.tileCols()
	from := winograd.Square{Row: cols * to.pitch, Col: to.pitch}
	tile := 0
	for k := range p.images {
		loadLast(region, to.pitch, pixels{g.oh, g.ow, 2 * p.row, 0, 2 * p.rows, cols}, dy[(p.first+k)*g.o*g.oh*g.ow:],
			g.o, room)
		for i := range p.rows {
			for j := range g.tileCols() {
				dst, square := to.at(tile)
				winograd.OutputGrad.Apply(to.pitch, dst, square, region[(2*i*cols+2*j)*to.pitch:], from)
				tile++
			}
		}
	}
}

// winograd computes the convolution: it transforms the kernels, then piece by piece the images, multiplies point by
// point, and transforms back.
func (t *task) winograd() {
	g := &t.conv
	panel := gemm.PanelWidth[float32]()
	g.cut(g.tileRows(), g.tileCols(), max(convPlaces, winogradScratch/(4*winograd.Points*(g.c+g.o))))
	pieces := g.portions(g.n, g.tileRows())
	g.divide(g.o, pieces, panel)
	t.parts = t.d.scratch(4 * winograd.Points * g.pointStride(panel))
	t.do(ceilDiv(g.o, panel), 1, winogradKernels)
	t.do(pieces*g.blocks, 1, winogradPieces)
}

// pointStride is the distance of the transformed kernels of two points.
func (g *convolution) pointStride(panel int) int { return g.c*roundUp(g.o, panel) + apart }

// winogradKernels transforms the kernels of panels lo to hi of output channels, to panels of gemm at each point.
func winogradKernels(t *task, ws *workspace, lo, hi int) {
	g, w, panel := &t.conv, slice[float32](&t.c.In[1]), gemm.PanelWidth[float32]()
	to, stride := held[float32](t), g.pointStride(panel)
	ws.reserve(carved(4 * (9*g.c + tapsRoom) * panel))
	taps := carve[float32](ws, (9*g.c+tapsRoom)*panel)
	for u := lo; u < hi; u++ {
		first := u * panel
		n := min(panel, g.o-first)
		if n < panel {
			clear(taps)
		}
		if g.turned { // w is [c,o,3,3]
			for c := range g.c {
				transposeTaps(taps[9*c*panel:], panel, n, 9, w[(c*g.o+first)*9:])
			}
		} else {
			gemm.Transpose(taps, panel, n, 9*g.c, w[first*9*g.c:], 9*g.c)
		}
		for c := range g.c {
			winograd.Kernel.Apply(panel, to[first*g.c+c*panel:], winograd.Square{Row: 4 * stride, Col: stride},
				taps[9*c*panel:], winograd.Square{Row: 3 * panel, Col: panel})
		}
	}
}

// winogradPieces computes pieces lo to hi: portions of the images, and blocks of output channels of each.
func winogradPieces(t *task, ws *workspace, lo, hi int) {
	g, x, y := &t.conv, slice[float32](&t.c.In[0]), slice[float32](&t.c.Out[0])
	panel := gemm.PanelWidth[float32]()
	in, out := roundUp(g.c, apart), roundUp(g.width, max(panel, apart))
	size := max(g.tileRegion(g.rows, in), g.tileRegion(g.rows, out))
	room := roomLast(g.h, g.w, 2*g.rows+2, in)
	ws.reserve(carved(4*size) + carved(4*room) + carved(4*winograd.Points*tiledStride(g.tiles(), in)) +
		carved(4*winograd.Points*tiledStride(g.tiles(), out)))
	region, scratch, v, m := carve[float32](ws, size), carve[float32](ws, room), newTiled(ws, g.tiles(), in),
		newTiled(ws, g.tiles(), out)
	for u := lo; u < hi; u++ {
		p := g.portion(u/g.blocks, 0, g.n, g.tileRows())
		first, n := g.block(u%g.blocks, g.o)
		if u == lo || u%g.blocks == 0 {
			g.transformInput(&v, x, p, 0, g.c, region, scratch)
		}
		tiles := p.images * p.rows * g.tileCols()
		for point := range winograd.Points {
			from := point
			if g.turned {
				from = winograd.Flipped(point)
			}
			kernels := held[float32](t)[from*g.pointStride(panel)+first*g.c:]
			gemm.MultiplyPanels(tiles, n, g.c, gemm.InRows(v.data[point*v.stride:], in), kernels,
				gemm.InRows(m.data[point*m.stride:], out), gemm.Rows[float32]{})
		}
		g.transformOutput(y, param[float32](t.c, 2), &m, p, first, n, region)
	}
}

// transformOutput writes channels [first, first+n) of the results of a portion, plus bias unless it is nil.
func (g *convolution) transformOutput(y, bias []float32, from *tiled, p portion, first, n int, region []float32) {
	cols := 2 * g.tileCols()
	to := winograd.Square{Row: cols * from.pitch, Col: from.pitch}
	tile := 0
	for k := range p.images {
		for i := range p.rows {
			for j := range g.tileCols() {
				src, square := from.at(tile)
				winograd.Output.Apply(from.pitch, region[(2*i*cols+2*j)*from.pitch:], to, src, square)
				tile++
			}
		}
		if bias != nil {
			for i := range 2 * p.rows * cols {
				pixel := region[i*from.pitch:][:n]
				vecmath.Add(pixel, pixel, bias[first:first+n])
			}
		}
		storeLast(y[((p.first+k)*g.o+first)*g.oh*g.ow:], pixels{g.oh, g.ow, 2 * p.row, 0, 2 * p.rows, cols}, region,
			from.pitch, n)
	}
}

// winogradParamGrad computes the gradient of the kernels, at the points, for each group of images and block of input
// channels; then it adds up the groups and transforms back.
func (t *task) winogradParamGrad() {
	g := &t.conv
	panel := gemm.PanelWidth[float32]()
	g.cut(g.tileRows(), g.tileCols(), max(convPlaces, winogradScratch/(4*winograd.Points*(g.c+g.o))))
	row := g.pointsRow(panel)
	g.group(4 * g.c * row)
	g.divide(g.c, g.groups, gemm.RowStep)
	t.parts = t.d.scratch(4 * g.groups * roundUp(g.c, gemm.RowStep) * row)
	t.do(g.groups*g.blocks, 1, winogradGroups)
	t.do(ceilDiv(g.c, sumChannels), 1, winogradSums)
}

// pointsRow is the number of elements that the points of one input channel and all output channels take in the gradient
// of the kernels.
func (g *convolution) pointsRow(panel int) int {
	return winograd.Points*roundUp(g.o, max(panel, apart)) + apart
}

// winogradGroups computes the gradients of groups of images and blocks of input channels lo to hi.
func winogradGroups(t *task, ws *workspace, lo, hi int) {
	g, x, dy := &t.conv, slice[float32](&t.c.In[0]), slice[float32](&t.c.In[1])
	panel := gemm.PanelWidth[float32]()
	in, out, row := roundUp(g.width, apart), roundUp(g.o, max(panel, apart)), g.pointsRow(panel)
	size := max(g.tileRegion(g.rows, in), g.tileRegion(g.rows, out))
	room := max(roomLast(g.h, g.w, 2*g.rows+2, in), roomLast(g.oh, g.ow, 2*g.rows, out))
	ws.reserve(carved(4*size) + carved(4*room) + carved(4*winograd.Points*tiledStride(g.tiles(), in)) +
		carved(4*winograd.Points*tiledStride(g.tiles(), out)))
	region, scratch, v, m := carve[float32](ws, size), carve[float32](ws, room), newTiled(ws, g.tiles(), in),
		newTiled(ws, g.tiles(), out)
	for u := lo; u < hi; u++ {
		first, n := g.block(u%g.blocks, g.c)
		begin, end := g.members(u / g.blocks)
		sums := held[float32](t)[(u/g.blocks*roundUp(g.c, gemm.RowStep)+first)*row:]
		for i := range g.portions(end-begin, g.tileRows()) {
			p := g.portion(i, begin, end, g.tileRows())
			g.transformInput(&v, x, p, first, n, region, scratch)
			g.transformOutputGrad(&m, dy, p, region, scratch)
			for point := range winograd.Points {
				c := gemm.InRows(sums[point*out:], row)
				added := c
				if i == 0 {
					added.Data = nil
				}
				gemm.MultiplyTall(n, g.o, p.images*p.rows*g.tileCols(), gemm.InRows(v.data[point*v.stride:], in),
					gemm.InRows(m.data[point*m.stride:], out), c, added)
			}
		}
	}
}

// winogradSums adds up the groups' gradients of kernels of units lo to hi of input channels and transforms them back.
func winogradSums(t *task, ws *workspace, lo, hi int) {
	g, dw, points := &t.conv, slice[float32](&t.c.Out[0]), held[float32](t)
	panel := gemm.PanelWidth[float32]()
	out, row := roundUp(g.o, max(panel, apart)), g.pointsRow(panel)
	ws.reserve(carved(4 * sumChannels * 9 * out))
	taps := carve[float32](ws, sumChannels*9*out)
	for u := lo; u < hi; u++ {
		first, n := u*sumChannels, min(sumChannels, g.c-u*sumChannels)
		for c := range n {
			sum := points[(first+c)*row:][:winograd.Points*out]
			for k := 1; k < g.groups; k++ {
				vecmath.Add(sum, sum, points[(k*roundUp(g.c, gemm.RowStep)+first+c)*row:][:len(sum)])
			}
			winograd.KernelGrad.Apply(out, taps[9*c*out:], winograd.Square{Row: 3 * out, Col: out}, sum,
				winograd.Square{Row: 4 * out, Col: out})
		}
		gemm.Transpose(dw[9*first:], 9*g.c, 9*n, g.o, taps, out)
	}
}
