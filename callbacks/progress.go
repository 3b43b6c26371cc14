// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"io"
	"time"
)

// Progress shows a run on a terminal, in lines of at most 100 columns, or of its width if that is less. Above are a
// first line with what runs and where (RunInfo), a line for each log record and checkpoint, and in the end why the run
// stopped early, if it did. The last line is a bar of the run's steps, or of an evaluation's batches, with the last
// step's loss and learning rate, tokens (or samples) per second and the remaining time; it is gone when the run is
// over. Names are short, and of a record's figures those are shown that people read: log files have all of them. It
// writes control codes of terminals: see Display.
type Progress struct {
	Base
	W     io.Writer // must not be nil
	NoBar bool      // lines only

	terminal *Terminal
	lines    Printer
	table    table
	train    *bar      // nil outside of training
	eval     *bar      // nil outside of evaluations
	pace     meter     // since the rate was last shown
	work     meter     // of this run, without evaluations and checkpoints
	run      meter     // of this run, with them
	used     float64   // seconds of max_train_seconds before
	rate     string    // as last shown
	drawn    time.Time // when the bar was drawn last
	away     int       // calls of aside: 1 if a program's callback failed
}

// refresh is the least time between two drawings of a bar.
const refresh = 100 * time.Millisecond

// open makes the terminal.
func (p *Progress) open() {
	if p.terminal == nil {
		p.terminal = newTerminal(p.W)
		p.lines.W = p.terminal
	}
}

// OnTrainBegin writes the first line and starts the bar, at the step where the run begins.
func (p *Progress) OnTrainBegin(e *Event) error {
	p.open()
	p.lines.saved, p.table, p.used, p.rate = "", table{}, 0, ""
	if run := e.Run; run != nil {
		p.used = run.Seconds
		if text := run.String(); columns(text) <= p.terminal.width() {
			p.print(text)
		} else {
			p.print(append(wrap(run.Machine()+":", p.terminal.width()),
				wrapBelow(run.Work(), p.terminal.width())...)...)
		}
		if run.DTypes != "" {
			p.print(wrap(run.DTypes, p.terminal.width())...)
		}
	}
	p.train, p.eval = &bar{done: e.State.GlobalStep, total: e.State.MaxSteps}, nil
	p.draw()
	_ = p.pace.begin()
	_ = p.work.begin()
	return p.run.begin()
}

// wrapBelow is wrap with all lines indented.
func wrapBelow(text string, width int) []string {
	lines := wrap(text, width-2)
	for i, line := range lines {
		lines[i] = "  " + line
	}
	return lines
}

// draw draws the bar that is due.
func (p *Progress) draw() {
	var due *bar
	switch {
	case p.NoBar:
		return
	case p.eval != nil:
		due = new(bar)
		*due = *p.eval
	case p.train != nil:
		due = new(bar)
		*due = *p.train // the terminal may draw it again at any time
	}
	p.drawn = p.run.clock()
	p.terminal.show(due)
}

// OnStepEnd moves the bar on.
func (p *Progress) OnStepEnd(e *Event) error {
	if p.train == nil {
		return nil
	}
	for _, m := range []*meter{&p.pace, &p.work, &p.run} {
		_ = m.step(e.Step)
	}
	if p.rate == "" || p.pace.spent > time.Second {
		p.rate = p.pace.text()
		p.pace.clear()
	}
	p.train = &bar{done: e.State.GlobalStep, total: e.State.MaxSteps, notes: p.notes(e)}
	if p.run.clock().Sub(p.drawn) >= refresh {
		p.draw()
	}
	return nil
}

// notes stand behind the bar.
func (p *Progress) notes(e *Event) []string {
	notes := []string{"loss " + readable("loss", e.Step.Loss)}
	if e.Step.Empty {
		notes[0] = "no loss terms"
	}
	if eta := p.eta(e); eta > 0 {
		notes = append(notes, "eta "+duration(eta))
	}
	if p.rate != "" {
		notes = append(notes, p.rate)
	}
	return append(notes, "lr "+readable("learning_rate", e.Step.LearningRate))
}

// eta is how long the run will still take at its pace so far, to the second, until its last
// step or the end of max_train_seconds; 0 before a step.
func (p *Progress) eta(e *Event) time.Duration {
	left := e.State.MaxSteps - e.State.GlobalStep
	if p.run.steps == 0 || left <= 0 {
		return 0
	}
	steps := float64(left)
	if e.Args != nil && e.Args.MaxTrainSeconds > 0 && p.work.spent > 0 {
		seconds := e.Args.MaxTrainSeconds - p.used - p.work.spent.Seconds()
		steps = min(steps, max(0, seconds)*float64(p.work.steps)/p.work.spent.Seconds())
	}
	return time.Duration(steps * float64(p.run.spent) / float64(p.run.steps)).Round(time.Second)
}

// text gives the tokens, or else the samples, per second; nothing if no time has passed.
func (m *meter) text() string {
	r := Record{}
	for key, x := range m.rates() {
		r[key] = x
	}
	if f := rate(r, "train_"); f.value != "" {
		return f.text()
	}
	return ""
}

// OnPredictionStep moves the bar of the evaluation on.
func (p *Progress) OnPredictionStep(e *Event) error {
	if e.Batches == 0 {
		return nil
	}
	p.open()
	begins := p.eval == nil
	p.eval = &bar{label: "evaluating", done: e.Batch, total: e.Batches}
	if begins || p.run.clock().Sub(p.drawn) >= refresh {
		p.draw()
	}
	return nil
}

// OnEvaluate takes the evaluation's bar away.
func (p *Progress) OnEvaluate(*Event) error { return p.evaluated() }

// OnPredict takes the prediction's bar away.
func (p *Progress) OnPredict(*Event) error { return p.evaluated() }

func (p *Progress) evaluated() error {
	p.open()
	p.eval = nil
	p.draw()
	_ = p.work.resume()
	return p.pace.resume()
}

// OnLog writes the record above the bar.
func (p *Progress) OnLog(e *Event) error {
	p.open()
	width := p.terminal.width()
	_, ended := e.Record["train_loss"]
	switch {
	case e.Record.IsTrain():
		p.print(p.table.train(e.Record, e.State, p.eta(e), width)...)
	case ended:
		p.print(p.table.end(e.Record, e.State, width)...)
	default:
		p.eval = nil // it is done
		p.print(p.table.evaluation(e.Record, width)...)
	}
	return nil
}

// OnSave writes where the checkpoint is, once.
func (p *Progress) OnSave(e *Event) error {
	p.open()
	_ = p.work.resume()
	_ = p.pace.resume()
	if e.Checkpoint == "" || e.Checkpoint == p.lines.saved {
		return nil
	}
	p.lines.saved = e.Checkpoint
	p.print("saved " + cutLeft(e.Checkpoint, p.terminal.width()-len("saved ")))
	return nil
}

// OnTrainEnd takes the bar away and writes why the run stopped early, and for an interrupted one where to go on from.
func (p *Progress) OnTrainEnd(e *Event) error {
	_ = p.Close()
	for _, line := range lastLines(e) {
		p.print(wrap(line, p.terminal.width())...)
	}
	return nil
}

// Close takes the bar away, also when a run broke off.
func (p *Progress) Close() error {
	p.open()
	p.train, p.eval = nil, nil
	p.draw()
	if p.away != 0 {
		_ = p.aside(-p.away)
	}
	return nil
}

// print writes lines above the bar, which shows the step that they are of.
func (p *Progress) print(lines ...string) {
	p.draw()
	p.lines.print(lines...)
}
