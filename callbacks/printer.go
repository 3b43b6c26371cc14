package callbacks

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/lockstep-ml/lockstep/args"
)

// Printer writes every log record as a line of "key value" pairs, and the path of every checkpoint. A run goes on if writing fails; one warning says so.
type Printer struct {
	Base
	W      io.Writer // must not be nil
	failed bool
}

// OnLog writes the record.
func (p *Printer) OnLog(e *Event) error {
	p.line(e.Record.String())
	return nil
}

// OnSave writes where the checkpoint is.
func (p *Printer) OnSave(e *Event) error {
	if e.Checkpoint != "" {
		p.line("saved " + e.Checkpoint)
	}
	return nil
}

func (p *Printer) line(text string) {
	if _, err := fmt.Fprintln(p.W, text); err != nil && !p.failed {
		p.failed = true
		slog.Warn("log records cannot be printed", "error", err)
	}
}

// Display gives the callback that shows a run to people on f, as a rule os.Stderr: a Progress if f is a terminal and disable_tqdm allows it, else a
// Printer.
func Display(a *args.TrainingArguments, f *os.File) Callback {
	if a.ProgressDisabled() || !term.IsTerminal(int(f.Fd())) {
		return &Printer{W: f}
	}
	return &Progress{W: f}
}
