// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/pp/timeline"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

const simulateUsage = `usage: lockstep simulate [FLAGS]
       lockstep simulate MODEL [FLAGS]: a whole job, see lockstep simulate gpt2 --help

Predicts one step of a pipeline, without computing it: its time, the idle time and the peak
activations of each rank, and a drawing of the passes. --pp_schedule is the name of a schedule, or
a table in PyTorch's format (FILE.csv), which the command checks first; if the table deadlocks, the
error names the passes that wait for each other. Without --pp_schedule a table compares all
schedules. --costs are the times of a rank's forward pass, input gradient and weight gradient for one
micro-batch, in any unit. Activations are counted in micro-batches.

`

// simulateFlags are what simulate can be asked for.
type simulateFlags struct {
	of       schedule.Shape
	schedule string
	costs    []float64
	transfer float64
	format   string
	draw     bool
}

// formats are what simulate prints.
var formats = []string{"text", "json", "csv", "lowered_csv", "svg"}

func (f *simulateFlags) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("simulate", pflag.ContinueOnError)
	fs.StringVar(&f.schedule, "pp_schedule", "", strings.Join(schedule.Names(), ", ")+
		", or a FILE.csv; none: compare the schedules")
	fs.IntVar(&f.of.Ranks, "pp_size", 0, "ranks of the pipeline (default: 4, or those of the file)")
	fs.IntVar(&f.of.MicroBatches, "micro_batches", 0,
		"micro-batches of a step (default: two for each rank, or those of the file)")
	fs.IntVar(&f.of.StagesPerRank, "stages_per_rank", 0, "stages of each rank; 0: the smallest number that the "+
		"schedule permits")
	fs.Float64SliceVar(&f.costs, "costs", []float64{1, 1, 1}, "F,I,W: the times of a rank's three passes")
	fs.Float64Var(&f.transfer, "transfer", 0, "the time of a message between two stages")
	fs.StringVar(&f.format, "format", formats[0],
		"text; json; csv: the schedule's table; lowered_csv: the same with messages; svg: a picture")
	fs.BoolVar(&f.draw, "draw", false, "draw the step even if it takes more than 200 lines")
	return fs
}

func (p *program) simulate(argv []string) int {
	if simulatesJob(argv) {
		return p.simulateJob(argv)
	}
	var f simulateFlags
	fs := f.flagSet()
	if code, done := p.parse(fs, argv, simulateUsage); done {
		return code
	}
	if code, done := p.noWords(fs); done {
		return code
	}
	for _, size := range []struct {
		name      string
		of, least int
	}{{"pp_size", f.of.Ranks, 1}, {"micro_batches", f.of.MicroBatches, 1}, {"stages_per_rank", f.of.StagesPerRank, 0}} {
		if size.of < size.least && fs.Changed(size.name) {
			return p.usageError("simulate: %s is %d: want at least %d", size.name, size.of, size.least)
		}
	}
	bad := func(x float64) bool { return !(x >= 0) || math.IsInf(x, 0) }
	switch {
	case slices.ContainsFunc(f.costs, bad) || bad(f.transfer):
		return p.usageError("simulate: costs are %v, and transfer is %v: want times of at least 0", f.costs, f.transfer)
	case len(f.costs) != 3:
		return p.usageError("simulate: costs: %d numbers: want three, F,I,W", len(f.costs))
	case !slices.Contains(formats, f.format):
		return p.usageError("simulate: format is %q: want %s", f.format, strings.Join(formats, ", "))
	case f.schedule == "" && f.format != "text" && f.format != "svg":
		return p.usageError("simulate: format is %s, of one schedule: want pp_schedule", f.format)
	}
	if !strings.HasSuffix(f.schedule, ".csv") { // a file has its own
		f.of = f.defaults(fs)
	}
	var err error
	if f.schedule == "" {
		err = p.compare(&f)
	} else {
		err = p.predict(&f)
	}
	if err != nil {
		p.complain("lockstep: simulate: %v", err)
		return exitError
	}
	return exitOK
}

// defaults are the sizes that are not given.
func (f *simulateFlags) defaults(fs *pflag.FlagSet) schedule.Shape {
	of := f.of
	if !fs.Changed("pp_size") {
		of.Ranks = 4
	}
	if !fs.Changed("micro_batches") {
		of.MicroBatches = 2 * of.Ranks
	}
	return of
}

// simulated is a schedule's step under the costs.
func (f *simulateFlags) simulated(s *schedule.Schedule) (*schedule.Simulation, error) {
	part := float64(len(s.Ranks)) / float64(s.Stages()) // of a rank's work, on each stage
	return s.Simulate(schedule.Uniform(s.Stages(), schedule.StageCosts{Forward: f.costs[0] * part,
		Input: f.costs[1] * part, Weight: f.costs[2] * part, Activation: part}, f.transfer))
}

