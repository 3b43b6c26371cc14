// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// point is a loss after a number of steps.
type point struct {
	step, loss float64
}

// history is what a run logged.
type history struct {
	train, eval []point
}

// parseHistory reads the log_history of a trainer_state.json.
func parseHistory(state []byte) (history, error) {
	var file struct {
		LogHistory []struct {
			Step     float64  `json:"step"`
			Loss     *float64 `json:"loss"`
			EvalLoss *float64 `json:"eval_loss"`
		} `json:"log_history"`
	}
	if err := json.Unmarshal(state, &file); err != nil {
		return history{}, err
	}
	var h history
	for _, r := range file.LogHistory {
		if r.Loss != nil {
			h.train = append(h.train, point{r.Step, *r.Loss})
		}
		if n := len(h.eval); r.EvalLoss != nil && (n == 0 || h.eval[n-1].step != r.Step) {
			h.eval = append(h.eval, point{r.Step, *r.EvalLoss})
		}
	}
	if len(h.train) < 2 {
		return history{}, errors.New("log_history has fewer than two records with a loss")
	}
	return h, nil
}

// curve is the picture of a run's losses.
type curve struct {
	theme   theme
	title   string
	unit    string // the label of the upright axis
	history history
	runs    []series // instead of history
}

// The curve's measures, in pixels.
const (
	curveHeight = 380.0
	plotLeft    = 66.0
	plotRight   = pageWidth - 130.0
	plotTop     = 58.0
	plotBottom  = curveHeight - 54.0
)

// axis maps values to pixels.
type axis struct {
	low, high float64
	from, to  float64
	step      float64 // between ticks
}

// newAxis spans the values with round ends and about n ticks.
func newAxis(low, high, from, to float64, n int) axis {
	raw := (high - low) / float64(n)
	if raw <= 0 {
		raw = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * unit
	for _, m := range []float64{1, 2, 5} {
		if m*unit >= raw {
			step = m * unit
			break
		}
	}
	return axis{math.Floor(low/step+1e-9) * step, math.Ceil(high/step-1e-9) * step, from, to, step}
}

func (a axis) at(v float64) float64 { return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from) }

func (a axis) ticks() (out []float64) {
	for i := 0; a.low+float64(i)*a.step <= a.high+a.step/1e6; i++ {
		out = append(out, a.low+float64(i)*a.step)
	}
	return out
}

func (c *curve) svg() string {
	t := c.theme
	low, high, last := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range c.series() {
		for _, p := range s.points {
			low, high, last = min(low, p.loss), max(high, p.loss), max(last, p.step)
		}
	}
	x := newAxis(0, last, plotLeft, plotRight, 8)
	x.high = last
	y := newAxis(low, high, plotBottom, plotTop, 6)

	var b strings.Builder
	panel(&b, curveHeight, t.page, t.border)
	fmt.Fprintf(&b, `<g font-family="%s" font-size="12.5" fill="%s">`+"\n", sans, t.muted)
	write(&b, 24, 33, `font-size="15" font-weight="600" fill="`+t.text+`"`, c.title)
	c.axes(&b, x, y)
	labelled := 0.0 // where the label above stands
	for _, s := range c.series() {
		s.draw(&b, x, y)
		labelled = s.label(&b, x, y, labelled)
	}
	b.WriteString("</g>\n")
	return document(curveHeight, c.title, b.String())
}

// axes draws the grid, the ticks and the labels of both axes.
func (c *curve) axes(b *strings.Builder, x, y axis) {
	const middle, right = `text-anchor="middle"`, `text-anchor="end"`
	for _, v := range y.ticks() {
		stroke(b, plotLeft, y.at(v), plotRight, y.at(v), c.theme.grid)
		write(b, plotLeft-10, y.at(v)+4.5, right, number(v, y.step))
	}
	stroke(b, plotLeft, plotBottom, plotRight, plotBottom, c.theme.muted)
	for _, v := range x.ticks() {
		stroke(b, x.at(v), plotBottom, x.at(v), plotBottom+5, c.theme.muted)
		write(b, x.at(v), plotBottom+21, middle, number(v, x.step))
	}
	write(b, (plotLeft+plotRight)/2, curveHeight-14, middle, "step")
	height := (plotTop + plotBottom) / 2
	write(b, 22, height, fmt.Sprintf(`%s transform="rotate(-90 22 %.1f)"`, middle, height), c.unit)
}

// series is one line of the plot.
type series struct {
	name   string
	points []point
	colour string
	discs  bool
	bare   bool // no line between the discs
}

// series are the lines: the runs as they were given, or those of one run, the one that ends higher first.
func (c *curve) series() []series {
	if c.runs != nil {
		return c.runs
	}
	out := []series{{name: "training", points: c.history.train, colour: c.theme.accent}}
	if len(c.history.eval) == 0 {
		return out
	}
	eval := series{name: "evaluation", points: c.history.eval, colour: c.theme.evaluate, discs: true}
	if eval.last().loss > out[0].last().loss {
		return append([]series{eval}, out...)
	}
	return append(out, eval)
}

func (s *series) last() point { return s.points[len(s.points)-1] }

func (s *series) draw(b *strings.Builder, x, y axis) {
	var path []string
	for _, p := range s.points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(p.step), y.at(p.loss)))
	}
	const line = `<polyline points="%s" fill="none" stroke="%s" stroke-width="2.25" stroke-linejoin="round"/>`
	if !s.bare {
		fmt.Fprintf(b, line+"\n", strings.Join(path, " "), s.colour)
	}
	if s.discs {
		for _, p := range s.points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", x.at(p.step), y.at(p.loss), s.colour)
		}
	}
}

// label writes the name and the last loss at the end of the line, below the label above it, and returns where.
func (s *series) label(b *strings.Builder, x, y axis, above float64) float64 {
	at := max(y.at(s.last().loss)+4.5, above+18)
	if above == 0 { // leave room for the label below
		at -= 8
	}
	attributes := fmt.Sprintf(`font-weight="600" fill="%s"`, s.colour)
	write(b, x.at(s.last().step)+12, at, attributes, fmt.Sprintf("%s %.2f", s.name, s.last().loss))
	return at
}

// number writes a tick with the digits that its step needs.
func number(v, step float64) string {
	return fmt.Sprintf("%.*f", max(0, int(math.Ceil(-math.Log10(step)-1e-9))), v)
}
