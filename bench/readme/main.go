// SPDX-License-Identifier: Apache-2.0

// Readme draws the pictures of the README from a recorded run: the terminal window and the loss curve, each for light
// and for dark pages. The input is the terminal's output as script(1) records it and the trainer_state.json of the same
// run. bench/readme/run.sh records both.
//
//	go run ./bench/readme --command 'go run ./examples/clm' --transcript bench/readme/testdata/clm.txt \
//		--state bench/readme/testdata/clm.json --out docs/figures
//
// With --compare it draws the loss curves of several runs in one picture instead, for docs/precision.md:
//
//	go run ./bench/readme --compare float32=a/trainer_state.json --compare --bf16=b/trainer_state.json \
//		--name precision-loss --title 'Loss of examples/clm in float32 and under --bf16' --out docs/figures
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// options are the program's flags.
type options struct {
	transcript, state, out string
	command, title, unit   string
	until                  string
	columns, head, tail    int
	compare                []string // NAME=FILE
	name                   string
}

func main() {
	log.SetFlags(0)
	var o options
	pflag.StringVar(&o.transcript, "transcript", "bench/readme/testdata/clm.txt", "the terminal's output, by script(1)")
	pflag.StringVar(&o.state, "state", "bench/readme/testdata/clm.json", "the run's trainer_state.json")
	pflag.StringVar(&o.out, "out", "docs/figures", "the folder for readme-{run,loss}-{light,dark}.svg")
	pflag.StringVar(&o.command, "command", "go run ./examples/clm", "the command to show at the prompt")
	pflag.StringVar(&o.title, "title", "Loss of examples/clm", "the title of the loss curve")
	pflag.StringVar(&o.unit, "unit", "loss (nats per token)", "the label of the curve's upright axis")
	pflag.StringVar(&o.until, "until", "", "show the terminal when this text first appeared; empty: at the end")
	pflag.IntVar(&o.columns, "columns", 100, "the width of the terminal")
	pflag.IntVar(&o.head, "head", 10, "how many of the first lines to show if there are more than head + tail")
	pflag.IntVar(&o.tail, "tail", 18, "how many of the last lines to show if there are more than head + tail")
	pflag.StringArrayVar(&o.compare, "compare", nil,
		"NAME=FILE: a run to draw by its trainer_state.json; repeat it for each run")
	pflag.StringVar(&o.name, "name", "compare", "with --compare, the picture's name")
	pflag.Parse()
	if pflag.NArg() > 0 {
		log.Fatalf("unexpected argument %q", pflag.Arg(0))
	}
	draw := o.draw
	if len(o.compare) > 0 {
		draw = o.drawComparison
	}
	pictures, err := draw()
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range pictures {
		if err := os.WriteFile(filepath.Join(o.out, name), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// draw returns the pictures by file name.
func (o options) draw() (map[string]string, error) {
	recorded, err := os.ReadFile(o.transcript)
	if err != nil {
		return nil, err
	}
	s := newScreen(o.columns)
	if !s.play(unwrapScript(string(recorded)), o.until) {
		return nil, fmt.Errorf("%s: the text %q of --until does not appear", o.transcript, o.until)
	}
	lines, cut := excerpt(s.lines(), o.head, o.tail)
	state, err := os.ReadFile(o.state)
	if err != nil {
		return nil, err
	}
	history, err := parseHistory(state)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.state, err)
	}
	out := map[string]string{}
	for _, t := range themes {
		w := window{theme: t, columns: o.columns, command: o.command, lines: lines, cut: cut}
		out["readme-run-"+t.name+".svg"] = w.svg()
		c := curve{theme: t, title: o.title, unit: o.unit, history: history}
		out["readme-loss-"+t.name+".svg"] = c.svg()
	}
	return out, nil
}

// drawComparison returns the pictures of several runs' losses by file name.
func (o options) drawComparison() (map[string]string, error) {
	var runs []series
	for _, text := range o.compare {
		name, file, found := strings.Cut(text, "=")
		if !found {
			return nil, fmt.Errorf("--compare %s: want NAME=FILE", text)
		}
		state, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		history, err := parseHistory(state)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		runs = append(runs, series{name: name, points: history.train})
	}
	out := map[string]string{}
	for _, t := range themes {
		lines := slices.Clone(runs)
		for i := range lines {
			lines[i].colour = []string{t.accent, t.evaluate}[i%2]
			lines[i].discs, lines[i].bare = i%2 == 1, i%2 == 1 // so that the other shows below it
		}
		c := curve{theme: t, title: o.title, unit: o.unit, runs: lines}
		out[o.name+"-"+t.name+".svg"] = c.svg()
	}
	return out, nil
}
