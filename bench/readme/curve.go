// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/picture"
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

// series are the lines of one run.
func (h history) series() []series {
	out := []series{{name: "training", points: h.train}}
	if len(h.eval) > 0 {
		out = append(out, series{name: "evaluation", points: h.eval, discs: true})
	}
	return out
}

// curve is the picture of losses over steps.
type curve struct {
	title, note string
	unit        string // the label of the upright axis
	series      []series
}

// series is one line of the plot. The first series has the style of the picture's first series, and so on.
type series struct {
	name   string
	points []point
	discs  bool
	bare   bool // no line between the discs
}

// The curve's measures, in pixels.
const (
	plotLeft   = 84.0
	plotRight  = picture.Width - 64
	plotBottom = 340.0
)

// draw draws the curve; how is the command that does so.
func (c *curve) draw(how string) *picture.Picture {
	low, high, last := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range c.series {
		for _, at := range s.points {
			low, high, last = min(low, at.loss), max(high, at.loss), max(last, at.step)
		}
	}
	x := picture.NewAxis(0, last, plotLeft, plotRight, 8)
	y := picture.NewAxis(low, high, plotBottom, picture.Top, 6).Widen()
	p := picture.New(c.title, c.note, how)
	p.YAxis(y, plotLeft, plotRight, c.unit)
	p.XAxis(x, plotBottom, plotBottom, "step")
	for i, s := range c.series {
		s.draw(p, i+1, x, y)
	}
	c.ends(p, x, y)
	p.Height = plotBottom + 54
	return p
}

func (s *series) last() point { return s.points[len(s.points)-1] }

// draw draws the series of a number, and its key.
func (s *series) draw(p *picture.Picture, number int, x, y picture.Axis) {
	fill, line := fmt.Sprint("fill", number), fmt.Sprint("line", number)
	p.Key(s.name, func(p *picture.Picture, x, y float64) {
		if !s.bare {
			p.Line(x-8, y, x+8, y, line)
		}
		if s.discs {
			p.Disc(x, y, 4, fill)
		}
	})
	var path [][2]float64
	for _, at := range s.points {
		path = append(path, [2]float64{x.At(at.step), y.At(at.loss)})
	}
	if !s.bare {
		p.Polyline(path, line)
	}
	if s.discs {
		for _, at := range path {
			p.Disc(at[0], at[1], 4, fill)
		}
	}
}

// ends writes the last loss of each series beside its end, from the highest down, one below the other.
func (c *curve) ends(p *picture.Picture, x, y picture.Axis) {
	sorted := slices.SortedStableFunc(slices.Values(c.series), func(a, b series) int {
		return cmp.Compare(b.last().loss, a.last().loss)
	})
	ends := make([]float64, len(sorted))
	for i, s := range sorted {
		if ends[i] = y.At(s.last().loss); i > 0 {
			ends[i] = max(ends[i], ends[i-1]+17)
		}
	}
	pushed := ends[len(ends)-1] - y.At(sorted[len(sorted)-1].last().loss) // half of it for the others
	for i, s := range sorted {
		p.Text(x.At(s.last().step)+12, ends[i]-pushed/2+4.5, "text bold", fmt.Sprintf("%.2f", s.last().loss))
	}
}
