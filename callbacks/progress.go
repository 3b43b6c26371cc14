// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"io"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// Progress shows a run on a terminal, in lines of at most 100 columns, or of its width if that is less. Above are a
// first line with what runs and where (RunInfo), a line for each log record and checkpoint, and in the end why the run
// stopped early, if it did. The last line is a bar of the run, or of an evaluation's batches, with the last step's loss
// and learning rate, tokens (or samples) per second and the remaining time; it is gone when the run is over. The run's
// share is that of its steps, or of max_train_seconds where this is further along. Names are short, and of a record's
// figures those are shown that people read: log files have all of them. It writes control codes of terminals: see
// Display.
type Progress struct {
	Base
	W     io.Writer // must not be nil
	NoBar bool      // lines only

	terminal *Terminal
	lines    Printer
	table    table
	train    *bar      // nil outside of training, and without a bar
	eval     *bar      // nil outside of evaluations, and without a bar
	begun    time.Time // this run
	from     float64   // the share that was done then
	pace     meter     // since the rate was last shown
	work     meter     // of this run, without evaluations and checkpoints
	used     float64   // seconds of max_train_seconds before
	rate     string    // as last shown
	away     int       // calls of hide: 1 if a program's callback failed
}

// fine is the number of units of a run's bar: it shows shares, of steps or of time.
const fine = 10_000

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
	width := p.terminal.width()
	if run := e.Run; run != nil {
		p.used = run.Seconds
		p.print(terminal.Fold([]string{run.Machine() + ":", run.Work()}, " ", width, "", "  ")...)
		if run.DTypes != "" {
			p.print(terminal.Words(run.DTypes, width, "  ")...)
		}
	}
	_ = p.pace.begin()
	_ = p.work.begin()
	p.begun, p.train, p.eval = time.Now(), nil, nil
	p.from, _ = p.share(e)
	if !p.NoBar {
		p.train = newBar(p.terminal, "", int64(p.from*fine), fine)
	}
	p.show()
	return nil
}

// show puts the bar that is due into the last line.
func (p *Progress) show() {
	if p.eval != nil {
		p.terminal.show(p.eval)
		return
	}
	p.terminal.show(p.train)
}

// share is how much of the run is done, and whether its end is a matter of time: of max_train_seconds, not of steps.
func (p *Progress) share(e *Event) (share float64, timed bool) {
	if e.State.MaxSteps > 0 {
		share = float64(e.State.GlobalStep) / float64(e.State.MaxSteps)
	}
	if e.Args != nil && e.Args.MaxTrainSeconds > 0 {
		if used := (p.used + p.work.spent.Seconds()) / e.Args.MaxTrainSeconds; used > share {
			share, timed = used, true
		}
	}
	return min(share, 1), timed
}

// OnStepEnd moves the bar on.
func (p *Progress) OnStepEnd(e *Event) error {
	_ = p.pace.step(e.Step)
	_ = p.work.step(e.Step)
	if p.rate == "" || p.pace.spent > time.Second {
		p.rate = p.pace.text()
		p.pace.clear()
	}
	if p.train != nil {
		share, _ := p.share(e)
		p.train.set(int64(share*fine), p.notes(e)...)
	}
	return nil
}

// notes stand behind the bar.
func (p *Progress) notes(e *Event) []string {
	at := fraction(min(e.State.GlobalStep, e.State.MaxSteps), e.State.MaxSteps)
	if _, timed := p.share(e); timed {
		at = "step " + readable("step", e.State.GlobalStep)
	}
	loss := "loss " + readable("loss", e.Step.Loss)
	if e.Step.Empty {
		loss = "no loss terms"
	}
	notes := []string{at, loss}
	if eta := p.eta(e); eta > 0 {
		notes = append(notes, "eta "+duration(eta))
	}
	if p.rate != "" {
		notes = append(notes, p.rate)
	}
	return append(notes, "lr "+readable("learning_rate", e.Step.LearningRate))
}

// eta is how long the run will still take at its pace so far, to the second, evaluations and checkpoints included; 0
// before a step. The library's would take the steps before a resume for steps of this run.
func (p *Progress) eta(e *Event) time.Duration {
	share, _ := p.share(e)
	if p.work.steps == 0 || share <= p.from {
		return 0
	}
	spent := time.Since(p.begun).Seconds()
	seconds := spent * (1 - share) / (share - p.from)
	return time.Duration(math.Round(seconds)) * time.Second
}

// text returns the tokens, or else the samples, per second; nothing if no time has passed.
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
	if e.Batches == 0 || p.NoBar {
		return nil
	}
	p.open()
	if p.eval == nil {
		p.eval = newBar(p.terminal, "evaluating", 0, e.Batches, progressbar.OptionShowCount())
		p.show()
	}
	p.eval.set(e.Batch)
	return nil
}

// OnEvaluate takes the evaluation's bar away.
func (p *Progress) OnEvaluate(*Event) error { return p.evaluated() }

// OnPredict takes the prediction's bar away.
func (p *Progress) OnPredict(*Event) error { return p.evaluated() }

func (p *Progress) evaluated() error {
	p.open()
	p.eval = nil
	p.show()
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
		p.print(p.named(p.table.end(e.Record, e.State, width))...)
	default:
		p.eval = nil // it is done
		p.show()
		p.print(p.named(p.table.evaluation(e.Record, width))...)
	}
	return nil
}

// evalLoss is the loss in the line of an evaluation.
var evalLoss = regexp.MustCompile(`\beval_(\w+_)?loss \S+`)

// named paints the name of a line, and the loss of an evaluation.
func (p *Progress) named(lines []string) []string {
	name, rest, _ := strings.Cut(lines[0], " ")
	rest = evalLoss.ReplaceAllStringFunc(rest, func(loss string) string {
		return terminal.Paint(p.terminal, terminal.Green, loss)
	})
	lines[0] = terminal.Paint(p.terminal, terminal.Bold, name) + " " + rest
	return lines
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
	p.print(p.named([]string{"saved " + terminal.CutLeft(e.Checkpoint, p.terminal.width()-len("saved "))})...)
	return nil
}

// OnTrainEnd takes the bar away and writes why the run stopped early, and for an interrupted one where to continue
// from.
func (p *Progress) OnTrainEnd(e *Event) error {
	_ = p.Close()
	for _, line := range lastLines(e) {
		p.print(terminal.Words(line, p.terminal.width(), "  ")...)
	}
	return nil
}

// Close takes the bar away, also when a run broke off.
func (p *Progress) Close() error {
	p.open()
	p.train, p.eval = nil, nil
	p.show()
	if p.away != 0 {
		_ = p.hide(-p.away)
	}
	return nil
}

// print writes lines above the bar.
func (p *Progress) print(lines ...string) { p.lines.print(lines...) }
