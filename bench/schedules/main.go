// SPDX-License-Identifier: Apache-2.0

// Schedules prints the tables of docs/three-dimensions.md, which compare the schedules of pipeline parallelism, and
// draws its picture of them. They come from the simulator of accelerate/pp/schedule, and measured bubbles from a
// record. --measure FILE makes a new one in some minutes: package accelerate/pp runs the settings on goroutines, with
// passes that sleep for the published times.
//
//	go run -C bench ./schedules --svg ../docs/figures/pipeline-schedules
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/pp/timeline"
	"github.com/lockstep-ml/lockstep/internal/picture"
)

func main() {
	log.SetFlags(0)
	svg := flag.String("svg", "", "draw the pictures NAME-light.svg and NAME-dark.svg of 4 ranks and 8 micro-batches")
	measure := flag.String("measure", "", "measure the published settings, and write this record of it")
	flag.Parse()
	if *measure != "" {
		if err := measureAll(*measure); err != nil {
			log.Fatal(err)
		}
		return // the tables are of the record that the program was built with
	}
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
	p, err := draw(4, 8, picture.Command("-C bench ./schedules", os.Args[1:]))
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

// draw draws a step of every schedule on one scale.
func draw(ranks, microBatches int, how string) (*timeline.Drawing, error) {
	d := &timeline.Drawing{Title: fmt.Sprintf("A step of %d micro-batches on %d ranks", microBatches, ranks),
		Note:    "F = I = W = 1 for a rank's part. Numbers are micro-batches; a bar marks a rank's second stage.",
		Command: how}
	for _, name := range schedule.Names() {
		sim, err := simulate(name, ranks, microBatches)
		if err != nil {
			return nil, err
		}
		d.Steps = append(d.Steps, timeline.Step{Name: name, Simulation: sim, Note: fmt.Sprintf(
			"%.1f %% idle, activations of %g micro-batches", 100*sim.Idle(), sim.Peak())})
	}
	return d, nil
}
