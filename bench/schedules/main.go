// SPDX-License-Identifier: Apache-2.0

// Schedules prints the tables of docs/three-dimensions.md, which compare the schedules of pipeline parallelism, and
// draws its picture of them. Nothing is measured: both come from the simulator of accelerate/pp/schedule.
//
//	go run ./bench/schedules --svg docs/figures/pipeline-schedules
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/bench/internal/picture"
)

func main() {
	log.SetFlags(0)
	svg := flag.String("svg", "", "draw the pictures NAME-light.svg and NAME-dark.svg of 4 ranks and 8 micro-batches")
	flag.Parse()
	for _, table := range []func() (string, error){table, comparison} {
		text, err := table()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text)
	}
	if *svg == "" {
		return
	}
	p, err := draw(4, 8, picture.Command("./bench/schedules", os.Args[1:]))
	if err == nil {
		err = p.Write(*svg)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// simulate runs a schedule with F = I = W = 1 for the part of the model that a rank holds.
func simulate(name string, ranks, microBatches int) (*schedule.Simulation, error) {
	s, err := schedule.Load(name, schedule.Shape{Ranks: ranks, MicroBatches: microBatches})
	if err != nil {
		return nil, err
	}
	x := float64(ranks) / float64(s.Stages())
	each := schedule.StageCosts{Forward: x, Input: x, Weight: x, Activation: x}
	return s.Simulate(schedule.Uniform(s.Stages(), each, 0))
}

// sizes are those of the table, ranks and micro-batches.
var sizes = [][2]int{{2, 4}, {4, 8}, {4, 16}, {8, 16}}

// table compares the schedules: idle time of each rank, and the largest peak of activations.
func table() (string, error) {
	var out strings.Builder
	out.WriteString("| schedule |")
	for _, size := range sizes {
		fmt.Fprintf(&out, " p = %d, m = %d |", size[0], size[1])
	}
	out.WriteString("\n|---|" + strings.Repeat("--:|", len(sizes)) + "\n")
	for _, name := range schedule.Names() {
		fmt.Fprintf(&out, "| `%s` |", name)
		for _, size := range sizes {
			sim, err := simulate(name, size[0], size[1])
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, " %g (%.0f %%) / %g |", sim.Ranks[0].Idle, 100*sim.Idle(), sim.Peak())
		}
		out.WriteString("\n")
	}
	return out.String(), nil
}

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

// draw draws a step of every schedule on one scale.
func draw(ranks, microBatches int, how string) (*picture.Picture, error) {
	p := picture.New(fmt.Sprintf("A step of %d micro-batches on %d ranks", microBatches, ranks),
		"F = I = W = 1 for a rank's part. Numbers are micro-batches; a bar marks a rank's second stage.",
		how)
	for _, op := range []schedule.Op{schedule.F, schedule.B, schedule.I, schedule.W} {
		p.Key(styles[op][1], func(p *picture.Picture, x, y float64) { p.Box(x-6, y-6, 12, 12, styles[op][0], "") })
	}
	longest := 0.0
	var sims []*schedule.Simulation
	for _, name := range schedule.Names() {
		sim, err := simulate(name, ranks, microBatches)
		if err != nil {
			return nil, err
		}
		sims, longest = append(sims, sim), max(longest, sim.Time)
	}
	y := picture.Top
	for _, sim := range sims {
		drawStep(p, sim, y, (right-left)/longest)
		y += header + lane*float64(ranks) + gap
	}
	p.Height = y
	return p, nil
}

// drawStep draws a schedule's ranks below y.
func drawStep(p *picture.Picture, sim *schedule.Simulation, y, scale float64) {
	p.Text(picture.Margin, y+12, "text bold", sim.Schedule.Name)
	p.Text(right, y+12, "muted end", fmt.Sprintf("%.1f %% idle, activations of %g micro-batches", 100*sim.Idle(),
		sim.Peak()))
	for rank, spans := range sim.Timeline {
		top := y + header - 4 + lane*float64(rank)
		p.Text(picture.Margin, top+12, "muted small", fmt.Sprint("rank ", rank))
		p.Line(left, top+lane-1, right, top+lane-1, "grid")
		first := sim.Schedule.StagesOf(rank)[0]
		for i, a := range sim.Schedule.Ranks[rank] {
			x, width := left+spans[i].Start*scale, (spans[i].End-spans[i].Start)*scale
			p.Box(x+.4, top, width-.8, lane-2, styles[a.Op][0]+" pale", "")
			if a.Stage != first {
				p.Box(x+.4, top+lane-4, width-.8, 2, styles[a.Op][0], "")
			}
			p.Text(x+width/2, top+11.5, "text small middle", fmt.Sprint(a.MicroBatch))
		}
	}
}
