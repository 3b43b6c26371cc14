// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// patience is how long a phase may last without a word where it has no bar.
const patience = 2 * time.Second

// Phase shows how far a program's work before or after a training is, as reading text: by a bar on a terminal, and
// elsewhere by one line if it takes longer than two seconds. It is safe for concurrent use; a nil Phase shows nothing.
type Phase struct {
	w     io.Writer
	name  string
	total int64
	bar   *bar // nil: a line
	begun time.Time

	mu   sync.Mutex
	done int64
	told bool
}

// Unit is what a Phase counts.
type Unit string

// The units of a Phase.
const (
	Items Unit = "items" // shown as they are
	Bytes Unit = "bytes" // shown as kB, MB or GB
)

// NewPhase begins a phase of a name and a number of units, which is shown on w; bars says whether it may be by a bar.
func NewPhase(w io.Writer, bars bool, name string, total int64, unit Unit) *Phase {
	p := &Phase{w: w, name: name, total: total, begun: time.Now()}
	if f, ok := w.(*os.File); ok && bars && terminal.Moves(f) {
		p.bar = newBar(TerminalOf(f), name, 0, total, progressbar.OptionShowCount(),
			progressbar.OptionShowBytes(unit == Bytes), progressbar.OptionSetPredictTime(true))
		p.bar.terminal.show(p.bar)
	}
	return p
}

// Add tells that n more units are done.
func (p *Phase) Add(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(p.done + n)
}

// Set tells how many units are done.
func (p *Phase) Set(done int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(done)
}

func (p *Phase) set(done int64) {
	p.done = min(done, p.total)
	if p.bar != nil {
		p.bar.set(p.done)
		return
	}
	if spent := time.Since(p.begun); !p.told && spent > patience && p.done < p.total {
		p.told = true
		_, _ = fmt.Fprintf(p.w, "%s: %d %% after %s\n", p.name, 100*p.done/p.total, spent.Round(time.Second))
	}
}

// Close ends the phase and takes its bar away.
func (p *Phase) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		p.bar.terminal.show(nil)
		p.bar = nil
	}
	p.told = true
}
