// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// field is one figure of a line.
type field struct {
	name, value string
	unit        bool // the name stands behind the value: "19.3k tokens/s"
}

func (f field) text() string {
	switch {
	case f.name == "":
		return f.value
	case f.unit:
		return strings.TrimLeft(f.value, " ") + " " + f.name
	}
	return f.name + " " + strings.TrimLeft(f.value, " ")
}

// aligned is text with the value at the right of its column.
func (f field) aligned(width int) string {
	switch {
	case f.name == "":
		return pad(width, f.value)
	case f.unit:
		return pad(width, f.value) + " " + f.name
	}
	return f.name + " " + pad(width, f.value)
}

// table writes records as lines of a terminal. Columns become wider with the values that they have shown.
type table struct{ widths map[string]int }

// train is the line of a record of training steps.
func (t *table) train(r Record, s *State, eta time.Duration, width int) []string {
	if t.widths == nil { // wide enough for what is to come
		t.widths = map[string]int{" epoch": terminal.Columns(readable("epoch", s.NumTrainEpochs)), " tokens/s": 5,
			" samples/s": 5}
	}
	fields := []field{stepField(r, s.MaxSteps)}
	fields = append(fields, present(r, "epoch", "epoch"), present(r, "loss", "loss"),
		present(r, "grad_norm", "grad_norm"), present(r, "learning_rate", "lr"), rate(r, "train_"))
	if eta > 0 {
		fields = append(fields, field{name: "eta", value: duration(eta)})
	}
	return t.lines("", fields, extras(r, "", "step", "epoch", "loss", "grad_norm", "learning_rate"), width)
}

// evaluation is the line of an evaluation's record: eval_loss under its full name, other metrics without the prefix,
// the runtime last.
func (t *table) evaluation(r Record, width int) []string {
	prefix := "eval_"
	for key := range r {
		if p, ok := strings.CutSuffix(key, "runtime"); ok {
			prefix = p
		}
	}
	fields := []field{{name: "step", value: readable("step", r["step"])}, present(r, prefix+"loss", prefix+"loss")}
	more := extras(r, prefix, "step", "epoch", prefix+"loss", prefix+"runtime")
	var last []field
	if seconds, ok := r.Number(prefix + "runtime"); ok {
		last = append(last, field{value: runtime(seconds)})
	}
	head := strings.TrimSuffix(prefix, "_")
	n := len(more) // as many metrics as fit before the runtime; the others stand below
	for n > 0 && terminal.Columns(join(head, slices.Concat(fields, more[:n], last))) > width {
		n--
	}
	return append(t.lines(head, slices.Concat(fields, more[:n], last), nil, width), below(more[n:], width)...)
}

// end is the line of a run's last record.
func (t *table) end(r Record, s *State, width int) []string {
	fields := []field{
		stepField(r, s.MaxSteps), present(r, "epoch", "epoch"), present(r, "train_loss", "train_loss"),
		rate(r, "train_"),
	}
	if seconds, ok := r.Number("train_runtime"); ok {
		fields = append(fields, field{value: runtime(seconds)})
	}
	return t.lines("train", fields, extras(r, "", "step", "epoch", "train_loss", "train_runtime"), width)
}

// lines returns fields in one line, and extras behind them or, if not all of them fit there, in lines below.
func (t *table) lines(head string, fields, extras []field, width int) []string {
	fields = slices.DeleteFunc(slices.Clone(fields), func(f field) bool { return f.value == "" })
	line := t.fit(head, fields, width)
	if rest := join("", extras); rest != "" && terminal.Columns(line)+2+terminal.Columns(rest) <= width {
		return []string{line + "  " + rest}
	}
	return append([]string{line}, below(extras, width)...)
}

// below returns fields in as many indented lines as they need.
func below(fields []field, width int) []string {
	var lines []string
	for _, f := range fields {
		text := "  " + terminal.Cut(f.text(), width-2)
		if n := len(lines) - 1; n >= 0 && terminal.Columns(lines[n])+terminal.Columns(text) <= width {
			lines[n] += text
		} else {
			lines = append(lines, text)
		}
	}
	return lines
}

// leastImportant are the figures that a narrow terminal does without, the first first. They are in the log files, and
// most in the bar.
var leastImportant = []string{"eta", "tokens/s", "samples/s", "epoch", "grad_norm", "lr"}

