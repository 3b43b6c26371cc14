// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// overlap is how much of rank 0's bucket exchange lies within its backward passes, and how
// much there is in all.
func overlap(spans []span) (hidden, total time.Duration) {
	for _, s := range spans {
		if s.Rank != 0 || s.Name != "bucket" {
			continue
		}
		total += s.End.Sub(s.Start)
		for _, b := range spans {
			if b.Rank == 0 && b.Name == "backward" {
				hidden += max(0, earlier(s.End, b.End).Sub(later(s.Start, b.Start)))
			}
		}
	}
	return hidden, total
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// The picture's measures, in pixels.
const (
	leftMargin = 120
	plotWidth  = 960
	laneHeight = 26
	laneGap    = 8
	topMargin  = 40
)

var colours = map[string]string{"forward": "#7fb77e", "backward": "#5b8fc9", "bucket": "#e39b4b", "wait": "#c9c9c9",
	"gather": "#9b7fc9"}

// draw makes an SVG of one step: for each rank a lane of its own work and one of what is exchanged beside it, buckets
// of gradients and, of sharded models, parameters that are gathered. A line before a bucket is the time from its last
// gradient to the exchange.
func draw(spans []span) string {
	if len(spans) == 0 {
		return `<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>`
	}
	begin, end, ranks := spans[0].Start, spans[0].End, 0
	for _, s := range spans {
		begin, end, ranks = earlier(begin, s.Start), later(end, s.End), max(ranks, s.Rank+1)
	}
	x := func(t time.Time) float64 {
		return leftMargin + plotWidth*t.Sub(begin).Seconds()/max(end.Sub(begin).Seconds(), 1e-9)
	}
	height := topMargin + ranks*2*(laneHeight+laneGap) + 40
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n",
		leftMargin+plotWidth+20, height)
	fmt.Fprintf(&b,
		`<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="20" font-size="14">one training step on %d ranks, %.1f ms</text>`+"\n",
		leftMargin, ranks, end.Sub(begin).Seconds()*1e3)
	for rank := range ranks {
		for lane, name := range []string{"compute", "exchange"} {
			fmt.Fprintf(&b, `<text x="8" y="%d">rank %d %s</text>`+"\n", laneTop(rank, lane)+17, rank, name)
		}
	}
	for _, s := range spans {
		drawSpan(&b, s, x)
	}
	drawAxis(&b, begin, end, x, height-30)
	drawLegend(&b)
	b.WriteString("</svg>\n")
	return b.String()
}

func laneTop(rank, lane int) int { return topMargin + (2*rank+lane)*(laneHeight+laneGap) }

func drawSpan(b *strings.Builder, s span, x func(time.Time) float64) {
	lane, label := 0, s.Name
	if s.Name == "bucket" || s.Name == "gather" {
		lane = 1
		label = s.Detail
		for _, prefix := range []string{"bucket ", "gradients ", "gather "} {
			label = strings.TrimPrefix(label, prefix)
		}
		label, _, _ = strings.Cut(label, " ")
		y := laneTop(s.Rank, lane) + laneHeight/2
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b06a1c"/>`+"\n", x(s.Queued), y, x(s.Start),
			y)
	}
	width := max(x(s.End)-x(s.Start), 1)
	fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
		s.Name, x(s.Start), laneTop(s.Rank, lane), width, laneHeight, colours[s.Name],
		html.EscapeString(fmt.Sprintf("%s %s: %.2f ms, %d bytes", s.Name, s.Detail, s.End.Sub(s.Start).Seconds()*1e3,
			s.Bytes)))
	if width > float64(7*len(label)) {
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`+"\n", x(s.Start)+3, laneTop(s.Rank, lane)+17, label)
	}
}

// drawLegend names the colours.
func drawLegend(b *strings.Builder) {
	for i, name := range []string{"forward", "backward", "wait", "bucket", "gather"} {
		at := leftMargin + plotWidth - 90*(5-i)
		fmt.Fprintf(b, `<rect x="%d" y="10" width="12" height="12" fill="%s"/><text x="%d" y="20">%s</text>`+"\n", at,
			colours[name], at+16, strings.Replace(name, "bucket", "gradients", 1))
	}
}

// drawAxis marks tenths of the step.
func drawAxis(b *strings.Builder, begin, end time.Time, x func(time.Time) float64, y int) {
	for i := range 11 {
		t := begin.Add(end.Sub(begin) * time.Duration(i) / 10)
		fmt.Fprintf(b,
			`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#888"/><text x="%.1f" y="%d" text-anchor="middle">%.0f ms</text>`+"\n",
			x(t), y, x(t), y+5, x(t), y+18, t.Sub(begin).Seconds()*1e3)
	}
}
