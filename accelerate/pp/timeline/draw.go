// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"io"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/internal/chrometrace"
	"github.com/lockstep-ml/lockstep/internal/picture"
)

// The picture's measures, in pixels.
const (
	left   = 76.0
	right  = picture.Width - picture.Margin
	lane   = 17.0 // of a rank
	header = 24.0 // above the lanes of a schedule
	gap    = 16.0 // below them
)

// styles are those of passes: the class of their boxes, and their key.
var styles = map[schedule.Op][2]string{
	schedule.F: {"fill1", "forward (F)"}, schedule.B: {"fill2", "whole backward (B)"},
	schedule.I: {"fill4", "input gradient (I)"}, schedule.W: {"fill3", "weight gradient (W)"},
}

// Drawing is a picture of steps below each other, on one scale.
type Drawing struct {
	Title, Note string
	Command     string // that draws the picture; "": a program's run
	Steps       []Step
}

// Step is a step in a drawing, with a name and a note above it.
type Step struct {
	Name, Note string
	*schedule.Simulation
}

// Write writes the drawing as NAME-light.svg and NAME-dark.svg.
func (d *Drawing) Write(name string) error { return d.picture().Write(name) }

// SVG is the drawing for light pages.
func (d *Drawing) SVG() string { return d.picture().SVG(&picture.Themes[0]) }

func (d *Drawing) picture() *picture.Picture {
	p := picture.New(d.Title, d.Note, d.Command)
	used, longest := map[schedule.Op]bool{}, 0.0
	for _, step := range d.Steps {
		longest = max(longest, step.Time)
		for _, list := range step.Schedule.Ranks {
			for _, a := range list {
				used[a.Op] = true
			}
		}
	}
	for _, op := range []schedule.Op{schedule.F, schedule.B, schedule.I, schedule.W} {
		if used[op] {
			p.Key(styles[op][1], func(p *picture.Picture, x, y float64) { p.Box(x-6, y-6, 12, 12, styles[op][0], "") })
		}
	}
	y := picture.Top
	for _, step := range d.Steps {
		step.draw(p, y, (right-left)/longest)
		y += header + lane*float64(len(step.Timeline)) + gap
	}
	p.Height = y
	return p
}

// draw draws a step below y.
func (s *Step) draw(p *picture.Picture, y, scale float64) {
	p.Text(picture.Margin, y+12, "text bold", s.Name)
	p.Text(right, y+12, "muted end", s.Note)
	for rank, spans := range s.Timeline {
		top := y + header - 4 + lane*float64(rank)
		p.Text(picture.Margin, top+12, "muted small", fmt.Sprint("rank ", rank))
		p.Line(left, top+lane-1, right, top+lane-1, "grid")
		first := s.Schedule.StagesOf(rank)[0]
		for i, a := range s.Schedule.Ranks[rank] {
			if !a.Op.Computes() {
				continue
			}
			x, width := left+spans[i].Start*scale, max((spans[i].End-spans[i].Start)*scale, 1)
			p.Box(x+.4, top, width-.8, lane-2, styles[a.Op][0]+" pale", "")
			if a.Stage != first {
				p.Box(x+.4, top+lane-4, width-.8, 2, styles[a.Op][0], "")
			}
			if label := fmt.Sprint(a.MicroBatch); width > 6*float64(len(label)) {
				p.Text(x+width/2, top+11.5, "text small middle", label)
			}
		}
	}
}

// lanes are the rows of a rank in a Chrome trace.
var lanes = []string{"measured", "measured messages", "predicted", "predicted messages"}

// Trace writes the timeline as a Chrome trace, which chrome://tracing and Perfetto open: a process for each rank, with
// the measured passes above the predicted ones.
func (t *Timeline) Trace(w io.Writer) error {
	other := map[string]any{"schedule": t.Measured.Schedule.Name, "idle": t.Measured.Idle(),
		"predicted_idle": t.Predicted.Idle(), "seconds": t.Measured.Time, "predicted_seconds": t.Predicted.Time}
	return chrometrace.Write(w, other, func(yield func(chrometrace.Event) bool) {
		for rank := range t.Measured.Timeline {
			usage := t.Measured.Ranks[rank]
			names := []chrometrace.Event{chrometrace.Process(rank, fmt.Sprintf("rank %d, %.1f %% idle", rank,
				100*usage.Idle/t.Measured.Time))}
			for i, name := range lanes {
				names = append(names, chrometrace.Thread(rank, i, name))
			}
			for _, e := range names {
				if !yield(e) {
					return
				}
			}
			for i, sim := range []*schedule.Simulation{t.Measured, t.Predicted} {
				if !spansOf(sim, rank, 2*i, yield) {
					return
				}
			}
		}
	})
}

// spansOf returns the events of a rank's passes and messages in a row and the one below it.
func spansOf(sim *schedule.Simulation, rank, row int, yield func(chrometrace.Event) bool) bool {
	at := func(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }
	for i, a := range sim.Schedule.Ranks[rank] {
		span, row := sim.Timeline[rank][i], row
		if !a.Op.Computes() {
			if row++; span.End <= span.Start {
				continue
			}
		}
		e := chrometrace.Span(rank, row, lanes[row], a.String(), at(span.Start), at(span.End-span.Start))
		e.Args["op"], e.Args["stage"], e.Args["micro_batch"] = a.Op.String(), a.Stage, a.MicroBatch
		if !yield(e) {
			return false
		}
	}
	return true
}