// fit brings fields into width: aligned if there is room, else as they are, else without the least important.
func (t *table) fit(head string, fields []field, width int) string {
	if t.widths == nil {
		t.widths = map[string]int{}
	}
	texts := make([]string, 0, len(fields)+1)
	for _, f := range fields {
		key := head + " " + f.name
		t.widths[key] = max(t.widths[key], terminal.Columns(f.value))
		texts = append(texts, f.aligned(t.widths[key]))
	}
	if head != "" {
		texts = append([]string{head}, texts...)
	}
	if line := strings.Join(texts, "  "); terminal.Columns(line) <= width {
		return line
	}
	for _, name := range leastImportant {
		if terminal.Columns(join(head, fields)) <= width {
			break
		}
		fields = slices.DeleteFunc(slices.Clone(fields), func(f field) bool { return f.name == name })
	}
	return terminal.Cut(join(head, fields), width)
}

// join returns the fields that have values, without alignment, behind a head.
func join(head string, fields []field) string {
	var texts []string
	if head != "" {
		texts = append(texts, head)
	}
	for _, f := range fields {
		if f.value != "" {
			texts = append(texts, f.text())
		}
	}
	return strings.Join(texts, "  ")
}

// stepField is the step of how many.
func stepField(r Record, total int64) field {
	step, ok := r.Number("step")
	if !ok {
		return field{}
	}
	return field{name: "step", value: fraction(int64(step), max(total, int64(step)))}
}

// fraction returns done/total, done as wide as total.
func fraction(done, total int64) string {
	all := strconv.FormatInt(total, 10)
	return pad(len(all), strconv.FormatInt(done, 10)) + "/" + all
}

// present is a record's value under a short name; nothing if it has none.
func present(r Record, key, name string) field {
	v, ok := r[key]
	if !ok {
		return field{}
	}
	return field{name: name, value: readable(key, v)}
}

// rate returns the tokens, or else the samples, per second.
func rate(r Record, prefix string) field {
	for _, what := range []string{"tokens", "samples"} {
		if x, ok := r.Number(prefix + what + "_per_second"); ok {
			return field{name: what + "/s", value: metric(x), unit: true}
		}
	}
	return field{}
}

// extras are a record's other figures: what a program added, and what is rare. Those whose names begin with prefix do
// without it.
func extras(r Record, prefix string, shown ...string) []field {
	var out []field
	for _, key := range r.Keys() {
		if hidden(key) || isSpeed(key) || slices.Contains(shown, key) {
			continue
		}
		value := readable(key, r[key])
		x, isNumber := r.Number(key)
		switch {
		case isNumber && (strings.HasPrefix(key, "train_mem_") || key == "train_sent_bytes"):
			value = mebibytes(x)
		case isNumber && key == "num_input_tokens_seen":
			value = metric(x)
		}
		out = append(out, field{name: strings.TrimPrefix(key, prefix), value: value})
	}
	return out
}

// isSpeed tells the trainer's figures of speed, of which lines show one.
func isSpeed(key string) bool {
	for _, what := range []string{"samples", "steps", "tokens"} {
		if strings.HasSuffix(key, "_"+what+"_per_second") {
			return true
		}
	}
	return false
}

func mebibytes(bytes float64) string { return strconv.FormatFloat(bytes/(1<<20), 'f', 1, 64) + " MiB" }

// runtime returns seconds as people read them: "0.9s", "1m23s".
func runtime(seconds float64) string {
	switch {
	case seconds < 0.1:
		return strconv.FormatFloat(seconds, 'f', 3, 64) + "s"
	case seconds < 10:
		return strconv.FormatFloat(seconds, 'f', 1, 64) + "s"
	}
	return duration(time.Duration(seconds * float64(time.Second)))
}

// duration returns a time to the second, from an hour on to the minute: "59s", "1m23s", "2h05m".
func duration(d time.Duration) string {
	d = d.Round(time.Second)
	if d < time.Hour {
		return d.String()
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// metric returns x with three significant digits and a letter for thousands, millions and billions.
func metric(x float64) string {
	for _, unit := range []struct {
		size   float64
		letter string
	}{{1e9, "B"}, {1e6, "M"}, {1e3, "k"}} {
		if x >= 0.9995*unit.size {
			return digits(x/unit.size) + unit.letter
		}
	}
	return digits(x)
}

// digits returns three significant digits, without an exponent.
func digits(x float64) string {
	switch {
	case x >= 99.95 || x == float64(int64(x)):
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

func pad(width int, text string) string {
	if n := terminal.Columns(text); n < width {
		return strings.Repeat(" ", width-n) + text
	}
	return text
}
