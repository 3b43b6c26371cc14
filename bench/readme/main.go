// SPDX-License-Identifier: Apache-2.0

// Readme draws the pictures of the README from a recorded run: the terminal window and the loss curve, each for light
// and for dark pages. The input is the terminal's output as script(1) records it and the trainer_state.json of the same
// run. bench/readme/run.sh records both.
//
//	go run -C bench ./readme --transcript readme/testdata/clm.txt --state readme/testdata/clm.json \
//		--out ../docs/figures
//
// With an empty --state it draws the terminal alone, as that of lockstep prove:
//
//	go run -C bench ./readme --transcript readme/testdata/prove.txt --state '' --name prove --head 20 \
//		--command 'lockstep prove' --out ../docs/figures
//
// With --compare it draws the loss curves of several runs in one picture instead:
//
//	go run -C bench ./readme --compare float32=a/trainer_state.json --compare --bf16=b/trainer_state.json \
//		--name precision-loss --title 'Loss of examples/clm in float32 and under --bf16' --out ../docs/figures
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

// options are the program's flags.
type options struct {
	transcript, state, out   string
	command                  string
	title, note, unit, until string
	columns, head, tail      int
	compare                  []string // NAME=FILE
	name                     string
	how                      string // the command that draws the pictures
}

func main() {
	log.SetFlags(0)
	o := options{how: picture.Command("-C bench ./readme", os.Args[1:])}
	pflag.StringVar(&o.transcript, "transcript", "readme/testdata/clm.txt", "the terminal's output, by script(1)")
	pflag.StringVar(&o.state, "state", "readme/testdata/clm.json",
		"the run's trainer_state.json; empty: no loss curve")
	pflag.StringVar(&o.out, "out", "../docs/figures", "the folder of NAME-run-*.svg and NAME-loss-*.svg")
	pflag.StringVar(&o.command, "command", "go run ./examples/clm", "the command to show at the prompt")
	pflag.StringVar(&o.title, "title", "Loss of examples/clm", "the title of the loss curve")
	pflag.StringVar(&o.note, "note", "", "a line below the title: what was trained, and where")
	pflag.StringVar(&o.unit, "unit", "loss (nats per token)", "the label of the curve's upright axis")
	pflag.StringVar(&o.until, "until", "", "show the terminal when this text first appeared; empty: at the end")
	pflag.IntVar(&o.columns, "columns", 80, "the width of the terminal")
	pflag.IntVar(&o.head, "head", 10, "how many of the first lines to show if there are more than head + tail")
	pflag.IntVar(&o.tail, "tail", 18, "how many of the last lines to show if there are more than head + tail")
	pflag.StringArrayVar(&o.compare, "compare", nil,
		"NAME=FILE: a run to draw by its trainer_state.json; repeat it for each run")
	pflag.StringVar(&o.name, "name", "readme", "the pictures' name; with --compare, of the one picture")
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
	for name, p := range pictures {
		if err := p.Write(filepath.Join(o.out, name)); err != nil {
			log.Fatal(err)
		}
	}
}

// draw returns the pictures of a run by name.
func (o options) draw() (map[string]*picture.Picture, error) {
	recorded, err := os.ReadFile(o.transcript)
	if err != nil {
		return nil, err
	}
	s := newScreen(o.columns)
	if !s.play(unwrapScript(string(recorded)), o.until) {
		return nil, fmt.Errorf("%s: the text %q of --until does not appear", o.transcript, o.until)
	}
	lines, cut := excerpt(s.lines(), o.head, o.tail)
	w := window{columns: o.columns, command: o.command, lines: lines, cut: cut}
	run := map[string]*picture.Picture{o.name + "-run": w.draw(o.how)}
	if o.state == "" {
		return run, nil
	}
	h, err := readHistory(o.state)
	if err != nil {
		return nil, err
	}
	c := curve{title: o.title, note: o.note, unit: o.unit, series: h.series()}
	run[o.name+"-loss"] = c.draw(o.how)
	return run, nil
}

// drawComparison returns the picture of several runs' losses by name.
func (o options) drawComparison() (map[string]*picture.Picture, error) {
	c := curve{title: o.title, note: o.note, unit: o.unit}
	for i, text := range o.compare {
		name, file, found := strings.Cut(text, "=")
		if !found {
			return nil, fmt.Errorf("--compare %s: want NAME=FILE", text)
		}
		h, err := readHistory(file)
		if err != nil {
			return nil, err
		}
		discs := i%2 == 1 // so that the other series shows below this one
		c.series = append(c.series, series{name: name, points: h.train, discs: discs, bare: discs})
	}
	return map[string]*picture.Picture{o.name: c.draw(o.how)}, nil
}

func readHistory(file string) (history, error) {
	state, err := os.ReadFile(file)
	if err != nil {
		return history{}, err
	}
	h, err := parseHistory(state)
	if err != nil {
		return history{}, fmt.Errorf("%s: %w", file, err)
	}
	return h, nil
}
