// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
)

// below marks a ratio that misses what is wanted, apart one that was measured while the threads' cores shared no cache,
// shared one while the threads shared a core.
const (
	below  = " ↓"
	apart  = " ‡"
	shared = " §"
)

var heading = []string{"", "ours", "theirs", "1 thread", "ours", "theirs", "2 threads", "target", "limit"}

// cells are a line's columns.
func (l *line) cells(r *results) []string {
	out := []string{l.label}
	for _, threads := range []int{1, 2} {
		v, ok := l.values[threads]
		if !ok {
			out = append(out, "", "", "")
			continue
		}
		text := l.goal.ratio(v)
		if met, wanted := l.met[threads]; wanted && !met {
			text += below
		}
		if r.apart(key{l.row, threads}) {
			text += apart
		}
		if r.shared(key{l.row, threads}) {
			text += shared
		}
		ours, theirs := "", ""
		if m, ok := r.measures[key{l.row, threads}]; ok {
			if ours = amount(m.ours, m.unit); !l.goal.share {
				theirs = amount(m.theirs, m.unit)
			}
		}
		if l.goal.named {
			ours = l.least[threads]
		}
		out = append(out, ours, theirs, text)
	}
	return append(out, l.goal.wanted(), l.limit())
}

// limit says what the ratios would be at the machine's ceiling.
func (l *line) limit() string {
	var list []string
	for _, threads := range []int{1, 2} {
		if v := l.limits[threads]; v > 0 && !l.goal.share {
			list = append(list, l.goal.ratio(v))
		}
	}
	return strings.Join(list, " / ")
}

// ratio is a value as the table shows it: a factor, or a share of a ceiling.
func (g *goal) ratio(v float64) string {
	if g.share {
		return fmt.Sprintf("%.0f %%", 100*v)
	}
	return fmt.Sprintf("%.2f", v)
}

// wanted says what a line is wanted to reach.
func (g *goal) wanted() string {
	if g.want[0] == 0 {
		return ""
	}
	text := g.ratio(g.want[0])
	if g.want[1] != g.want[0] {
		text += " / " + g.ratio(g.want[1])
	}
	if g.or != "" {
		text += fmt.Sprintf(", or %.0f %% of the ceiling", 100*g.orWant)
	}
	return text
}

