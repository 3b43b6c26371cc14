// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// mostTicks is how many columns of time a drawing has at most.
const mostTicks = 4096

// Text draws the step for a terminal of a number of columns: a row for each rank, a column for each tick. A tick is the
// time of the shortest pass. A pass is drawn as its action, without the stage where each rank has only one, with dashes
// over its further ticks; a dot is an idle tick. A step that is longer than the lines are continues below.
func (s *Simulation) Text(columns int) string {
	grid, width := s.grid()
	head := len("rank ") + len(strconv.Itoa(len(grid)-1)) + len(" ")
	fit := max((columns-head)/width, 1)
	var out strings.Builder
	for from := 0; from < len(grid[0]); from += fit {
		if from > 0 {
			out.WriteByte('\n')
		}
		for r, row := range grid {
			fmt.Fprintf(&out, "rank %-*d", head-len("rank "), r)
			line := ""
			for _, cell := range row[from:min(from+fit, len(row))] {
				line += cell + strings.Repeat(" ", max(width-len(cell), 0))
			}
			out.WriteString(strings.TrimRight(line, " "))
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// Bars draws the step in so many columns, however long it is: a row for each rank, and in each column the pass that
// takes most of its time, or a dot where the rank is idle for most of it.
func (s *Simulation) Bars(columns int) string {
	head := len("rank ") + len(strconv.Itoa(len(s.Timeline)-1)) + len(" ")
	cells := max(columns-head, 1)
	var out strings.Builder
	for r, spans := range s.Timeline {
		fmt.Fprintf(&out, "rank %-*d", head-len("rank "), r)
		shares := make([][ops]float64, cells)
		for i, a := range s.Schedule.Ranks[r] {
			if a.Op.Computes() && spans[i].End > spans[i].Start {
				s.share(shares, a.Op, spans[i])
			}
		}
		for _, share := range shares {
			best := Idle
			for op := F; op <= B; op++ {
				if share[op] > share[best] {
					best = op
				}
			}
			out.WriteString(map[bool]string{true: ".", false: best.String()}[best == Idle])
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// share adds a span to the columns that it touches. What is left of a column is idle.
func (s *Simulation) share(columns [][ops]float64, op Op, span Span) {
	width := s.Time / float64(len(columns))
	for i := int(span.Start / width); i < len(columns) && float64(i)*width < span.End; i++ {
		part := min(span.End, float64(i+1)*width) - max(span.Start, float64(i)*width)
		columns[i][op] += part
		if columns[i][Idle] == 0 {
			columns[i][Idle] = width
		}
		columns[i][Idle] -= part
	}
}

// grid are the cells of the ranks, and how wide they are with the blank between them.
func (s *Simulation) grid() (rows [][]string, width int) {
	tick := s.tick()
	ticks := int(math.Round(s.Time / tick))
	rows = make([][]string, len(s.Timeline))
	width = len(".") + 1
	for r, spans := range s.Timeline {
		row := make([]string, max(ticks, 1))
		for i := range row {
			row[i] = "."
		}
		for i, a := range s.Schedule.Ranks[r] {
			if !a.Op.Computes() {
				continue
			}
			from, to := int(math.Round(spans[i].Start/tick)), int(math.Round(spans[i].End/tick))
			label := s.label(a)
			for at := from; at < min(to, len(row)); at++ {
				row[at] = label
				label = strings.Repeat("-", len(label))
			}
			width = max(width, len(label)+1)
		}
		rows[r] = row
	}
	return rows, width
}

// tick is the time that a column stands for.
func (s *Simulation) tick() float64 {
	tick := s.Time
	for r, spans := range s.Timeline {
		for i, span := range spans {
			if d := span.End - span.Start; d > 0 && s.Schedule.Ranks[r][i].Op.Computes() {
				tick = min(tick, d)
			}
		}
	}
	if tick = max(tick, s.Time/mostTicks); tick == 0 {
		return 1 // nothing takes any time
	}
	return tick
}

// label is a pass as a drawing shows it.
func (s *Simulation) label(a Action) string {
	if s.Schedule.Stages() > len(s.Schedule.Ranks) {
		return a.String()
	}
	return a.Op.String() + strconv.Itoa(a.MicroBatch)
}