// compare prints a table of all schedules.
func (p *program) compare(f *simulateFlags) error {
	var table, refused []string
	var sims []*schedule.Simulation
	for _, name := range schedule.Names() {
		s, err := schedule.Load(name, f.of)
		if err != nil {
			refused = append(refused, err.Error())
			continue
		}
		sim, err := f.simulated(s)
		if err != nil {
			return err
		}
		sims = append(sims, sim)
		table = append(table, fmt.Sprintf("%s\t%d\t%s\t%.1f %%\t%s\t", name, s.Stages(), figure(sim.Time),
			100*sim.Idle(), figure(sim.Peak())))
	}
	if len(table) == 0 {
		return fmt.Errorf("no schedule has this shape:\n%s", strings.Join(refused, "\n"))
	}
	if f.format == "svg" {
		return p.drawSimulations(sims)
	}
	fmt.Fprintf(p.stdout, "%s, %s of a step\n", quantity.Of(f.of.Ranks, "rank"),
		quantity.Of(f.of.MicroBatches, "micro-batch"))
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "schedule\tstages\ttime\tidle\tpeak\t\n%s\n", strings.Join(table, "\n"))
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range refused {
		fmt.Fprint(p.stdout, terminal.Lines(text+"\n", terminal.Width(p.stdout)))
	}
	return nil
}

// predict prints a schedule's step.
func (p *program) predict(f *simulateFlags) error {
	s, err := schedule.Load(f.schedule, f.of)
	if err != nil {
		return err
	}
	switch f.format {
	case "lowered_csv":
		if s, err = s.Lower(); err != nil {
			return err
		}
		fallthrough
	case "csv":
		return s.WriteCSV(p.stdout)
	}
	sim, err := f.simulated(s)
	if err != nil {
		return err
	}
	switch f.format {
	case "json":
		return p.simulationJSON(sim)
	case "svg":
		return p.drawSimulations([]*schedule.Simulation{sim})
	}
	return p.showSimulation(sim, f.draw)
}

// mostPasses is how many passes a picture has at most: more are too narrow to be seen, and take browsers long.
const mostPasses = 50_000

// drawSimulations writes a picture of steps below each other, on one scale.
func (p *program) drawSimulations(sims []*schedule.Simulation) error {
	s, passes := sims[0].Schedule, 0
	d := &timeline.Drawing{Title: fmt.Sprintf("A step of %s on %s", quantity.Of(s.MicroBatches, "micro-batch"),
		quantity.Of(len(s.Ranks), "rank")),
		Note: "As simulated. Numbers are micro-batches; a bar marks a rank's second stage."}
	for _, sim := range sims {
		for _, list := range sim.Schedule.Ranks {
			passes += len(list)
		}
		if sim.Time == 0 {
			return fmt.Errorf("a picture of a step of %s that takes no time: want costs above 0", sim.Schedule.Name)
		}
		d.Steps = append(d.Steps, timeline.Step{Name: sim.Schedule.Name, Simulation: sim, Note: fmt.Sprintf(
			"%s, %.1f %% idle, activations of at most %s", figure(sim.Time), 100*sim.Idle(), figure(sim.Peak()))})
	}
	if passes > mostPasses {
		return fmt.Errorf("a picture of %d passes: want at most %d, see --format json", passes, mostPasses)
	}
	_, err := fmt.Fprint(p.stdout, d.SVG())
	return err
}

// rankUsage is what a rank does in a step.
type rankUsage struct {
	Stages []int   `json:"stages"`
	Busy   float64 `json:"busy"`
	Idle   float64 `json:"idle"`
	Peak   float64 `json:"peak_activations"`
}

func (p *program) simulationJSON(sim *schedule.Simulation) error {
	s := sim.Schedule
	out := struct {
		Schedule     string      `json:"pp_schedule"`
		Size         int         `json:"pp_size"`
		Stages       int         `json:"stages"`
		MicroBatches int         `json:"micro_batches"`
		Time         float64     `json:"time"`
		Idle         float64     `json:"idle"`
		Ranks        []rankUsage `json:"ranks"`
	}{s.Name, len(s.Ranks), s.Stages(), s.MicroBatches, sim.Time, sim.Idle(), nil}
	for rank, u := range sim.Ranks {
		out.Ranks = append(out.Ranks, rankUsage{s.StagesOf(rank), u.Busy, u.Idle, u.Peak})
	}
	return p.json(out)
}

// mostLines is how many lines a drawing has at most if it was not asked for.
const mostLines = 200

func (p *program) showSimulation(sim *schedule.Simulation, draw bool) error {
	s, columns := sim.Schedule, terminal.Width(p.stdout)
	fmt.Fprint(p.stdout, terminal.Lines(fmt.Sprintf("%s: %s, %s, %s\na step takes %s, %.1f %% of it idle, with "+
		"activations of at most %s\n\n", s.Name, quantity.Of(len(s.Ranks), "rank"), quantity.Of(s.Stages(), "stage"),
		quantity.Of(s.MicroBatches, "micro-batch"), figure(sim.Time), 100*sim.Idle(), figure(sim.Peak())), columns))
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "rank\tstages\tbusy\tidle\tpeak\t")
	for rank, u := range sim.Ranks {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t\n", rank, numbers(s.StagesOf(rank)), figure(u.Busy),
			figure(u.Idle), figure(u.Peak))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if columns == 0 {
		columns = terminal.Full
	}
	text := sim.Text(columns)
	if n := strings.Count(text, "\n"); n > mostLines && !draw {
		text = fmt.Sprintf("the drawing has %s: see --draw\n", quantity.Of(n, "line"))
	}
	_, err := fmt.Fprint(p.stdout, "\n"+text)
	return err
}

// figure is a number to three places.
func figure(x float64) string { return strconv.FormatFloat(math.Round(x*1000)/1000, 'f', -1, 64) }
