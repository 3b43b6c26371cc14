// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

// The figure's measures, in pixels.
const (
	plotLeft   = 344.0
	plotRight  = 706.0
	lineHeight = 17.0
	headHeight = 25.0

	valuesRight = picture.Width - 16
)

// strip is a line of the figure: one line of the table, or several with one label and section.
type strip struct {
	section, label string
	share          bool
	values         map[int]float64   // by number of threads; of several lines the geometric mean
	all            map[int][]float64 // what is shown in pale, if it is more than one value
	wanted         []float64
	missed         bool // a line is below its target
}

// strips are the lines of the figure, in the order of the table.
func strips(lines []line) []strip {
	var out []strip
	for i := range lines {
		l := &lines[i]
		one := strip{section: l.goal.section, label: l.figureLabel(), share: l.goal.share, values: map[int]float64{},
			all: map[int][]float64{}}
		at := slices.IndexFunc(out, func(s strip) bool { return s.section == one.section && s.label == one.label })
		if at < 0 || l.goal.figure == "" {
			at, out = len(out), append(out, one)
		}
		out[at].add(l)
	}
	return out
}

func (l *line) figureLabel() string {
	if l.goal.figure == "" {
		return l.label
	}
	return strings.ReplaceAll(l.goal.rows.ReplaceAllString(l.row, l.goal.figure), "_", " ")
}

func (s *strip) add(l *line) {
	for threads, v := range l.values {
		list := []float64{v}
		if l.goal.strip {
			list = l.all[threads]
		}
		s.all[threads] = append(s.all[threads], list...)
		s.values[threads] = v
		if !l.goal.strip && len(s.all[threads]) > 1 {
			s.values[threads] = geometricMean(s.all[threads])
		}
		if want := l.goal.want[threads-1]; want != 0 && !slices.Contains(s.wanted, want) {
			s.wanted = append(s.wanted, want)
		}
		met, wanted := l.met[threads]
		s.missed = s.missed || wanted && !met
	}
	slices.Sort(s.wanted)
}

// ratios are the values at 1 and 2 threads as the table shows them.
func (s *strip) ratios() string {
	text := [2]string{"–", "–"}
	for threads, v := range s.values {
		text[threads-1] = (&goal{share: s.share}).ratio(v)
	}
	return text[0] + " / " + text[1]
}

// draw draws the results of a machine: factors on a logarithmic axis, shares of ceilings below on one of their own.
// How is the command that does so.
func (r *results) draw(machine, how string) *picture.Picture {
	var factors, shares []strip
	for _, s := range strips(r.lines()) {
		if s.share {
			shares = append(shares, s)
		} else {
			factors = append(factors, s)
		}
	}
	p := picture.New("Lockstep beside its peers: "+machine, strings.Join(r.machine[:min(1, len(r.machine))], ""), how)
	for threads, name := range []string{1: "1 thread", 2: "2 threads"} {
		if name != "" {
			p.Key(name, func(p *picture.Picture, x, y float64) { mark(p, threads, x, y, "") })
		}
	}
	p.Key("pale: the rows of a geometric mean", func(p *picture.Picture, x, y float64) {
		mark(p, 1, x-5, y, " pale")
		mark(p, 2, x+5, y, " pale")
	})
	p.Key("target", target)
	p.Key("a row below its target", func(p *picture.Picture, x, y float64) { p.Text(x-4, y+4.5, "ansi2 bold", "×") })
	y := panel(p, picture.Top, factorAxis(factors), factors,
		"Times as fast as the peer; of memory, theirs divided by ours",
		func(a picture.Axis, v float64) string { return a.Number(v) + "×" })
	y = panel(p, y+18, shareAxis(shares), shares, "Share of the machine's ceiling",
		func(_ picture.Axis, v float64) string { return fmt.Sprintf("%.0f %%", 100*v) })
	p.Height = y + 12
	return p
}

// shareAxis spans the shares, and 0 to 100 % at least.
func shareAxis(list []strip) picture.Axis {
	high := 1.0
	for _, s := range list {
		for _, values := range s.all {
			high = max(high, slices.Max(values))
		}
	}
	return picture.NewAxis(0, high, plotLeft, plotRight, 8)
}

// factorAxis spans the factors, and 0.5 to 2 at least.
func factorAxis(list []strip) picture.Axis {
	low, high := 0.5, 2.0
	for _, s := range list {
		for _, values := range s.all {
			low, high = min(low, slices.Min(values)), max(high, slices.Max(values))
		}
	}
	return picture.NewLogAxis(low/1.08, high*1.08, plotLeft, plotRight)
}

// panel draws strips that share an axis from y on, and returns where they end. A heavier line is at 1.
func panel(p *picture.Picture, y float64, a picture.Axis, list []strip, label string,
	number func(picture.Axis, float64) string) float64 {
	if len(list) == 0 {
		return y
	}
	top := y + 38
	bottom := top + 4
	for i, s := range list {
		if bottom += lineHeight; i == 0 || list[i-1].section != s.section {
			bottom += headHeight
		}
	}
	p.Text((plotLeft+plotRight)/2, y+10, "muted middle", label)
	p.Text(valuesRight, top-7, "muted small end", "1 / 2 threads")
	for _, v := range a.Ticks() {
		class := "grid"
		if v == 1 {
			class = "axis"
		}
		p.Line(a.At(v), top, a.At(v), bottom, class)
		p.Text(a.At(v), top-7, "muted middle small", number(a, v))
	}
	for i := range list {
		s := &list[i]
		if i == 0 || list[i-1].section != s.section {
			p.Text(picture.Margin, top+headHeight-8, "text bold", s.section)
			top += headHeight
		}
		s.draw(p, a, top+lineHeight/2)
		top += lineHeight
	}
	return bottom
}

// draw draws a strip's label, marks and values around height y.
func (s *strip) draw(p *picture.Picture, a picture.Axis, y float64) {
	p.Text(picture.Margin+12, y+4, "text small", s.label)
	for _, want := range s.wanted {
		target(p, a.At(want), y)
	}
	for _, threads := range []int{2, 1} {
		if list := s.all[threads]; len(list) > 1 {
			for _, v := range list {
				mark(p, threads, a.At(v), y, " pale")
			}
		}
	}
	for _, threads := range []int{2, 1} {
		if v, ok := s.values[threads]; ok {
			mark(p, threads, a.At(v), y, "")
		}
	}
	if s.missed {
		p.Text(plotLeft-14, y+4.5, "ansi2 bold middle", "×")
	}
	p.Text(valuesRight, y+4, "muted small end", s.ratios())
}

// mark is a disc for one thread and a square for two.
func mark(p *picture.Picture, threads int, x, y float64, more string) {
	if threads == 1 {
		p.Disc(x, y, 4.5, "fill1"+more)
		return
	}
	p.Box(x-4, y-4, 8, 8, "fill2"+more, "")
}

// target is an upright stroke.
func target(p *picture.Picture, x, y float64) { p.Line(x, y-7, x, y+7, "target") }
