// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// step is what a picture of a step shows: the spans of all ranks.
type step struct {
	note  string // what was measured, and where
	spans []span
}

// memory is what a picture of memory shows.
type memory struct {
	note string
	rows []memoryRow
}

// memoryRow is a rank's memory under a contender, in MB.
type memoryRow struct {
	name             string
	tensors, process float64
}

// writeTable writes a note and rows, the heading first, as NAME.tsv.
func writeTable(name, note string, rows [][]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", note)
	for _, row := range rows {
		b.WriteString(strings.Join(row, "\t") + "\n")
	}
	return os.WriteFile(name+".tsv", []byte(b.String()), 0o644)
}

var stepHeading = []string{"rank", "span", "ready_ms", "start_ms", "end_ms", "bytes", "detail"}

// write writes a row for each span, with milliseconds since the step began.
func (s *step) write(name string) error {
	rows := [][]string{stepHeading}
	begin := begins(s.spans)
	ms := func(t time.Time) string { return fmt.Sprintf("%.3f", t.Sub(begin).Seconds()*1e3) }
	for _, one := range s.spans {
		rows = append(rows, []string{strconv.Itoa(one.Rank), one.Name, ms(one.Queued), ms(one.Start), ms(one.End),
			strconv.Itoa(one.Bytes), one.Detail})
	}
	return writeTable(name, s.note, rows)
}

var memoryHeading = []string{"strategy", "tensors_mb", "process_mb"}

func (m *memory) write(name string) error {
	rows := [][]string{memoryHeading}
	for _, r := range m.rows {
		rows = append(rows, []string{r.name, fmt.Sprintf("%.0f", r.tensors), fmt.Sprintf("%.0f", r.process)})
	}
	return writeTable(name, m.note, rows)
}

// readTable reads NAME.tsv, whose heading must be the one wanted, and returns the rows below it. The first line that
// begins with # is the note, and others are passed over.
func readTable(name string, heading []string) (note string, rows [][]string, err error) {
	text, err := os.ReadFile(name + ".tsv")
	if err != nil {
		return "", nil, err
	}
	for i, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		if comment, ok := strings.CutPrefix(line, "# "); ok && len(rows) == 0 {
			note = cmp.Or(note, comment)
			continue
		}
		row := strings.Split(line, "\t")
		if len(row) != len(heading) || len(rows) == 0 && line != strings.Join(heading, "\t") {
			return "", nil, fmt.Errorf("%s.tsv, line %d: want the columns %s", name, i+1, strings.Join(heading, ", "))
		}
		rows = append(rows, row)
	}
	if len(rows) < 2 {
		return "", nil, fmt.Errorf("%s.tsv has no rows", name)
	}
	return note, rows[1:], nil
}

func readStep(name string) (*step, error) {
	note, rows, err := readTable(name, stepHeading)
	if err != nil {
		return nil, err
	}
	s := &step{note: note}
	for i, row := range rows {
		one := span{Name: row[1], Detail: row[6]}
		fault := func(at int, want string) error {
			return fmt.Errorf("%s.tsv, row %d: %s is %q: want %s", name, i+1, stepHeading[at], row[at], want)
		}
		for at, to := range map[int]*int{0: &one.Rank, 5: &one.Bytes} {
			if *to, err = strconv.Atoi(row[at]); err != nil || *to < 0 {
				return nil, fault(at, "a whole number")
			}
		}
		for at, to := range map[int]*time.Time{2: &one.Queued, 3: &one.Start, 4: &one.End} {
			ms, err := strconv.ParseFloat(row[at], 64)
			if err != nil {
				return nil, fault(at, "milliseconds")
			}
			*to = time.UnixMicro(int64(math.Round(ms * 1e3)))
		}
		s.spans = append(s.spans, one)
	}
	return s, nil
}

func readMemory(name string) (*memory, error) {
	note, rows, err := readTable(name, memoryHeading)
	if err != nil {
		return nil, err
	}
	m := &memory{note: note}
	for i, row := range rows {
		one := memoryRow{name: row[0]}
		for at, to := range map[int]*float64{1: &one.tensors, 2: &one.process} {
			if *to, err = strconv.ParseFloat(row[at], 64); err != nil || *to < 0 {
				return nil, fmt.Errorf("%s.tsv, row %d: %s is %q: want MB", name, i+1, memoryHeading[at], row[at])
			}
		}
		m.rows = append(m.rows, one)
	}
	return m, nil
}
