// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The figure's measures, in pixels.
const (
	figureWidth = 960
	labelWidth  = 350
	rightMargin = 60
	lineHeight  = 17
	headHeight  = 26
)

// colours by number of threads, told apart by the colour-blind too, and by their shapes.
var colours = map[int]string{1: "#0072b2", 2: "#d55e00"}

// panel is an axis with the sections that share it.
type panel struct {
	title    string
	low      float64
	high     float64
	log      bool
	ticks    []float64
	unit     func(v float64) string
	baseline float64 // a line through the panel
}

// x is where a value lies; values beyond the axis lie at its end.
func (p *panel) x(v float64) float64 {
	v = min(max(v, p.low), p.high)
	at := (v - p.low) / (p.high - p.low)
	if p.log {
		at = math.Log(v/p.low) / math.Log(p.high/p.low)
	}
	return labelWidth + at*(figureWidth-labelWidth-rightMargin)
}

// svg draws the lines: factors on a logarithmic axis, shares of ceilings below on one of their own.
func svg(lines []line) string {
	var factors, shares []line
	for _, l := range lines {
		if l.goal.share {
			shares = append(shares, l)
		} else {
			factors = append(factors, l)
		}
	}
	var b strings.Builder
	y := legend(&b)
	y = draw(&b, y, factorAxis(factors), factors)
	if len(shares) > 0 {
		y = draw(&b, y+14, shareAxis(shares), shares)
	}
	return fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" font-family="Helvetica, Arial, sans-serif" font-size="12">`,
		figureWidth, y, figureWidth, y) + "\n" + `<rect width="100%" height="100%" fill="#ffffff"/>` + "\n" +
		b.String() + "</svg>\n"
}

// shareAxis spans the shares, and 0 to 125 % at least, in quarters.
func shareAxis(lines []line) *panel {
	p := &panel{title: "share of the machine's ceiling", high: 1.25, baseline: 1, unit: func(v float64) string {
		return fmt.Sprintf("%.0f %%", 100*v)
	}}
	for _, l := range lines {
		for _, v := range l.values {
			p.high = max(p.high, math.Ceil(4*v)/4)
		}
	}
	for v := 0.0; v <= p.high; v += 0.25 {
		p.ticks = append(p.ticks, v)
	}
	return p
}

// factorAxis spans the factors, and 0.5 to 2 at least.
func factorAxis(lines []line) *panel {
	p := &panel{title: "speedup over the peer (memory: theirs divided by ours)", low: 0.5, high: 2, log: true,
		baseline: 1,
		unit:     func(v float64) string { return fmt.Sprintf("%g×", v) }}
	for _, l := range lines {
		for threads, v := range l.values {
			for _, v := range append([]float64{v}, l.all[threads]...) {
				p.low, p.high = min(p.low, v), max(p.high, v)
			}
		}
	}
	p.low, p.high = p.low/1.05, p.high*1.05
	for _, v := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100} {
		if v >= p.low && v <= p.high {
			p.ticks = append(p.ticks, v)
		}
	}
	return p
}

// legend says what the marks mean, and returns where the panels begin.
func legend(b *strings.Builder) float64 {
	const y = 20
	x := 16.0
	entry := func(draw func(x float64), text string) {
		draw(x)
		fmt.Fprintf(b, `<text x="%.0f" y="%d" fill="#333333">%s</text>`+"\n", x+12, y+4, text)
		x += 26 + 6.4*float64(len(text))
	}
	entry(func(x float64) { mark(b, 1, x, y, 1) }, "1 thread")
	entry(func(x float64) { mark(b, 2, x, y, 1) }, "2 threads")
	entry(func(x float64) { mark(b, 1, x, y, 0.25) }, "pale: one of many shapes")
	entry(func(x float64) { wantedMark(b, x, y) }, "target")
	entry(func(x float64) {
		fmt.Fprintf(b, `<text x="%.0f" y="%d" fill="#b00020" font-weight="bold">×</text>`+"\n", x-4, y+4)
	}, "below target")
	return 36
}

// draw draws a panel from y on and returns where it ends.
func draw(b *strings.Builder, y float64, p *panel, lines []line) float64 {
	top := y + 30
	fmt.Fprintf(b, `<text x="%d" y="%.0f" fill="#333333">%s</text>`+"\n", labelWidth, y+10, p.title)
	var body strings.Builder
	at := top
	sections(lines, func(section string, lines []line) {
		fmt.Fprintf(&body, `<text x="16" y="%.0f" font-weight="bold" fill="#111111">%s</text>`+"\n", at+16,
			html.EscapeString(section))
		at += headHeight
		for i := range lines {
			lines[i].draw(&body, p, at)
			at += lineHeight
		}
	})
	for _, v := range p.ticks {
		stroke := "#e3e3e3"
		if v == p.baseline {
			stroke = "#888888"
		}
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.0f" x2="%.1f" y2="%.0f" stroke="%s"/>`+"\n", p.x(v), top, p.x(v), at+2,
			stroke)
		fmt.Fprintf(b, `<text x="%.1f" y="%.0f" text-anchor="middle" fill="#555555" font-size="11">%s</text>`+"\n",
			p.x(v), top-5, p.unit(v))
	}
	b.WriteString(body.String())
	return at + 8
}

// draw draws a line's label and marks at height y.
func (l *line) draw(b *strings.Builder, p *panel, y float64) {
	middle := y + lineHeight/2.0
	fmt.Fprintf(b, `<text x="28" y="%.1f" fill="#333333">%s</text>`+"\n", middle+4, html.EscapeString(l.label))
	for _, threads := range []int{1, 2} {
		if want := l.goal.want[threads-1]; want != 0 && (threads == 1 || want != l.goal.want[0]) {
			wantedMark(b, p.x(want), middle)
		}
	}
	missed := false
	for _, threads := range []int{2, 1} {
		v, ok := l.values[threads]
		if !ok {
			continue
		}
		if l.goal.strip {
			for _, one := range l.all[threads] {
				mark(b, threads, p.x(one), middle, 0.18)
			}
		}
		mark(b, threads, p.x(v), middle, 1)
		if met, wanted := l.met[threads]; wanted && !met {
			missed = true
		}
	}
	if missed {
		fmt.Fprintf(b, `<text x="%d" y="%.1f" fill="#b00020" font-weight="bold">×</text>`+"\n", labelWidth-18, middle+4)
	}
}

// mark is a disc for one thread and a square for two.
func mark(b *strings.Builder, threads int, x, y, opacity float64) {
	if threads == 1 {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4.5" fill="%s" fill-opacity="%g"/>`+"\n", x, y, colours[1],
			opacity)
		return
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="8" height="8" fill="%s" fill-opacity="%g"/>`+"\n", x-4, y-4,
		colours[2], opacity)
}

// wantedMark is an upright stroke.
func wantedMark(b *strings.Builder, x, y float64) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#111111" stroke-width="2"/>`+"\n", x, y-7, x,
		y+7)
}
