package callbacks

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows a bar of the run's steps with the last step's loss and learning rate, tokens (or samples) per second and the remaining time; another bar
// while evaluating; and the log records and checkpoints as lines above. It writes control codes of terminals: see Display.
type Progress struct {
	Base
	W io.Writer // must not be nil

	lines       Printer
	train, eval *progressbar.ProgressBar
	pace        meter     // of the present display
	run         meter     // of this run, evaluations and checkpoints included
	rates       string    // as last shown
	drawn       time.Time // when the bar was drawn last
}

// refresh is the least time between two drawings of a bar.
const refresh = 100 * time.Millisecond

// OnTrainBegin starts the bar, at the step where the run begins.
func (p *Progress) OnTrainBegin(e *Event) error {
	p.lines.W = p.W
	p.train, p.drawn = nil, time.Time{}
	if remaining := e.State.MaxSteps - e.State.GlobalStep; remaining > 0 {
		p.train = p.bar(e.State.MaxSteps, progressbar.OptionShowDescriptionAtLineEnd())
		_ = p.train.Set64(e.State.GlobalStep) // a bar that cannot be drawn does not concern the run
	}
	_ = p.pace.begin()
	return p.run.begin()
}

func (p *Progress) bar(length int64, more ...progressbar.Option) *progressbar.ProgressBar {
	options := []progressbar.Option{
		progressbar.OptionSetWriter(struct{ io.Writer }{p.W}), // a plain writer: the bar would sync a file after each refresh
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(20),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetPredictTime(false),
	}
	return progressbar.NewOptions64(length, append(options, more...)...)
}

// OnStepEnd moves the bar on.
func (p *Progress) OnStepEnd(e *Event) error {
	if p.train == nil {
		return nil
	}
	_ = p.pace.step(e.Step)
	_ = p.run.step(e.Step)
	if p.rates == "" || p.pace.spent > time.Second {
		p.rates = p.pace.text()
		p.pace.clear()
	}
	if now := p.run.clock(); now.Sub(p.drawn) >= refresh || e.State.GlobalStep >= e.State.MaxSteps {
		p.drawn = now
		p.train.Describe(p.description(e))
		_ = p.train.Set64(min(e.State.GlobalStep, e.State.MaxSteps))
	}
	return nil
}

// description is what stands behind the bar.
func (p *Progress) description(e *Event) string {
	parts := []string{"loss " + strconv.FormatFloat(e.Step.Loss, 'f', 4, 64), "lr " + strconv.FormatFloat(e.Step.LearningRate, 'e', 2, 64), p.rates}
	if left := e.State.MaxSteps - e.State.GlobalStep; left > 0 {
		perStep := p.run.spent / time.Duration(p.run.steps)
		parts = append(parts, (time.Duration(left)*perStep).Round(time.Second).String()+" left")
	}
	return strings.Join(parts, "  ")
}

// text gives the tokens, or else the samples, per second.
func (m *meter) text() string {
	rates := m.rates()
	if r, ok := rates["train_tokens_per_second"]; ok {
		return metric(r) + " tokens/s"
	}
	return metric(rates["train_samples_per_second"]) + " samples/s"
}

// metric gives x with three significant digits and a letter for thousands and millions.
func metric(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.3gM", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.3gk", x/1e3)
	}
	return fmt.Sprintf("%.3g", x)
}

// OnPredictionStep moves the bar of the evaluation on.
func (p *Progress) OnPredictionStep(e *Event) error {
	if e.Batches == 0 {
		return nil
	}
	if p.eval == nil {
		p.hide()
		p.eval = p.bar(e.Batches, progressbar.OptionSetDescription("evaluating"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(refresh))
	}
	_ = p.eval.Set64(min(e.Batch, e.Batches))
	return nil
}

// OnEvaluate takes the evaluation's bar away.
func (p *Progress) OnEvaluate(*Event) error { return p.evaluated() }

// OnPredict takes the prediction's bar away.
func (p *Progress) OnPredict(*Event) error { return p.evaluated() }

func (p *Progress) evaluated() error {
	if p.eval != nil {
		_ = p.eval.Clear()
		p.eval = nil
	}
	return p.pace.resume()
}

// OnLog writes the record above the bar.
func (p *Progress) OnLog(e *Event) error {
	p.lines.W = p.W
	p.hide()
	return p.lines.OnLog(e)
}

// OnSave writes where the checkpoint is.
func (p *Progress) OnSave(e *Event) error {
	p.lines.W = p.W
	p.hide()
	_ = p.lines.OnSave(e)
	return p.pace.resume()
}

// OnTrainEnd ends the bar's line.
func (p *Progress) OnTrainEnd(*Event) error { return p.Close() }

// Close ends the bar's line, also when a run broke off.
func (p *Progress) Close() error {
	if p.train != nil {
		_, _ = io.WriteString(p.W, "\n")
		p.train = nil
	}
	return p.evaluated()
}

// hide makes room for a line: a bar that is full stays, ended by a line break; others are drawn again by their next step.
func (p *Progress) hide() {
	switch {
	case p.eval != nil:
		_ = p.eval.Clear()
	case p.train == nil:
	case p.train.IsFinished():
		_, _ = io.WriteString(p.W, "\n")
		p.train = nil
	default:
		_ = p.train.Clear()
	}
}
