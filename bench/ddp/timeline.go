// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/internal/picture"
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

// kind is a kind of span: its name in the record, in the legend, and its style.
type kind struct {
	name, label, class string
	exchange           bool // drawn in the lane below
}

var kinds = []kind{
	{"forward", "forward", "fill3", false},
	{"backward", "backward", "fill1", false},
	{"wait", "waiting", "fill5", false},
	{"bucket", "gradients exchanged", "fill2", true},
	{"gather", "parameters gathered", "fill4", true},
}

// kindOf returns a span's kind, or nil for spans that are not drawn.
func kindOf(name string) *kind {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// The timeline's measures, in pixels.
const (
	laneLeft   = 138.0
	laneHeight = 26.0
	laneGap    = 7.0
)

func laneTop(rank, lane int) float64 {
	return picture.Top + float64(rank)*(2*laneHeight+3*laneGap) + float64(lane)*(laneHeight+laneGap/2)
}

// begins is when the first span begins.
func begins(spans []span) time.Time {
	begin := spans[0].Start
	for _, s := range spans {
		begin = earlier(begin, s.Start)
	}
	return begin
}

// draw draws one step: for each rank a lane for its work and a lane for the concurrent communication, buckets of
// gradients and, of sharded models, parameters that are gathered. A thin line before a box is the time from the moment
// when the exchange could have begun. How is the command that draws the picture.
func (s *step) draw(how string) *picture.Picture {
	begin, end, ranks := begins(s.spans), s.spans[0].End, 0
	for _, one := range s.spans {
		end, ranks = later(end, one.End), max(ranks, one.Rank+1)
	}
	ms := func(t time.Time) float64 { return t.Sub(begin).Seconds() * 1e3 }
	x := picture.NewAxis(0, ms(end), laneLeft, picture.Width-picture.Margin, 10)
	p := picture.New(fmt.Sprintf("One training step on %d ranks: %.1f ms", ranks, ms(end)), s.note, how)
	bottom := laneTop(ranks, 0) - laneGap
	p.XAxis(x, picture.Top, bottom, "time since the step began (ms)")
	for rank := range ranks {
		for lane, name := range []string{"compute", "exchange"} {
			p.Text(picture.Margin, laneTop(rank, lane)+17, "text", fmt.Sprintf("rank %d %s", rank, name))
		}
	}
	queued := s.drawQueued(p, x, ms)
	for _, k := range kinds {
		found := false
		for _, one := range s.spans {
			if one.Name == k.name {
				k.draw(p, one, x.At(ms(one.Start)), x.At(ms(one.End)))
				found = true
			}
		}
		if found {
			p.Key(k.label, func(p *picture.Picture, x, y float64) { p.Box(x-6, y-6, 12, 12, k.class, "") })
		}
	}
	if queued {
		p.Key("ready, not yet begun", func(p *picture.Picture, x, y float64) { p.Line(x-8, y, x+8, y, "axis") })
	}
	p.Height = bottom + 54
	return p
}

// drawQueued draws the lines before the boxes, and reports whether there is one.
func (s *step) drawQueued(p *picture.Picture, x picture.Axis, ms func(time.Time) float64) (found bool) {
	for _, one := range s.spans {
		if k := kindOf(one.Name); k != nil && k.exchange && x.At(ms(one.Start))-x.At(ms(one.Queued)) > 1 {
			y := laneTop(one.Rank, 1) + laneHeight/2
			p.Line(x.At(ms(one.Queued)), y, x.At(ms(one.Start)), y, "axis")
			found = true
		}
	}
	return found
}

// draw draws a span from x0 to x1.
func (k *kind) draw(p *picture.Picture, s span, x0, x1 float64) {
	lane := 0
	if k.exchange {
		lane = 1
	}
	p.Box(x0, laneTop(s.Rank, lane), max(x1-x0, 1), laneHeight, k.class+" "+k.name+" gap",
		fmt.Sprintf("%s %s: %.2f ms, %d bytes", s.Name, s.Detail, s.End.Sub(s.Start).Seconds()*1e3, s.Bytes))
}
