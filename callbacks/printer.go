// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// Printer writes a run for files and pipes: a first line with what runs and where (RunInfo), then every log record as a
// line of "key value" pairs, and "saved" with the path of every checkpoint. A last line gives the reason if the run
// stopped early. A run continues if writing fails; one warning says so.
type Printer struct {
	Base
	W      io.Writer // must not be nil
	failed bool
	saved  string // the checkpoint said last
}

// OnTrainBegin writes what is about to run.
func (p *Printer) OnTrainBegin(e *Event) error {
	p.saved = ""
	if e.Run != nil {
		lines := []string{e.Run.String()}
		if e.Run.DTypes != "" {
			lines = append(lines, e.Run.DTypes)
		}
		p.print(lines...)
	}
	return nil
}

// OnLog writes the record.
func (p *Printer) OnLog(e *Event) error {
	p.print(e.Record.String())
	return nil
}

// OnSave writes where the checkpoint is, once.
func (p *Printer) OnSave(e *Event) error {
	if e.Checkpoint != "" && e.Checkpoint != p.saved {
		p.saved = e.Checkpoint
		p.print("saved " + e.Checkpoint)
	}
	return nil
}

// OnTrainEnd writes why the run stopped early, and for an interrupted one where to continue from.
func (p *Printer) OnTrainEnd(e *Event) error {
	p.print(lastLines(e)...)
	return nil
}

// lastLines says why a run stopped early; nothing if it did not. That it was interrupted, after which step and by what,
// is the error that the run ends with: here stands where to continue from.
func lastLines(e *Event) []string {
	reason := e.Control.StopReason
	if !reason.Early() {
		return nil
	}
	switch {
	case reason.Kind != StopInterrupted:
		return []string{reason.line(e.State.GlobalStep, e.State.MaxSteps)}
	case e.Checkpoint != "":
		return []string{"resume from " + e.Checkpoint}
	}
	return []string{"there is no checkpoint to resume from"}
}

// print writes lines in one piece.
func (p *Printer) print(lines ...string) {
	if len(lines) == 0 {
		return
	}
	if _, err := fmt.Fprintln(p.W, strings.Join(lines, "\n")); err != nil && !p.failed {
		p.failed = true
		slog.Warn("log records cannot be printed", "error", err)
	}
}

// Display returns the callback that shows a run to people on w, as a rule os.Stderr: a Progress if w is a terminal, or
// a pipe to the terminal of lockstep launch, else a Printer. The Progress has no bar if disable_tqdm says so or the
// cursor cannot be moved (in a pipe, or by TERM=dumb). It is for package trainer.
func Display(a *args.TrainingArguments, w io.Writer) Callback {
	if terminal.Width(w) == 0 {
		return &Printer{W: w}
	}
	return &Progress{W: w, NoBar: a.ProgressDisabled() || !terminal.Moves(w)}
}
