package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
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
	t, h := c.theme, c.history
	low, high, last := math.Inf(1), math.Inf(-1), 0.0
	for _, points := range [][]point{h.train, h.eval} {
		for _, p := range points {
			low, high, last = min(low, p.loss), max(high, p.loss), max(last, p.step)
		}
	}
	x := newAxis(0, last, plotLeft, plotRight, 8)
	x.high = last
	y := newAxis(low, high, plotBottom, plotTop, 6)

	var b strings.Builder
	fmt.Fprintf(&b, `<rect x="0.5" y="0.5" width="%d" height="%.0f" rx="9" fill="%s" stroke="%s"/>`+"\n", pageWidth-1, curveHeight-1, t.page, t.border)
	fmt.Fprintf(&b, `<g font-family="%s" font-size="12.5" fill="%s">`+"\n", sans, t.muted)
	fmt.Fprintf(&b, `<text x="24" y="33" font-size="15" font-weight="600" fill="%s">%s</text>`+"\n", t.text, html.EscapeString(c.title))
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", plotLeft, y.at(v), plotRight, y.at(v), t.grid)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft-10, y.at(v)+4.5, number(v, y.step))
	}
	fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", plotLeft, plotBottom, plotRight, plotBottom, t.muted)
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x.at(v), plotBottom, x.at(v), plotBottom+5, t.muted)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x.at(v), plotBottom+21, number(v, x.step))
	}
	middle := (plotTop + plotBottom) / 2
	fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">step</text>`+"\n", (plotLeft+plotRight)/2, curveHeight-14)
	fmt.Fprintf(&b, `<text x="22" y="%.1f" text-anchor="middle" transform="rotate(-90 22 %.1f)">%s</text>`+"\n", middle, middle, html.EscapeString(c.unit))

	labelled := 0.0 // where the label above stands
	for _, s := range c.series() {
		s.draw(&b, x, y)
		labelled = s.label(&b, x, y, labelled)
	}
	b.WriteString("</g>\n")
	return document(curveHeight, c.title, b.String())
}

// series is one line of the plot.
type series struct {
	name   string
	points []point
	colour string
	discs  bool
}

// series are the lines, the one that ends higher first.
func (c *curve) series() []series {
	out := []series{{"training", c.history.train, c.theme.accent, false}}
	if len(c.history.eval) == 0 {
		return out
	}
	eval := series{"evaluation", c.history.eval, c.theme.evaluate, true}
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
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2.25" stroke-linejoin="round" stroke-linecap="round"/>`+"\n",
		strings.Join(path, " "), s.colour)
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
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-weight="600" fill="%s">%s %.2f</text>`+"\n", x.at(s.last().step)+12, at, s.colour, s.name, s.last().loss)
	return at
}

// number writes a tick with the digits that its step needs.
func number(v, step float64) string {
	return fmt.Sprintf("%.*f", max(0, int(math.Ceil(-math.Log10(step)-1e-9))), v)
}