// amount is a measure with three digits or so.
func amount(v float64, unit string) string {
	if unit == "ms" && v < 0.1 {
		v, unit = 1e3*v, "µs"
	} else if unit == "ms" && v >= 1e4 {
		v, unit = v/1e3, "s"
	}
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f %s", v, unit)
	case v < 100:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// sections calls f for each run of lines with one section.
func sections(lines []line, f func(section string, lines []line)) {
	for len(lines) > 0 {
		n := 1
		for n < len(lines) && lines[n].goal.section == lines[0].goal.section {
			n++
		}
		f(lines[0].goal.section, lines[:n])
		lines = lines[n:]
	}
}

// print writes the table for a terminal, and a RATIO line for each row, those of many rows in one included.
func (r *results) print(w io.Writer) error {
	for _, m := range r.machine {
		fmt.Fprintln(w, m)
	}
	fmt.Fprintln(w, strings.Join(r.peers, "; "))
	for _, text := range r.texts() {
		fmt.Fprintln(w, text)
	}
	lines := r.lines()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	sections(lines, func(section string, lines []line) {
		fmt.Fprintf(t, "\n%s\n", strings.Join(append([]string{section}, heading[1:]...), "\t"))
		for i := range lines {
			fmt.Fprintln(t, "  "+strings.Join(lines[i].cells(r), "\t"))
		}
	})
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, threads := range []int{1, 2} {
		for i := range lines {
			if v, ok := lines[i].values[threads]; ok && lines[i].goal.combine != nil {
				fmt.Fprintf(w, "RATIO %s %d %.3f\n", lines[i].row, threads, v)
			}
		}
		for _, row := range r.rows {
			if v, ok := r.ratios[key{row, threads}]; ok {
				fmt.Fprintf(w, "RATIO %s %d %.3f\n", row, threads, v)
			}
		}
	}
	return nil
}

// texts are sentences on the machine, without a capital and a full stop.
func (r *results) texts() []string {
	return slices.DeleteFunc([]string{r.ceilingText(), r.besideText(), r.tripText(), r.coresText()},
		func(s string) bool { return s == "" })
}

// variants are the names of the FMA loops.
var variants = strings.NewReplacer("avx512", "AVX-512", "avx2", "AVX2")

// ceilingText names the machine's ceilings in a line.
func (r *results) ceilingText() string {
	var list []string
	for _, c := range r.ceilings {
		name := variants.Replace(strings.Replace(c.name, "fma_", "FMA ", 1))
		list = append(list, fmt.Sprintf("%s at %d: %.0f %s", name, c.threads, c.value, c.unit))
	}
	return "ceilings by number of threads: " + strings.Join(list, ", ")
}

// besideText says what the FMA loops reached alternately with ours.
func (r *results) besideText() string {
	var list []string
	for _, c := range r.ceilings {
		variant, _ := strings.CutPrefix(c.name, "fma_")
		if v := r.beside[key{variant, c.threads}]; len(v) > 0 {
			list = append(list, fmt.Sprintf("%s at %d: %.0f to %.0f, median %.0f %s", variants.Replace(variant),
				c.threads, slices.Min(v), slices.Max(v), stats.Median(v), c.unit))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "shares of the FMA peak refer to the speed of its loop beside each row: " + strings.Join(list, "; ")
}

// tripText says how far apart the threads' cores were.
func (r *results) tripText() string {
	if len(r.trips) == 0 {
		return ""
	}
	far := 0
	for k := range r.trips {
		if r.apart(k) {
			far++
		}
	}
	return fmt.Sprintf("a cache line took %.0f to %.0f ns from one thread to the other and back;%s marks the %d of "+
		"%d rows in which it took more than twice the shortest time",
		r.shortestTrip(), slices.Max(slices.Collect(maps.Values(r.trips))), apart, far, len(r.trips))
}

// coresText says how many cores the threads had.
func (r *results) coresText() string {
	if len(r.cores) == 0 {
		return ""
	}
	n := 0
	for k := range r.cores {
		if r.shared(k) {
			n++
		}
	}
	list := slices.Sorted(maps.Values(r.cores))
	return fmt.Sprintf("two threads multiplied and added %.2f to %.2f times as fast as one (median %.2f);%s marks "+
		"the %d of %d rows in which they shared a core and reached less than 1.5 times",
		list[0], list[len(list)-1], stats.Median(list), shared, n, len(list))
}

// markdown is what the documents show: the machine as a list, its ceilings and the tables of all sections.
func (r *results) markdown() string {
	var b strings.Builder
	for _, m := range r.machine {
		b.WriteString(item(m))
	}
	b.WriteString(item("Peers: " + r.versions()))
	for _, text := range []string{r.tripText(), r.coresText()} {
		if text != "" {
			b.WriteString(item(strings.ToUpper(text[:1]) + text[1:]))
		}
	}
	r.ceilingTable(&b)
	sections(r.lines(), func(section string, lines []line) {
		row := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
		b.WriteByte('\n')
		row(append([]string{"**" + section + "**"}, heading[1:]...))
		row(strings.Split("---,--:,--:,--:,--:,--:,--:,---,---", ","))
		for i := range lines {
			row(lines[i].cells(r))
		}
	})
	return b.String()
}

// versions are the peers, each version once with the benchmarks that use it.
func (r *results) versions() string {
	var order []string
	modes := map[string][]string{}
	for _, p := range r.peers {
		mode, version, _ := strings.Cut(p, ": ")
		if modes[version] == nil {
			order = append(order, version)
		}
		modes[version] = append(modes[version], mode)
	}
	for i, version := range order {
		order[i] = fmt.Sprintf("%s (%s)", version, strings.Join(modes[version], ", "))
	}
	return strings.Join(order, "; ")
}

// ceilingTable writes the machine's ceilings, and what the FMA loops reached beside the rows.
func (r *results) ceilingTable(b *strings.Builder) {
	var names []string
	cells := map[string][3]string{}
	for _, c := range r.ceilings {
		name := variants.Replace(strings.Replace(c.name, "fma_", "FMA ", 1))
		row, known := cells[name]
		if !known {
			names = append(names, name)
		}
		row[c.threads] = fmt.Sprintf("%.0f %s", c.value, c.unit)
		if v := r.beside[key{strings.TrimPrefix(c.name, "fma_"), c.threads}]; len(v) > 0 {
			row[c.threads] += fmt.Sprintf(" (%.0f to %.0f beside the rows, median %.0f)", slices.Min(v), slices.Max(v),
				stats.Median(v))
		}
		cells[name] = row
	}
	b.WriteString("\n| **Ceilings of the machine** | 1 thread | 2 threads |\n| --- | --- | --- |\n")
	for _, name := range names {
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, cells[name][1], cells[name][2])
	}
}

// item is an item of a list, in lines of at most 120 columns.
func item(text string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields("- " + text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case width+1+n > 120:
			b.WriteString("\n  ")
			width = 2
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += n
	}
	return b.String() + "\n"
}
