// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/mmcloughlin/avo/operand"

// pools emits what maximum pooling needs.
func (g *generator) pools() {
	g.kernel("larger", "dst[i], place[i] = y[i], py[i] where y[i] > x[i] or y[i] alone is NaN, else x[i], px[i]",
		params(streams("dst"), typed(stream, "uint32", "place"), streams("x"), typed(stream, "uint32", "px"),
			streams("y"), typed(stream, "uint32", "py")),
		func(l *loop) (step, end func()) {
			const notLessOrEqual, ordered = operand.U8(0x16), operand.U8(7)
			return func() {
				x, px, y, py := l.load("x"), l.load("px"), l.load("y"), l.load("py")
				if l.wide() {
					take, known := l.K(), l.K()
					l.VCMPPS(notLessOrEqual, x, y, take)
					l.VCMPPS(ordered, x, x, known)
					l.KANDW(known, take, take)
					l.VBLENDMPS(y, x, take, x)
					l.VBLENDMPS(py, px, take, px)
				} else {
					take, known := l.register(), l.register()
					l.VCMPPS(notLessOrEqual, x, y, take)
					l.VCMPPS(ordered, x, x, known)
					l.VANDPS(known, take, take)
					l.VBLENDVPS(take, y, x, x)
					l.VBLENDVPS(take, py, px, px)
				}
				l.store(x, "dst")
				l.store(px, "place")
			}, nil
		})
}
