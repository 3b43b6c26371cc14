// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io"
	"strings"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// nameWidth is the width of the column of names, in columns.
const nameWidth = 10

// Line prints a line of results on Stdout: a name in its own column, then facts with commas between them.
//
//	model      gpt2 of 2 layers, width 128, 4 heads, 929,280 parameters
//
// On a terminal the name is bold, and a line that is too long continues below the first fact. Facts are broken between
// words only if they do not fit into a line. In a file a line has any length.
func (p *Process) Line(name string, facts ...string) { WriteLine(p.Stdout, name, facts...) }

// Printf prints on Stdout as fmt.Printf does. On a terminal lines that do not fit continue in the next one, between
// words.
func (p *Process) Printf(format string, values ...any) {
	fmt.Fprint(p.Stdout, terminal.Lines(fmt.Sprintf(format, values...), terminal.Width(p.Stdout)))
}

// WriteLine is Process.Line for any writer.
func WriteLine(w io.Writer, name string, facts ...string) {
	indent, width := strings.Repeat(" ", nameWidth+1), widthOf(w)
	label := fmt.Sprintf("%-*s ", nameWidth, name)
	lines := terminal.Fold(facts, ", ", width, label, indent)
	lines[0] = terminal.Paint(w, terminal.Bold, name) + lines[0][len(name):]
	fmt.Fprintln(w, strings.TrimRight(strings.Join(lines, "\n"), " "))
}

// Phase begins to show on Stderr how far the program's work before a training is: by a bar on a terminal, unless
// disable_tqdm is set, and elsewhere by a line if it takes long. total is the number of units. It is nil, which shows
// nothing, on ranks other than 0. The caller closes it.
func (p *Process) Phase(name string, total int64, unit callbacks.Unit) *callbacks.Phase {
	if p == nil || p.silent {
		return nil
	}
	return callbacks.NewPhase(p.Stderr, !p.noBars, name, total, unit)
}

// Count returns a number of things, as "1 layer" or "929,280 parameters"; what is one of them.
func Count[N int | int64](n N, what string) string { return quantity.Of(n, what) }

// Width is the number of columns that a line on Stdout may have; 0 if it has any length, as in a file.
func (p *Process) Width() int { return widthOf(p.Stdout) }

// widthOf is the number of columns of a line on w; 0 is any.
func widthOf(w io.Writer) int { return min(terminal.Width(w), terminal.Full) }
